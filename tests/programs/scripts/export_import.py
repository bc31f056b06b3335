"""jax.export: programs of one device, of all devices, with gradients and symbolic shapes, through bytes and back."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = Mesh(np.array(jax.devices()), ("x",))
ROWS = NamedSharding(MESH, P("x"))


def there_and_back(function, *types, order=0):
    path = Path(sys.argv[1]) / "program"
    path.write_bytes(export.export(function)(*types).serialize(vjp_order=order))
    return export.deserialize(bytearray(path.read_bytes()))


host = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
result = {}

one = there_and_back(jax.jit(lambda a: (jnp.sin(a) @ a.T, a.sum())), jax.ShapeDtypeStruct((8, 3), np.float32), order=1)
product, total = one.call(host)
result["one"] = [float(product.sum()), float(total)]
result["gradient"] = np.asarray(jax.grad(lambda a: one.call(a)[0].sum())(host)).tolist()

rows = jax.ShapeDtypeStruct((8, 3), np.float32, sharding=ROWS)
spread = there_and_back(jax.jit(lambda a: a - a.mean(0), in_shardings=ROWS, out_shardings=ROWS), rows)
assert spread.nr_devices == len(jax.devices())
centred = jax.jit(spread.call)(jax.device_put(host, ROWS))
np.testing.assert_allclose(centred, host - host.mean(0), rtol=1e-5, atol=1e-6)
result["spread"] = np.asarray(centred).tolist()

any_size = there_and_back(
    jax.jit(lambda a: jnp.cumsum(a, 0) / a.shape[0]), jax.ShapeDtypeStruct(export.symbolic_shape("n, 3"), np.float32)
)
result["any size"] = [np.asarray(any_size.call(host[:n])).tolist() for n in (1, 5, 8)]
print(json.dumps(result))
