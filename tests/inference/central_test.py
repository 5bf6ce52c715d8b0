"""Central inference: the same runs as with local inference, and parameters that change within an unroll."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ddrl import algorithms, cli
from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.api.launch import train
from ddrl.coordinator.parameter_server import ParameterServer
from ddrl.coordinator.schedule import ScheduleRule
from ddrl.environments.base import registry
from ddrl.errors import TRY_AGAIN, Closed, UserError
from ddrl.inference.central import BatchRule, CentralInference
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.distributions import CATEGORICAL
from ddrl.system.seeding import torch_generator
from ddrl.training.config.run_config import parse_run_config, to_json
from ddrl.types import Array, EnvStep, Episode, PolicyInput, VectorEnv
from tests.processes import Ddrl
from tests.runs import BASE, BATCHED, REPLAYING, base_of, config, curves, merged
from tests.training.turns import interrupted_after

CENTRAL = {"inference": "central"}
MEMORY = registry.spec_for("toy/memory")
RECURRENT = {
    "hyperparameters": {"lstm_size": 8, "feed_last_action_and_reward": True},
    "environment": {"name": "toy/memory"},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(BATCHED + REPLAYING))
def test_central_equals_local_bit_for_bit_in_serial(tmp_path: Path, algorithm: str) -> None:
    schedule = algorithms.load(algorithm).SYSTEM.schedules[0]
    for inference in ("local", "central"):
        topology = {"schedule": schedule, "num_actors": 2, "envs_per_actor": 4, "inference": inference}
        values = merged(base_of(algorithm), {"topology": topology})
        train(parse_run_config(values), tmp_path / inference, quiet=True)
    pd.testing.assert_frame_equal(curves(tmp_path / "local"), curves(tmp_path / "central"), check_exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("topology", [{}, {"parameter_delay": 3}, {"schedule": "bounded_lag", "max_policy_lag": 2}])
def test_they_agree_with_recurrent_state_and_under_every_schedule(tmp_path: Path, topology: dict[str, Any]) -> None:
    for inference in ("local", "central"):
        chosen = config(**merged(RECURRENT, {"topology": topology | {"inference": inference}}))
        train(chosen, tmp_path / inference, quiet=True)
    pd.testing.assert_frame_equal(curves(tmp_path / "local"), curves(tmp_path / "central"), check_exact=True)


@pytest.mark.parametrize(
    ("schedule", "lags"),
    [
        ({"schedule": "synchronous"}, {0}),
        ({"schedule": "synchronous", "parameter_delay": 3}, {3}),
        ({"schedule": "bounded_lag", "max_policy_lag": 2}, {0, 1, 2}),
    ],
)
def test_schedules_hold_with_inference_threads(tmp_path: Path, schedule: dict[str, Any], lags: set[int]) -> None:
    central = {"num_threads": 2, "min_columns": 8, "max_wait_ms": 1.0}
    chosen = config(topology=schedule | CENTRAL | {"runtime": "threads", "central": central})
    train(chosen, tmp_path, quiet=True)
    table = curves(tmp_path)
    assert set(table[table.metric == "policy_lag_max"].value.iloc[3:]) <= lags


def test_what_is_measured_of_inference_is_recorded(tmp_path: Path) -> None:
    train(config(topology=CENTRAL | {"runtime": "threads"}), tmp_path, quiet=True)
    table = pd.read_parquet(tmp_path / "curves.parquet").set_index("metric").value
    assert table["inference_columns_mean"].between(4, 8).all()  # of two actors with four environments
    for name in ("inference_call_ms_p50", "inference_call_ms_p99", "inference_batch_ms_mean"):
        assert (table[name] > 0).all()
    assert (table["inference_call_ms_p50"].to_numpy() <= table["inference_call_ms_p99"].to_numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(BATCHED + REPLAYING))
@pytest.mark.parametrize("workers", [False, True])
def test_every_algorithm_acts_in_groups(tmp_path: Path, algorithm: str, workers: bool) -> None:
    topology = CENTRAL | {"runtime": "threads", "env_groups": 2, "schedule": schedule_of(algorithm)}
    topology |= {"central": {"worker_processes": workers}}
    train(parse_run_config(merged(base_of(algorithm), {"topology": topology, "env_frames": 800})), tmp_path, quiet=True)
    table = pd.read_parquet(tmp_path / "curves.parquet").set_index("metric").value
    assert table["environment_wait_fraction"].between(0, 1).all()
    assert table["inference_columns_mean"].between(2, 8).all()  # of two actors with two groups of two environments


def schedule_of(algorithm: str) -> str:
    return algorithms.load(algorithm).SYSTEM.schedules[0]


def test_a_serial_run_in_groups_repeats_and_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    chosen = config(topology=CENTRAL | {"env_groups": 2})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(chosen, whole, quiet=True)
    with interrupted_after(70):
        assert train(chosen, parts, quiet=True) == "interrupted"
    train(chosen, parts, quiet=True)
    pd.testing.assert_frame_equal(curves(whole), curves(parts), check_exact=True)


def test_one_group_leaves_the_configuration_as_it_was() -> None:
    one, two = (to_json(config(topology=CENTRAL | {"env_groups": groups})) for groups in (1, 2))
    assert "env_groups" not in one["topology"]
    assert two["topology"]["env_groups"] == 2
    assert parse_run_config(two).topology.env_groups == 2


# The parameters' version --------------------------------------------------------------------------------------------


def network(seed: int) -> ActorCritic:
    return ActorCritic(
        MEMORY, network="mlp", lstm_size=8, feed_last_action_and_reward=True, generator=torch_generator(seed, "network")
    )


def local(seed: int) -> LocalInference:
    return LocalInference(network(seed), device=torch.device("cpu"), precision="float32")


def parameters(seed: int) -> ParameterServer:
    return ParameterServer(network(seed), ScheduleRule(None, 2, 2, lambda batch: batch))


class Meddling:
    """An environment during whose steps the learner publishes new parameters."""

    def __init__(self, env: VectorEnv, publish: Callable[[], object], at: set[int]) -> None:
        self.spec, self.num_envs, self.reset = env.spec, env.num_envs, env.reset
        self._env, self._publish, self._at, self._steps = env, publish, at, 0

    def step(self, actions: Array) -> EnvStep:
        self._steps += 1
        if self._steps in self._at:
            self._publish()
        return self._env.step(actions)


def test_each_step_has_the_version_and_the_distribution_of_the_parameters_that_acted() -> None:
    params = parameters(1)
    central = CentralInference([local(0)], params, None)
    env = registry.make("toy/memory", num_envs=2, seed=0)
    published = iter([2, 3])
    meddling = Meddling(env, lambda: params.publish(network(next(published))), {3, 6})
    policy = Policy(central, 2, torch_generator(0, "policy"), CATEGORICAL.sample)
    collector = UnrollCollector(meddling, policy, actor=0, on_episode=lambda *_: None)  # type: ignore[arg-type]
    unroll = collector.collect(8)
    assert unroll.version[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    state = unroll.initial_state  # what acted at each step, with the recurrent state that went from one to the next
    for t in range(8):
        acted = network(1 + int(unroll.version[t, 0]))
        inputs = (unroll.observation, unroll.last_action, unroll.last_reward, unroll.start)
        output = acted(*(part[t : t + 1] for part in inputs), state)
        torch.testing.assert_close(output.distribution[0], unroll.distribution[t])
        state = output.state


def test_a_batch_of_several_actors_is_what_each_would_get_alone() -> None:
    params = parameters(1)
    env = registry.make("toy/memory", num_envs=6, seed=0)
    step = env.reset()
    state = tuple(torch.randn(6, 8, generator=torch_generator(k, "state")) for k in range(2))
    calls = [
        PolicyInput(
            torch.from_numpy(step.observation)[columns],
            torch.arange(6)[columns] % MEMORY.num_actions,
            torch.linspace(-1, 1, 6)[columns],
            torch.tensor([True, False, False, True, False, False])[columns],
            tuple(part[columns] for part in state),
        )
        for columns in (slice(0, 1), slice(1, 3), slice(3, 6))
    ]
    (thread,) = CentralInference([local(0)], params, BatchRule(1, 6, 1.0)).threads
    together = thread.answers(calls)
    for call, answer in zip(calls, together, strict=True):
        (alone,) = thread.answers([call])
        torch.testing.assert_close(answer.distribution, alone.distribution)
        for part, other in zip(answer.state, alone.state, strict=True):
            torch.testing.assert_close(part, other)


def test_an_error_of_the_network_ends_the_thread_and_reaches_the_actor() -> None:
    central = CentralInference([local(0)], parameters(1), BatchRule(1, 6, 1.0))
    wrong = PolicyInput(torch.zeros(1, 3), torch.zeros(1).long(), torch.zeros(1), torch.zeros(1).bool(), ())
    errors: list[BaseException] = []

    def infer() -> None:
        try:
            central.infer(wrong)
        except Exception as error:
            errors.append(error)

    actor = threading.Thread(target=infer)
    actor.start()
    with pytest.raises(Exception, match=r".+") as raised:
        central.threads[0].step()
    actor.join(10)
    assert errors == [raised.value]


# Episodes that nobody ends --------------------------------------------------------------------------------------------


class Losing:
    """Environments that are lost, all at once, at some steps; others take their place."""

    def __init__(self, env: VectorEnv, at: set[int]) -> None:
        self.spec, self.num_envs, self.reset = env.spec, env.num_envs, env.reset
        self._env, self._at, self._steps = env, at, 0

    def step(self, actions: Array) -> EnvStep:
        self._steps += 1
        if self._steps not in self._at:
            return self._env.step(actions)
        first = self._env.reset()
        return first._replace(valid=np.zeros_like(first.valid))


def test_an_abandoned_episode_is_cut_before_the_step_that_was_lost() -> None:
    env = registry.make("toy/catch", num_envs=2, seed=0)
    episodes: list[Episode] = []
    policy = Policy(catch_inference(), 2, torch_generator(0, "policy"), CATEGORICAL.sample)
    losing: Any = Losing(env, {4, 9})
    collector = UnrollCollector(losing, policy, actor=0, on_episode=episodes.append)
    first, second = collector.collect(8), collector.collect(12)
    # Step 4 (transition 3) is lost: transition 2 is truncated, 3 is dead, 4 begins an episode.
    assert first.truncated[:, 0].tolist() == [t == 2 for t in range(8)]
    assert first.valid[:, 0].tolist() == [t != 3 for t in range(8)]
    assert first.start[:, 0].tolist() == [t in (0, 4) for t in range(9)]
    # Step 9 is the next unroll's first transition: the one before is not in it.
    assert not second.truncated.any()
    assert second.valid[0].tolist() == [False, False]
    assert second.start[1].all()
    assert second.last_reward[1].tolist() == [0.0, 0.0]
    assert collector.abandoned == 4
    assert {episode.length for episode in episodes if not episode.abandoned} == {9}  # whole games of Catch only
    assert [episode.length for episode in episodes if episode.abandoned] == [3, 3, 4, 4]


def catch_inference() -> LocalInference:
    made = ActorCritic(registry.spec_for("toy/catch"), network="mlp", generator=torch_generator(0, "network"))
    return LocalInference(made, device=torch.device("cpu"), precision="float32")


# Workers started by hand ----------------------------------------------------------------------------------------------


def start(*arguments: object) -> Ddrl:
    return Ddrl(*arguments, variables={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"})


@pytest.mark.system
def test_workers_outlive_a_learner_that_is_killed(tmp_path: Path) -> None:
    """The learner is killed in mid-training and started again: the run goes on, with the same worker processes."""
    address, token = f"unix:{tmp_path}/s", tmp_path / "token"
    token.write_text("a-secret-of-this-test\n")
    token.chmod(0o600)
    topology = CENTRAL | {"runtime": "threads", "schedule": "synchronous"}  # both workers are needed for every batch
    values = merged(BASE, {"env_frames": 8_000, "topology": topology, "evaluation": {"period_frames": None}})
    (tmp_path / "config.yaml").write_text(json.dumps(values))
    learner = ["train", tmp_path / "config.yaml", "--directory", tmp_path / "run", "--listen", address]
    learner += ["--token-file", token]
    workers = [start("worker", "--connect", address, "--token-file", token, "--env", "toy/catch") for _ in range(2)]
    killed = start(*learner)
    try:
        end = time.monotonic() + 60
        while len(list((tmp_path / "run/checkpoints").glob("*.sha256"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.ended(30)
        assert all(worker.returncode is None for worker in workers)
        again = start(*learner)
        error = again.ended(120)
        assert again.returncode == 0, error
        said = [worker.ended(30) for worker in workers]
    finally:
        for process in [killed, *workers]:
            process.kill()
    assert [worker.returncode for worker in workers] == [0, 0]
    for text in said:
        assert text.count("toy/catch, environment seed") == 2  # it had a place with either learner
        assert "trying again for up to 600 s" in text
        assert text.rstrip().endswith("the run is over")
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["resumes"] == 1
    assert run["history"][1]["env_frames"] >= 300
    table = curves(tmp_path / "run")
    for name in ("env_frames", "agent_steps", "updates"):
        assert table[name].is_monotonic_increasing
    assert (table[table.metric.str.startswith("wire_bytes_per_frame")].value > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "127.0.0.1:0"], "topology.inference: central (got serial and local)"),
        (["--listen", "0.0.0.0:0", "central"], "give a token (--token-file)"),
        (["--token-file", "/nowhere"], "go with --listen"),
        (["--listen", "127.0.0.1:0", "--token-file", "/nowhere", "central"], "--token-file /nowhere: cannot be read"),
        (["--listen", "unix:/nowhere/s", "central"], "--listen unix:/nowhere/s"),
        (["--listen", "127.0.0.1:0", "--tls-key", "/nowhere", "central"], "--tls-cert and --tls-key go together"),
    ],
)
def test_a_door_that_cannot_be_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    topology = CENTRAL | {"runtime": "threads"} if arguments[-1] == "central" else {}
    (tmp_path / "config.yaml").write_text(json.dumps(merged(BASE, {"topology": topology})))
    chosen = [one for one in arguments if one != "central"]
    assert cli.main(["train", str(tmp_path / "config.yaml"), "--directory", str(tmp_path / "run"), *chosen]) == 2
    error = capfd.readouterr().err
    assert message in error.splitlines()[-1]
    assert "Traceback" not in error


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o660])
@pytest.mark.parametrize("option", ["--token-file", "--tls-key"])
def test_a_secret_that_others_may_read_or_write_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str, mode: int
) -> None:
    secret, config = tmp_path / "a secret", tmp_path / "config.yaml"
    secret.write_text("a-secret-of-this-test\n")
    secret.chmod(mode)
    config.write_text(json.dumps(merged(BASE, {"topology": CENTRAL | {"runtime": "threads"}})))
    for command in (["train", str(config), "--listen", "127.0.0.1:0"], ["worker", "--connect", "127.0.0.1:1"]):
        assert cli.main([*command, "--tls-cert", "/nowhere", option, str(secret)]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert f"{option} {secret}: others may read or write it (mode {mode:03o}); type: chmod 600 '{secret}'" in line


# Keys -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ({"central": {"num_threads": 2}}, "'topology.central' is read only with 'topology.inference: central'"),
        (CENTRAL | {"central": {"max_columns": 3}}, "'topology.central.max_columns' must be at least the 4"),
        (CENTRAL | {"central": {"min_columns": 9}}, "'topology.central.min_columns' must be at most 8"),
        (CENTRAL | {"central": {"min_columns": 5, "max_columns": 4}}, "must be at most 4"),
        (CENTRAL | {"central": {"device": "tpu"}}, "'topology.central.device'"),
        (CENTRAL | {"central": {"max_wait_ms": -1.0}}, "'topology.central.max_wait_ms'"),
        (CENTRAL | {"central": {"threads": 2}}, "did you mean 'topology.central.num_threads'"),
        ({"inference": "remote"}, "'topology.inference'"),
    ],
)
def test_keys_that_cannot_be_are_refused(topology: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        config(topology=topology)


@pytest.mark.parametrize("device", ["cuda:9", "cuda:63"])
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(UserError, match=f"'topology.central.device': {device} was asked for, but torch finds"):
        train(config(topology=CENTRAL | {"central": {"device": device}}), tmp_path, quiet=True)


@pytest.mark.gpu
def test_inference_can_be_on_another_device_than_training(tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        topology = CENTRAL | {"runtime": "threads", "central": {"device": device}}
        train(config(topology=topology, device="cuda"), tmp_path / device, quiet=True)
        assert curves(tmp_path / device).env_frames.max() >= 2000


@pytest.mark.gpu
def test_on_a_gpu_inference_beside_a_busy_learner_has_whole_versions() -> None:
    device = torch.device("cuda")
    trained = network(0).to(device)
    params = ParameterServer(trained, ScheduleRule(None, 1, 1, lambda batch: batch))
    own = LocalInference(network(0), device=device, precision="float32")
    (thread,) = CentralInference([own], params, BatchRule(1, 1, 1.0)).threads
    observation = torch.from_numpy(registry.make("toy/memory", num_envs=1, seed=0).reset().observation)
    state = tuple(part.to(device) for part in trained.initial_state(1))
    one = PolicyInput(observation, torch.zeros(1).long(), torch.zeros(1), torch.ones(1).bool(), state)
    busy = torch.randn(4096, 4096, device=device)
    for version in range(1, 20):
        for _ in range(20):  # the training is behind when the version is published
            busy = torch.tanh(busy @ busy)
        filled(trained, version / 100)
        params.publish(trained)
        (answer,) = thread.answers([one])
        with torch.no_grad():
            expected = filled(network(0), version / 100)(*(part[None] for part in one[:4]), network(0).initial_state(1))
        assert answer.version == version
        torch.testing.assert_close(answer.distribution, expected.distribution[0], rtol=1e-4, atol=1e-5)


def filled(acting: ActorCritic, value: float) -> ActorCritic:
    with torch.no_grad():
        for tensor in acting.parameters():
            tensor.fill_(value)
    return acting


def test_closing_ends_an_actor_that_waits_for_a_batch() -> None:
    central = CentralInference([local(0)], parameters(1), BatchRule(6, 6, 60.0))
    ended: list[type] = []

    def infer() -> None:
        one = PolicyInput(torch.zeros(1, 3), torch.zeros(1).long(), torch.zeros(1), torch.zeros(1).bool(), ())
        try:
            central.infer(one)
        except Closed:
            ended.append(Closed)

    actor = threading.Thread(target=infer)
    actor.start()
    time.sleep(0.05)
    central.close()
    actor.join(10)
    assert ended == [Closed]


def test_a_worker_that_finds_no_learner_says_how_long_it_waits_and_ends(tmp_path: Path) -> None:
    nobody = f"unix:{private(tmp_path)}/learner.sock"
    worker = start("worker", "--connect", nobody, "--wait", "0.5")
    said = worker.ended(60)
    assert worker.returncode == TRY_AGAIN
    assert "trying again for up to 0.5 s" in said
    last = said.splitlines()[-1]
    assert last.startswith(f"ddrl: no learner at {nobody} for ")
    assert last.endswith("; --wait says how long")
    assert said.count("no connection: ") == 2 and "UNKNOWN" not in said


def private(folder: Path) -> Path:
    """A folder that only this user can enter."""
    folder.chmod(0o700)
    return folder
