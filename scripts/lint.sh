#!/usr/bin/env bash
# Formats and static checks, without changing a file. clang-tidy takes most of the time, so it looks at the sources (no
# tests, no benchmarks) that differ from $LINT_BASE (default: origin/main, or the commit before when there is no
# difference); TIDY=all takes all.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0

git ls-files '*.h' '*.cc' | xargs -r clang-format-16 --dry-run -Werror || status=1
.venv/bin/ruff check --quiet . || status=1
.venv/bin/ruff format --check --quiet . || { echo "ruff format would change files: run make format" >&2; status=1; }

changed_sources() {
  if [ "${TIDY:-changed}" = all ]; then
    git ls-files 'src/*.cc'
    return
  fi
  local base=${LINT_BASE:-origin/main}
  git rev-parse -q --verify "$base" >/dev/null || base=HEAD~1
  git diff --quiet "$base" -- src 2>/dev/null && base=HEAD~1
  git diff --name-only --diff-filter=d "$base" -- 'src/*.cc' 2>/dev/null
}

if [ -f build/compile_commands.json ]; then
  mapfile -t sources < <(changed_sources | grep -vE '_(test|benchmark)\.cc$')
  if [ ${#sources[@]} -gt 0 ]; then
    echo "clang-tidy: ${#sources[@]} sources"
    printf '%s\n' "${sources[@]}" |
      xargs -P "${JOBS:-$(nproc)}" -n 1 clang-tidy-16 -p build --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null || status=1
  fi
else
  echo "clang-tidy left out: run make build first" >&2
  status=1
fi
exit $status
