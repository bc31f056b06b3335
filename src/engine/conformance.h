// What every engine::Engine holds to, as tests. A test program lists conformance.cc among its sources, makes an
// EngineCase and instantiates the suite:
//
//   INSTANTIATE_TEST_SUITE_P(Sim, EngineConformance, testing::Values(SimCase()));
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace parkway::engine {

struct TestProgram {
  std::string executable;
  std::string compile_options;
  std::vector<Type> parameters, outputs;  // of one shard
};

struct EngineCase {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Engine>>(int devices)> make;
  // The programs of make_conformance_programs.py by name.
  std::function<absl::StatusOr<TestProgram>(const std::string& name)> program;
  bool computes = true;        // false: outputs have their types and no meaning
  std::function<void()> pump;  // lets a simulated engine run; called again and again while a test waits. May be null.
};
inline void PrintTo(const EngineCase& engine, std::ostream* out) { *out << engine.name; }

// Programs that make_conformance_programs.py wrote into `directory`.
absl::StatusOr<TestProgram> ReadTestProgram(const std::string& directory, const std::string& name);

// The engine under test with calls that wait.
class Driver {
 public:
  Driver(const EngineCase& engine_case, int devices);

  Engine& engine() { return *engine_; }
  void Destroy() { engine_.reset(); }
  // Waits until `finished`; false after a minute.
  bool WaitFor(const std::function<bool()>& finished);

  absl::StatusOr<ExecutableRef> Load(const std::string& program, std::vector<int> local_devices,
                                     ContextRef context = nullptr, std::vector<int> device_ids = {});
  // The same values on each device.
  ArrayRef Floats(const std::vector<float>& values, std::vector<int> devices = {0});
  ArrayRef Make(const Type& type, const std::string& bytes, std::vector<int> devices = {0});
  absl::StatusOr<std::string> Read(const ArrayRef& array, int device = 0);
  std::vector<float> ReadFloats(const ArrayRef& array, int device = 0);
  // Launches and waits for the end.
  absl::StatusOr<std::vector<ArrayRef>> Run(const ExecutableRef& executable, const std::vector<ArrayRef>& arguments,
                                            const std::vector<int>& donated = {});

 private:
  const EngineCase& case_;
  std::unique_ptr<Engine> engine_;
};

class EngineConformance : public testing::TestWithParam<EngineCase> {};

}  // namespace parkway::engine
