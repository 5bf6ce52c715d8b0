"""Numbers of environments that are not finite, or huge: one line that names them, whatever learns from them."""

from __future__ import annotations

import json
import math
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from ddrl import algorithms, cli
from ddrl.environments.toy import ToyEnvs
from ddrl.training.records import checkpoint
from ddrl.types import Array, EnvStep
from tests.runs import BASE, GRADIENTS, base_of, merged, task_of
from tests.runtimes.crash import CRASHES, environment_seed

AT = 80
"""The step that is poisoned: of an actor's, or of an evaluation's."""
POISONS = (("reward", math.nan), ("observation", math.inf), ("reward", 3e38), ("observation", math.nan))


def poisoned(role: str, field: str, value: float, at: int = AT) -> Any:
    """`ToyEnvs.step` that puts a value into the last column's reward, or first number seen, in step `at` of a role."""
    whole, seed, steps = ToyEnvs.step, environment_seed(role, BASE["seed"]), 0

    def step(self: ToyEnvs, actions: Array) -> EnvStep:
        nonlocal steps
        made = whole(self, actions)
        if self._seed == seed:
            steps += 1
            if steps == at:
                array = getattr(made, field).copy()
                array.reshape(self.num_envs, -1)[-1, 0] = value
                return made._replace(**{field: array})
        return made

    return step


def run_of(tmp_path: Path, algorithm: str, **overrides: Any) -> tuple[Path, dict[str, Any]]:
    """A configuration's file, and the directory that it is trained in."""
    columns = 1 if algorithm in GRADIENTS else 4
    values = merged(base_of(algorithm), {"checkpoint": {"period_frames": 50}, "env_frames": 4000} | overrides)
    values["topology"] |= {"envs_per_actor": columns, "schedule": algorithms.load(algorithm).SYSTEM.schedules[0]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return path, values


def strict(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that must hold strict JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("algorithm", "poison"), list(zip(algorithms.NAMES, cycle(POISONS))))
def test_every_algorithm_ends_with_one_line_and_keeps_what_was_saved(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    algorithm: str,
    poison: tuple[str, float],
) -> None:
    field, value = poison
    path, values = run_of(tmp_path, algorithm)
    monkeypatch.setattr(ToyEnvs, "step", poisoned("actor", field, value))
    assert cli.main(["train", str(path), "--quiet", "--directory", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    last, what = values["topology"]["envs_per_actor"] - 1, f"{field}[0]" if field == "observation" else field
    seed = environment_seed("actor", BASE["seed"])
    name = f"ddrl: actor 1, environment {task_of(algorithm)}, environment seed {seed}"
    assert line.startswith(f"{name}: step {AT} of this process, column {last} of {last + 1}: the {what} is ")
    allowed = "allowed: finite numbers within 1e+12 of 0; the actions before it were finite"
    assert line.endswith(f" is {value:g}; {allowed}")
    state, damaged = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert damaged == []
    assert all(row["metrics"] for row in strict(tmp_path / "run" / "curves.jsonl"))


@pytest.mark.parametrize(
    ("runtime", "role"), [("threads", "actor"), ("serial", "evaluation"), ("threads", "evaluation")]
)
def test_every_role_of_every_runtime_in_one_process_ends_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtime: str, role: str
) -> None:
    path, _ = run_of(
        tmp_path,
        "impala",
        topology={"runtime": runtime},
        env_frames=2**40 if role == "actor" else 400,  # endless, or the other actor could reach it first
        evaluation={"period_frames": 10**9},
    )
    monkeypatch.setattr(ToyEnvs, "step", poisoned(role, "observation", math.nan, at=3))
    assert cli.main(["train", str(path), "--quiet", "--directory", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ddrl: {role} {CRASHES[role]}, environment toy/catch, environment seed ")
    assert "step 3 of this process, column " in line
    assert strict(tmp_path / "run" / "curves.jsonl") or role == "actor"


def test_the_same_command_goes_on_from_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = run_of(tmp_path, "impala", env_frames=1200)
    command, whole = ["train", str(path), "--directory", str(tmp_path / "run")], ToyEnvs.step
    monkeypatch.setattr(ToyEnvs, "step", poisoned("actor", "reward", math.inf))
    assert cli.main(command) == 2
    monkeypatch.setattr(ToyEnvs, "step", whole)
    assert cli.main(command) == 0
    assert "resumed at " in capsys.readouterr().err
    assert strict(tmp_path / "run" / "curves.jsonl")[-1]["env_frames"] >= 1200
