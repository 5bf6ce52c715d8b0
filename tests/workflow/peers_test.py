"""What `make peers` plans: the environments of other libraries, and the runs whose variant names one."""

from pathlib import Path

import pytest
import yaml

from tests.workflow.workflow_test import jobs

pytestmark = pytest.mark.slow
NEEDS = {"threads": 1, "memory_mib": 500, "gpus": 0}


@pytest.fixture
def with_peer(project):
    """A project in which one experiment has a variant that Stable-Baselines3 runs."""
    path = project.root / "replications/impala_2018/experiments.yaml"
    data = yaml.safe_load(path.read_text())
    entry = data["experiments"]["off_policy_correction"]
    entry["variants"]["theirs"] = {**entry["variants"]["v_trace"], "label": "Theirs", "peer": "stable_baselines3"}
    for name, scale in entry["scales"].items():
        own = scale.setdefault("variants", [one for one in entry["variants"] if one != "theirs"])
        scale["variants"] = own if name == "smoke" else [*own, "theirs"]
        scale["resources"].setdefault("variants", {})["theirs"] = NEEDS
    path.write_text(yaml.safe_dump(data, allow_unicode=True))
    (project.root / "constraints.txt").write_text("torch==2.13.0\n")
    return project


def test_environments_are_built_before_the_runs_that_need_them(with_peer):
    lists = ["experiments=[off_policy_correction]", "variants=[theirs]", "seeds=[1]"]
    code, output = with_peer.snakemake("--dry-run", "peers", "--config", "scale=workstation", *lists)
    assert code == 0, output
    planned = jobs(output)
    names = [path.stem for path in (with_peer.root / "workflows/peers").glob("*.txt")]
    assert planned["peer_environment"] == len(names) == 5
    assert planned["train"] > 0
    assert ".peers/stable_baselines3/.ready" in output
    config = next(
        with_peer.root.glob("results/workstation/impala_2018/off_policy_correction/theirs/*/seed1/config.json")
    )
    assert '"peer": "stable_baselines3"' in config.read_text()


@pytest.mark.system
def test_our_own_runs_beside_a_peer_and_the_speeds_of_both_are_planned(with_peer):
    path = with_peer.root / "replications/impala_2018/experiments.yaml"
    lists = ["experiments=[off_policy_correction]", "variants=[theirs,v_trace]", "seeds=[1,2]"]
    code, output = with_peer.snakemake("--dry-run", "peers", "--config", "scale=workstation", *lists)
    assert code == 0, output
    tasks = yaml.safe_load(path.read_text())["experiments"]["off_policy_correction"]["scales"]["workstation"]
    count = len(tasks["environments"])
    planned = jobs(output)
    assert (planned["train"], planned["peer_speed"]) == (4 * count, count)
    speed = "results/workstation/peers/impala_2018/off_policy_correction/v_trace/"
    assert speed in output
    code, output = with_peer.snakemake(
        "--dry-run", "--printshellcmds", "peers", "--config", "scale=workstation", *lists
    )
    assert "ddrl.cli peers speed results/workstation/impala_2018/off_policy_correction/v_trace/" in output
    assert "--peers stable_baselines3 --repeats 3 --json" in output


def test_reports_of_scale_smoke_need_no_peer(with_peer):
    code, output = with_peer.snakemake("--dry-run", "--configfile", "narrow.yaml")
    assert code == 0, output
    assert "peer_environment" not in jobs(output)


def test_a_peer_that_is_not_there_is_refused_in_one_line(with_peer):
    path = with_peer.root / "replications/impala_2018/experiments.yaml"
    path.write_text(path.read_text().replace("peer: stable_baselines3", "peer: stable_baseline3"))
    code, output = with_peer.snakemake("--dry-run", "--config", "scale=workstation", "papers=[impala_2018]")
    assert code == 2
    assert "unknown peer 'stable_baseline3' (did you mean 'stable_baselines3'?)" in output


def test_every_peer_has_pins_with_hashes_a_driver_and_an_entry() -> None:
    folder = Path(__file__).parents[2] / "workflows/peers"
    listed = yaml.safe_load((folder / "peers.yaml").read_text())
    assert {path.stem for path in folder.glob("*.txt")} == set(listed)
    for name in listed:
        assert (folder / f"drivers/{name}_driver.py").is_file()
        lines = [line for line in (folder / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]
        pins = "\n".join(lines).replace(" \\\n", " ").splitlines()
        assert all("==" in pin and " --hash=sha256:" in pin for pin in pins), name
        assert not any(pin.startswith("torch==") for pin in pins)
