"""A3C does what the lines of Algorithm S3 say; its parameters and their statistics are shared, without locks."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.algorithms import a3c
from ddrl.coordinator.shared_parameters import LiveParameters
from ddrl.environments.base import registry
from ddrl.errors import Closed, NonFiniteError, UserError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import Setting
from ddrl.learners.optimizers import RMSProp
from ddrl.system.seeding import numpy_generator, torch_generator
from ddrl.training.config.run_config import parse_run_config
from ddrl.types import Gradients, NetworkOutput, Unroll
from tests.runs import BASE, merged, small


class Rig:
    """Some actors of one environment each, and what they share."""

    def __init__(self, actors: int = 2, environment: str = "toy/catch", **hyperparameters: Any) -> None:
        spec = registry.spec_for(environment)
        self.config = a3c.Config(network="mlp", **hyperparameters)
        self.network = a3c.make_network(spec, self.config, torch_generator(0, "network"))
        self.params = LiveParameters(self.network)
        setting = Setting(4, torch.device("cpu"), "float32", 1, numpy_generator(0, "replay"), SingleLearner())
        self.learner = a3c.Learner(self.config, self.network, self.params, self.params, setting)
        self.collectors = []
        for index in range(actors):
            network = a3c.make_network(spec, self.config, torch_generator(1 + index, "network"))
            inference = LocalInference(network, device=torch.device("cpu"), precision="float32")
            policy = Policy(inference, 1, torch_generator(index, "policy"), network.family.sample)
            env = registry.make(environment, num_envs=1, seed=index)
            self.collectors.append(UnrollCollector(env, policy, actor=index, on_episode=lambda *_: None))
        self.actors = [a3c.Actor(self.config, collector, self.params, None) for collector in self.collectors]

    def own(self, index: int) -> torch.Tensor:
        """An actor's parameters."""
        return vector(self.collectors[index].policy.inference.network.parameters())

    @property
    def shared(self) -> torch.Tensor:
        return vector(self.network.parameters())


def vector(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1).clone() for tensor in tensors])


def waiting(actor: a3c.Actor) -> Gradients:
    """What an actor has computed and not yet applied."""
    assert actor._gradients is not None
    return actor._gradients


def slow_loss(network: torch.nn.Module, unroll: Unroll, config: a3c.Config) -> float:
    """Algorithm S3's two sums a second time, in scalars: R backwards from V(s_t), 0 at a terminal state."""
    with torch.no_grad():
        out: NetworkOutput = network(
            unroll.observation, unroll.last_action, unroll.last_reward, unroll.start, unroll.initial_state
        )
    loss = 0.0
    values = out.value[:, 0].tolist()
    reached = values[-1]
    for t in reversed(range(unroll.length)):
        if not unroll.valid[t, 0]:
            reached = values[t]
            continue
        reward = min(1.0, max(-1.0, float(unroll.reward[t, 0])))
        reached = reward + (0.0 if unroll.terminated[t, 0] else config.discount * reached)
        pi = out.distribution[t, 0].double().softmax(0).tolist()
        loss -= math.log(pi[int(unroll.action[t, 0])]) * (reached - values[t])
        loss += config.value_cost * (reached - values[t]) ** 2 / 2
        loss += config.entropy_cost * sum(p * math.log(p) for p in pi)
    return loss


@pytest.mark.parametrize("environment", ["toy/catch", "toy/memory"])
def test_the_loss_is_that_of_algorithm_s3_on_real_unrolls(environment: str) -> None:
    rig, dead = Rig(environment=environment, lstm_size=8), 0
    for _ in range(8):
        unroll = rig.collectors[0].collect(5)
        dead += int((~unroll.valid).sum())
        loss, _ = a3c.advantage_loss(rig.network, unroll, rig.config, 1.0)
        assert loss.item() == pytest.approx(slow_loss(rig.network, unroll, rig.config), rel=1e-4, abs=1e-6)
    assert dead > 0


def test_an_actor_synchronises_with_the_shared_parameters_after_every_update() -> None:
    """The line that copies of A3C forget: without it an actor stays with what it had in the beginning."""
    rig = Rig()
    for update in range(1, 6):
        rig.actors[0].step()
        assert torch.equal(rig.own(0), rig.shared), "it has acted with, and derived, the shared parameters"
        assert waiting(rig.actors[0]).version == 2 * (update - 1)
        rig.actors[0].step()
        assert not torch.equal(rig.own(0), rig.shared)
        rig.actors[1].step()
        rig.actors[1].step()


def test_a_gradient_is_that_of_the_parameters_that_acted_however_far_the_shared_ones_have_moved() -> None:
    rig = Rig()
    rig.actors[0].step()
    with torch.no_grad():
        for parameter in rig.network.parameters():
            parameter.add_(1.0)
    unroll = rig.collectors[0].collect(5)
    before = vector(rig.actors[0].learn(unroll).tensors)
    with torch.no_grad():
        for parameter in rig.network.parameters():
            parameter.sub_(0.5)
    torch.testing.assert_close(vector(rig.actors[0].learn(unroll).tensors), before)


