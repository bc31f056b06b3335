"""An actor and a learner, two programs on two slices at the same time, handing arrays to each other.

The actor (slice 0) plays a bandit of eight arms with the policy that it has; the learner (slice 1) improves the policy
from what was played. Rewards go from slice 0 to slice 1, parameters back, by device_put: the bytes never visit this
Python process. The actor plays on while the learner learns, with parameters one round old. Asserts that the policy
found the best arm.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from slices import describe, two_slices

ARMS, GAMES, ROUNDS = 8, 512, 60
MEANS = np.array([0.1, 0.3, 0.2, 0.9, 0.4, 0.0, 0.5, 0.6], np.float32)  # what each arm pays on average
BEST = int(MEANS.argmax())


def play(policy: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Policy logits (ARMS,) -> the arms drawn and their rewards, (GAMES,) each."""
    draw, noise = jax.random.split(key)
    arms = jax.random.categorical(draw, policy, shape=(GAMES,))
    return arms, jnp.asarray(MEANS)[arms] + 0.3 * jax.random.normal(noise, (GAMES,))


def main() -> None:
    print(f"actor and learner on {describe()}", flush=True)
    actor_devices, learner_devices = two_slices()
    actor, learner = Mesh(np.array(actor_devices), ("device",)), Mesh(np.array(learner_devices), ("device",))
    games_of_actor, games_of_learner = NamedSharding(actor, P("device")), NamedSharding(learner, P("device"))
    optimizer = optax.adam(0.1)

    def learn(policy, state, arms, rewards):
        def loss(policy):
            chosen = jax.nn.log_softmax(policy)[arms]
            return -jnp.mean(chosen * (rewards - rewards.mean()))

        updates, state = optimizer.update(jax.grad(loss)(policy), state, policy)
        return optax.apply_updates(policy, updates), state, rewards.mean()

    play_jit = jax.jit(play, out_shardings=(games_of_actor, games_of_actor))
    learn_jit = jax.jit(learn, donate_argnums=(1,))
    on_actor, on_learner = NamedSharding(actor, P()), NamedSharding(learner, P())
    policy = jax.device_put(jnp.zeros(ARMS), on_learner)
    state = jax.device_put(optimizer.init(jnp.zeros(ARMS)), on_learner)
    keys = jax.device_put(jax.random.split(jax.random.key(0), ROUNDS), on_actor)

    experience = play_jit(jax.device_put(policy, on_actor), keys[0])
    means = []
    for number in range(1, ROUNDS):
        handed_over = jax.device_put(experience, games_of_learner)  # slice 0 -> slice 1
        experience = play_jit(jax.device_put(policy, on_actor), keys[number])  # the actor plays on with the old policy
        policy, state, mean = learn_jit(policy, state, *handed_over)  # ... while the learner learns
        means.append(mean)
        assert experience[0].devices() == set(actor_devices) and policy.devices() == set(learner_devices)
        if number % 20 == 0:
            print(f"round {number:2d}  mean reward {float(mean):.3f}", flush=True)

    chance = float(jax.nn.softmax(policy)[BEST])
    print(
        f"mean reward {float(means[0]):.2f} -> {float(means[-1]):.2f}; arm {BEST} is now drawn {chance:.0%} of the time"
    )
    assert chance > 0.8 and float(means[-1]) > 0.75, (chance, float(means[-1]))


if __name__ == "__main__":
    main()
