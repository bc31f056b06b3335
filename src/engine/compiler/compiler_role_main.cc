// The compiler role alone, for tests: compiler_role_main --fd=N.
#include <cstdlib>
#include <string>

#include "engine/compiler/role.h"

int main(int argc, char** argv) {
  const std::string last = argv[argc - 1];
  if (argc < 2 || last.rfind("--fd=", 0) != 0) return 2;
  return parkway::compiler::RunCompilerRole(std::atoi(last.c_str() + 5));
}
