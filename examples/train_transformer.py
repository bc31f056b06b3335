"""Trains a small byte-level transformer on the source of the Python standard library, over all slices.

Plain JAX and optax. The mesh is (slice, device): the batch is split over both axes (data parallel), parameters and
optimizer state over the devices of a slice (FSDP) and copied to each slice. XLA puts the collectives in: gathers inside
a slice, a gradient all-reduce between them. The same script runs on a Parkway cluster (`parkway run -- python ...`) and
on local JAX (JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4), with the same losses.
"""

import argparse
import json
import sysconfig
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from slices import describe, slice_mesh

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 256, 64, 4, 2, 64, 16


def load_text(limit: int = 2_000_000) -> np.ndarray:
    """Bytes of the standard library's modules, in the order of their names."""
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size > limit:
            break
    return np.frombuffer(b"".join(parts), np.uint8)


def init_parameters(key: jax.Array) -> dict:
    def dense(key, *shape):
        return jax.random.normal(key, shape) * (shape[-2] ** -0.5)

    keys = jax.random.split(key, 6)
    return {
        "embed": jax.random.normal(keys[0], (VOCABULARY, WIDTH)) * 0.05,
        "position": jax.random.normal(keys[1], (CONTEXT, WIDTH)) * 0.05,
        "layers": {  # stacked over layers, for scan
            "norm1": jnp.ones((LAYERS, WIDTH)),
            "norm2": jnp.ones((LAYERS, WIDTH)),
            "qkv": dense(keys[2], LAYERS, WIDTH, 3 * WIDTH),
            "out": dense(keys[3], LAYERS, WIDTH, WIDTH) / LAYERS,
            "up": dense(keys[4], LAYERS, WIDTH, 4 * WIDTH),
            "down": dense(keys[5], LAYERS, 4 * WIDTH, WIDTH) / LAYERS,
        },
    }


def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def layer(x: jax.Array, p: dict) -> tuple[jax.Array, None]:
    """x: (batch, time, WIDTH)."""
    batch, length, _ = x.shape
    q, k, v = jnp.split(normalize(x, p["norm1"]) @ p["qkv"], 3, axis=-1)
    heads = [t.reshape(batch, length, HEADS, WIDTH // HEADS) for t in (q, k, v)]
    x = x + jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(normalize(x, p["norm2"]) @ p["up"]) @ p["down"], None


def loss_of(parameters: dict, tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy in nats per byte; tokens: (batch, CONTEXT + 1)."""
    x = parameters["embed"][tokens[:, :-1]] + parameters["position"]
    x, _ = jax.lax.scan(layer, x, parameters["layers"])
    logits = normalize(x, 1.0) @ parameters["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def shardings_of(tree: dict, mesh: jax.sharding.Mesh) -> dict:
    """FSDP: each leaf is split along its largest dimension over the devices of a slice, where that divides."""
    devices = mesh.shape["device"]

    def of(leaf):
        spec = [None] * leaf.ndim
        if leaf.ndim and max(leaf.shape) % devices == 0:
            spec[int(np.argmax(leaf.shape))] = "device"
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map(of, tree)


def train(steps: int, quiet: bool = False) -> list[float]:
    """Runs `steps` steps; the loss before each."""
    mesh, text = slice_mesh(), load_text()
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 20, max(steps, 21)))

    def initialize(key):
        parameters = init_parameters(key)
        return parameters, optimizer.init(parameters)

    key = jax.random.key(0)
    state_shardings = shardings_of(jax.eval_shape(initialize, key), mesh)
    batch_sharding = NamedSharding(mesh, P(("slice", "device")))
    state = jax.jit(initialize, out_shardings=state_shardings)(key)

    @partial(jax.jit, donate_argnums=0, out_shardings=(state_shardings, NamedSharding(mesh, P())))
    def step(state, tokens):
        parameters, optimizer_state = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, tokens)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
        return (optax.apply_updates(parameters, updates), optimizer_state), loss

    random, losses = np.random.default_rng(0), []
    shown, started = 0, time.perf_counter()
    for number in range(steps):
        starts = random.integers(0, len(text) - CONTEXT - 1, BATCH)
        tokens = text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int32)
        state, loss = step(state, jax.device_put(tokens, batch_sharding))
        losses.append(loss)
        if not quiet and (number % 20 == 19 or number in (0, steps - 1)):
            value = float(loss)  # waits for the step
            rate = (number + 1 - shown) * BATCH * CONTEXT / (time.perf_counter() - started)
            print(f"step {number + 1:4d}  loss {value:.4f}  {rate:9,.0f} tokens/s", flush=True)
            shown, started = number + 1, time.perf_counter()
    return [float(loss) for loss in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", metavar="FILE", help="write the losses there")
    arguments = parser.parse_args()
    print(f"training on {describe()}", flush=True)
    losses = train(arguments.steps)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"losses": losses}))
    if arguments.steps >= 100:
        assert losses[-1] < 0.7 * losses[0], f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f} only"
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} nats per byte")


if __name__ == "__main__":
    main()
