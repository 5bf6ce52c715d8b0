"""experiments.yaml: the runs of a scale, and what a scale may not do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddrl.analysis.runs.flags import changed_settings, flatten
from ddrl.errors import UserError
from ddrl.training.config.experiments import SCALES, PlannedRun, expand, load_experiments, main, papers, write_configs

ROOT = Path(__file__).parents[2] / "replications"


def runs_of(scale: str, **filters: Any) -> list[PlannedRun]:
    return expand("impala_2018", scale, root=ROOT, validate=False, **filters)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """Edits a copy of experiments.yaml; returns the copy's root."""

    def edit(change: Callable[[Any], None]) -> Path:
        folder = tmp_path / "impala_2018"
        shutil.copytree(ROOT / "impala_2018", folder, ignore=shutil.ignore_patterns("__pycache__"))
        data = yaml.safe_load((folder / "experiments.yaml").read_text())
        change(data["experiments"])
        (folder / "experiments.yaml").write_text(yaml.safe_dump(data, allow_unicode=True))
        return tmp_path

    return edit


def refusal(root: Path) -> str:
    with pytest.raises(UserError) as caught:
        expand("impala_2018", "smoke", root=root, validate=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("scale", SCALES)
def test_every_configuration_of_every_scale_is_valid(scale: str) -> None:
    runs = expand("impala_2018", scale, root=ROOT)
    assert len({run.key for run in runs}) == len(runs)
    for run in runs:
        assert run.config["seed"] == run.seed
        assert run.config["environment"]["name"] == run.environment


@pytest.mark.parametrize(("scale", "wanted"), [("smoke", 1), ("workstation", 10), ("paper", 1)])
def test_ten_versions_share_the_final_episodes_of_a_run_that_decides_something_below_the_papers_scale(
    scale: str, wanted: int
) -> None:
    found = [run.config["evaluation"] for run in expand("impala_2018", scale, root=ROOT)]
    assert {one["final_versions"] - min(wanted, one["final_episodes"]) for one in found} == {0}


def test_the_paper_scale_trains_57_games_of_200_million_frames_with_the_papers_settings() -> None:
    runs = [run for run in runs_of("paper") if run.experiment == "atari"]
    assert len({run.environment for run in runs}) == 57
    entry = load_experiments(ROOT / "impala_2018")["atari"]
    for run in runs:
        assert run.config["env_frames"] == 200_000_000
        assert run.config["evaluation"]["final_episodes"] == 200
        assert not changed_settings(run.config, entry.paper_setting(run.variant, run.environment))
        hyperparameters = run.config["hyperparameters"]
        assert (hyperparameters["batch_size"], hyperparameters["unroll_length"]) == (32, 20)
        assert hyperparameters["optimizer"]["learning_rate"] == 0.0006


def test_scales_share_what_no_departure_with_scales_names() -> None:
    experiments = load_experiments(ROOT / "impala_2018")
    settings: dict[tuple[str, str, str], set[str]] = {}
    for scale in SCALES:
        for run in runs_of(scale):
            departures = experiments[run.experiment].departures
            named = {key for departure in departures if departure.scales for key in departure.settings}
            kept = {
                key: value
                for key, value in flatten(run.config).items()
                if key.split(".")[0] in ("hyperparameters", "environment", "topology") and key not in named
            }
            settings.setdefault((run.experiment, run.variant, run.environment), set()).add(
                json.dumps(kept, sort_keys=True)
            )
    assert all(len(found) == 1 for found in settings.values())


def test_only_scale_paper_has_the_papers_shallow_network_on_atari() -> None:
    chosen = {"experiments": ["atari"], "variants": ["shallow"]}
    networks = {
        scale: {run.config["hyperparameters"]["network"] for run in runs_of(scale, **chosen)} for scale in SCALES
    }
    assert networks == {"smoke": {"shallow"}, "workstation": {"shallow"}, "paper": {"nature"}}


def test_a_variant_may_have_tasks_of_its_own() -> None:
    runs = runs_of("workstation", experiments=["dmlab30"], seeds=[1])
    tasks = {
        variant: [run.environment for run in runs if run.variant == variant] for variant in ("deep", "experts_shallow")
    }
    assert tasks["deep"] == ["firstperson/all30"]
    assert len(tasks["experts_shallow"]) == 30
    assert "firstperson/all30" not in tasks["experts_shallow"]
    filtered = runs_of(
        "workstation", experiments=["dmlab30"], environments=["firstperson/miniworld_hallway"], seeds=[1]
    )
    assert [run.variant for run in filtered] == ["experts_shallow"]


def test_tasks_of_an_unknown_variant_are_refused(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        experiments["dmlab30"]["scales"]["smoke"]["environments_of"] = {"expert": ["toy/catch"]}

    assert "unknown variant 'expert'" in refusal(edited(change))


def test_expansion_is_deterministic_and_ordered() -> None:
    assert [run.key for run in runs_of("smoke")] == [run.key for run in runs_of("smoke")]
    assert str(runs_of("smoke")[0].directory()) == "results/smoke/impala_2018/atari/shallow/atari-pong/seed1"


def test_filters_narrow_the_runs_and_seeds_replace_them() -> None:
    runs = runs_of("smoke", experiments=["atari"], variants=["deep"], environments=["atari/pong"], seeds=[7, 8])
    assert [run.key for run in runs] == ["atari/deep/atari-pong/seed7", "atari/deep/atari-pong/seed8"]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"environments": ["atari/pnog"]}, "unknown environment 'atari/pnog' (did you mean 'atari/pong'?)"),
        ({"experiments": ["atarri"]}, "unknown experiment 'atarri' (did you mean 'atari'?)"),
        ({"variants": ["medium"]}, "unknown variant 'medium'"),
        ({"seeds": ["-1"]}, "key 'seeds': must be a list of different integers"),
        ({"seeds": [1, 1]}, "key 'seeds': must be a list of different integers"),
        ({"seeds": 3}, "key 'seeds': must be a list of different integers"),
        ({"seeds": []}, "key 'seeds': must be a list of different integers"),
        ({"seeds": [True]}, "key 'seeds': must be a list of different integers"),
        ({"environments": "atari/pong"}, "key 'environments': must be a list of names"),
        ({"experiments": ["atari"], "environments": ["toy/catch"]}, "unknown environment 'toy/catch'"),
    ],
)
def test_a_wrong_filter_is_refused_in_one_line(filters: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        runs_of("smoke", **filters)
    assert message in str(caught.value)


def test_a_wrong_scale_or_paper_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"unknown scale 'smok' \(did you mean 'smoke'\?\); allowed: paper, smoke, work"
    ):
        runs_of("smok")
    with pytest.raises(UserError, match="unknown paper 'impala'"):
        expand("impala", "smoke", root=ROOT)


