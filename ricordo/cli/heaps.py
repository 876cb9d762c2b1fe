"""How much memory the C library keeps for the threads of a server."""

import ctypes
import os
from contextlib import suppress

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's malloc.h
# Bytes from which on a text has pages of its own, which go back to the system with it.
_LARGE = 256 * 1024


def limit_heaps() -> None:
    """Let glibc keep two heaps instead of one for each thread, and nothing of large texts and answers.

    Two heaps hold what a burst of turns needed: a tenth of the memory. The threshold for large texts would grow by itself.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        if "MALLOC_ARENA_MAX" not in os.environ:
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
        if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
