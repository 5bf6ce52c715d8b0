"""`tuning` of experiments.yaml: a seed with which settings were chosen is no test seed on the same task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ddrl.errors import UserError
from ddrl.papers.experiments import load_experiments, papers
from ddrl.papers.tuning import Tuning
from ddrl.report.sections.chosen import tuning

ROOT = Path(__file__).parents[2] / "replications"
ENTRY = {"what": "the learning rate", "source": "here", "tasks": ["toy/catch"], "seeds": [3, 12], "runs": 2}


def loaded(tmp_path: Path, given: Any) -> Any:
    """The experiments of a paper, of which one says how it was tuned."""
    folder = tmp_path / "impala_2018"
    folder.mkdir()
    data = yaml.safe_load((ROOT / "impala_2018/experiments.yaml").read_text(encoding="utf-8"))
    data["experiments"]["off_policy_correction"]["tuning"] = given
    (folder / "experiments.yaml").write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False))
    return load_experiments(folder)["off_policy_correction"]


def test_a_test_seed_that_is_a_tuning_seed_is_one_line_with_file_key_and_seeds(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, [ENTRY])
    where = f"{tmp_path}/impala_2018/experiments.yaml: experiments.off_policy_correction.scales.smoke"
    said = "key 'seeds' has 12, with which the settings of v_trace were chosen on toy/catch (key 'tuning'); allowed: "
    assert str(caught.value) == f"{where}: {said}other seeds"


@pytest.mark.parametrize(
    "change", [{"seeds": [3]}, {"tasks": ["toy/memory"]}, {"tasks": ["atari/breakout"], "seeds": [1]}]
)
def test_other_seeds_or_tasks_are_no_clash(tmp_path: Path, change: dict[str, Any]) -> None:
    assert loaded(tmp_path, [ENTRY | change]).tuning[0].runs == 2


def test_a_tuning_of_one_variant_binds_that_one_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="settings of one_step_is were chosen"):
        loaded(tmp_path, [ENTRY | {"variants": ["one_step_is"]}])


def test_an_unknown_variant_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown variant 'v_trce'"):
        loaded(tmp_path, [ENTRY | {"variants": ["v_trce"]}])


def test_what_is_not_recorded_is_said_to_be(tmp_path: Path) -> None:
    assert loaded(tmp_path, "none recorded").tuning == ()


@pytest.mark.parametrize("name", papers(ROOT))
def test_every_experiment_says_how_its_settings_were_chosen_or_that_nothing_is_recorded(name: str) -> None:
    data = yaml.safe_load((ROOT / name / "experiments.yaml").read_text(encoding="utf-8"))
    assert [key for key, entry in data["experiments"].items() if "tuning" not in entry] == []


def test_a_report_prints_the_tuning_of_every_system() -> None:
    entry = Tuning("the learning rate", "DECISIONS 1", ("a",), ("toy/catch",), (3, 12), runs=2, frames=None)
    experiments = {
        "one": {"title": "One", "labels": {"a": "System A"}, "tuning": [vars(entry)]},
        "two": {"title": "Two", "labels": {"a": "System A"}, "tuning": []},
    }
    found = tuning(experiments)
    said = [[[span.text for span in cell.spans] for cell in line] for group in found.groups for line in group.rows]
    assert [group.title for group in found.groups] == ["One", "Two"]
    first, second = (["".join(cell) for cell in line] for line in said)
    assert first[0] == "System A" and first[1].startswith("The learning rate.") and "DECISIONS 1" in first[1]
    assert first[2:] == ["toy/catch", "3, 12", "2", "–"]
    assert second[1].startswith("None recorded.") and second[2:] == ["–", "–", "–", "–"]
