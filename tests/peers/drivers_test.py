"""What the drivers share agrees with our own code: environments, networks, versions that are scored."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.api.settings import run_config
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.peers import request as requests
from ddrl.peers.catalogue import peers
from ddrl.peers.request import request_of
from ddrl.system.instruction_words import image_of
from ddrl.system.seeding import seed_for
from ddrl.training.builder import Builder
from ddrl.training.evaluation import FinalVersions, Scored
from tests.peers.fake import DRIVERS


def module(name: str) -> ModuleType:
    """A file of the drivers, which belong to no package."""
    spec = importlib.util.spec_from_file_location(f"drivers_{name}", DRIVERS / f"{name}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


protocol, environments, networks = module("protocol"), module("environments"), module("networks")


def test_both_sides_have_the_same_version_of_the_protocol() -> None:
    assert protocol.VERSION == requests.PROTOCOL


def test_a_key_that_no_driver_reads_is_unmapped() -> None:
    settings = protocol.Settings({"a": 1, "b": 2, "c": 3, "d": 4, "e.f": 5})
    settings.without_effect("e")
    assert settings.take("a") == 1
    settings.same("b", 2, "fixed")
    settings.same("c", 0, "fixed")
    assert settings.left() == [
        {"key": "c", "ours": 3, "theirs": 0, "why": "fixed"},
        {"key": "d", "ours": 4, "theirs": None, "why": "the driver maps no such key"},
    ]


def test_lines_hold_what_happened_since_the_last_one() -> None:
    out = io.StringIO()
    reporter = protocol.Reporter(out.write)
    reporter.progress(0, force=True)
    reporter.episode(5, 1.5, 5)
    reporter.metric("entropy", float("nan"))
    reporter.steps = 8
    reporter.progress(force=True)
    reporter.progress(force=True)
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert [line["episodes"] for line in (first, second, third)] == [[], [[5, 1.5, 5]], []]
    assert (first["steps"], second["steps"], second["metrics"]) == (0, 8, {})


def test_versions_are_kept_where_ours_are_and_share_the_episodes() -> None:
    values = {"env_frames": 1000, "evaluation": {"final_episodes": 10, "final_versions": 4}}
    config = run_config("test", values, algorithm="ppo", environment="toy/catch")
    request, ours = request_of(config, threads=1), FinalVersions(config)
    out = io.StringIO()
    reporter = protocol.Reporter(out.write)
    versions = protocol.Versions(request, lambda: reporter.steps)
    for update in range(1, 21):
        reporter.steps, reporter.updates = 50 * update, update
        versions.keep(reporter)
        if ours.are_due(50 * update):
            ours.keep(50 * update, Scored(update, []))
    versions.play(reporter, lambda parameters, share, count: [[float(parameters), share]] * count)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["updates"] for line in lines] == [scored.updates for scored in ours.until(Scored(20, []))]
    assert sum(len(line["episodes"]) for line in lines) == 10


PLAIN = {"reward_clipping": "none", "time_limits": "bootstrap", "frame_skip": 1}


def played(task: str, actions: list[Any], **options: Any) -> Iterator[tuple[Any, ...]]:
    """Yield observation, reward, terminated and truncated of our environment and theirs, from the same start."""
    given = registry.resolve_options(f"{task}", options)
    ours = registry.make(task, 1, 3, **given)
    theirs = environments.make(registry.recipe(task, **given) | PLAIN, 3)
    seen, (other, _) = ours.reset(), theirs.reset()
    yield seen.observation[0], other
    for action in actions:
        step, mirrored = ours.step(np.array([action])), theirs.step(action)
        yield step.observation[0], mirrored[0], step.reward[0], mirrored[1], step.terminated[0], mirrored[2]
        if step.ended[0]:
            return


def test_catch_is_ours_but_for_where_the_ball_starts() -> None:
    def from_the_same_ball(number: int) -> bool:
        points = list(played("toy/catch", [2, 2, 1, 0, 1, 1, 1, 1, 1], rows=6, columns=4 + number))
        if not np.array_equal(points[0][0], points[0][1]):
            return False
        for seen, other, reward, theirs, terminated, ended in points[1:]:
            assert np.array_equal(seen, other)
            assert (reward, terminated) == (theirs, ended)
        return len(points) == 6

    assert sum(from_the_same_ball(number) for number in range(12)) > 0


@pytest.mark.skipif(importlib.util.find_spec("cv2") is None, reason="cv2 is in the peers' environments alone")
def test_a_game_without_chance_is_ours_frame_by_frame() -> None:
    generator = np.random.default_rng(1)
    points = list(played("atari/breakout", list(generator.integers(4, size=400)), noop_max=0, max_frames=1200))
    for number, (seen, other, *rest) in enumerate(points[1:], 1):
        assert rest[::2] == rest[1::2]
        if number < len(points) - 1:  # the frame at the end of a game, from which nothing is learned, may differ
            assert np.array_equal(seen, other), number


@pytest.mark.parametrize(("task", "max_frames"), [("vizdoom_basic", 40), ("vizdoom_take_cover", 0)])
def test_a_task_of_vizdoom_is_ours_frame_by_frame(
    task: str, max_frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instruction alone is left out, which is empty."""
    pytest.importorskip("vizdoom")
    monkeypatch.syspath_prepend(DRIVERS)
    spec = registry.spec_for(f"firstperson/{task}", max_frames=max_frames)
    recipe = registry.recipe(spec.name, max_frames=max_frames) | PLAIN | {"frame_skip": spec.frame_skip}
    generator = np.random.default_rng(2)
    with (
        closing(registry.make(f"firstperson/{task}", 1, 3, max_frames=max_frames)) as ours,
        closing(environments.make(recipe, 3, str(tmp_path))) as theirs,
    ):
        assert theirs.action_space.n == spec.num_actions
        for episode in range(2):
            seen = ours.reset()
            other, _ = theirs.unwrapped.reset(seed=seed_for(3, f"{spec.name}/0", episode))
            while True:
                assert np.array_equal(image_of(seen.observation[0], spec), other)
                assert not seen.observation[0][other.size :].any()
                if seen.ended[0]:
                    break
                action = int(generator.integers(spec.num_actions))
                seen = ours.step(np.array([action]))
                other, reward, *ends, _ = theirs.step(action)
                assert (np.float32(reward), *ends) == (seen.reward[0], seen.terminated[0], seen.truncated[0])
        assert len(theirs.episodes_over()) == 2
    assert not list(tmp_path.iterdir())