Edit = Callable[[Callable[[Any], None]], Path]


def test_a_scale_that_changes_the_algorithm_is_refused(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        departures = experiments["atari"]["scales"]["smoke"]["departures"]
        departures.append({"set": {"hyperparameters.batch_size": 8}, "reason": "faster"})

    message = refusal(edited(change))
    assert "experiments.atari.scales.smoke.departures: may not set 'hyperparameters.batch_size'" in message
    assert "a scale never changes the algorithm" in message


def test_a_variant_may_need_other_resources_than_its_scale(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        resources = experiments["atari"]["scales"]["smoke"]["resources"]
        resources["variants"] = {"deep": {"memory_mib": 9000}}

    runs = expand("impala_2018", "smoke", root=edited(change), experiments=["atari"], validate=False)
    needed = {run.variant: run.resources.memory_mib for run in runs}
    assert needed.pop("deep") == 9000
    assert set(needed.values()) == {runs_of("smoke", experiments=["atari"])[0].resources.memory_mib}


def test_resources_of_an_unknown_variant_are_refused(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        experiments["atari"]["scales"]["smoke"]["resources"]["variants"] = {"deeep": {"gpus": 1}}

    assert "scales.smoke.resources: unknown variant 'deeep' (did you mean 'deep'?)" in refusal(edited(change))


def test_only_runs_on_ray_span_nodes(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        experiments["atari"]["scales"]["smoke"]["resources"]["variants"] = {"deep": {"nodes": 2}}

    assert "deep has nodes: 2; allowed for runs whose topology.runtime is not ray: 1" in refusal(edited(change))


@pytest.mark.parametrize("key", ["env_frames", "evaluation.final_episodes", "precision"])
def test_the_paper_scale_may_not_change_budget_score_or_precision(edited: Edit, key: str) -> None:
    def change(experiments: Any) -> None:
        experiments["atari"]["scales"]["paper"]["departures"] = [{"set": {key: 1}, "reason": "cheaper"}]

    assert f"scales.paper.departures: may not set '{key}'" in refusal(edited(change))


def test_a_departure_without_a_reason_is_refused(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        del experiments["atari"]["scales"]["smoke"]["departures"][0]["reason"]

    assert "'reason' is a required property" in refusal(edited(change))


def test_an_unknown_yaml_key_is_refused_with_the_closest_name(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        experiments["atari"]["scales"]["smoke"]["environmnts"] = []

    message = refusal(edited(change))
    assert "unknown key 'environmnts' (did you mean 'environments'?)" in message
    assert "experiments.yaml: experiments.atari.scales.smoke" in message


@pytest.mark.parametrize("seeds", [[], [-1], ["1"], [1, 1], [1.5]])
def test_a_wrong_seed_list_is_refused(edited: Edit, seeds: list[Any]) -> None:
    def change(experiments: Any) -> None:
        experiments["atari"]["scales"]["smoke"]["seeds"] = seeds

    assert "experiments.atari.scales.smoke.seeds" in refusal(edited(change))


def test_a_departure_for_an_unknown_variant_is_refused(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        experiments["atari"]["scales"]["smoke"]["departures"][0]["variants"] = ["depe"]

    assert "unknown variant 'depe' (did you mean 'deep'?)" in refusal(edited(change))


def test_a_wrong_setting_is_refused_by_the_run_configuration(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        experiments["atari"]["base"]["hyperparameters"]["batch_sise"] = 32

    with pytest.raises(UserError, match="batch_sise"):
        expand("impala_2018", "smoke", root=edited(change))


def test_a_yaml_key_given_twice_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "impala_2018"
    folder.mkdir()
    (folder / "experiments.yaml").write_text("paper: a\npaper: b\n")
    with pytest.raises(UserError, match="line 2: key 'paper' is given twice"):
        load_experiments(folder)


def test_configs_are_written_only_when_they_change(tmp_path: Path) -> None:
    runs = runs_of("smoke")
    paths = write_configs(runs, tmp_path)
    before = [path.stat().st_mtime_ns for path in paths]
    write_configs(runs, tmp_path)
    assert [path.stat().st_mtime_ns for path in paths] == before
    assert json.loads(paths[0].read_text())["env_frames"] == runs[0].config["env_frames"]


def test_the_registered_plans_of_the_claims_that_use_a_run_are_written_beside_its_configuration(tmp_path: Path) -> None:
    runs = [run for run in runs_of("smoke") if run.experiment == "off_policy_correction"][:2]
    first, second = (path.parent for path in write_configs(runs[:2], tmp_path))
    assert not (first / "plans.json").exists()
    (second / "run.json").write_text("{}")
    write_configs(runs, tmp_path, {"impala_2018": ROOT / "impala_2018"})
    assert "v_trace_over_no_correction" in json.loads((first / "plans.json").read_text())
    assert not (second / "plans.json").exists(), "a finished run has the plans that it was made by"


def test_the_command_line_says_one_line_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--paper", "impala_2018", "--scale", "smok", "--replications", str(ROOT)]) == 2
    assert capsys.readouterr().err.startswith("ddrl: unknown scale 'smok'")
    assert main(["list", "--paper", "impala_2018", "--replications", str(ROOT)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(runs_of("smoke"))


def test_every_replication_passes_its_check() -> None:
    for paper in papers(ROOT):
        assert main(["check", "--paper", paper, "--replications", str(ROOT)]) == 0


@pytest.mark.parametrize("name", ["mujoco-HalfCheetah-v5", "mujoco/HalfCheetah-v5"])
def test_an_environment_is_named_as_it_is_or_as_its_folder(name: str, tmp_path: Path) -> None:
    asked = ["--paper", "impact_2020", "--experiment", "continuous", "--variant", "ppo", "--environment", name]
    output = tmp_path / "config.json"
    assert main(["config", *asked, "--seed", "1", "--output", str(output)]) == 0
    assert json.loads(output.read_text())["environment"]["name"] == "mujoco/HalfCheetah-v5"


def name_a_peer(experiments: Any, *, at_smoke: bool) -> None:
    entry = experiments["atari"]
    first, needs = next(iter(entry["variants"])), {"threads": 1, "memory_mib": 500, "gpus": 0}
    entry["variants"]["theirs"] = {**entry["variants"][first], "label": "Theirs", "peer": "rllib"}
    for name, scale in entry["scales"].items():
        own = scale.setdefault("variants", [one for one in entry["variants"] if one != "theirs"])
        if name != "smoke" or at_smoke:
            scale["variants"] = [*own, "theirs"]
        scale["resources"].setdefault("variants", {})["theirs"] = needs


def test_a_variant_may_be_run_by_a_peer_from_the_same_base(edited: Edit) -> None:
    root = edited(lambda experiments: name_a_peer(experiments, at_smoke=False))
    entry = load_experiments(root / "impala_2018")["atari"]
    first = next(
        iter(load_experiments(ROOT / "impala_2018")["atari"].variants)
    )  # YAML is written in alphabetical order
    ours, theirs = (entry.paper_setting(name, "atari/pong") for name in (first, "theirs"))
    assert theirs == ours | {"peer": "rllib"}
    runs = expand("impala_2018", "workstation", experiments=["atari"], variants=["theirs"], root=root, seeds=[1])
    assert {run.config["peer"] for run in runs} == {"rllib"}
    assert all(run.variant != "theirs" for run in expand("impala_2018", "smoke", root=root, validate=False))


def test_a_peer_at_scale_smoke_is_refused(edited: Edit) -> None:
    message = refusal(edited(lambda experiments: name_a_peer(experiments, at_smoke=True)))
    assert "experiments.atari.scales.smoke: variant 'theirs' is run by the peer rllib" in message


def test_a_peer_is_no_setting(edited: Edit) -> None:
    def change(experiments: Any) -> None:
        next(iter(experiments["atari"]["variants"].values())).setdefault("set", {})["peer"] = "rllib"

    assert "'peer' stands beside `label`, not in `set`" in refusal(edited(change))
