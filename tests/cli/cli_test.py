"""The commands do what their help says, and bad input ends with one line."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import av
import pandas as pd
import pytest
import torch
import yaml

from ddrl import cli
from ddrl.api.trained import greedy_sampler
from ddrl.cli import arguments, tables
from ddrl.environments.base import registry
from ddrl.system.locks import locked
from tests.runs import BASE, curves, merged

ROOT = Path(__file__).parents[2]
IMPACT, PPO, TRACK = {"algorithm": "impact"}, {"algorithm": "ppo"}, {"environment": {"name": "toy/track"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    config = directory.parent / "config.yaml"
    config.write_text(json.dumps(BASE))
    assert cli.main(["train", str(config), "--directory", str(directory), "--quiet"]) == 0
    return directory


@pytest.fixture
def damaged(run: Path, tmp_path: Path) -> Path:
    """A folder with a copy of the run whose fingerprint is wrong and whose curves run backwards."""
    copy = tmp_path / "runs" / "copy"
    copy.mkdir(parents=True)
    (copy / "config.json").write_bytes((run / "config.json").read_bytes())
    manifest = json.loads((run / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(manifest | {"fingerprint": "0"}))
    pd.read_parquet(run / "curves.parquet").iloc[::-1].to_parquet(copy / "curves.parquet", index=False)
    return copy.parent


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with small tables of one scale."""
    folder = tmp_path_factory.mktemp("results")
    tables = folder / "smoke" / "impala_2018" / "tables"
    tables.mkdir(parents=True)
    common = {"origin": "run", "seeds": [5, None], "env_frames": [2_000_000, None]}
    claims = {"claim": ["a", "b"], "title": ["A beats B", "C is fast"], "verdict": ["supported", "not_run"]}
    claims |= {"effect": [1.5, None], "effect_unit": "return", "ci95_low": [1.0, None], "ci95_high": [2.0, None]}
    cells = {"cell": ["t.x", "t.y"], "published": [1536.05, 20.4], "ours": [12.0, None], "ci90_low": [11.0, None]}
    cells |= {"ci90_high": [13.0, None], "flags": ["reduced_budget,digitised", ""]}
    cells |= {"verdict": ["not_comparable", "not_run"]}
    for name, columns in (("claims", claims), ("cells", cells)):
        table = pd.DataFrame(columns | common).astype({"seeds": "Int64", "env_frames": "Int64"})
        table.to_parquet(tables / f"{name}.parquet", index=False)
    return folder


def test_train_writes_the_declared_files(run: Path) -> None:
    assert {"config.json", "run.json", "curves.parquet"} <= {path.name for path in run.iterdir()}
    assert len(curves(run)) > 50


def test_a_refused_train_leaves_the_configuration_of_the_run_at_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running, other = tmp_path / "run" / "config.json", tmp_path / "other.yaml"
    running.parent.mkdir()
    running.write_text(json.dumps(BASE))
    other.write_text(json.dumps(BASE | {"seed": 4}))
    with locked(running.parent):
        assert cli.main(["train", str(other), "--directory", str(running.parent), "--quiet"]) == 2
    assert "another process is training" in capsys.readouterr().err
    assert json.loads(running.read_text()) == BASE


def test_resuming_a_finished_run_changes_no_curve(run: Path) -> None:
    before = curves(run)
    assert cli.main(["resume", str(run), "--quiet"]) == 0
    pd.testing.assert_frame_equal(before, curves(run))


def test_evaluate_plays_the_newest_parameters(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(run), "--episodes", "4"]) == 0
    assert "4 episodes" in capsys.readouterr().out


