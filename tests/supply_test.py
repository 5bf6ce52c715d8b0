"""What continuous integration runs is named so that nobody can change it: actions by commit, packages by hash."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
WITHOUT_HASH = {"torch"}
"""Which build of it pip takes is decided by the machine."""


def pinned(name: str) -> dict[str, str]:
    """Name -> version."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s\\]+)", (ROOT / name).read_text(), flags=re.MULTILINE))


def test_every_action_is_pinned_to_a_commit_and_says_its_version() -> None:
    lines = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(r"(- )?uses: (\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)", line), line


def test_one_action_has_one_commit() -> None:
    named = re.findall(r"uses: (\S+)@(\S+ # \S+)", "".join(path.read_text() for path in WORKFLOWS))
    assert len(set(named)) == len({action for action, _ in named})


def test_what_is_pinned_has_hashes_of_the_same_version() -> None:
    pins = {name: version for name, version in pinned("constraints.txt").items() if name not in WITHOUT_HASH}
    assert pinned("constraints-hashed.txt") == pins, "run .ci/hash_constraints.py"


def test_every_line_of_the_hashed_constraints_is_a_pin_with_hashes() -> None:
    text = re.sub(r"^#.*\n", "", (ROOT / "constraints-hashed.txt").read_text(), flags=re.MULTILINE)
    entry = r"[a-z0-9-]+==[0-9a-z.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"({entry})+", text)


def test_continuous_integration_installs_by_hash() -> None:
    workflows = [yaml.safe_load(path.read_text()) for path in WORKFLOWS]
    assert [workflow["env"]["HASHED"] for workflow in workflows] == [1] * len(WORKFLOWS)
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes -r $(1)" in makefile and "$(call hashed,constraints-hashed.txt)" in makefile


def test_the_repository_holds_no_links_which_lead_to_folders_of_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []


def test_no_committed_result_names_a_folder_of_one_machine() -> None:
    place = re.compile(r"(?<![\w.])/(root|home|work|tmp|Users)/\w")
    files = [*(ROOT / "results/reference").rglob("*.json"), *(ROOT / "results/reference").rglob("*.csv")]
    assert files
    assert [str(path.relative_to(ROOT)) for path in files if place.search(path.read_text(encoding="utf-8"))] == []
