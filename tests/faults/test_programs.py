"""Programs that don't compile in time, don't end, or can't be run here. Others go on."""

import time

import pytest

# XLA computes it while it compiles, one addition at a time: for hours.
SLOW_COMPILE = """
    import jax, jax.numpy as jnp, numpy as np, sys
    big = np.random.rand(600, 600).astype(np.float32)
    window = lambda x: x + jax.lax.reduce_window(jnp.asarray(big), 0.0, jax.lax.add, (201, 201), (1, 1), "SAME")[0, 0]
    print("compiling", flush=True)
    try:
        jax.jit(window)(jnp.float32(1))
        print("it ended")
    except Exception as error:
        print(type(error).__name__, error)
    print(float(jax.jit(lambda x: x + 1)(jnp.float32(1))))
"""

WORK = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    a = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
    for i in range(10):
        a = jax.jit(lambda a, i=i: a - a.mean() + i)(a)
    np.testing.assert_allclose(np.asarray(a), np.arange(16) - 7.5 + 9, rtol=1e-5)
    print("right")
"""

ENDLESS = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    {where}
    endless = jax.jit(lambda a: jax.lax.while_loop(lambda a: a.sum() < 1e30, lambda a: a * 0 + a.mean() * 0, a))
    b = endless(a)
    print("started", flush=True)
    b.block_until_ready()
"""
ON_ONE = "a = jax.device_put(np.ones(2048, np.float32), jax.devices()[1])"
ON_ALL = 'a = jax.device_put(np.ones(2048, np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))'

KEEPER = """
    import sys, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()), ("x",))
    host = np.random.default_rng(1).normal(size=(8, 50_000)).astype(np.float32)
    spread = jax.device_put(host, NamedSharding(mesh, P("x")))
    made = jax.jit(lambda a: a * 2)(spread)
    single = [jax.device_put(host[i], d) for i, d in enumerate(jax.devices())]
    jax.block_until_ready([spread, made, single])
    print("held", flush=True)
    sys.stdin.readline()
    np.testing.assert_array_equal(np.asarray(spread), host)
    np.testing.assert_array_equal(np.asarray(made), host * 2)
    for i, a in enumerate(single):
        np.testing.assert_array_equal(np.asarray(a), host[i])
    for attempt in range(3):
        try:
            sums = np.asarray(jax.jit(lambda a: a.sum(1))(made))
            break
        except jax.errors.JaxRuntimeError as error:  # it stood behind the program that did not end
            assert "ABORTED" in str(error) and "Run the program once more" in str(error), error
    np.testing.assert_allclose(sums, (host * 2).sum(1), rtol=1e-3, atol=1e-2)
    print("right")
"""


def say(client, words="\n"):
    client.stdin.write(words)
    client.stdin.flush()


def test_a_compile_that_does_not_end(by_hand):
    """It ends at the proxy's limit with an error for its client, whose session goes on; another one works meanwhile."""
    by_hand.manager()
    by_hand.worker(0)
    by_hand.worker(1)
    by_hand.proxy("--compile_timeout_seconds=12")
    slow = by_hand.start_client(SLOW_COMPILE)
    assert slow.stdout.readline() == "compiling\n"
    assert by_hand.finish(by_hand.start_client(WORK)) == "right\n"
    error, number = by_hand.finish(slow).splitlines()
    assert error.startswith("JaxRuntimeError") and "12 s" in error and "compile_timeout_seconds" in error, error
    assert "DEADLINE_EXCEEDED" not in error and number == "2.0"


def test_a_compile_whose_client_is_gone(own_cluster):
    slow = [own_cluster.start_client(SLOW_COMPILE) for _ in range(2)]
    for one in slow:
        assert one.stdout.readline() == "compiling\n"
    time.sleep(1)
    for one in slow:
        one.kill()
        one.communicate()
    own_cluster.wait_for_nothing_held()
    assert own_cluster.run(WORK).stdout == "right\n"


@pytest.mark.parametrize(("where", "engines"), [(ON_ONE, 1), (ON_ALL, 2)], ids=["one device", "all devices"])
def test_a_program_that_does_not_end(own_cluster, where, engines):
    """Its client is killed. What others hold on those devices is kept, and new work runs there."""
    keeper = own_cluster.start_client(KEEPER)
    assert keeper.stdout.readline() == "held\n"
    before = own_cluster.engine_pids()
    endless = own_cluster.start_client(ENDLESS.format(where=where))
    assert endless.stdout.readline() == "started\n"
    time.sleep(1)
    endless.kill()
    endless.communicate()
    own_cluster.wait_until_whole(but_not=before[:engines])
    say(keeper)
    assert own_cluster.finish(keeper).stdout == "right\n"
    assert own_cluster.run(WORK).stdout == "right\n"
    own_cluster.wait_for_nothing_held()


