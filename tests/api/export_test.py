"""An exported policy plays like its checkpoint, in a directory that holds no checkpoint, and a bad file is one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ddrl
from ddrl import algorithms, cli
from ddrl.api import export as exporting
from ddrl.api import policy_file
from ddrl.api.trained import load_trained
from ddrl.training.records.recorder import write_json
from tests.api.agents import CONTINUOUS, RECURRENT, of_algorithm, trained

KEPT = ("config.json", "run.json", "curves.parquet", "policy.safetensors")
"""What is committed of a run."""


def as_committed(run: ddrl.Run, directory: Path) -> Path:
    """A copy of an exported run with the files alone that are committed."""
    directory.mkdir()
    for name in KEPT:
        shutil.copy(run.directory / name, directory / name)
    return directory


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> ddrl.Run:
    """A run on toy/catch with an exported policy."""
    run = trained(tmp_path_factory.mktemp("export") / "catch")
    ddrl.export(run)
    return run


@pytest.mark.parametrize("overrides", [{}, RECURRENT, CONTINUOUS], ids=["vectors", "recurrent", "continuous"])
def test_an_exported_policy_plays_like_its_checkpoint(overrides: dict[str, Any], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **overrides)
    before = ddrl.evaluate(run, episodes=4, greedy=True)
    ddrl.export(run)
    copy = as_committed(run, tmp_path / "copy")
    after = ddrl.evaluate(copy, episodes=4, greedy=True)
    assert after.tasks[0].env_frames == before.tasks[0].env_frames
    tolerance = 0.02 * max(1.0, abs(before.mean_return))
    assert after.mean_return == pytest.approx(before.mean_return, abs=tolerance)


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_every_algorithm_is_exported_and_loaded_again(algorithm: str, tmp_path: Path) -> None:
    run = of_algorithm(tmp_path / "run", algorithm)
    exported = exporting.export(run.directory)
    wanted = load_trained(run.directory).network.state_dict()
    copy = load_trained(as_committed(run, tmp_path / "copy")).network.state_dict()
    assert exported.agreement >= exporting.LEAST_EQUAL or not exported.half
    for name, tensor in wanted.items():
        assert torch.allclose(copy[name], tensor, rtol=1e-3 if exported.half else 0.0, atol=1e-7)
        assert copy[name].dtype == tensor.dtype


def test_parameters_keep_32_bits_where_16_would_change_the_actions(catch: ddrl.Run, tmp_path: Path) -> None:
    run = Path(shutil.copytree(catch.directory, tmp_path / "run"))
    (run / "policy.safetensors").unlink()
    found = load_trained(run)
    with torch.no_grad():
        last = dict(found.network.named_parameters())["policy.weight"]
        last.copy_(1e6 * torch.ones_like(last) + last)  # beyond what 16 bits hold
    other = exporting.rounded_copy(found)
    assert exporting.agreement(found, other) < exporting.LEAST_EQUAL


def test_statistics_of_observations_are_part_of_the_policy_in_full_precision(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **CONTINUOUS)
    network = load_trained(run.directory).network.state_dict()
    tensors = load_file(ddrl.export(run))
    statistics = [name for name in network if "normaliser" in name]
    assert statistics and all(torch.equal(tensors[name], network[name]) for name in statistics)
    assert all(tensors[name].dtype == network[name].dtype for name in statistics)


def test_the_metadata_says_what_the_policy_is_of(catch: ddrl.Run) -> None:
    found, _ = policy_file.read(catch.directory / "policy.safetensors")
    assert found.config == catch.config
    assert found.fingerprint == catch.manifest["fingerprint"]
    assert (found.version, found.env_frames) == (algorithms.load("impala").VERSION, catch.manifest["env_frames"])
    assert catch.directory.name in found.source


def test_a_checkpoint_that_is_there_comes_first(catch: ddrl.Run, tmp_path: Path) -> None:
    run = Path(shutil.copytree(catch.directory, tmp_path / "run"))
    (run / "policy.safetensors").write_bytes(b"nothing")
    assert load_trained(run).env_frames == catch.manifest["env_frames"]


def altered(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], None]) -> None:
    """Write a policy anew with other tensors or metadata."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata)


