"""One of many clients: programs over all, some and single devices in a random order, their inputs late; all is checked.

mixed_work_of_a_client.py SEED ROUNDS KINDS      KINDS: letters of PROGRAMS
Values are whole numbers that floats hold exactly, so that a wrong partner in a sum can't pass for rounding.
"""

import random
import sys
from functools import partial

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SEED, ROUNDS, KINDS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
DEVICES = jax.devices()
CHOICE = random.Random(SEED)

# Letter: device numbers. Several devices of a host and one device of each host must not meet in one collective.
PROGRAMS = {
    "a": [0, 1, 2, 3],
    "r": [3, 1, 2, 0],
    "x": [0, 2],  # one device of each host
    "y": [3, 1],
    "p": [0, 1],  # one host
    "q": [2, 3],
    "0": [0],
    "1": [1],
    "2": [2],
    "3": [3],
}


def program(letter):
    mesh = Mesh(np.array([DEVICES[i] for i in PROGRAMS[letter]]), ("i",))
    body = jax.shard_map(partial(lax.psum, axis_name="i"), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    return jax.jit(lambda a: body(a) * 2 + 1), NamedSharding(mesh, P("i"))


programs = {letter: program(letter) for letter in KINDS}
waiting = []


def check(letter, host, got):
    parts = host.reshape(len(PROGRAMS[letter]), -1)
    np.testing.assert_array_equal(
        np.asarray(got).reshape(parts.shape), np.broadcast_to(parts.sum(0), parts.shape) * 2 + 1
    )


print("started", flush=True)
for number in range(ROUNDS):
    letter = CHOICE.choice(KINDS)
    run, sharding = programs[letter]
    size = CHOICE.choice([4, 4, 64, 1 << 10, 1 << 17])  # the largest ones' bytes are still coming when they are used
    host = (
        np.random.default_rng([SEED, number]).integers(0, 1 << 10, (len(PROGRAMS[letter]) * size,)).astype(np.float32)
    )
    waiting.append((letter, host, run(jax.device_put(host, sharding))))
    while len(waiting) > CHOICE.choice([0, 3, 20]):
        check(*waiting.pop(0))
for one in waiting:
    check(*one)
print("right", SEED, flush=True)
