"""Settings of the C allocator, for a process that makes and drops large tensors all the time."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # <malloc.h>


def keep_freed_memory() -> bool:
    """Lets glibc keep what is freed, instead of giving every large tensor back to the system; False without glibc.

    By default each temporary over 128 KiB to 32 MiB is mapped anew, zeroed by the kernel page by page, and unmapped: on
    a CPU learner that costs more than a third of the time. Call it before threads start. Costs 35 to 215 MiB.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**28))
    accepted = [mallopt(name, value) == 1 for name, value in settings]
    return all(accepted)
