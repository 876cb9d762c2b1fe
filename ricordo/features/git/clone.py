"""The whole of a repository as one pack, copied from the packs it lies in: what a clone gets, without unpacking anything.

The packs of our repositories hold whole objects only, so that each can be copied as it lies there.
"""

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ricordo.features.git.repository import open_repository

_TRAILER = 20
_PIECE = 1024 * 1024


def copy_whole(path: Path, write: Callable[[bytes], object]) -> None:
    """Write a pack of all objects of one of our repositories, each once.

    Raises OSError where it was rebuilt meanwhile, dulwich's ChecksumMismatch where it is damaged.
    """
    checksum = hashlib.sha1(usedforsecurity=False)

    def pass_on(data: bytes) -> None:
        checksum.update(data)
        write(data)

    count, ranges = _ranges(path)
    pass_on(b"PACK\0\0\0\2" + count.to_bytes(4, "big"))
    for pack, start, end in ranges:
        with pack.open("rb") as file:
            file.seek(start)
            for place in range(start, end, _PIECE):
                pass_on(file.read(min(_PIECE, end - place)))
    write(checksum.digest())


def _ranges(path: Path) -> tuple[int, list[tuple[Path, int, int]]]:
    """How many objects there are, and from where to where they lie in which pack; one that an earlier pack has is left out."""
    seen: set[bytes] = set()
    ranges: list[tuple[Path, int, int]] = []
    with closing(open_repository(path)) as repository:
        for pack in repository.object_store.packs:
            pack.data.check()
            file = Path(pack.data.path)
            offsets = sorted((offset, bytes(id)) for id, offset, _ in pack.index.iterentries())
            ends = [offset for offset, _ in offsets[1:]] + [file.stat().st_size - _TRAILER]
            for (start, id), end in zip(offsets, ends, strict=True):
                if id in seen:
                    continue
                seen.add(id)
                if ranges and ranges[-1][0] == file and ranges[-1][2] == start:
                    ranges[-1] = (file, ranges[-1][1], end)
                else:
                    ranges.append((file, start, end))
    return len(seen), ranges