def test_updates_of_all_actors_share_the_statistics_of_one_rmsprop() -> None:
    rig = Rig(actors=3)
    alone = a3c.make_network(registry.spec_for("toy/catch"), rig.config, torch_generator(0, "network"))
    settings = rig.config.optimizer
    optimizer = RMSProp(
        alone.parameters(),
        learning_rate=settings.learning_rate,
        decay=settings.decay,
        epsilon=settings.epsilon,
        epsilon_inside_sqrt=True,
    )
    for turn in range(9):
        actor = rig.actors[turn % 3]
        actor.step()
        gradients, frames = waiting(actor), rig.learner.core.env_frames
        for parameter, gradient in zip(alone.parameters(), gradients.tensors, strict=True):
            parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - frames / 320_000_000)
        optimizer.step()
        actor.step()
        torch.testing.assert_close(rig.shared, vector(alone.parameters()), rtol=1e-5, atol=1e-7)


def test_the_lag_is_the_updates_of_others_between_synchronising_and_applying() -> None:
    rig = Rig(actors=3)
    for actor in rig.actors:
        actor.step()
    lags = []
    for actor in rig.actors:
        actor.step()
        lags.append(rig.learner.step()["policy_lag_max"])
    assert lags == [0.0, 1.0, 2.0]


def test_a_step_of_the_learner_records_means_and_the_largest_lag_of_what_was_applied_since() -> None:
    rig = Rig(actors=3)
    assert not rig.learner.ready()
    for actor in rig.actors:
        actor.step()
    norms = [waiting(actor).norm for actor in rig.actors]
    for actor in rig.actors:
        actor.step()
    metrics = rig.learner.step()
    assert not rig.learner.ready()
    assert metrics["policy_lag_mean"] == pytest.approx(1.0)
    assert metrics["policy_lag_max"] == 2.0
    assert metrics["gradient_norm"] == pytest.approx(sum(norms) / 3)


def test_gradients_are_clipped_together_before_they_are_sent() -> None:
    rig = Rig(max_grad_norm=0.01)
    rig.actors[0].step()
    gradients = waiting(rig.actors[0])
    assert gradients.norm > 0.01
    assert float(vector(gradients.tensors).norm()) == pytest.approx(0.01, rel=1e-4)


def test_a_loss_that_is_not_finite_ends_the_run_before_the_shared_parameters_know() -> None:
    rig = Rig()
    with torch.no_grad():
        next(iter(rig.network.parameters()))[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"update 1 or after.*(loss|gradient)"):
        rig.actors[0].step()
    assert rig.params.version == 0


def test_threads_that_apply_at_once_lose_no_count_and_wait_for_no_lock() -> None:
    """Only counters are exact; the arithmetic of two threads may interleave."""
    rig, threads, each = Rig(), 4, 50
    rig.actors[0].step()
    gradients, inside, most = waiting(rig.actors[0]), [0], [0]
    apply = rig.learner.core.apply

    def counted(gradient: Gradients) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        barrier.wait(10)  # all of them are applying at this moment
        result = apply(gradient)
        inside[0] -= 1
        return result

    barrier = threading.Barrier(threads)
    rig.params.serve(counted)
    workers = [
        threading.Thread(target=lambda: [rig.params.apply(gradients) for _ in range(each)]) for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    core = rig.learner.core
    assert most[0] == threads
    assert (core.updates, core.agent_steps, core.env_frames) == (200, 200 * gradients.steps, 800 * gradients.steps)
    assert rig.params.version == 200
    assert rig.shared.isfinite().all()


def test_nothing_is_applied_while_a_checkpoint_is_written() -> None:
    rig = Rig()
    rig.actors[0].step()
    worker = threading.Thread(target=rig.actors[0].step)
    with rig.params.frozen():
        before = rig.shared
        worker.start()
        worker.join(0.1)
        assert worker.is_alive()
        assert torch.equal(rig.shared, before)
    worker.join(10)
    assert rig.params.version == 1
    assert not torch.equal(rig.shared, before)
    assert rig.params.insert_waited >= 0.09


def test_the_end_of_a_run_ends_every_wait() -> None:
    rig = Rig()
    rig.actors[0].step()
    rig.params.close()
    for call in (rig.actors[0].step, rig.actors[1].step, rig.learner.step, lambda: rig.params.acquire(0)):
        with pytest.raises(Closed):
            call()
    assert rig.params.version == 0


def test_an_actor_that_waits_to_apply_a_gradient_is_saved_with_it() -> None:
    rig, other = Rig(), Rig()
    rig.actors[0].step()
    other.actors[0].load_state_dict(rig.actors[0].state_dict())
    rig.actors[0].step()
    other.actors[0].step()
    assert torch.equal(rig.shared, other.shared)
    assert other.actors[1].state_dict() == {"gradients": None}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inference", "central"),
        ("learner_threads", 2),
        ("prefetch", True),
        ("parameter_delay", 1),
        ("num_learners", 2),
        ("schedule", "synchronous"),
    ],
)
def test_what_asks_for_a_learner_that_computes_gradients_is_refused(key: str, value: Any) -> None:
    runtime = {"num_learners": "ray", "prefetch": "threads"}.get(key, "serial")
    values = merged(BASE, {"algorithm": "a3c", "topology": {"runtime": runtime, key: value}})
    with pytest.raises(UserError, match=rf"key 'topology\.{key}' must be .* with algorithm a3c"):
        parse_run_config(values | {"hyperparameters": small("a3c")})
