"""Limits on the freed memory that the C library keeps for a server's threads."""

import ctypes
import os
from contextlib import suppress

# Constants of glibc's malloc.h.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# From this size in bytes, a text has separate memory pages, which are returned to the system when
# the text is freed.
_LARGE = 256 * 1024


def limit_heaps() -> None:
    """Limit glibc to two heaps, and make it return large texts at once.

    Two heaps are enough for a burst of turns. They keep a tenth of the memory that one heap for
    each thread would keep. The threshold for large texts is set, since otherwise glibc raises it by
    itself.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        if "MALLOC_ARENA_MAX" not in os.environ:
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
        if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
