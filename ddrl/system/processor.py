"""Facts about this machine's processor."""

from __future__ import annotations

import functools
from pathlib import Path

_IN_HARDWARE = {"avx512_bf16", "amx_bf16"}
_EMULATED_WITH_EASE = "avx512f"


@functools.cache
def facts() -> dict[str, str]:
    """Return the entries of /proc/cpuinfo for the first processor; empty on a system without that file."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def bfloat16() -> str:
    """Say how fast bfloat16 is here. Where oneDNN lacks 512-bit instructions a convolution takes nine times as long."""
    flags = set(facts().get("flags", "").split())
    if flags & _IN_HARDWARE:
        return "in hardware"
    return "emulated (no faster)" if _EMULATED_WITH_EASE in flags else "emulated (many times slower)"


def warning(precision: str, device: str) -> str | None:
    """Return a warning if computing in `precision` is slow on `device`, else None."""
    if precision == "float32" or device != "cpu" or (how := bfloat16()) == "in hardware":
        return None
    return f"precision: on this processor bfloat16 is {how}; float32 is another experiment, but as quick or quicker"
