#!/usr/bin/env bash
# From a fresh clone to .venv/bin/parkway and .venv/bin/python: system packages, virtual environment, build, install.
# Each step is left out when it has nothing to do, so that a second run takes a second or two.
#   scripts/setup.sh [--no-build]      JOBS=n limits the compile jobs, PYTHON=... chooses the Python
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

packages="build-essential cmake ninja-build ccache mold pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev libasio-dev libgoogle-glog-dev
  libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev libsqlite3-dev libzstd-dev libxxhash-dev nlohmann-json3-dev
  clang-16 libclang-rt-16-dev clang-format-16 clang-tidy-16"

install_system_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "This is no Debian or Ubuntu: the build takes the libraries that it finds. It wants these (Debian's names):" >&2
    echo "$packages" >&2
    return
  fi
  local missing=() p
  for p in $packages; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "These packages are missing, and this user can't install them. Run as root:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      exit 1
    fi
    sudo=(sudo)
  fi
  echo "installing system packages: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

make_virtual_environment() {
  local stamp=.venv/.requirements
  if [ -x .venv/bin/python ] && cmp -s requirements.txt "$stamp" && .venv/bin/python -c pass 2>/dev/null; then
    return
  fi
  local python
  python=$(scripts/find_python.sh)
  if ! { [ -x .venv/bin/python ] && .venv/bin/python -c pass 2>/dev/null; }; then
    rm -rf .venv
    echo "making .venv with $("$python" --version) ($python)"
    "$python" -m venv .venv
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
  # `import parkway` takes this checkout's package.
  echo "$root/python" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/parkway.pth"
  cp requirements.txt "$stamp"
}

build_and_install() {
  if [ ! -f build/build.ninja ]; then
    cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPARKWAY_PYTHON="$root/.venv/bin/python" >/dev/null
  fi
  nice cmake --build build -j "${JOBS:-$(nproc)}"
  cmake --install build --prefix .venv >/dev/null
}

install_system_packages
make_virtual_environment
[ "${1:-}" = --no-build ] || build_and_install
