"""Virtual environments for clients of other versions than the one in .venv, kept in the user's cache and made when absent.

They lie in ${XDG_CACHE_HOME:-~/.cache}/parkway/venvs, one for each set of requirements, and are shared by all checkouts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path


def python_with(*requirements: str) -> Path:
    """The python of an environment with these packages ("jax==0.11.2") from PyPI, of this process's Python version.

    Processes that want the same one at once make it once; one that died half way is made anew. Raises RuntimeError with
    pip's words when a package can't be installed.
    """
    wanted = "\n".join(sorted(requirements)) + "\n"
    key = hashlib.sha256(f"{sys.version}\n{wanted}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parkway" / "venvs"
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / key
    python, complete = home / "bin" / "python", home / "requirements.txt"
    with open(cache / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the process
        if not complete.exists():
            print(f"making {home} with {', '.join(sorted(requirements))}", file=sys.stderr, flush=True)
            run([sys.executable, "-m", "venv", "--clear", str(home)])
            run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
            complete.write_text(wanted)
    return python


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}")
