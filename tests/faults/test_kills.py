"""Processes that are killed or frozen: clients in each phase, engines in a collective, each role under a training loop."""

import os
import signal
import time

import pytest

SETUP = """
    import sys, time, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    def say(words):
        print(words, flush=True)
"""

# What a client does for ever, when it is killed.
PHASES = {
    "connect": """
    say("now")
    jax.devices()
    while True:
        import jax.extend.backend
        jax.extend.backend.clear_backends()
        jax.devices()
""",
    "put": """
    host = np.ones(4 << 20, np.float32)
    jax.devices()
    say("now")
    held = []
    while True:
        held = held[-4:] + [jax.device_put(host, d) for d in jax.devices()]
""",
    "compile": """
    x = jnp.ones((8, 8))
    say("now")
    i = 0
    while True:
        i += 1
        jax.jit(lambda a, i=i: jnp.linalg.inv(a @ a + i))(x)
""",
    "execute": """
    mesh = Mesh(np.array(jax.devices()), ("x",))
    a = jax.device_put(np.ones((64, 1024), np.float32), NamedSharding(mesh, P("x")))
    step = jax.jit(lambda a: a - a.mean(), donate_argnums=0)
    a = step(a)
    say("now")
    while True:
        a = step(a)
""",
    "read": """
    a = jax.device_put(np.ones(4 << 20, np.float32), jax.devices()[3])
    say("now")
    while True:
        np.asarray(a + 1)
""",
    "copy": """
    a = jax.device_put(np.ones(4 << 20, np.float32), jax.devices()[3])
    say("now")
    while True:
        a = jax.device_put(jax.device_put(a, jax.devices()[0]), jax.devices()[3])
""",
}

WORK = (
    SETUP
    + """
    a = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
    for i in range(10):
        a = jax.jit(lambda a: a - a.mean() + 1)(a)
    np.testing.assert_allclose(np.asarray(a), np.arange(16) - 7.5 + 1, rtol=1e-5)
    say("right")
"""
)

# Trains until it is told to stop. After an error it starts again from the beginning, on the same session where that
# lives, else on a new one.
TRAIN = (
    SETUP
    + """
    import threading
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    def loss(w, x):
        return jnp.mean((jnp.tanh(x @ w) - 0.5) ** 2)
    def train():
        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("slice", "device"))
        x = jax.device_put(np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32), NamedSharding(mesh, P("slice")))
        w = jax.device_put(np.zeros((16, 16), np.float32) + 0.01, NamedSharding(mesh, P(None, "device")))
        step = jax.jit(lambda w: w - 0.1 * jax.grad(loss)(w, x), donate_argnums=0)
        for i in range(40):
            w = step(w)
        return float(loss(w, x))
    def fresh():
        import jax.extend.backend
        jax.clear_caches()
        jax.extend.backend.clear_backends()
    first = train()
    say("training")
    rounds = errors = after = 0
    while not (stop.is_set() and after >= 2):
        try:
            got = train()
            assert abs(got - first) < 1e-5, (got, first)
            rounds, after = rounds + 1, after + (1 if stop.is_set() else 0)
        except jax.errors.JaxRuntimeError as error:
            errors += 1
            say("error " + str(error).splitlines()[0])
            if "UNAVAILABLE" in str(error) and "proxy" in str(error).lower():
                fresh()
            time.sleep(0.2)
    say(f"trained {rounds > 0}")
"""
)


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_killed(own_cluster, phase):
    """All that it held is freed, and the next client finds nothing amiss."""
    engines = own_cluster.engine_pids()
    client = own_cluster.start_client(SETUP + PHASES[phase])
    assert client.stdout.readline() == "now\n"
    time.sleep(0.7)
    assert client.poll() is None, client.communicate()
    client.kill()
    client.communicate()
    own_cluster.wait_for_nothing_held()
    assert own_cluster.engine_pids() == engines
    assert own_cluster.run(WORK).stdout == "right\n"


