"""The doctor finds what is there, says what to type for what is not, and asks only for what every run needs."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from ddrl import cli
from ddrl.cli import doctor
from ddrl.cli.doctor import Finding
from ddrl.environments import dmlab
from ddrl.environments.base import registry
from ddrl.environments.tools import check
from ddrl.errors import UserError


def lines(section: str) -> list[Finding]:
    """What one section says."""
    return list(doctor.sections()[section])


def about(word: str) -> Finding:
    """The one finding that starts with `word`."""
    (finding,) = [finding for finding in chain(*doctor.sections().values()) if finding.line.startswith(word)]
    return finding


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No simulator runs: the conformance check has tests of its own."""
    seen = SimpleNamespace(protocol="protocol-1")
    monkeypatch.setattr(check, "check_environment", lambda name, **options: seen)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> object:
    """Hides packages."""
    real = doctor._version

    def hide(*names: str) -> None:
        monkeypatch.setattr(doctor, "_version", lambda name: None if name in names else real(name))

    return hide


def test_every_section_is_there_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line in doctor.sections()] == list(doctor.sections())
    assert printed[-1] == "everything required is there"


def test_every_direct_dependency_is_looked_for() -> None:
    assert [finding.line.split()[0] for finding in lines("required packages")] == [
        requirement.name for requirement in doctor.required()
    ]
    assert {"torch", "ale-py", "typst"} <= {requirement.name for requirement in doctor.required()}


def test_a_missing_required_package_is_exit_code_1_and_comes_with_the_command(
    without: object, capsys: pytest.CaptureFixture[str]
) -> None:
    without("typst")
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "MISSING  typst>=0.13 (here: none): " in printed
    assert "-m pip install -c constraints.txt 'typst>=0.13'" in printed
    assert printed.splitlines()[-1] == "1 required part is missing"


def test_a_package_that_is_too_old_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "1.9.0" if name == "numpy" else real(name))
    finding = about("numpy")
    assert not finding.fine
    assert "(here: 1.9.0)" in finding.line


def test_a_missing_optional_package_is_no_failure(without: object, capsys: pytest.CaptureFixture[str]) -> None:
    without("rliable")
    assert cli.main(["doctor"]) == 0
    assert "absent   rliable is not installed" in capsys.readouterr().out
    assert "pip install" in about("rliable").remedy


def test_a_missing_program_names_the_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert about("sbatch, squeue, scancel not found").remedy == "apt install slurm-client"
    assert not about("git").fine


def test_a_missing_graphics_library_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: None)
    finding = about("EGL or OSMesa not found")
    assert (finding.fine, finding.required, finding.remedy) == (False, False, "apt install libegl1 libgl1-mesa-dri")
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: "libOSMesa.so" if name == "OSMesa" else None)
    assert about("OSMesa, for videos of MuJoCo").fine


def test_the_simulators_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(dmlab.ADAPTER, examples={}, missing=lambda: "environment 'dmlab' is not installed")
    monkeypatch.setattr(dmlab, "ADAPTER", absent)
    checked = [finding.line.split(" ")[0] for finding in lines("environments")]
    firsts = {prefix: next(iter(registry.adapter(prefix).examples), "") for prefix in registry.prefixes()}
    assert checked == [f"{prefix}/{task}" if task else "environment" for prefix, task in firsts.items()]
    assert "atari/breakout" in checked and "environment" in checked


def test_an_environment_that_breaks_the_contract_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, **options: object) -> None:
        raise check.ConformanceError(f"{name}: a dead step\nhas a reward")

    monkeypatch.setattr(check, "check_environment", broken)
    finding = about("atari/")
    assert (finding.fine, finding.required) == (False, True)
    assert "a dead step has a reward" in finding.line


def test_a_simulator_that_is_not_installed_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def adapter(prefix: str) -> None:
        raise UserError(f"environment {prefix}: not installed") from ModuleNotFoundError(name="simulator")

    monkeypatch.setattr(registry, "adapter", adapter)
    found = lines("environments")
    assert len(found) == len(registry.prefixes())
    assert not any(finding.fine or finding.required for finding in found)
    assert all(finding.remedy.endswith("simulator") for finding in found)


def test_a_library_that_an_environment_needs_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(name: str, **options: object) -> None:
        raise UserError("MiniWorld draws with OpenGL, but there is none")

    monkeypatch.setattr(check, "check_environment", lacks)
    finding = about("firstperson/")
    assert (finding.fine, finding.required) == (False, False)
    assert finding.line.endswith("but there is none")


def test_what_the_first_person_tasks_need_is_named_for_each_family(
    without: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("vizdoom")
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: None if name == "GLU" else name)
    package, library = about("vizdoom is"), about("GLU")
    assert package.line == "vizdoom is not installed, for tasks firstperson/vizdoom_..."
    assert library.line == "GLU not found, for tasks firstperson/miniworld_... and pointnav/miniworld_..."
    assert library.remedy == "apt install libegl1 libgl1 libglu1-mesa libgl1-mesa-dri"
    assert any(finding.fine and finding.line.startswith("miniworld 2") for finding in lines("optional"))


def test_one_example_of_each_prefix_is_checked_unless_all_are_asked_for() -> None:
    first = lines("environments")
    every = list(doctor.sections(every_example=True)["environments"])
    assert len(first) == len(registry.prefixes())
    absent = sum(not registry.adapter(prefix).examples for prefix in registry.prefixes())
    assert len(every) == len(registry.examples()) + absent > len(first)


def test_a_card_is_named_with_memory_driver_and_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(doctor, "_nvidia_drivers", lambda: ["575.57"])
    assert "GPU 0: NVIDIA H100, 80 GiB, driver 575.57, bfloat16; torch" in about("GPU").line


def test_a_card_that_torch_cannot_use_comes_with_the_build_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(doctor, "_nvidia_drivers", lambda: ["575.57"])
    finding = about("GPU")
    assert not finding.required
    assert f"--force-reinstall torch=={torch.__version__.split('+')[0]}" in finding.remedy
    assert "apt" not in finding.remedy


def test_drivers_are_those_that_nvidia_smi_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str], **options: object) -> SimpleNamespace:
        assert command[0] == "nvidia-smi"
        return SimpleNamespace(stdout="575.57\n575.57\n")

    monkeypatch.setattr(subprocess, "run", answer)
    assert doctor._nvidia_drivers() == ["575.57", "575.57"]
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: (_ for _ in ()).throw(FileNotFoundError()))
    assert doctor._nvidia_drivers() == []
