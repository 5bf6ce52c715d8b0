"""The committed agents play in a fresh clone, are small, and are what their README says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ddrl
from ddrl import algorithms, cli
from ddrl.api import policy_file
from ddrl.cli.agents import FOLDER, agents, markdown, page
from ddrl.training.config.defaults import completed
from ddrl.training.config.run_config import parse_run_config
from tests.runs import DISCRETE

ROOT = Path(__file__).resolve().parents[2]
ROWS = list(agents(ROOT))
NAMES = [row["agent"] for row in ROWS]
MOST_BYTES = 3_000_000
CARTPOLE = "gymnasium/CartPole-v1"
KEPT = {"config.json", "curves.parquet", "policy.safetensors", "run.json"}


def test_there_are_eight_agents_or_more_and_one_of_each_algorithm() -> None:
    assert len(ROWS) >= 8
    assert {row["algorithm"] for row in ROWS} == set(algorithms.NAMES)


def test_the_readme_has_the_table_of_the_runs() -> None:
    path, text = page(ROOT)
    assert path.read_text(encoding="utf-8") == text, "python -m ddrl.cli.agents writes it anew"


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_is_small_and_made_from_a_clean_checkout(name: str) -> None:
    folder = ROOT / name
    run = ddrl.load_run(folder)
    assert (folder / policy_file.NAME).stat().st_size < MOST_BYTES
    assert run.manifest["git_dirty"] is False
    assert folder.name.startswith(f"{run.config.seed}-")
    assert folder.parent == ROOT / FOLDER / run.config.algorithm / run.config.environment["name"]
    found, _ = policy_file.read(folder / policy_file.NAME)
    assert (found.env_frames, found.config) == (run.manifest["env_frames"], run.config)
    assert found.version == run.manifest["algorithm_version"]


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_plays_better_than_random_play_by_half_of_what_it_had_learned(name: str) -> None:
    row = ROWS[NAMES.index(name)]
    random, final = (float(row[column].replace(",", "")) for column in ("random play", "final return"))
    if final < 1.5 * max(random, 0.1):
        pytest.skip("it has learned little, as its README says")
    episodes = 2 if "HalfCheetah" in name else 6
    assert ddrl.evaluate(ROOT / name, episodes=episodes).mean_return > (random + final) / 2


@pytest.mark.parametrize("algorithm", DISCRETE)
def test_the_agents_on_cartpole_have_the_settings_of_todays_minimal_configuration(algorithm: str) -> None:
    run = ddrl.load_run(ROOT / FOLDER / algorithm / CARTPOLE / "1-1")
    four = {"algorithm": algorithm, "environment": {"name": CARTPOLE}, "seed": 1, "env_frames": run.config.env_frames}
    minimal = parse_run_config(completed(four))
    assert run.config.hyperparameters == minimal.hyperparameters
    assert run.config.topology == minimal.topology


def test_agents_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["list", "agents", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ROWS
    assert cli.main(["list", "agents", "ppo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len([row for row in ROWS if row["algorithm"] == "ppo"])


def test_numbers_stand_to_the_right() -> None:
    assert markdown([{"agent": "a", "frames": "1,000", "return": "-3.10"}]) == (
        "| agent | frames | return |\n| --- | ---: | ---: |\n| a | 1,000 | -3.10 |\n"
    )