CALLBACKS = {
    "debug.print": 'jax.jit(lambda x: (jax.debug.print("{}", x), x)[1])(jnp.ones(3))',
    "pure_callback": "jax.jit(lambda x: jax.pure_callback(lambda v: v, x, x))(jnp.ones(3))",
    "io_callback": """
import jax.experimental
jax.jit(lambda x: jax.experimental.io_callback(lambda v: v, x, x))(jnp.ones(3))""",
}


@pytest.mark.parametrize("kind", CALLBACKS)
def test_host_callbacks_are_refused_in_words(own_cluster, kind):
    program = (
        "import jax, jax.numpy as jnp\ntry:\n"
        + "\n".join("    " + line for line in CALLBACKS[kind].splitlines() if line)
        + "\n    jax.effects_barrier()\nexcept Exception as error:\n    print('refused', error)\n"
        + "print(float(jnp.ones(3).sum()))\n"
    )
    before = own_cluster.engine_pids()
    client = own_cluster.run(program)
    assert "refused" in client.stdout and "callback" in client.stdout.lower(), client.stdout + client.stderr
    assert client.stdout.splitlines()[-1] == "3.0"
    assert own_cluster.engine_pids() == before


CRASH = """
    import jax, jax.numpy as jnp
    a, b = (jax.device_put(jnp.ones(8).astype(jnp.int2), jax.devices()[0]) for _ in range(2))
    for i in range(3):
        try:
            jax.block_until_ready(jax.jit(lambda a, b: jnp.concatenate([a, b]))(a, b))
            print("ran")
        except Exception as error:
            print("error", str(error).splitlines()[0])
    print(float(jax.device_put(jnp.ones(3), jax.devices()[2]).sum()))
"""


def test_a_program_that_crashes_xla(own_cluster):
    client = own_cluster.run(CRASH)
    lines = client.stdout.splitlines()
    assert lines[-1] == "3.0" and len(lines) == 4
    own_cluster.wait_until_whole()
    assert own_cluster.run(WORK).stdout == "right\n"


def test_work_behind_a_program_that_does_not_end(own_cluster):
    """It runs, or its client is told to run it once more; never later than the engine's return."""
    endless = own_cluster.start_client(ENDLESS.format(where=ON_ALL))
    assert endless.stdout.readline() == "started\n"
    keeper = own_cluster.start_client(KEEPER.replace("jax.block_until_ready([spread, made, single])", "pass"))
    assert keeper.stdout.readline() == "held\n"
    endless.kill()
    endless.communicate()
    say(keeper)
    client = own_cluster.finish(keeper, check=False)
    assert client.stdout == "right\n" or "Run the program once more" in client.stderr, client
    own_cluster.wait_for_nothing_held()
    assert own_cluster.run(WORK).stdout == "right\n"


CANCELLED = """
    import sys, jax, jax.numpy as jnp, numpy as np
    kept = jax.device_put(np.arange(2048, dtype=np.float32), jax.devices()[1])
    kept.block_until_ready()
    endless = jax.jit(lambda a: jax.lax.while_loop(lambda a: a.sum() < 1e30, lambda a: a * 0 + a.mean() * 0, a))
    after = jax.jit(lambda a: a + 1)
    b = endless(kept)
    c = after(b)
    print("started", flush=True)
    for array in (b, c):
        try:
            array.block_until_ready()
            print("it ended")
        except jax.errors.JaxRuntimeError as error:
            print(str(error).splitlines()[0])
    np.testing.assert_array_equal(np.asarray(after(kept)), np.arange(2048) + 1)
    print("right")
"""


def test_cancel(own_cluster):
    """`parkway cancel` ends a program that doesn't end by itself; its client and the others go on with their arrays."""
    assert "no client has a session" in own_cluster.parkway("cancel", check=False)
    keeper = own_cluster.start_client(KEEPER)
    assert keeper.stdout.readline() == "held\n"
    client = own_cluster.start_client(CANCELLED)
    assert client.stdout.readline() == "started\n"

    def running() -> list[dict]:
        leases = own_cluster.status()["leases"]
        return [one for lease in leases for one in lease["by_session"] if one["running_seconds"] > 1]

    own_cluster.wait(running)
    (session,) = running()
    assert "program 'jit_" in session["program"] and session["launches"] >= 1
    listed = own_cluster.parkway("cancel", check=False)
    assert "there are 2 sessions" in listed and session["session"] in listed, listed
    assert "no session 1.99" in own_cluster.parkway("cancel", "1.99", check=False)
    own_cluster.parkway("cancel", session["session"])
    first, second, right = own_cluster.finish(client).stdout.splitlines()
    assert "CANCELLED" in first and "`parkway cancel` asked for it" in first, first
    assert "CANCELLED" in second, second
    assert right == "right"
    say(keeper)
    assert own_cluster.finish(keeper).stdout == "right\n"
    own_cluster.wait_for_nothing_held()
