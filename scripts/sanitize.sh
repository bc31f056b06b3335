#!/usr/bin/env bash
# Builds the unit tests under a sanitizer and runs them: scripts/sanitize.sh address|thread BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=$1 dir=$2

if [ ! -f "$dir/build.ninja" ]; then
  cmake -S . -B "$dir" -G Ninja -DPARKWAY_SANITIZER="$sanitizer" -DPARKWAY_PYTHON="$PWD/.venv/bin/python" >/dev/null
fi
# The tests that have no gRPC and no Python in them: Debian's and PyPI's builds of those are not instrumented.
targets=(base_test ifrt_test ifrt_wire_test runtime_test fabric_test engine_host_test)
tests="^($(IFS='|' && echo "${targets[*]}"))\$"
nice cmake --build "$dir" -j "${JOBS:-$(nproc)}" --target "${targets[@]}"
mkdir -p "$dir/reports/gtest"
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp second_deadlock_stack=1"
GTEST_OUTPUT="xml:$PWD/$dir/reports/gtest/" ctest --test-dir "$dir" -L unit -R "$tests" --output-on-failure --no-tests=error \
  -j "${JOBS:-$(nproc)}" --output-junit "$PWD/$dir/reports/unit.xml"
