#include "engine/python_embed.h"

#include <signal.h>

#include <thread>

#include "gtest/gtest.h"

namespace parkway::engine {
namespace {

TEST(StatusOfXlaText, KeepsCodeAndText) {
  EXPECT_EQ(StatusOfXlaText("RESOURCE_EXHAUSTED: no room"), absl::ResourceExhaustedError("no room"));
  EXPECT_EQ(StatusOfXlaText("something else: no room"), absl::UnknownError("something else: no room"));
  EXPECT_EQ(StatusOfXlaText(""), absl::UnknownError(""));
}

TEST(StatusOfXlaText, NothingPassesForALostSlice) {
  EXPECT_EQ(StatusOfXlaText("NOT_FOUND: no target"), absl::FailedPreconditionError("no target"));
  EXPECT_EQ(StatusOfXlaText("ABORTED: because of INTERNAL: x"),
            absl::AbortedError("because of FAILED_PRECONDITION: x"));
}

TEST(PythonEmbed, RunsTheEnvironmentsJaxlibAndLeavesSignalsAlone) {
  signal(SIGINT, SIG_IGN);
  ASSERT_TRUE(StartPython().ok()) << StartPython();
  EXPECT_EQ(signal(SIGINT, SIG_IGN), SIG_IGN);
  Gil gil;
  auto jaxlib = ImportPython("jaxlib");
  ASSERT_TRUE(jaxlib.ok()) << jaxlib.status();
  auto version = PythonAttribute(jaxlib->get(), "__version__");
  ASSERT_TRUE(version.ok());
  EXPECT_FALSE(PythonString(version->get())->empty());
}

TEST(PythonEmbed, ErrorsBecomeStatuses) {
  ASSERT_TRUE(StartPython().ok());
  Gil gil;
  absl::Status missing = ImportPython("no_such_module").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnknown);
  EXPECT_NE(missing.message().find("no_such_module"), absl::string_view::npos) << missing;
  PyErr_SetString(PyExc_ValueError, "bad");
  EXPECT_EQ(TakePythonError(), absl::InvalidArgumentError("ValueError: bad"));
  PyErr_SetString(PyExc_RuntimeError, "RESOURCE_EXHAUSTED: full");
  EXPECT_EQ(TakePythonError(), absl::ResourceExhaustedError("full"));
  EXPECT_EQ(PyErr_Occurred(), nullptr);
  PyRef number(PyLong_FromLong(3));
  EXPECT_FALSE(PythonString(number.get()).ok());
}

TEST(PythonEmbed, OtherThreadsGetTheGil) {
  ASSERT_TRUE(StartPython().ok());
  Gil gil;
  bool ran = false;
  GilRelease release;
  std::thread([&] {
    Gil inner;
    ran = static_cast<bool>(PyRef(PyLong_FromLong(1)));
  }).join();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace parkway::engine
