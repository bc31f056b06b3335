"""Flax NNX, Optax and Orbax: trains, saves, restores into a new model, goes on, and meets the run without a break."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(64, 8)).astype(np.float32)
TARGETS = np.sin(INPUTS.sum(1, keepdims=True)).astype(np.float32)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(8, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.last = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


def make():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def place(state):
    """Matrices are cut over `model`, all else is on every device."""
    return jax.tree.map(
        lambda a: jax.device_put(a, NamedSharding(MESH, P(None, "model") if a.ndim == 2 and a.shape[1] > 1 else P())),
        state,
    )


@nnx.jit
def step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


def train(model, optimizer, steps):
    rows = NamedSharding(MESH, P("data"))
    x, y = jax.device_put(INPUTS, rows), jax.device_put(TARGETS, rows)
    return [float(step(model, optimizer, x, y)) for _ in range(steps)]


model, optimizer = make()
nnx.update((model, optimizer), place(nnx.state((model, optimizer))))
first = train(model, optimizer, 12)
with ocp.CheckpointManager(Path(sys.argv[1]) / "checkpoints") as manager:
    manager.save(12, args=ocp.args.StandardSave(nnx.state((model, optimizer))))
    manager.wait_until_finished()
without_break = train(model, optimizer, 8)

other = make()
abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), place(nnx.state(other)))
with ocp.CheckpointManager(Path(sys.argv[1]) / "checkpoints") as manager:
    assert manager.latest_step() == 12
    nnx.update(other, manager.restore(12, args=ocp.args.StandardRestore(abstract)))
resumed = train(*other, 8)
np.testing.assert_allclose(resumed, without_break, rtol=1e-5)
assert other[0].first.kernel.sharding.spec == P(None, "model")
assert resumed[-1] < first[0] / 2
print(json.dumps({"first": first, "resumed": resumed}))
