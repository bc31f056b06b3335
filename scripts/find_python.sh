#!/usr/bin/env bash
# Prints the path of a Python that engines can embed: CPython 3.12 to 3.14 with a shared libpython, its headers and venv.
# $PYTHON is tried first and alone. Exit status 1, and words on what to install, when there is none.
set -u

usable() {
  "$1" - <<'PY' 2>/dev/null
import os, sys, sysconfig
import ensurepip, venv  # noqa: F401  (a Debian python3 may come without them)
get = sysconfig.get_config_var
shared = os.path.exists(os.path.join(get("LIBDIR") or "", get("LDLIBRARY") or "")) and ".so" in (get("LDLIBRARY") or "")
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
plain = not get("Py_GIL_DISABLED") and sys.implementation.name == "cpython"
sys.exit(0 if (3, 12) <= sys.version_info < (3, 15) and shared and headers and plain else 1)
PY
}

if [ -n "${PYTHON:-}" ]; then
  if usable "$PYTHON"; then
    command -v "$PYTHON"
    exit 0
  fi
  echo "PYTHON=$PYTHON is no CPython 3.12 to 3.14 with a shared libpython (libpython3.*.so) and headers." >&2
  exit 1
fi

shopt -s nullglob
for minor in 12 13 14; do
  for candidate in $(type -ap "python3.$minor") "$HOME/.pyenv/versions/3.$minor".*/bin/python /opt/*/bin/python3."$minor"; do
    if usable "$candidate"; then
      echo "$candidate"
      exit 0
    fi
  done
done

cat >&2 <<'TXT'
No CPython 3.12 to 3.14 with a shared libpython was found (looked on PATH, in ~/.pyenv/versions and /opt).
Parkway's engines embed one. Install it in one of these ways, then run make again:
  Ubuntu 24.04, Debian 13:   apt-get install python3-dev python3-venv
  pyenv, on any system:      PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install 3.12
  one that lies elsewhere:   make PYTHON=/path/to/python3.12
TXT
exit 1
