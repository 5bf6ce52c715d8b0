"""What a scale will take counts every member of a population."""

from __future__ import annotations

from dataclasses import replace

from ddrl.cli.planning import frames_of, storage_bytes
from ddrl.training.config.experiments import expand
from tests.training.config.population_test import SMALL


def test_frames_and_storage_are_those_of_all_members() -> None:
    run = expand("impala_2018", "smoke")[0]
    several = replace(run, config={**run.config, "population": SMALL})
    assert frames_of(several.config) == 3 * frames_of(run.config) == 3 * run.config["env_frames"]
    assert 2.9 < storage_bytes(several) / storage_bytes(run) < 3.1
