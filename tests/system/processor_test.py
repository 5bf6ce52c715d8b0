"""The processor's own account of itself, and the warning of a run that it will compute slowly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddrl.api.launch import train
from ddrl.system import processor
from tests.runs import config


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this machine one whose processor has these instructions."""
    return lambda text: monkeypatch.setattr(processor, "facts", lambda: {"flags": text})


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("sse avx2 avx512f avx512_bf16", "in hardware"),
        ("avx512f amx_bf16", "in hardware"),
        ("avx2 avx512f", "emulated (no faster)"),
        ("sse avx2", "emulated (many times slower)"),
        ("", "emulated (many times slower)"),
    ],
)
def test_512_bit_instructions_decide_how_slow_bfloat16_is(flags: Callable[[str], None], text: str, how: str) -> None:
    flags(text)
    assert processor.bfloat16() == how
    assert (processor.warning("bfloat16", "cpu") is None) == (how == "in hardware")


def test_neither_float32_nor_a_gpu_is_warned_of(flags: Callable[[str], None]) -> None:
    flags("avx2")
    assert processor.warning("float32", "cpu") is None
    assert processor.warning("bfloat16", "cuda") is None


def test_this_machine_says_what_it_is() -> None:
    assert set(processor.facts()) >= {"model name", "flags", "stepping"}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_says_that_its_precision_is_emulated(
    tmp_path: Path, flags: Callable[[str], None], capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    flags("avx2")
    train(config(precision=precision, env_frames=200), tmp_path)
    written = "".join(capsys.readouterr())
    assert ("bfloat16 is emulated (many times slower)" in written) == (precision == "bfloat16")