COLLECTIVE = (
    SETUP
    + """
    mesh = Mesh(np.array(jax.devices()), ("x",))
    a = jax.device_put(np.arange(1 << 16, dtype=np.float32), NamedSharding(mesh, P("x")))
    kept = jax.device_put(np.arange(10), jax.devices()[{kept}])
    local = jax.jit(lambda a: a * 2)
    step = jax.jit(lambda a: a - a.mean())
    jax.block_until_ready([step(a), kept])
    say("now")
    began = None
    try:
        while True:
            a = step(a)
            jax.block_until_ready(a)
    except jax.errors.JaxRuntimeError as error:
        say(str(error).splitlines()[0])
    assert np.asarray(local(kept)).tolist() == list(range(0, 20, 2))
    for attempt in range(100):
        try:
            b = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(mesh, P("x")))
            np.testing.assert_allclose(np.asarray(step(b)), np.arange(16) - 7.5)
            say("right again")
            break
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error) or "ABORTED" in str(error), error
            time.sleep(0.3)
"""
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("victim", [0, 1])
def test_an_engine_lost_in_a_collective(own_cluster, victim, how):
    """Its client hears which slice is lost; what lay on the other one is there; the same session's new work runs."""
    own_cluster.wait_until_whole()
    other = 1 - victim
    before = own_cluster.engine_pids()
    client = own_cluster.start_client(COLLECTIVE.format(kept=2 * other))
    assert client.stdout.readline() == "now\n"
    time.sleep(0.5)
    os.kill(before[victim], how)
    error = client.stdout.readline()
    assert "DATA_LOSS" in error and f"slice {victim}" in error, error
    assert own_cluster.finish(client).stdout == "right again\n"
    own_cluster.wait_until_whole(but_not=[before[victim]])
    assert own_cluster.engine_pids()[other] == before[other]
    assert own_cluster.run(WORK).stdout == "right\n"


def test_others_do_not_notice_a_lost_slice(own_cluster):
    """Clients whose arrays and programs are on the other slice alone go on without an error."""
    own_cluster.wait_until_whole()
    program = (
        SETUP
        + """
    a = jax.device_put(np.arange(64, dtype=np.float32), NamedSharding(Mesh(np.array(jax.devices()[2:]), ("x",)), P("x")))
    step = jax.jit(lambda a: a - a.mean() + 1)
    jax.block_until_ready(step(a))
    say("now")
    import threading
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    while not stop.is_set():
        a = step(a)
        jax.block_until_ready(a)
    np.testing.assert_allclose(np.asarray(a), np.arange(64) - 31.5 + 1, rtol=1e-4)
    say("right")
"""
    )
    client = own_cluster.start_client(program)
    assert client.stdout.readline() == "now\n"
    before = own_cluster.engine_pids()
    os.kill(before[0], signal.SIGKILL)
    own_cluster.wait_until_whole(but_not=[before[0]])
    client.stdin.write("\n")
    client.stdin.flush()
    assert own_cluster.finish(client).stdout == "right\n"
    assert own_cluster.engine_pids()[1] == before[1]


@pytest.mark.parametrize("role", ["manager", "worker-0-0", "engine", "proxy", "compilers"])
def test_a_role_killed_while_training(own_cluster, role):
    """The loop meets an error at most, then its losses are what they were."""
    own_cluster.wait_until_whole()
    client = own_cluster.start_client(TRAIN)
    assert client.stdout.readline() == "training\n"
    if role == "compilers":
        victims = compilers_of(own_cluster.pids()["proxy"])
        assert victims
    else:
        victims = [own_cluster.engine_pids()[1] if role == "engine" else own_cluster.pids()[role]]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    own_cluster.wait_until_whole(but_not=victims)
    client.stdin.write("\n")
    client.stdin.flush()
    done = own_cluster.finish(client)
    lines = done.stdout.splitlines()
    assert lines[-1] == "trained True", done
    errors = [line for line in lines if line.startswith("error")]
    if role in ("manager", "compilers"):
        assert not errors, errors
    own_cluster.wait_for_nothing_held()


def compilers_of(proxy: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline") as words:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) == proxy and "compiler" in words.read():
                        found.append(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


@pytest.mark.parametrize("role", ["worker-1-0", "manager"])
def test_a_role_frozen(own_cluster, role):
    """A frozen worker is noticed and its slice is lost; a frozen manager is waited for. Both go on when they wake."""
    own_cluster.wait_until_whole()
    client = own_cluster.start_client(TRAIN)
    assert client.stdout.readline() == "training\n"
    pid = own_cluster.pids()[role]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(pid, signal.SIGCONT)
    own_cluster.wait_until_whole()
    client.stdin.write("\n")
    client.stdin.flush()
    done = own_cluster.finish(client)
    assert done.stdout.splitlines()[-1] == "trained True", done
