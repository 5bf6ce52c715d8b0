"""Algorithms and environments of other packages are found by their entry points, and disturb nobody else."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddrl import algorithms, cli
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.papers.declared import declared
from ddrl.system import plugins
from ddrl.system.plugins import ALGORITHMS, ENVIRONMENTS

FOLDER = Path(algorithms.__file__).parent
Offer = Callable[..., Path]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Install a package with one module by hand: metadata and files in a folder of the path."""

    def install(package: str, group: str, name: str, text: str) -> Path:
        folder = tmp_path / package
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(
            "raise RuntimeError('nobody asked for this package')\n" * (not text)
        )
        (folder / package / "module.py").write_text(text)
        metadata = folder / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {package}.module\n")
        monkeypatch.syspath_prepend(str(folder))
        plugins._offered.cache_clear()
        return folder / package / "module.py"

    yield install
    for name in [name for name in sys.modules if name.startswith("pkg_")]:
        del sys.modules[name]
    plugins._offered.cache_clear()


def test_an_algorithm_of_another_package_is_found_like_one_of_this(offer: Offer) -> None:
    path = offer("pkg_a", "ddrl.algorithms", "other", (FOLDER / "a2c.py").read_text())
    assert "other" in ALGORITHMS and "other" in list(ALGORITHMS) and "other" not in algorithms.NAMES
    assert algorithms.load("other").SYSTEM.name == "A2C"
    assert ALGORITHMS.source("other") == path


def test_an_environment_of_another_package_is_found_like_one_of_this(offer: Offer) -> None:
    source = (FOLDER.parent / "environments/toy.py").read_text().replace('name=f"toy/', 'name=f"games/')
    offer("pkg_a", "ddrl.environments", "games", source)
    assert "games" in registry.prefixes()
    assert registry.spec_for("games/catch").observation_shape == (50,)
    env = registry.make(["games/catch", "catch"][0], 2, 1)
    assert env.reset().observation.shape == (2, 50)


def test_a_version_is_read_from_the_source_and_nothing_of_the_package_is_imported(offer: Offer) -> None:
    path = offer("pkg_a", "ddrl.algorithms", "other", "")
    path.write_text("VERSION = 7\nraise RuntimeError('imported')\n")
    assert declared(ALGORITHMS.source("other"), "VERSION") == 7
    assert not [name for name in sys.modules if name.startswith("pkg_a")]


def test_a_name_that_two_packages_have_is_one_error_for_those_who_ask_for_it(offer: Offer) -> None:
    text = (FOLDER / "a2c.py").read_text()
    offer("pkg_a", "ddrl.algorithms", "impala", text)
    with pytest.raises(
        UserError, match=r"^train: algorithm 'impala' is in several packages: ddrl, pkg_a; allowed: one$"
    ):
        algorithms.load("impala", where="train")
    offer("pkg_b", "ddrl.algorithms", "twice", text)
    offer("pkg_c", "ddrl.algorithms", "twice", text)
    with pytest.raises(UserError, match=r"several packages: pkg_[bc], pkg_[bc]; allowed: one"):
        ALGORITHMS.source("twice")
    assert algorithms.load("a2c").SYSTEM.name == "A2C"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_thing\n", "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("x = = 1\n", "cannot be imported: SyntaxError: invalid syntax"),
        ("SYSTEM = VERSION = TASK_DEFAULTS = Config = 1\n", "has no check, make_network, make_sampler, Actor, Learner"),
    ],
)
def test_a_broken_module_harms_only_those_who_ask_for_it(
    offer: Offer, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    offer("pkg_a", "ddrl.algorithms", "broken", text)
    with pytest.raises(UserError, match=f"^algorithm 'broken' of the package pkg_a: pkg_a.module {says}"):
        algorithms.load("broken")
    assert algorithms.load("ppo").SYSTEM.name == "PPO"
    assert cli.main(["list", "algorithms"]) == 0
    printed = capsys.readouterr().out
    assert says in printed and "IMPALA" in printed


def test_an_adapter_that_is_none_is_named(offer: Offer) -> None:
    offer("pkg_a", "ddrl.environments", "games", "ADAPTER = 3\n")
    with pytest.raises(UserError, match=r"^environment 'games': ADAPTER of pkg_a.module is no Adapter$"):
        registry.spec_for("games/catch")


def test_an_entry_point_without_a_module_is_named(offer: Offer) -> None:
    offer("pkg_a", "ddrl.algorithms", "gone", "x = 1\n").unlink()
    with pytest.raises(UserError, match=r"^algorithm 'gone' of the package pkg_a: there is no module pkg_a.module$"):
        ALGORITHMS.source("gone")


def test_a_file_beside_the_algorithms_that_declares_no_system_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FOLDER, tmp_path / "algorithms", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "algorithms" / "shared_losses.py").write_text("from ddrl.interfaces import System\nSYSTEMS = 1\n")
    monkeypatch.setattr(plugins, "FOLDER", tmp_path)
    assert plugins._built_in.__wrapped__("algorithms", "SYSTEM") == ALGORITHMS.built_in()
    assert set(ENVIRONMENTS.built_in()) >= {"toy", "atari"}


def test_no_metadata_is_read_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: str) -> None:
        raise AssertionError("metadata was read")

    plugins._offered.cache_clear()
    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    assert "impala" in algorithms.NAMES and "impala" in ALGORITHMS and "toy" in ENVIRONMENTS
    with pytest.raises(AssertionError, match="metadata was read"):
        list(ALGORITHMS)
