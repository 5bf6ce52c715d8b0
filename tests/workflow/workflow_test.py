"""The workflow as a user meets it: commands typed in a copy of the project whose trainer is invented."""

import csv
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from ddrl import cli
from ddrl.training.config.experiments import expand, papers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NARROWED = ("--configfile", "narrow.yaml")
QUIET_TRIGGERS = ("--rerun-triggers", "mtime", "params", "input")


def jobs(output):
    """Rule -> number of jobs, from Snakemake's table of a dry run."""
    lines = output[output.index("Job stats:") :].split("\n\n")[0].splitlines()[3:]
    return {name: int(count) for name, count in map(str.split, lines)}


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_bare_command_plans_every_run_of_scale_smoke_and_one_report_each_for_paper_and_suite(made):
    code, output = made.snakemake("--dry-run", "--forceall")
    assert code == 0, output
    known = papers(ROOT / "replications")
    runs = [run for paper in known for run in expand(paper, "smoke", root=ROOT / "replications")]
    planned = jobs(output)
    assert planned["train"] == len(runs)
    assert planned["aggregate"] == planned["report"] == len(known) > 1
    assert planned["aggregate_suite"] == planned["figures_suite"] == planned["report_suite"] == 1
    assert planned["figure"] == 2 * len(known)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--config", "scale=nightly"], "allowed: paper, smoke, workstation"),
        (["--config", "seeds=[-1]"], "seeds"),
        (["--config", "environments=atari/pung"], "did you mean 'atari/pong'?"),
        (["--config", "sede=1"], "did you mean 'seeds'?"),
    ],
)
def test_a_wrong_setting_ends_with_one_line_before_any_job(made, arguments, says):
    code, output = made.snakemake(*arguments)
    assert code == 2
    assert output.count("\n") == 1, output
    assert says in output
    assert output.startswith("ddrl: ")


@pytest.mark.system
def test_lists_narrow_several_papers_at_once_and_each_gets_its_report(made, tmp_path):
    project = made.copy(tmp_path / "copy")
    (project.root / "both.yaml").write_text(
        "experiments: [off_policy_correction, continuous]\n"
        "variants: [v_trace, no_correction, impact, ppo]\n"
        "environments: [toy/catch, mujoco/Hopper-v5]\n"
        "seeds: [11, 12]\n"
    )
    _, output = project.snakemake("--dry-run", "--configfile", "both.yaml", "--", "impala_2018")
    assert set(jobs(output)) == {"impala_2018", "report", "total"}, "it has these runs; its report names the lists"
    code, output = project.snakemake("--configfile", "both.yaml")
    assert code == 0, output
    runs = Counter(file.parents[4].name for file in project.root.glob("results/smoke/*/*/*/*/seed*/run.json"))
    assert runs == {"impala_2018": 4, "impact_2020": 4}
    for name in ("impala_2018", "impact_2020", "suite"):
        assert (project.root / f"reports/{name}.pdf").read_bytes().startswith(b"%PDF")
    suite = project.root / "results/smoke/suite/tables"
    systems = list(csv.DictReader((suite / "systems.csv").open()))
    assert {row["system"] for row in systems if row["paper"] == "impact_2020"} == {"IMPACT", "PPO", "IMPALA"}
    throughput = list(csv.DictReader((suite / "throughput.csv").open()))
    layouts = {(row["system"], row["network"], row["schedule"]) for row in throughput if row["paper"] == "impact_2020"}
    assert layouts == {("IMPACT", "tanh_mlp", "asynchronous"), ("PPO", "tanh_mlp", "synchronous")}
    page = (project.root / "reports/suite.html").read_text()
    for text in (
        "Luo et al. 2020",
        "Espeholt et al. 2018",
        "circular (N 16, K 20 or 32)",
    ):
        assert text in page
    assert "no published value" in (project.root / "reports/impact_2020.html").read_text()
    code, output = project.snakemake("--dry-run", "--configfile", "both.yaml", "--", "impact_2020")
    assert "Nothing to be done" in output, output


def test_a_wrong_key_in_experiments_yaml_ends_with_one_line_before_any_job(project):
    replace(project.root / "replications/impala_2018/experiments.yaml", "unroll_length: 20", "unrol_length: 20")
    code, output = project.snakemake()
    assert code == 2
    assert output.count("\n") == 1, output
    assert "experiments.yaml" in output
    assert "unrol_length" in output
    assert not list(project.root.glob("results/**/log.txt"))


def test_results_flow_one_arrow_at_a_time(made):
    code, output = made.snakemake("--detailed-summary", "--quiet", "all", *NARROWED)
    assert code == 0, output
    table = output[output.index("output_file") :].splitlines()
    checked = Counter()
    for row in csv.DictReader(table, delimiter="\t"):
        kind = next(kind for kind in SOURCES if kind in row["output_file"])
        for source in row["input-file(s)"].split(","):
            assert any(part in source for part in SOURCES[kind]), f"{row['output_file']} reads {source}"
        checked[kind] += 1
    assert set(checked) == set(SOURCES)


