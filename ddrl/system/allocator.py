"""Settings of the C allocator for processes that allocate and free large tensors."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # <malloc.h>


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory instead of returning it to the system; return False without glibc.

    By default each temporary above 128 KiB to 32 MiB is mapped, zeroed page by page and unmapped, which costs a CPU
    learner more than a third of its time. Call this before threads start. It costs 35 to 215 MiB of memory.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**28))
    accepted = [mallopt(name, value) == 1 for name, value in settings]
    return all(accepted)
