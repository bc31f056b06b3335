"""Clients that use the same device have equal shares of its time, however many programs each of them dispatches."""

import json

import pytest

CLIENT = """
    import collections, json, os, sys, time, jax, jax.numpy as jnp, numpy as np
    loops, at_once = int(sys.argv[1]), int(sys.argv[2])
    step = jax.jit(lambda a: jax.lax.fori_loop(0, loops, lambda i, a: jnp.tanh(a @ a), a))
    a = jax.device_put(np.full((96, 96), 0.01, np.float32), jax.devices()[0])
    step(a).block_until_ready()
    print("ready", flush=True)
    sys.stdin.readline()
    going, ends, until = collections.deque(), [], time.time() + 8
    while time.time() < until:
        going.append(step(a))
        if len(going) >= at_once:
            going.popleft().block_until_ready()
            ends.append(time.time())
    print(json.dumps(ends), flush=True)
    os._exit(0)
"""

FLOOD, MODEST = 400, 1


@pytest.mark.parametrize(
    "clients",
    [
        [(40, FLOOD), (40, FLOOD)],
        [(400, FLOOD), (100, FLOOD)],
        [(40, FLOOD), (40, MODEST)],
    ],
    ids=["two floods", "long and short programs", "a flood and a modest one"],
)
def test_equal_shares(new_cluster, clients):
    cluster = new_cluster(slices=1, hosts_per_slice=1, devices_per_host=1)
    started = [cluster.start_client(CLIENT, str(loops), str(at_once)) for loops, at_once in clients]
    for one in started:
        assert one.stdout.readline() == "ready\n"
    for one in started:
        one.stdin.write("\n")
        one.stdin.flush()
    ends = [json.loads(cluster.finish(one).stdout) for one in started]
    # Device time while all of them wanted it, in loops.
    first, last = max(e[0] for e in ends), min(e[-1] for e in ends)
    used = [loops * sum(first <= end <= last for end in e) for (loops, _), e in zip(clients, ends, strict=True)]
    shares = [one / sum(used) for one in used]
    # One that waits for each result wants nothing while the result and its next program are on their way. In one queue
    # for all it would get one launch in 400.
    least = 0.6 if all(at_once == FLOOD for _, at_once in clients) else 0.1
    assert min(shares) > least / len(clients), (shares, [len(e) for e in ends])