def test_drivers_make_no_task_of_miniworld() -> None:
    with pytest.raises(UserError, match=r"firstperson/miniworld_sign.*those of ViZDoom alone"):
        registry.recipe("firstperson/miniworld_sign")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"packages": ["numpy", "a_simulator"]}, "does not have the package a_simulator"),
        ({"reward_clipping": "soft_asymmetric"}, r"reward_clipping: soft_asymmetric .* allowed: none, abs_one"),
    ],
)
def test_a_task_that_an_environment_cannot_make_is_refused(task: dict[str, Any], message: str) -> None:
    protocol.check(PLAIN)
    with pytest.raises(protocol.Refused, match=message):
        protocol.check(PLAIN | task)


PENDULUM = {"kind": "gymnasium", "id": "Pendulum-v1", "max_steps": 5, "arguments": {}, **PLAIN}


@pytest.mark.parametrize("limits", ["bootstrap", "terminal"])
def test_a_limit_ends_an_episode_for_learners_that_know_no_limits(limits: str) -> None:
    env = environments.make(PENDULUM | {"time_limits": limits}, 1)
    env.reset()
    ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(limits == "terminal", limits == "bootstrap")]
    assert len(env.episodes_over()) == 1


@pytest.mark.parametrize(
    ("name", "algorithm"), [(one.name, kind) for one in peers().values() for kind in one.algorithms]
)
def test_a_driver_reads_every_key_of_its_algorithms(name: str, algorithm: str) -> None:
    """A key that a driver forgets is listed as unmapped, also where the library could take it."""
    text = "".join(path.read_text() for path in DRIVERS.glob(f"{name.removesuffix('3')}*.py"))
    assert text
    config = run_config("test", {}, algorithm=algorithm, environment="toy/catch")
    for key in request_of(config, threads=1)["settings"]:
        described = key.partition(".")[0] in protocol.DESCRIBED or key in protocol.OURS_ALONE
        of_optimizer = key.startswith("optimizer.") and f'"{key.removeprefix("optimizer.")}"' in text
        assert described or of_optimizer or f'"{key}"' in text, key


