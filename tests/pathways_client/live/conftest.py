"""Checks of pathwaysutils on a cluster of 2 slices x 1 host x 2 devices. They run inside a client's process, one of an
environment with that package in it."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh


@pytest.fixture(scope="session")
def devices():
    import pathwaysutils  # which the process that collects this directory hasn't

    pathwaysutils.initialize()
    found = jax.devices()
    assert len(found) == 4 and found[0].client.runtime_type == "proxy/pathways"
    return found


@pytest.fixture(scope="session")
def mesh(devices):
    """mesh(n, axis names, shape, first device): n devices in a row, or in that shape."""

    def make(count, names=("x",), shape=None, first=0) -> Mesh:
        return Mesh(np.array(devices[first : first + count]).reshape(shape or (count,)), names)

    return make
