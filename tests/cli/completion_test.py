"""`ddrl completion bash` in a real bash: what is offered for words that are typed in part."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddrl import cli

TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
set -- $(complete -p ddrl)
while [ "$1" != -F ]; do shift; done
"$2"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "ddrl"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert cli.main(["completion", "bash"]) == 0
    return path


def completed(script: Path, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words, in a folder."""
    command = ["bash", "--norc", "-c", TRY, "bash", str(script), "ddrl", *words]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20, check=False)
    assert answer.stderr == ""
    return answer.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["train", "im"], ["impact", "impala"]),
        (["train", "impala", "toy/ca"], ["toy/catch"]),
        (["train", "impala", "seed=3", "toy/ca"], ["toy/catch"]),
        (["train", "mine"], ["mine.yaml"]),
        (["train", "--over"], ["--overwrite"]),
        (["report", "impal"], ["impala_2018"]),
        (["plot", "--x", ""], ["frames", "seconds"]),
        (["list", "algo"], ["algorithms"]),
        (["list", "keys", "r2"], ["r2d2", "r2d2_2019"]),
        (["evaluate", "ru"], ["runs"]),
        (["bench", "impala", "atari/pon"], ["atari/pong"]),
        (["train", "nothing-like-it"], [""]),
    ],
)
def test_bash_completes(words: list[str], offered: list[str], script: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "mine.yaml").touch()
    assert completed(script, tmp_path, *words) == offered


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_the_scripts_of_other_shells_have_the_commands_and_the_algorithms(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    for word in ("train", "overwrite", "impala", "impala_2018"):
        assert word in printed


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "dos"]) == 2
    assert "invalid choice: 'dos'" in capsys.readouterr().err