SOURCES = {  # a stage -> what it may read, as parts of a path
    "suite/tables/": ["/tables/", "replications/", "ddrl/algorithms/", "results/reference/bench/"],
    "_table.": ["/tables/", "replications/"],
    "/tables/": ["curves.parquet", "run.json", "replications/"],
    "/figures/": ["/tables/", "figures.py"],
    "reports/index.html": ["/report.json", "reports/"],
    "report": ["/tables/", "/figures/", "reports/"],
    "curves.parquet": ["config.json"],
    "run.json": ["config.json"],
}


def test_the_reports_are_made_and_nothing_reruns_right_after(made):
    for name in ("impala_2018", "suite"):
        assert (made.root / f"reports/{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (made.root / f"reports/{name}.html").read_text().startswith("<!DOCTYPE html>")
    before = made.results()
    assert "Nothing to be done" in made.make()
    assert made.results() == before


def test_training_gets_one_torch_thread_per_role(made):
    logs = list(made.root.glob("results/smoke/*/*/*/*/seed*/log.txt"))
    assert len(logs) == 4
    assert {log.read_text() for log in logs} == {"threads 1\n"}


def test_comments_and_reasons_retrain_nothing_and_a_new_version_retrains_everything(made, tmp_path):
    project = made.copy(tmp_path / "copy")
    replications = project.root / "replications/impala_2018"
    replace(replications / "experiments.yaml", "reason: Five seconds of training.", "reason: Five seconds.")
    replace(project.root / "workflows/train.smk", "python -m ddrl.cli", "python  -m ddrl.cli")
    algorithm = project.root / "ddrl/algorithms/impala.py"
    algorithm.write_text(algorithm.read_text() + "\n# a comment\n")
    _, output = project.snakemake("--dry-run", *QUIET_TRIGGERS, *NARROWED)
    assert "train" not in jobs(output)
    assert jobs(output)["aggregate"] == 1  # the reasons are printed in the report
    lines = [line for line in algorithm.read_text().splitlines() if line.startswith("VERSION")]
    replace(algorithm, lines[0], "VERSION = 999")
    _, output = project.snakemake("--dry-run", *QUIET_TRIGGERS, *NARROWED)
    assert jobs(output)["train"] == 4


def test_more_seeds_train_the_new_ones_alone_and_tables_are_made_anew(made):
    _, output = made.snakemake("--dry-run", *QUIET_TRIGGERS, *NARROWED, "--config", "seeds=[11,12,13]")
    assert jobs(output)["train"] == 2  # one for each variant
    assert jobs(output)["aggregate"] == 1


def test_runs_that_were_merged_are_not_trained_again(made, project):
    assert cli.main(["merge", str(made.root / "results"), "--into", str(project.root / "results")]) == 0
    _, output = project.snakemake("--dry-run", *QUIET_TRIGGERS, *NARROWED)
    assert "train" not in jobs(output)
    assert jobs(output)["aggregate"] == 1


@pytest.mark.system
def test_the_same_command_goes_on_after_snakemake_was_killed(project):
    process = project.start("--until", "train", *NARROWED, "--config", "seeds=1", FAKE_TRAINER="hang")
    deadline = time.monotonic() + 60
    while len(checkpoints := list(project.root.glob("results/**/checkpoints/newest"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(project.root.glob(".snakemake/locks/*.lock"))
    code, output = project.snakemake("--until", "train", *NARROWED, "--config", "seeds=1")
    assert code == 0, output
    assert all(checkpoint.exists() for checkpoint in checkpoints)
    assert len(list(project.root.glob("results/**/run.json"))) == 2


@pytest.mark.system
def test_a_failing_run_keeps_its_checkpoints_and_names_its_log(project):
    code, output = project.snakemake("--until", "train", *NARROWED, FAKE_TRAINER="fail")
    assert code == 1
    assert "log.txt" in output
    assert list(project.root.glob("results/**/checkpoints/newest"))


def test_what_the_rules_share_stays_short():
    assert len((ROOT / "workflows/common.smk").read_text().splitlines()) < 150


def test_a_fault_of_a_paper_s_figures_ends_with_one_line_before_any_job(project):
    path = project.root / "replications/impala_2018/figures.py"
    replace(path, "def policy_lag(", "def policy_lags(")
    code, output = project.snakemake()
    assert code == 2
    assert output == (
        "ddrl: replications/impala_2018/figures.py: has no function 'policy_lag', which paper.yaml wants\n"
    )
    assert not list(project.root.glob("results/**/log.txt"))
