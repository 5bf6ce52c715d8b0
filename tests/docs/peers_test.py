"""The page about peers shows what the evidence and the committed measurements hold, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.sitegen import evidence, peers
from docs.sitegen.hook import expanded
from tests.analysis.tables.peer_speed_test import write_speeds

ROW = {
    "experiment": "beside",
    "algorithm": "ppo",
    "library": "RLlib 2.60.0",
    "environment": "gymnasium/CartPole-v1",
    "env_label": "CartPole-v1",
    "origin": "reference",
    "peer_variant": "rllib",
    "seeds": "5",
    "peer_seeds": "5",
    "env_frames": "51200",
    "ours": "180.5",
    "theirs": "160.5",
    "ratio": "1.14",
    "ci90_low": "0.95",
    "ci90_high": "1.4",
    "margin": "0.1",
    "verdict": "inconclusive",
    "detail": "the 90 % interval of the ratio is wider than the margins",
    "unmapped": "normalise_advantages; bootstrap",
}


def test_returns_are_a_line_each_and_what_has_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"ratio": "", "ci90_low": "", "ci90_high": "", "verdict": "not_run", "library": "SB3"}
    rows = [ROW | {"metric": name} for name in ("mean_return", "final_return")]
    rows += [row | nothing | {"peer_variant": "sb3"} for row in rows]
    monkeypatch.setattr(evidence, "rows", lambda key, name: tuple(rows))
    page = peers.learning("controls_2026")
    assert page.count("| RLlib 2.60.0 |") == 2
    assert "| 1.14 \\[0.95, 1.40] | 5 / 5 | 51.2 k |" in page
    assert 'class="verdict inconclusive"' in page
    assert "normalise advantages, bootstrap" in page
    assert "The margin is 10\u202f%." in page
    assert "No committed run yet: SB3 on CartPole-v1 (PPO)." in page


def test_speeds_name_where_and_how_they_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    assert peers.speeds() == "No committed measurement yet."
    write_speeds(tmp_path / "results")
    page = peers.speeds()
    assert "**PPO on mujoco/HalfCheetah-v5**" in page
    assert "2 200 \\[2 000, 2 400]" in page
    assert "| 2 \\[2, 2] |" in page
    for part in (
        "2026-11-27",
        "commit ffffffff",
        "ddrl peers speed ppo",
        "results/reference/peers/half\\_cheetah.json",
    ):
        assert part in page


def test_the_guide_has_both_tables() -> None:
    page = expanded((Path(__file__).parents[2] / "docs/guide/peers.md").read_text(encoding="utf-8"))
    assert "<!-- generated" not in page
    assert "committed" in page.lower()
