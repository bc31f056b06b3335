"""Checks of stock JAX on a cluster of 2 slices x 1 host x 2 devices. They run inside a client's process:

parkway run -- python -m pytest tests/cluster/stock/arrays.py

The same process has a local CPU backend beside the cluster's, for results to compare with.
"""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

jax.config.update("jax_platforms", "proxy,cpu")


@pytest.fixture(scope="session")
def devices():
    found = jax.devices()
    assert len(found) == 4 and found[0].client.runtime_type == "proxy/pathways"
    return found


@pytest.fixture(scope="session")
def line(devices) -> Mesh:
    """All four devices in a row."""
    return Mesh(np.array(devices), ("x",))


@pytest.fixture(scope="session")
def grid(devices) -> Mesh:
    """Slices x devices of a slice."""
    return Mesh(np.array(devices).reshape(2, 2), ("slice", "device"))


@pytest.fixture(scope="session")
def local():
    """Runs a function on local JAX: local(f, *arguments) with numpy arguments."""
    cpu = jax.local_devices(backend="cpu")[0]

    def run(function, *arguments):
        with jax.default_device(cpu):
            return jax.tree.map(np.asarray, jax.jit(function)(*arguments))

    return run
