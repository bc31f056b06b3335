// The compiler role alone, for tests: compiler_role_main [--xla_name=value ...] --fd=N.
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/compiler/role.h"

int main(int argc, char** argv) {
  const std::string last = argv[argc - 1];
  if (argc < 2 || last.rfind("--fd=", 0) != 0) return 2;
  std::vector<std::string> xla_flags;
  for (int i = 1; i < argc - 1; ++i) xla_flags.emplace_back(argv[i] + 2);
  return parkway::compiler::RunCompilerRole(std::atoi(last.c_str() + 5), xla_flags);
}
