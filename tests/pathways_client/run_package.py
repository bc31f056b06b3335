"""Runs one of pathwaysutils' own test files, such as experimental/reshard_test, with the cluster's devices as JAX's.

The package's tests mock the server or want JAX's CPU backend; what says so is taken out. A copy in the working directory
is what runs.
"""

import importlib.util
import runpy
import sys
from pathlib import Path

import pathwaysutils

ONLY_CPU = 'jax.config.update("jax_platforms", "cpu")'

name = sys.argv[1]
package = Path(importlib.util.find_spec("pathwaysutils").origin).parent
copy = Path(f"copy_of_{name.replace('/', '_')}.py")
text = (package / "test" / f"{name}.py").read_text()
copy.write_text("".join(line for line in text.splitlines(keepends=True) if ONLY_CPU not in line))

pathwaysutils.initialize()
if name != "proxy_backend_test":  # which makes its own backends
    import jax

    assert "proxy" in jax.devices()[0].client.runtime_type, jax.devices()
sys.argv = [str(copy)]
runpy.run_path(str(copy), run_name="__main__")
