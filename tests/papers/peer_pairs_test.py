"""Variants of our own code and of peers with the same configuration are pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddrl.papers.experiments import Experiment
from ddrl.papers.peer_pairs import Pair, pairs

BASE: dict[str, Any] = {"algorithm": "ppo", "env_frames": 1000, "environment": {}, "hyperparameters": {"discount": 0.9}}
ONE = Experiment(
    name="beside",
    title="Beside",
    source="",
    proxy=None,
    paper_budget=None,
    scored=True,
    bases={"ours": BASE, "other": BASE | {"algorithm": "a2c"}, "sb3": BASE, "rllib": BASE},
    labels={"ours": "Ours", "other": "Other", "sb3": "SB3", "rllib": "RLlib"},
    variants={"ours": {}, "other": {}, "sb3": {}, "rllib": {}},
    departures=(),
    scales={},
    peers={"sb3": "stable_baselines3", "rllib": "rllib"},
)


def test_each_variant_of_a_peer_is_paired_with_our_variant_of_the_same_base() -> None:
    assert pairs(ONE) == [Pair("ours", "sb3"), Pair("ours", "rllib")]


def test_what_a_variant_sets_must_be_the_same_too() -> None:
    changed = {"hyperparameters.discount": 0.5}
    assert pairs(replace(ONE, variants=ONE.variants | {"sb3": changed})) == [Pair("ours", "rllib")]
    both = ONE.variants | {"sb3": changed, "other": changed}
    assert pairs(replace(ONE, variants=both)) == [Pair("ours", "rllib")]
    same = replace(ONE, variants=both, bases=ONE.bases | {"other": BASE})
    assert pairs(same) == [Pair("other", "sb3"), Pair("ours", "rllib")]


def test_an_experiment_without_peers_has_no_pairs() -> None:
    assert pairs(replace(ONE, peers={})) == []
