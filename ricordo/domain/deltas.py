"""Texts kept small: each as what differs from the one before it, between what both begin and end with.

A stored text is three parts: how many bytes it begins with of its base's, how many it ends with, and what is between,
compressed with the base's own middle as dictionary. A keyframe has no base and shares nothing.
"""

import zlib

# A text that is this many steps away from one that is stored whole is stored whole itself.
DEEPEST = 32
# What zlib can look back on.
_WINDOW = 32_768
_LENGTH = 4


def pack(text: bytes, base: bytes | None) -> bytes:
    """The text as it is stored; `base` is None for a keyframe."""
    if base is None:
        return zlib.compress(text, 6)
    head = _alike(text, base)
    tail = _alike(text[head:][::-1], base[head:][::-1])
    middle = text[head : len(text) - tail]
    packer = zlib.compressobj(6, zlib.DEFLATED, 15, 9, zdict=_dictionary(base, head, tail))
    return head.to_bytes(_LENGTH, "big") + tail.to_bytes(_LENGTH, "big") + packer.compress(middle) + packer.flush()


def unpack(data: bytes, base: bytes | None) -> bytes:
    """The mirror of `pack`. Raises zlib.error for a base that is not the one it was packed with."""
    if base is None:
        return zlib.decompress(data)
    head = int.from_bytes(data[:_LENGTH], "big")
    tail = int.from_bytes(data[_LENGTH : 2 * _LENGTH], "big")
    unpacker = zlib.decompressobj(15, zdict=_dictionary(base, head, tail))
    middle = unpacker.decompress(data[2 * _LENGTH :]) + unpacker.flush()
    return base[:head] + middle + base[len(base) - tail :]


def _dictionary(base: bytes, head: int, tail: int) -> bytes:
    end = min(len(base), max(len(base) - tail, head) + _WINDOW // 4)
    # An empty dictionary is none for zlib, in one direction only.
    return base[max(0, end - _WINDOW) : end] or b"\n"


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes both begin with. By halves, since comparing slices is a thousand times quicker than comparing bytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