def test_evaluate_prints_every_episode_as_json_and_greedy_takes_the_best_action(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for options in ((), ("--greedy",)):
        assert cli.main(["evaluate", str(run), "--episodes", "6", "--json", *options]) == 0
        (found[options],) = json.loads(capsys.readouterr().out)
    sampled, greedy = found.values()
    assert sampled["task"] == "toy/catch"
    assert (len(sampled["returns"]), sampled["lengths"]) == (6, [9] * 6)
    assert (sampled["greedy"], greedy["greedy"]) == (False, True)
    output, generator = torch.tensor([[0.1, 0.7, 0.2], [3.0, -1.0, 2.0]]), torch.Generator()
    discrete, continuous = registry.spec_for("toy/catch"), registry.spec_for("toy/track", action_size=1)
    assert greedy_sampler(discrete)(output, generator).tolist() == [1, 0]
    assert greedy_sampler(continuous)(output[:, :2], generator).tolist() == output[:, :1].tolist()


def test_watch_writes_a_video_of_every_step(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "episode.mp4"
    assert cli.main(["watch", str(run), "--output", str(output), "--episodes", "2"]) == 0
    assert "2 episodes, raw return" in capsys.readouterr().out
    with av.open(str(output)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 2 * (1 + 9)  # a game of catch has nine steps
    assert list(tmp_path.iterdir()) == [output]


def test_a_reader_that_has_seen_enough_is_no_error(results: Path) -> None:
    command = [sys.executable, "-m", "ddrl.cli", "cells", "--results", str(results), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("module", ["ddrl", "ddrl.cli"])
@pytest.mark.parametrize(("words", "code"), [(["list", "algorithms"], 0), (["list", "algorithms", "impla"], 2)])
def test_the_package_and_its_command_line_run_as_modules_like_the_installed_command(
    module: str, words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == code
    own = capfd.readouterr()
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, own.out, own.err)


def test_verify_passes_a_whole_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(run)]) == 0
    assert "whole" in capsys.readouterr().out


def test_every_committed_run_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(ROOT / "results" / "reference")]) == 0, capsys.readouterr().out


def test_verify_names_everything_that_is_wrong_with_a_run(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(damaged)]) == 1
    printed = capsys.readouterr().out
    assert "fingerprint" in printed
    assert "runs backwards" in printed


def test_verify_writes_its_checks_as_junit(run: Path, damaged: Path, tmp_path: Path) -> None:
    for directory, failures in ((run, "0"), (damaged, "1")):
        cli.main(["verify", str(directory), "--junit", str(tmp_path / "checks.xml")])
        suites = ElementTree.parse(tmp_path / "checks.xml").getroot()
        assert (suites.get("tests"), suites.get("failures")) == ("1", failures)


def test_a_comparison_that_compares_nothing_has_not_passed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "paper_2018" / "own" / "variant" / "toy-catch" / "seed3"
    directory.mkdir(parents=True)
    for name in ("config.json", "run.json", "curves.parquet"):
        (directory / name).write_bytes((run / name).read_bytes())
    assert cli.main(["verify", str(tmp_path)]) == 0
    assert cli.main(["verify", str(tmp_path), "--against", str(ROOT / "results" / "reference")]) == 1
    printed = capsys.readouterr().out
    assert "has no runs of this name" in printed
    assert printed.splitlines()[-1] == "2 checks: 1 passed, 1 skipped"