def test_continuous_actions_are_cut_and_scaled_to_the_simulators_bounds() -> None:
    env = environments.make(PENDULUM | {"reward_clipping": "abs_one"}, 1)
    assert (env.action_space.low, env.action_space.high) == (-1.0, 1.0)
    env.reset()
    rewards = [env.step(np.array([9.0], np.float32)) for _ in range(5)]
    assert env.unwrapped.last_u == 2.0
    assert rewards[-1][3]
    ((raw, length),) = env.episodes_over()
    assert length == 5
    assert raw < sum(step[1] for step in rewards)  # clipped for the learner, raw for the record
    assert env.episodes_over() == []


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("toy/catch", {"network": "tanh_mlp", "separate_value_network": True}),
        ("toy/catch", {"network": "mlp", "initialisation": {"name": "orthogonal"}}),
        ("atari/breakout", {"network": "nature"}),
        ("atari/breakout", {"network": "shallow"}),
        ("atari/breakout", {"network": "vision"}),
        ("firstperson/vizdoom_basic", {"network": "nature"}),
    ],
)
def test_the_network_that_a_request_describes_is_ours(task: str, settings: dict[str, Any]) -> None:
    plain = {"observation_normalisation": False, "reward_normalisation": False, "separate_value_network": False}
    values = {"hyperparameters": plain | settings}
    config = run_config("test", values, algorithm="ppo", environment=task)
    builder = Builder(config, torch.device("cpu"))
    ours: Any = builder.network()
    described = request_of(config, threads=1)["network"]
    shown = builder.spec.image_shape or builder.spec.observation_shape
    theirs = networks.Torso(shown, described["torso"])
    theirs.load_state_dict(ours.torso.state_dict())
    image = builder.spec.observation_dtype == "uint8"
    generator = torch.Generator().manual_seed(1)
    shape = (3, *shown)
    seen = (
        torch.randint(256, shape, generator=generator).to(torch.uint8)
        if image
        else torch.rand(shape, generator=generator)
    )
    given = seen / 255.0 if image else seen
    torch.testing.assert_close(theirs(given), ours.torso(seen), rtol=1e-4, atol=1e-5)
    assert described["separate"] == (ours.value_torso is not None)
    assert described["gains"] == list(ours.gains)
    assert described["instructions"] == (64 if builder.spec.image_shape else 0)


@pytest.mark.parametrize("gain", [None, 0.5, "glorot", "uniform"])
def test_first_weights_are_of_the_requested_kind(gain: float | str | None) -> None:
    layer = torch.nn.Linear(400, 100)
    networks.initialise(layer, gain)
    assert bool(layer.bias.any()) == (gain == "uniform")
    if gain == "uniform":
        assert 0.99 < float(layer.weight.abs().max()) * 20 <= 1.0
        assert 0.9 < float(layer.bias.abs().max()) * 20 <= 1.0
    elif gain == "glorot":
        assert 0.99 < float(layer.weight.abs().max()) / (6 / 500) ** 0.5 <= 1.0
    elif isinstance(gain, float):
        torch.testing.assert_close(layer.weight @ layer.weight.T, gain**2 * torch.eye(100), rtol=1e-3, atol=1e-4)
    else:
        assert float(layer.weight.abs().max()) <= 2 / 20 + 1e-6
        assert float(layer.weight.std()) == pytest.approx(0.88 / 20, rel=0.02)


def test_the_learning_rate_falls_over_the_frames_that_ours_falls_over() -> None:
    share = protocol.linear_decay(2000, 1000)
    assert [share(left) for left in (1.0, 0.5, 0.0)] == [1.0, 0.75, 0.5]
    assert protocol.linear_decay(500, 1000)(0.25) == 0.0
    assert protocol.linear_decay(None, 1000)(0.25) == 1.0


def test_drivers_import_nothing_of_ours() -> None:
    for path in Path(DRIVERS).glob("*.py"):
        assert "import ddrl" not in path.read_text()
        assert "from ddrl" not in path.read_text()
    assert "drivers_protocol" not in sys.modules
