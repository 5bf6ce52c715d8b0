"""The examples of the guide to the Python interface run, from top to bottom, and print what the guide says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ddrl

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "python_api.md"


def examples() -> list[str]:
    """The code blocks of the guide, in order."""
    return re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, example in enumerate(examples(), 1):
        exec(compile(example, f"example {number} of {GUIDE.name}", "exec"), names)
    printed = capsys.readouterr().out
    assert Path("runs/impala/gymnasium/CartPole-v1/1-1/run.json").is_file()
    assert "did you mean 'hyperparameters.optimizer.learning_rate'?" in printed
    assert "Run(impala on gymnasium/CartPole-v1, seed 1, 5,000 frames, final return" in printed
    assert re.search(r"impala +gymnasium/CartPole-v1 +4000 +4 ", printed)


def test_every_public_function_has_an_example() -> None:
    code = "\n".join(examples())
    functions = [name for name in ddrl.__all__ if name[0].islower()]
    assert functions and [name for name in functions if f"ddrl.{name}(" not in code] == []