@pytest.mark.parametrize("command", ["claims", "cells"])
def test_a_ledger_lists_every_row_in_aligned_lines(
    command: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--results", str(results)]) == 0
    printed = capsys.readouterr()
    title, *rows, tally = printed.out.splitlines()
    assert len(rows) == 2
    assert rows[0].index("2M") == title.index("frames")
    assert tally.startswith("2 rows: 1 ")
    assert f"smoke/impala_2018/tables/{command}.parquet" in printed.err


@pytest.mark.parametrize("command", ["claims", "cells"])
def test_the_verdicts_that_the_help_names_are_verdicts_of_the_table(
    command: Literal["claims", "cells"], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--help"]) == 0
    named = " ".join(capsys.readouterr().out.split()).partition("only these, such as ")[2].partition(" --")[0]
    assert set(named.replace(" or ", ", ").split(", ")) <= set(tables.VERDICTS[command])


@pytest.mark.parametrize(("width", "first"), [(140, "claim  runs  verdict"), (50, "claim            a")])
def test_a_ledger_in_a_terminal_is_a_table_or_blocks_where_that_is_too_wide(
    width: int, first: str, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")  # no colours
    assert cli.main(["claims", "--results", str(results)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(first)
    assert "1.5 return" in printed
    assert ("A beats B" in printed) == (width == 50)  # the table leaves out what does not fit


def test_a_verdict_chooses_rows(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cells", "--results", str(results), "--verdict", "not_comparable", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("impala_2018,t.x,1536.05,12.0")
    assert cli.main(["cells", "--results", str(results), "--verdict", "equivalent"]) == 0
    assert capsys.readouterr().out == "nothing to show\n0 rows\n"


def test_a_ledger_as_json_has_every_column_and_null_where_there_is_nothing(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["claims", "impala_2018", "--results", str(results), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in rows] == ["supported", "not_run"]
    assert (rows[0]["seeds"], rows[1]["seeds"], rows[1]["effect"]) == (5, None, None)


@pytest.mark.parametrize("command", ["claims", "cells"])
def test_the_reference_runs_are_the_ledger_where_no_scale_has_tables(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    assert cli.main([command, "a3c_2016", "--results", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(printed)
    assert {row["origin"] for row in rows if row["seeds"]} == {"reference"}
    assert any(row["verdict"] not in ("not_run", None) for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache", "reference"]


def test_the_ledger_starts_without_torch(results: Path) -> None:
    for command in (["claims", "--results", str(results)], ["systems"]):
        code = f"import sys; from ddrl import cli; assert cli.main({command!r}) == 0; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_systems_has_a_row_for_every_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["systems", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"impala_2018"} <= {row["paper"] for row in rows}
    assert cli.main(["systems"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["algorithms"], ["impala", "IMPALA", "r2d2", "synchronous"]),
        (["environments"], ["atari/", "toy/", "gymnasium/", "all30"]),
        (["environments", "toy"], ["toy/catch", "toy/track"]),
        (["papers"], ["impala_2018", "r2d2_2019"]),
        (["keys", "ppo"], ["hyperparameters.clip_epsilon", "section 6.1", "topology.num_actors"]),
        (["topologies"], ["serial, threads, ray", "bounded_lag", "local, central"]),
    ],
)
def test_list_says_what_there_is(words: list[str], found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", *words]) == 0
    printed = capsys.readouterr().out
    assert [word for word in found if word not in printed] == []
    assert cli.main(["list", *words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(printed.splitlines()) - 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["algorithms", "impla"], "ddrl list: unknown algorithm 'impla' (did you mean 'impala'?)"),
        (["keys", "none"], "ddrl list: unknown algorithm 'none'"),
        (["environments", "atri"], "unknown environment prefix 'atri' (did you mean 'atari'?)"),
        (["papers", "impala"], "ddrl list: unknown paper 'impala' (did you mean 'impala_2018'?)"),
    ],
)
def test_list_names_what_was_meant(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", *words]) == 2
    assert says in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"ddrl {importlib.metadata.version('ddrl')}"


def test_report_rebuilds_the_papers_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ddrl import report

    asked: list[object] = []
    monkeypatch.setattr(report, "rebuild", lambda papers, scale, **more: asked.append((papers, scale, more)) or [])
    assert cli.main(["report", "impala_2018", "--scale", "reference", "--output", str(tmp_path)]) == 0
    assert cli.main(["report"]) == 0
    assert asked[0][:2] == (["impala_2018"], "reference")
    assert asked[0][2]["output"] == tmp_path
    assert asked[1][:2] == (None, "smoke")


def test_print_config_shows_every_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(BASE))
    assert cli.main(["train", str(config), "--print-config"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["hyperparameters"]["c_bar"] == 1.0
    assert shown["topology"]["env_groups"] == 1
    assert list(tmp_path.iterdir()) == [config]


def test_print_config_refuses_what_a_training_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["d4pg", "gymnasium/CartPole-v1"], ["d4pg", "gymnasium/Pendulum-v1", "hyperparameters.num_atoms=1"]):
        assert cli.main(["train", *words, "--print-config"]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1


def test_every_command_and_option_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    commands = next(action for action in arguments.parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert cli.main(["--help"]) == 0
    for name, parser in commands.choices.items():
        assert cli.main([name, "--help"]) == 0
        assert name in capsys.readouterr().out
        assert parser.description
        assert [action.dest for action in parser._actions if not action.help] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: command"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["train", "none.yaml"], "none.yaml: no such file"),
        (["resume", "nowhere"], "nowhere: no such folder"),
        (["evaluate", "nowhere"], "nowhere: no such folder"),
        (["evaluate", "nowhere", "--episodes", "0"], "'0' is not allowed; allowed: whole numbers from 1"),
        (["watch", "nowhere"], "nowhere: no such folder"),
        (["watch", "nowhere", "--max-steps", "-3"], "'-3' is not allowed; allowed: whole numbers from 1"),
        (["watch", "nowhere", "--episodes", "two"], "'two' is not allowed; allowed: whole numbers from 1"),
        (["watch", "nowhere", "--output", "film.avi"], "film.avi: a film's name ends with .mp4 or .gif"),
        (["watch", "nowhere", "--output", "nofolder/film.mp4"], "nofolder: no such folder"),
        (["verify", "nowhere"], "nowhere: no such folder"),
        (["verify", "tests"], "tests: holds no finished run"),
        (["verify", "results/reference", "--against", "nowhere"], "nowhere: no such folder"),
        (["verify", "results/reference", "--junit", "nowhere/checks.xml"], "nowhere: no such folder"),
        (["roundtrip", "--json", "/dev/full"], "/dev/full: is no file"),
        (["train", "none.yaml", "--directory", ""], "argument --directory: is empty; allowed: a path"),
        (["plan", "--results", "nowhere"], "nowhere: no such folder"),
        (["bench", "impala", "atari/pongg"], "pongg"),
        (["bench", "impala", "atari/pong", "--repeats", "0"], "'0' is not allowed"),
        (["claims", "impala_2017"], "unknown paper 'impala_2017' (did you mean 'impala_2018'?)"),
        (["claims", "--scale", "papper"], "unknown scale 'papper' (did you mean 'paper'?)"),
        (["claims", "--verdict", "equivalent"], "unknown verdict 'equivalent'; allowed: contradicted,"),
        (["cells", "--verdict", "supported"], "unknown verdict 'supported'; allowed: above,"),
        (["cells", "--results", "nowhere", "--scale", "smoke"], "no run has finished yet; train them: make report PA"),
        (["cells", "--json", "--csv"], "not allowed with argument --json"),
        (["report", "impala_2017"], "unknown paper 'impala_2017'"),
        (["report", "--scale", "papper"], "papper"),
        (["systems", "--yaml"], "unrecognized arguments: --yaml"),
        (["doctor", "--fix"], "unrecognized arguments: --fix"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert len(error) < 2000


def test_a_wrong_site_file_is_refused_before_anything_is_printed_and_not_repeated_at_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.yaml").write_text("somebody else's file " * 100)
    assert cli.main(["plan", "impala_2018", "--site", str(tmp_path / "site.yaml")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "is not of type 'object'" in said.err
    assert len(said.err) < 300 + len(str(tmp_path))


def test_nobody_waits_for_a_pipe_in_the_place_of_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "token")
    assert cli.main(["worker", "--connect", "127.0.0.1:1", "--token-file", str(tmp_path / "token")]) == 2
    assert f"--token-file {tmp_path / 'token'}: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (IMPACT | {"hyperparameters": {"num_traversals": 0}}, "'hyperparameters.num_traversals': Input should be gr"),
        (IMPACT | {"hyperparameters": {"num_slots": 0}}, "'hyperparameters.num_slots': Input should be greater than 0"),
        (IMPACT | {"hyperparameters": {"kl_cost": 0.0}}, "'hyperparameters.kl_target' adapts kl_cost, which is 0"),
        ({"topology": {"queue_capacity": 1}}, "'topology.queue_capacity' must be at least 2"),
        ({"hyperparameters": {"initial_log_std": math.nan}}, "initial_log_std': Input should be a finite number"),
        (PPO | {"topology": {"schedule": "synchronous", "parameter_delay": 1}}, "'topology.parameter_delay' must be 0"),
        (TRACK | {"hyperparameters": {"correction": "epsilon_correction"}}, "allowed: v_trace, one_step_is, no_corr"),
        (TRACK | {"hyperparameters": {"network": "nature"}}, "needs uint8 images"),
        (TRACK | {"hyperparameters": {"normalised_reward_clip": 5.0}}, "it goes with reward_normalisation: true"),
        ({"environment": {"name": "toy/catsh"}}, "unknown task of toy 'catsh' (did you mean 'catch'?)"),
    ],
)
def test_a_configuration_that_cannot_be_trained_is_one_line_and_exit_code_2(
    overrides: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(merged(BASE, overrides)))
    assert cli.main(["train", str(path), "--directory", str(tmp_path / "run"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ddrl: {path}: ")
    assert words in error
    assert error.count("\n") == 1


def test_a_damaged_table_is_named_with_the_command_that_makes_it_anew(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "smoke" / "impala_2018" / "tables"
    tables.mkdir(parents=True)
    whole = (results / "smoke" / "impala_2018" / "tables" / "claims.parquet").read_bytes()
    (tables / "claims.parquet").write_bytes(whole[: len(whole) // 2])
    assert cli.main(["claims", "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "claims.parquet: cannot be read" in error
    assert "ddrl report impala_2018 --scale smoke" in error
