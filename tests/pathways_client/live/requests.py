"""What a server says to plugin programs that it can't serve, and that the session goes on."""

import base64
import json

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from pathwaysutils.plugin_executable import PluginExecutable

XlaRuntimeError = jax.errors.JaxRuntimeError


def entry(ids, sharding=b"", **more):
    return {"devices": {"device_ids": ids}, "xla_hlo_sharding": base64.b64encode(sharding).decode(), **more}


def reshard(source, target, **more):
    return {"reshardRequest": {"donateInput": False, "inSharding": [source], "outSharding": [target], **more}}


BAD = {
    "no JSON": "this is not json",
    "unknown request": {"printTextRequest": {"badParamName": "foo"}},
    "unknown field": reshard(entry([0]), entry([1]), colour="red"),
    "field of another type": reshard(entry([0]), entry("1")),
    "no such device": reshard(entry([0]), entry([99])),
    "a device twice": reshard(entry([1, 1]), entry([0])),
    "no such memory": reshard(entry([0]), entry([1], memory_kind="tape")),
    "no OpSharding": reshard(entry([0]), entry([1], b"\xff\xff")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_programs(devices, what):
    text = BAD[what] if isinstance(BAD[what], str) else json.dumps(BAD[what])
    with pytest.raises(XlaRuntimeError, match="INVALID_ARGUMENT.*Bad PluginProgram"):
        PluginExecutable(text)
    assert int(jax.numpy.ones(3).sum()) == 3


@pytest.mark.parametrize("kind", ["profileRequest", "bulk_persistence_write_request"])
def test_what_is_not_there_is_unimplemented(devices, kind):
    with pytest.raises(XlaRuntimeError, match="UNIMPLEMENTED.*Parkway"):
        PluginExecutable(json.dumps({kind: {}}))


def test_an_argument_that_lies_elsewhere(devices):
    program = PluginExecutable(json.dumps(reshard(entry([0]), entry([1]))))
    target = SingleDeviceSharding(devices[1])
    array = jax.device_put(np.arange(4.0), devices[2])
    with pytest.raises(XlaRuntimeError, match=r"INVALID_ARGUMENT.*argument 0 \(f32\[4\]\) lies on devices \[2\]"):
        program.call([array], [target], [array.aval])
    good = jax.device_put(np.arange(4.0), devices[0])
    (moved,), future = program.call([good], [target], [good.aval])
    future.result()
    np.testing.assert_array_equal(np.asarray(moved), np.arange(4.0))
