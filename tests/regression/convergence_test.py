"""`verify_against`: new seeds against a sample of reference seeds, on made-up runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.statistics.significance import prediction_interval
from ddrl.errors import UserError
from ddrl.regression import Check, run_all, verify_against
from ddrl.regression.convergence import LEVEL, departures

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "results/reference/impala_2018/off_policy_correction/v_trace/toy-catch/seed11"
GROUP = "off_policy_correction/v_trace/toy-catch"
REACHED = (50_000, 70_000, 60_000, 55_000, 65_000)
FINAL = (0.97, 0.98, 0.99, 1.0, 0.98)
BUDGET, SPACING = 200_000, 1000


def write_run(
    folder: Path, seed: int, *, reached: int | None = 60_000, final: float = 0.98, frames: int = BUDGET, **changes: Any
) -> None:
    """A run whose training return passes 0.9 (the threshold of Catch) at `reached`."""
    directory = folder / f"seed{seed}"
    directory.mkdir(parents=True)
    manifest = json.loads((EXAMPLE / "run.json").read_text())
    config = copy.deepcopy(manifest["config"]) | {"seed": seed, "env_frames": frames}
    config["hyperparameters"] |= changes
    counts = {"env_frames": frames, "agent_steps": frames, "updates": frames // 640}
    grid = np.arange(SPACING, frames + 1, SPACING)
    returns = np.where(grid >= (reached or frames + 1), 0.95, -0.5)
    rows = [(frame, "episode_return", value) for frame, value in zip(grid, returns, strict=True)]
    rows += [(frame, "episodes", frame / 10) for frame in grid]
    rows += [(frame, name, 1.0) for frame in grid for name in ("policy_lag_mean", "policy_lag_max")]
    rows += [(frames, "evaluation_return", final)] * 10
    table = pd.DataFrame(rows, columns=["env_frames", "metric", "value"])
    table["agent_steps"], table["updates"] = table["env_frames"], table["env_frames"] // 640
    table["seconds"] = table["env_frames"] / 20_000
    table["env_frames"] = table["env_frames"].astype("int64")
    columns = ["env_frames", "agent_steps", "updates", "seconds", "metric", "value"]
    table[columns].to_parquet(directory / "curves.parquet", index=False)
    (directory / "run.json").write_text(json.dumps(manifest | counts | {"config": config}))
    (directory / "config.json").write_text(json.dumps(config))


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    for seed, (reached, final) in enumerate(zip(REACHED, FINAL, strict=True), start=11):
        write_run(tmp_path / "reference" / "impala_2018" / GROUP, seed, reached=reached, final=final)
    return tmp_path / "reference"


def verified(reference: Path, runs: Sequence[dict[str, Any]]) -> dict[str, Check]:
    """Checks of new runs with these facts, by the last part of their names."""
    folder = reference.parent / "new"
    for seed, facts in enumerate(runs, start=101):
        write_run(folder / GROUP, seed, **facts)
    checks = verify_against(folder, reference, replications=ROOT / "replications")
    return {check.name.split(": ")[-1]: check for check in checks}


def test_seeds_like_the_reference_pass(reference: Path) -> None:
    checks = verified(reference, [{}, {"reached": 68_000}, {"reached": 52_000}])
    assert {name: check.passed for name, check in checks.items()} == {"frames to 0.9": True, "final return": True}


def test_the_limit_is_that_of_a_one_sided_prediction_interval_shared_by_all_tests(reference: Path) -> None:
    limit = prediction_interval(np.array(REACHED, dtype=np.float64), 1 - 2 * LEVEL / 2, 2)[1]
    line = verified(reference, [{}, {}])["frames to 0.9"].line
    assert f"at most {limit:,.0f} at level 0.025" in line
    below, above = int(limit // 1000 * 1000), int(limit // 1000 * 1000 + 1000)
    for number, (reached, passes) in enumerate([(below, True), (above, False)]):
        root = reference.parent / str(number)
        root.mkdir()
        (root / "reference").symlink_to(reference)
        assert verified(root / "reference", [{"reached": reached}] * 2)["frames to 0.9"].passed is passes


def test_slower_seeds_fail_and_faster_ones_do_not(reference: Path) -> None:
    assert verified(reference, [{"reached": 110_000}, {"reached": 90_000}])["frames to 0.9"].passed is False


def test_faster_and_higher_is_no_regression(reference: Path) -> None:
    checks = verified(reference, [{"reached": 10_000, "final": 1.5}] * 2)
    assert all(check.passed for check in checks.values())


def test_a_lower_end_fails(reference: Path) -> None:
    checks = verified(reference, [{"final": 0.7}, {"final": 0.8}])
    assert checks["final return"].passed is False
    assert checks["frames to 0.9"].passed is True


def test_a_run_that_never_gets_there_counts_as_slower_than_its_budget(reference: Path) -> None:
    check = verified(reference, [{"reached": None}, {}])["frames to 0.9"]
    assert check.passed is False
    assert "1 of them never" in check.line


def test_a_budget_too_small_to_tell_is_not_passed(reference: Path) -> None:
    checks = verified(reference, [{"reached": None, "frames": 40_000}] * 2)
    assert checks["frames to 0.9"].passed is None
    assert "budget too small" in checks["frames to 0.9"].line
    assert checks["final return"].passed is None
    assert "budgets differ: 40,000 to 200,000" in checks["final return"].line


def test_a_reference_that_never_gets_there_has_no_frames_to_compare(reference: Path) -> None:
    write_run(reference / "impala_2018" / GROUP, 16, reached=None)
    check = verified(reference, [{}])["frames to 0.9"]
    assert check.passed is None
    assert "1 of 6 reference runs never reached 0.9" in check.line


def test_another_configuration_is_not_compared(reference: Path) -> None:
    checks = verified(reference, [{"batch_size": 64}])
    (check,) = checks.values()
    assert check.passed is None
    assert "hyperparameters.batch_size 64 instead of 32" in check.line


@pytest.mark.parametrize(("separate", "compared"), [(False, True), (True, False)])
def test_a_key_that_came_after_the_reference_has_its_default_there(
    reference: Path, separate: bool, compared: bool
) -> None:
    for path in (reference / "impala_2018" / GROUP).glob("seed*/*.json"):
        written = json.loads(path.read_text())
        written.get("config", written)["hyperparameters"].pop("separate_value_network", None)
        path.write_text(json.dumps(written))
    checks = verified(reference, [{"separate_value_network": separate}] * 2)
    assert {check.passed for check in checks.values()} == ({True} if compared else {None})


@pytest.mark.parametrize("key", ["algorithm", "precision"])
def test_a_configuration_that_is_not_allowed_any_more_is_compared_as_it_stands(key: str) -> None:
    config = json.loads((EXAMPLE / "config.json").read_text())
    old = config | {key: "of old"}
    assert not departures(old, old)
    assert f"{key} {config[key]} instead of of old" in departures(config, old)


def test_seeds_trained_for_the_check_that_cannot_be_compared_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_seeds(reference: Path, target: Path, seeds: Sequence[int]) -> None:
        for seed in seeds:
            write_run(target, seed, batch_size=64)

    (tmp_path / "results").mkdir()
    (tmp_path / run_all.REFERENCE).symlink_to(ROOT / run_all.REFERENCE)
    for folder in ("replications", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setattr(run_all, "train_seeds", train_seeds)
    checks = list(run_all.convergence_checks(tmp_path))
    assert {check.passed for check in checks} == {False}
    assert "another configuration" in checks[0].line


def test_one_reference_seed_is_too_few_and_said_so(tmp_path: Path) -> None:
    write_run(tmp_path / "reference" / "impala_2018" / GROUP, 11)
    (check,) = verified(tmp_path / "reference", [{}]).values()
    assert check.passed is None
    assert "too few seeds: 1 in the reference" in check.line


def test_a_damaged_run_fails_and_the_others_are_still_tested(reference: Path) -> None:
    write_run(reference.parent / "new" / GROUP, 201)
    (reference.parent / "new" / GROUP / "seed201" / "curves.parquet").write_bytes(b"PAR1")
    checks = verified(reference, [{}])
    assert checks.pop(f"{GROUP}/seed201").passed is False
    assert {check.passed for check in checks.values()} == {True}


def test_a_run_that_has_not_finished_is_named(reference: Path) -> None:
    write_run(reference.parent / "new" / GROUP, 201)
    (reference.parent / "new" / GROUP / "seed201" / "run.json").unlink()
    (check,) = (check for name, check in verified(reference, [{}]).items() if "seed201" in name)
    assert "run.json" in check.line


def test_a_name_that_the_reference_does_not_have_is_skipped_with_a_line(reference: Path) -> None:
    write_run(reference.parent / "new" / "off_policy_correction/v_trace_twice/toy-catch", 1)
    check = verified(reference, [{}])["off_policy_correction/v_trace_twice/toy-catch"]
    assert check.passed is None


def test_the_reference_is_not_compared_with_itself() -> None:
    folder = ROOT / "results" / "reference"
    with pytest.raises(UserError, match="holds no run"):
        verify_against(folder, folder, replications=ROOT / "replications")


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        verify_against(tmp_path / "none", tmp_path, replications=ROOT / "replications")


def test_it_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; import ddrl.regression; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
