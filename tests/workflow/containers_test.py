"""The recipes of images, and the workflow whose commands run in one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "workflows" / "containers"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text()
DEFINITION = (CONTAINERS / "ddrl.def").read_text()
STANDINS = ROOT / "tests" / "standins"
IN_IMAGES = ("--software-deployment-method", "apptainer")


def sections() -> dict[str, str]:
    """Name -> text of the parts of the Apptainer definition; its header is ''."""
    header, *parts = re.split(r"^%(\w+)\n", DEFINITION, flags=re.MULTILINE)
    return {"": header} | dict(zip(parts[::2], parts[1::2], strict=True))


def test_both_recipes_begin_with_one_pinned_image():
    (docker,) = re.findall(r"^FROM (\S+)$", DOCKERFILE, re.MULTILINE)
    (apptainer,) = re.findall(r"^From: (\S+)$", sections()[""], re.MULTILINE)
    assert docker == apptainer
    assert re.fullmatch(r"debian:\d+\.\d+-slim", docker)


def test_both_recipes_hold_the_same_files_of_the_project():
    copied = re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE)
    docker = {name for line in copied for name in line.split()} - {"workflows/containers/install.sh"}
    pairs = [line.split() for line in sections()["files"].strip().splitlines()]
    assert {source for source, _ in pairs} == docker
    assert all(target == f"/opt/ddrl/{source}" for source, target in pairs)
    assert all((ROOT / source).exists() for source in docker)


def test_both_recipes_take_the_same_steps_in_the_same_order():
    steps = ["system", "torch", "project"]
    assert re.findall(r"^RUN .*install\.sh (\w+)", DOCKERFILE, re.MULTILINE) == steps
    assert re.findall(r'"\$install" (\w+)', sections()["post"]) == steps
    assert re.findall(r"^(\w+)\)$", (CONTAINERS / "install.sh").read_text(), re.MULTILINE) == steps


@pytest.mark.parametrize("wheels", [[], ["a-1-py3-none-any.whl", "b-2-py3-none-any.whl"]])
def test_wheels_that_lie_in_their_folder_are_installed_with_the_project(tmp_path: Path, wheels: list[str]) -> None:
    folder = tmp_path / "workflows" / "containers"
    (folder / "wheels").mkdir(parents=True)
    (folder / "wheels" / "README.md").touch()
    for name in wheels:
        (folder / "wheels" / name).touch()
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    script = (CONTAINERS / "install.sh").read_text().replace("/opt/venv", str(tmp_path / "venv"))
    (folder / "install.sh").write_text(script)
    subprocess.run(["bash", folder / "install.sh", "project"], check=True)
    install, check = (tmp_path / "calls").read_text().splitlines()
    assert install.split()[-1 - len(wheels) :] == [".", *[f"workflows/containers/wheels/{name}" for name in wheels]]
    assert check == "-m pip check"


def test_git_ignores_wheels_but_keeps_their_folder() -> None:
    assert (CONTAINERS / "wheels" / "README.md").exists()
    ignored = subprocess.run(["git", "check-ignore", "--quiet", CONTAINERS / "wheels" / "a.whl"], cwd=ROOT, check=False)
    assert ignored.returncode == 0


def test_the_oci_image_runs_as_another_user_than_root():
    assert re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[-1] != "0"


def test_the_definition_has_only_sections_that_apptainer_knows_and_their_scripts_parse():
    found = sections()
    assert set(found) == {"", "arguments", "files", "post", "environment", "runscript", "test", "help"}
    for name in ("post", "environment", "runscript", "test"):
        script = re.sub(r"{{ (\w+) }}", r"\1", found[name])
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    arguments = re.findall(r"^\s*(\w+)=", found["arguments"], re.MULTILINE)
    assert set(re.findall(r"{{ (\w+) }}", DEFINITION)) == set(arguments)


def test_images_leave_out_what_git_ignores():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()[1:]
    listed = (ROOT / ".gitignore").read_text()
    for pattern in ignored:
        assert pattern.removeprefix("**/") in listed, pattern


@pytest.mark.system
def test_commands_of_all_rules_run_in_the_image_that_the_configuration_names(project):
    (project.root / "ours.sif").touch()
    code, output = replace(project, python=Path(sys.executable)).snakemake(  # jobs that nothing has imported for
        *("impala_2018", "--configfile", "narrow.yaml", *IN_IMAGES, "--apptainer-args=--nv"),
        *("--config", "container=ours.sif"),
        PATH=f"{STANDINS}:{os.environ['PATH']}",
    )
    assert code == 0, output
    calls = (project.root / "apptainer.calls").read_text()
    called = re.findall(r"exec --home \S+ .*--nv.* ours\.sif bash -c .* python -m (ddrl\.\w+(?: \w+)?)", calls)
    analysis = {"ddrl.analysis aggregate", "ddrl.analysis table", "ddrl.analysis figure"}
    assert set(called) == {"ddrl.cli train", "ddrl.report"} | analysis
    assert (project.root / "reports" / "impala_2018.pdf").exists()


@pytest.mark.slow
def test_an_image_that_is_not_there_is_refused_before_any_job(made):
    code, output = made.snakemake("--dry-run", *IN_IMAGES)
    assert code == 2
    assert output.startswith("ddrl: configuration: container: there is no image ddrl.sif; allowed: an image file")
    assert output.count("\n") == 1


@pytest.mark.system
def test_nodes_of_a_run_are_started_outside_of_the_image_and_each_enters_it(project):
    path = project.root / "replications" / "impact_2020" / "experiments.yaml"
    data = yaml.safe_load(path.read_text())
    data["experiments"]["workers"]["scales"]["smoke"]["resources"]["nodes"] = 2
    path.write_text(yaml.safe_dump(data, allow_unicode=True))
    (project.root / "site.yaml").write_text("jobs: [{set: {partition: batch, minutes: 5}}]\n")
    (project.root / "ddrl.sif").touch()
    code, output = project.snakemake(
        *("impact_2020", "--dry-run", "--printshellcmds", *IN_IMAGES, "--apptainer-args=--nv"),
        *("--config", "site=site.yaml", "experiments=workers"),
        PATH=f"{STANDINS}:{os.environ['PATH']}",
    )
    assert code == 0, output
    entered = r"apptainer exec --home \S+ --nv ddrl\.sif python -m (\S+)"
    found = re.findall(rf"exec python -m ddrl\.slurm\.step srun --overlap --nodes=2 .* {entered}", output)
    assert found == ["ddrl.slurm.ray_cluster"] * 3
    # Jobs of one rule are an array, of which each would run the first.
    rules = set(re.findall(r"^(train_impact_2020_workers\w*) +1$", output, re.MULTILINE))
    assert len(rules) == 3
