"""What a stock JAX client feels, measured inside that client. Works the same on a Parkway cluster, on the null proxy, on
local JAX, and in each process of multi-process JAX.

Each function takes how often to repeat and returns its figures by name: times in microseconds, rates in GB/s. What it
needs is made and compiled at its first call, so that later calls of the same process measure at once.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P
from sizes import BIG, MANY

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

Figures = dict[str, float]

WARM = 5
MLP_WIDTH, MLP_BATCH, MLP_LAYERS = 512, 64, 4


def timed(call: Callable[[], Any], times: int, warm: int = WARM) -> Figures:
    """Median and 99th percentile of a call."""
    for _ in range(warm):
        call()
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append((time.perf_counter() - start) * 1e6)
    took.sort()
    return {"p50": took[len(took) // 2], "p99": took[min(len(took) - 1, int(len(took) * 0.99))]}


def chained(call: Callable[[Any], Any], value: Any, times: int) -> tuple[Figures, Any]:
    """A chain of dependent calls: time per call until all are dispatched, and until the last has its result."""
    for _ in range(WARM):
        value = call(value)
    jax.block_until_ready(value)
    start = time.perf_counter()
    for _ in range(times):
        value = call(value)
    dispatched = time.perf_counter()
    jax.block_until_ready(value)
    done = time.perf_counter()
    return {"dispatch": (dispatched - start) / times * 1e6, "whole": (done - start) / times * 1e6}, value


def place(value: np.ndarray, sharding: Sharding) -> jax.Array:
    """A host array on devices; in multi-process JAX each process gives its own part."""
    if jax.process_count() == 1:
        return jax.device_put(value, sharding)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


@cache
def increment() -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: x + 1)


@cache
def small(count: int) -> jax.Array:
    """float32 zeros on the first device."""
    return jax.device_put(np.zeros(count, np.float32), jax.devices()[0])


@cache
def large_on_host() -> np.ndarray:
    return np.random.default_rng(0).random((BIG // 4,), np.float32)


@cache
def large() -> jax.Array:
    return jax.device_put(large_on_host(), jax.devices()[0])


@cache
def all_devices() -> Mesh:
    return Mesh(np.array(jax.devices()), ("x",))


def rate_of(seconds: list[float], size: int = BIG) -> Figures:
    return {"rate": size / statistics.median(seconds) / 1e9}


def execute_and_block(times: int) -> Figures:
    f, x = increment(), small(256)
    return timed(lambda: f(x).block_until_ready(), times)


def execute_and_read(times: int, size: int) -> Figures:
    """A program and its result of `size` bytes on the client: the step of a decode loop."""
    f, x = increment(), small(size // 4)
    return timed(lambda: np.asarray(f(x)), times)


def chain(times: int) -> Figures:
    return chained(increment(), small(256), times)[0]


def many_arguments(times: int) -> Figures:
    f, values = _many()
    return timed(lambda: jax.block_until_ready(f(*values)), times)


@cache
def _many() -> tuple[Callable, list[jax.Array]]:
    values = [jax.device_put(np.zeros(4, np.float32), jax.devices()[0]) for _ in range(MANY)]
    return jax.jit(lambda *v: [x + 1 for x in v]), values


def all_reduce(times: int) -> Figures:
    f, value = _all_reduce()
    return chained(f, value, times)[0]


@cache
def _all_reduce() -> tuple[Callable, jax.Array]:
    sharding = NamedSharding(all_devices(), P("x"))
    value = place(np.zeros(len(jax.devices()) * 8, np.float32), sharding)
    return jax.jit(lambda a: a + jnp.sum(a), out_shardings=sharding), value


def _mlp_loss(parameters: list[jax.Array], batch: jax.Array) -> jax.Array:
    hidden = batch
    for weights in parameters:
        hidden = jnp.tanh(hidden @ weights)
    return jnp.mean((hidden - batch) ** 2)


@cache
def _mlp() -> tuple[Callable, list[jax.Array], jax.Array]:
    mesh, random = all_devices(), np.random.default_rng(1)
    shape = (MLP_WIDTH, MLP_WIDTH)
    weights = [random.standard_normal(shape, np.float32) * 0.05 for _ in range(MLP_LAYERS)]
    batch = random.random((MLP_BATCH * len(jax.devices()), MLP_WIDTH), np.float32)

    @jax.jit
    def step(parameters: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        loss, gradients = jax.value_and_grad(_mlp_loss)(parameters, batch)
        return [w - 0.1 * g for w, g in zip(parameters, gradients, strict=True)], loss

    replicated = NamedSharding(mesh, P())
    return step, [place(w, replicated) for w in weights], place(batch, NamedSharding(mesh, P("x", None)))


def train_mlp(times: int) -> Figures:
    """A step of a data-parallel perceptron over all devices, and the loss after so many."""
    step, parameters, batch = _mlp()
    figures, (_, loss) = chained(lambda state: step(state[0], batch), (parameters, None), times)
    return {"step": figures["whole"], "loss": float(loss)}


@cache
def _transformer() -> tuple[Callable, Callable, Callable]:
    import optax
    import train_transformer as example
    from slices import slice_mesh

    mesh, text = slice_mesh(), example.load_text()
    optimizer = optax.adamw(1e-3)

    def initialize() -> tuple:
        parameters = example.init_parameters(jax.random.key(0))
        return parameters, optimizer.init(parameters)

    shardings = example.shardings_of(jax.eval_shape(initialize), mesh)
    batch_sharding = NamedSharding(mesh, P(("slice", "device")))

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
    def step(state: tuple, tokens: jax.Array) -> tuple:
        parameters, optimizer_state = state
        loss, gradients = jax.value_and_grad(example.loss_of)(parameters, tokens)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
        return (optax.apply_updates(parameters, updates), optimizer_state), loss

    def batch(random: np.random.Generator) -> jax.Array:
        starts = random.integers(0, len(text) - example.CONTEXT - 1, example.BATCH)
        tokens = text[starts[:, None] + np.arange(example.CONTEXT + 1)].astype(np.int32)
        return place(tokens, batch_sharding)

    return jax.jit(initialize, out_shardings=shardings), step, batch


def train_transformer(times: int) -> Figures:
    """A step of examples/train_transformer.py, its batch sent by the client, and the loss after so many."""
    initialize, step, batch = _transformer()
    random = np.random.default_rng(0)
    start = (initialize(), None)
    figures, (_, loss) = chained(lambda state: step(state[0], batch(random)), start, times)
    return {"step": figures["whole"], "loss": float(loss)}


def put(times: int) -> Figures:
    value, device = large_on_host(), jax.devices()[0]
    took = []
    for _ in range(times + 1):  # the first finds pages and connections cold
        start = time.perf_counter()
        jax.device_put(value, device).block_until_ready()
        took.append(time.perf_counter() - start)
    return rate_of(took[1:])


def read(times: int) -> Figures:
    f, x = increment(), large()
    took = []
    for _ in range(times + 1):
        result = f(x).block_until_ready()  # new each time: JAX keeps what it has read
        start = time.perf_counter()
        np.asarray(result)
        took.append(time.perf_counter() - start)
    return rate_of(took[1:])


def copy(times: int) -> Figures:
    """From the first host's device to one of the last."""
    x, to = large().block_until_ready(), jax.devices()[-1]
    took = []
    for _ in range(times + 1):
        start = time.perf_counter()
        jax.device_put(x, to).block_until_ready()
        took.append(time.perf_counter() - start)
    return rate_of(took[1:])


def traffic(times: int) -> Figures:
    """Sends `times` large arrays and reads each of them back; bytes each way."""
    value, device = large_on_host(), jax.devices()[0]
    for _ in range(times):
        got = np.asarray(jax.device_put(value, device))
        assert got[0] == value[0] and got[-1] == value[-1], "other bytes came back than were sent"
    return {"bytes": float(times * BIG)}


MEASURES: dict[str, Callable[..., Figures]] = {
    f.__name__: f
    for f in (
        execute_and_block,
        execute_and_read,
        chain,
        many_arguments,
        all_reduce,
        train_mlp,
        train_transformer,
        put,
        read,
        copy,
        traffic,
    )
}
