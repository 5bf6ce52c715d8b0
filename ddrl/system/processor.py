"""What this machine's processor says of itself."""

from __future__ import annotations

import functools
from pathlib import Path

_IN_HARDWARE = {"avx512_bf16", "amx_bf16"}
_EMULATED_WITH_EASE = "avx512f"


@functools.cache
def facts() -> dict[str, str]:
    """What /proc/cpuinfo says of the first one; nothing on a system without it."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def bfloat16() -> str:
    """How it computes in bfloat16. Where oneDNN lacks 512-bit instructions a convolution takes nine times as long."""
    flags = set(facts().get("flags", "").split())
    if flags & _IN_HARDWARE:
        return "in hardware"
    return "emulated (no faster)" if _EMULATED_WITH_EASE in flags else "emulated (many times slower)"


def warning(precision: str, device: str) -> str | None:
    """What whoever computes in `precision` on `device` should know, if anything."""
    if precision == "float32" or device != "cpu" or (how := bfloat16()) == "in hardware":
        return None
    return f"precision: on this processor bfloat16 is {how}; float32 is another experiment, but as quick or quicker"