BAD: dict[str, tuple[Callable[[dict[str, torch.Tensor], dict[str, str]], object], str]] = {
    "missing": (lambda tensors, metadata: tensors.pop("policy.bias"), "tensor 'policy.bias' is missing"),
    "other": (lambda tensors, metadata: tensors.update(x=torch.ones(1)), "tensor 'x' is not one of the network"),
    "shape": (
        lambda tensors, metadata: tensors.update({"policy.bias": torch.ones(7)}),
        r"tensor 'policy.bias' has shape \[7\], and the network's is \[3\]",
    ),
    "not finite": (
        lambda tensors, metadata: tensors.update({"policy.bias": torch.full((3,), torch.nan)}),
        "tensor 'policy.bias' holds numbers that are not finite",
    ),
    "format": (lambda tensors, metadata: metadata.update(format="x"), "format 'x' in its metadata is not allowed"),
    "no metadata": (lambda tensors, metadata: metadata.clear(), "format '' in its metadata is not allowed"),
    "no config": (lambda tensors, metadata: metadata.pop("config"), "its metadata is damaged"),
    "frames": (lambda tensors, metadata: metadata.update(env_frames="many"), "its metadata is damaged"),
    "config": (lambda tensors, metadata: metadata.update(config="{}"), "key 'algorithm' is missing"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_policy_that_does_not_fit_is_one_line(kind: str, catch: ddrl.Run, tmp_path: Path) -> None:
    copy = as_committed(catch, tmp_path / "copy")
    change, says = BAD[kind]
    altered(copy / "policy.safetensors", change)
    with pytest.raises(ddrl.UserError, match=says) as raised:
        ddrl.load_policy(copy)
    assert str(raised.value).startswith(str(copy / "policy.safetensors"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_policy_is_one_line(share: float, catch: ddrl.Run, tmp_path: Path) -> None:
    path = as_committed(catch, tmp_path / "copy") / "policy.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ddrl.UserError, match=r"policy.safetensors: is damaged, or no safetensors file"):
        ddrl.load_policy(path.parent)


def test_a_policy_beside_another_runs_configuration_is_refused(catch: ddrl.Run, tmp_path: Path) -> None:
    copy = as_committed(catch, tmp_path / "copy")
    values = json.loads((copy / "config.json").read_text())
    write_json(copy / "config.json", values | {"seed": 99})
    with pytest.raises(ddrl.UserError, match="is of a run with fingerprint"):
        ddrl.load_policy(copy)


def test_a_policy_of_an_earlier_version_is_played_and_the_user_is_told(
    catch: ddrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = as_committed(catch, tmp_path / "copy")
    altered(copy / "policy.safetensors", lambda tensors, metadata: metadata.update(version="0"))
    ddrl.load_policy(copy)
    assert "is of version 0 of impala, which has changed since" in capsys.readouterr().err


def test_the_command_line_exports_evaluates_and_films_without_a_checkpoint(
    catch: ddrl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(catch.directory, tmp_path / "run"))
    assert cli.main(["export", str(run)]) == 0
    assert "policy.safetensors: 0.0" in (printed := capsys.readouterr().out) and "parameters of 16 bits" in printed
    copy = as_committed(ddrl.load_run(run), tmp_path / "copy")
    assert cli.main(["evaluate", str(copy), "--episodes", "2", "--greedy"]) == 0
    assert "2 episodes" in capsys.readouterr().out
    assert cli.main(["watch", str(copy), "--output", str(tmp_path / "film.gif")]) == 0
    assert (tmp_path / "film.gif").read_bytes()[:6] == b"GIF89a"


def test_a_run_with_neither_a_checkpoint_nor_a_policy_is_one_line(catch: ddrl.Run, tmp_path: Path) -> None:
    copy = as_committed(catch, tmp_path / "copy")
    (copy / "policy.safetensors").unlink()
    with pytest.raises(ddrl.UserError, match=r"no valid checkpoint .* and no policy.safetensors"):
        ddrl.export(copy)
