"""kill -9 at random moments of a population in turn, resumed each time: the same decisions and curves as without."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ddrl.training.config.run_config import to_json
from tests.population.population_test import same, small
from tests.processes import finish
from tests.runtimes.kill_test import kill_somewhere, start

KILLS = 8


@pytest.mark.system
def test_a_population_killed_at_random_moments_has_the_same_decisions_and_curves(tmp_path: Path) -> None:
    """Half of the moments follow a decision, half a member's checkpoint."""
    path = tmp_path / "config.json"
    config = small({"burn_in_frames": 1000, "period_frames": 1000}, env_frames=8000)
    path.write_text(json.dumps(to_json(config)))
    assert finish(start(path, tmp_path / "straight")) == 0
    generator, killed = random.Random(2018), tmp_path / "killed"
    moments = ["lineage.jsonl", "members/*/checkpoints/*.sha256"] * (KILLS // 2)
    kills = sum(kill_somewhere(start(path, killed), killed, generator, 0.3, after) for after in moments)
    assert kills >= KILLS - 2
    assert finish(start(path, killed)) == 0
    same(tmp_path / "straight", killed)
    assert json.loads((killed / "run.json").read_text())["resumes"] == kills
