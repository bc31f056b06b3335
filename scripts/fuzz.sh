#!/usr/bin/env bash
# Builds the fuzzers with clang under ASan and UBSan and runs each on its corpus and beyond: scripts/fuzz.sh SECONDS
# BUILD_DIR [TARGET...]. SECONDS of wall time are for all of them together, JOBS at a time. An input that was found to
# break something is left in BUILD_DIR/findings, and the exit status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1 dir=$2
shift 2
python=${PARKWAY_PYTHON:-$PWD/.venv/bin/python}

if [ ! -f "$dir/build.ninja" ]; then
  cmake -S . -B "$dir" -G Ninja -DPARKWAY_FUZZ=ON -DPARKWAY_SANITIZER=address -DPARKWAY_PYTHON="$python" \
    -DCMAKE_C_COMPILER="$(command -v clang-16 || command -v clang)" \
    -DCMAKE_CXX_COMPILER="$(command -v clang++-16 || command -v clang++)" >/dev/null
fi
jobs=${JOBS:-$(nproc)}
nice cmake --build "$dir" -j "$jobs" --target fuzzers
dir=$(realpath "$dir")

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for target in "$dir"/tests/fuzz/*_fuzz; do targets+=("$(basename "$target")"); done
fi
export each=$((seconds * jobs / ${#targets[@]}))
[ "$each" -gt 0 ] || each=1
export dir
export ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1

run() {
  local name=$1 log=$dir/logs/$1.log status=0
  mkdir -p "$dir/corpus/$name" "$dir/findings" "$dir/logs"
  nice "$dir/tests/fuzz/$name" -max_total_time="$each" -timeout=30 -rss_limit_mb=4096 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$dir/findings/$name-" "$dir/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 || status=1
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -1)
  found=$(find "$dir/corpus/$name" -type f | wc -l)
  echo "$name: ${executions:-0} executions in $each s, ${coverage:-cov: 0}, corpus $found inputs"
  if [ $status -ne 0 ]; then
    echo "$name: FINDING, see $log" >&2
    tail -40 "$log" >&2
  fi
  return $status
}
export -f run
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'run {}'
