"""diffrax: a stiff and a plain ODE with adaptive steps, a batch of them over all devices, and a gradient through one."""

import json
import os

os.environ["EQX_ON_ERROR"] = "nan"  # equinox's other ways are host callbacks, which jaxlib's proxy client refuses

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def lotka_volterra(t, y, rates):
    prey, predator = y
    a, b, c, d = rates
    return jnp.stack([a * prey - b * prey * predator, -c * predator + d * prey * predator])


def solve(rates, solver=None):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lotka_volterra),
        solver or diffrax.Tsit5(),
        t0=0.0,
        t1=10.0,
        dt0=0.1,
        y0=jnp.array([10.0, 5.0]),
        args=rates,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0, 10, 6)),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    ).ys


def van_der_pol(t, y, mu):
    return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


rates = jnp.array([1.1, 0.4, 0.4, 0.1])
many = np.asarray(rates) * np.linspace(0.9, 1.1, 8, dtype=np.float32)[:, None]
many = jax.device_put(many, NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
batch = jax.jit(jax.vmap(solve))(many)
gradient = jax.jit(jax.grad(lambda r: solve(r)[-1].sum()))(rates)
stiff = jax.jit(
    lambda mu: diffrax.diffeqsolve(
        diffrax.ODETerm(van_der_pol),
        diffrax.Kvaerno5(),
        0.0,
        10.0,
        0.01,
        jnp.array([2.0, 0.0]),
        args=mu,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-6),
    ).ys[-1]
)(jnp.float32(20))
print(
    json.dumps(
        {
            "batch": np.asarray(batch)[:, :3].tolist(),
            "gradient": np.asarray(gradient).tolist(),
            "stiff": np.asarray(stiff).tolist(),
        }
    )
)
