"""What a client of any supported JAX version must compute on a cluster, checked against numpy and its own local CPU.

Runs inside the client's process, with any of the versions; prints one line of JSON at the end.
"""

import json
import sys
import time

import jax

if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 12):
    import pathwaysutils  # it registers the backend that 0.12 brings itself

    pathwaysutils.initialize()

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "proxy,cpu")
DEVICES = jax.devices("proxy")
COUNT = len(DEVICES)
LINE = Mesh(np.array(DEVICES), ("x",))
ROWS, WHOLE = NamedSharding(LINE, P("x")), NamedSharding(LINE, P())
RANDOM = np.random.default_rng(int(sys.argv[1]))


def close(got, expected, rtol=1e-5, atol=1e-5):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=rtol, atol=atol)


def all_devices():
    host = RANDOM.normal(size=(4 * COUNT, 2 * COUNT)).astype(np.float32)
    array = jax.device_put(host, ROWS)
    product, mean, turned = jax.jit(lambda a: (a @ a.T, a.mean(), a.T), out_shardings=(ROWS, WHOLE, ROWS))(array)
    close(product, host @ host.T, 1e-4, 1e-4)
    close(mean, host.mean())
    close(turned, host.T)
    for _ in range(20):
        array = jax.jit(lambda a: a - a.mean(0), out_shardings=ROWS)(array)
    close(array, host - host.mean(0), 1e-4)


def collectives():
    host = RANDOM.integers(-50, 50, (2 * COUNT, 3)).astype(np.float32)
    blocks = host.reshape(COUNT, 2, 3)
    ring = [(i, (i + 1) % COUNT) for i in range(COUNT)]

    def body(a):
        tall = jnp.tile(a, (COUNT, 1))
        return (
            lax.psum(a, "x"),
            lax.pmax(a, "x"),
            lax.all_gather(a, "x", tiled=True),
            lax.ppermute(a, "x", ring),
            lax.psum_scatter(tall, "x", tiled=True),
            lax.all_to_all(tall, "x", 0, 0, tiled=True),
        )

    out = (P(), P(), P(), P("x"), P("x"), P("x"))
    program = jax.jit(jax.shard_map(body, mesh=LINE, in_specs=P("x"), out_specs=out, check_vma=False))
    got = program(jax.device_put(host, ROWS))
    expected = (
        blocks.sum(0),
        blocks.max(0),
        host,
        np.roll(host, 2, 0),
        np.tile(blocks.sum(0), (COUNT, 1)),
        np.tile(host, (COUNT, 1)),
    )
    for one, want in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), want)


def linear_algebra():
    batch = RANDOM.normal(size=(2 * COUNT, 5, 5)).astype(np.float32)
    definite = batch @ batch.transpose(0, 2, 1) + 5 * np.eye(5, dtype=np.float32)
    one, many = jax.device_put(definite[0], DEVICES[-1]), jax.device_put(definite, ROWS)

    def decompose(a):
        values, vectors = jnp.linalg.eigh(a)
        u, s, v = jnp.linalg.svd(a)
        q, r = jnp.linalg.qr(a)
        lower = jnp.linalg.cholesky(a)
        solved = jnp.linalg.solve(a, jnp.ones_like(a))
        return {
            "eigh": (vectors * values[..., None, :]) @ jnp.swapaxes(vectors, -1, -2),
            "svd": (u * s[..., None, :]) @ v,
            "qr": q @ r,
            "cholesky": lower @ jnp.swapaxes(lower, -1, -2),
            "solve": a @ solved,
            "inv": a @ jnp.linalg.inv(a),
            "values": values,
            "det": jnp.linalg.slogdet(a)[1],
        }

    for array, host in ((one, definite[0]), (many, definite)):
        got = jax.device_get(jax.jit(decompose)(array))
        for name in ("eigh", "svd", "qr", "cholesky"):
            close(got[name], host, 1e-3, 1e-3)
        close(got["solve"], np.ones_like(host), 1e-3, 1e-3)
        close(got["inv"], np.broadcast_to(np.eye(5), host.shape), 1e-3, 1e-3)
        close(got["values"], np.linalg.eigvalsh(host), 1e-3, 1e-3)
        close(got["det"], np.linalg.slogdet(host)[1], 1e-3, 1e-3)


def donation():
    host = np.arange(64 * COUNT, dtype=np.float32)
    for sharding in (ROWS, jax.sharding.SingleDeviceSharding(DEVICES[0])):
        array = jax.device_put(host, sharding)
        step = jax.jit(lambda a: a + 1, donate_argnums=0)
        for _ in range(30):
            before, array = array, step(array)
        assert before.is_deleted()
        close(array, host + 30)


def random_numbers():
    def draw(seed):
        key = jax.random.key(seed)
        return jax.random.bits(key, (9,)), jax.random.normal(key, (4,)), jax.random.permutation(key, 20)

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        expected = jax.device_get(jax.jit(draw)(7))
    with jax.default_device(DEVICES[-1]):
        got = jax.device_get(jax.jit(draw)(7))
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[2], expected[2])
    close(got[1], expected[1])
    keys = jax.device_put(jax.random.split(jax.random.key(1), 2 * COUNT), ROWS)
    assert len(set(np.asarray(jax.jit(jax.vmap(jax.random.uniform))(keys)).tolist())) == 2 * COUNT


def arrays():
    host = RANDOM.integers(0, 99, (2 * COUNT, 3), dtype=np.int32)
    array = jax.device_put(host, ROWS)
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), host[shard.index])
    moved = jax.device_put(jax.device_put(array, DEVICES[0]), WHOLE)
    array.delete()
    np.testing.assert_array_equal(np.asarray(moved), host)
    np.testing.assert_array_equal(np.asarray(jax.device_put(host.T, DEVICES[-1])), host.T)
    for name in ("bool", "int8", "uint16", "bfloat16", "complex64", "int4"):
        small = (host % 2).astype(jnp.dtype(name))
        np.testing.assert_array_equal(np.asarray(jax.device_put(small, DEVICES[0])), small)
    with jax.default_device(DEVICES[0]):
        exported = jax.export.export(jax.jit(lambda a: jnp.sin(a) * 2))(jax.ShapeDtypeStruct((5,), np.float32))
        close(exported.call(np.ones(5, np.float32)), np.sin(np.ones(5)) * 2)


def errors():
    array = jax.device_put(np.ones(4, np.float32), DEVICES[0])
    array.delete()
    try:
        np.asarray(array)
    except RuntimeError as error:
        assert "deleted" in str(error)
    else:
        raise AssertionError("a deleted array was read")


CHECKS = {
    "all": (all_devices, collectives, linear_algebra, donation, random_numbers, arrays, errors),
    "some": (collectives, donation, arrays, errors),
}
deadline = time.monotonic() + float(sys.argv[2])
rounds = 0
while True:
    for check in CHECKS[sys.argv[3]]:
        check()
    rounds += 1
    if time.monotonic() > deadline:
        break
print(json.dumps({"jax": jax.__version__, "rounds": rounds, "devices": COUNT}))
