"""The whole of a repository as one pack, copied from the packs it lies in: what a clone gets, without unpacking anything.

The packs of our repositories hold whole objects only, so that each can be copied as it lies there.
"""

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ricordo.features.git.repository import open_repository

_HEADER, _TRAILER = 12, 20
_PIECE = 1024 * 1024


def copy_whole(path: Path, write: Callable[[bytes], object]) -> None:
    """Write a pack of all objects of one of our repositories, each once.

    Raises OSError where it was made anew meanwhile, dulwich's ChecksumMismatch where it is damaged.
    """
    sum_ = hashlib.sha1(usedforsecurity=False)

    def pass_on(data: bytes) -> None:
        sum_.update(data)
        write(data)

    stretches = _stretches(path)
    count = sum(len(starts) for _, starts in stretches)
    pass_on(b"PACK\0\0\0\2" + count.to_bytes(4, "big"))
    for pack, starts in stretches:
        with pack.open("rb") as file:
            for start, end in _joined(starts):
                file.seek(start)
                for place in range(start, end, _PIECE):
                    pass_on(file.read(min(_PIECE, end - place)))
    write(sum_.digest())


def _stretches(path: Path) -> list[tuple[Path, list[tuple[int, int]]]]:
    """From where to where the objects lie in each pack, without those that an earlier pack has."""
    seen: set[bytes] = set()
    found = []
    with closing(open_repository(path)) as repository:
        for pack in repository.object_store.packs:
            pack.data.check()
            places = sorted((offset, bytes(id)) for id, offset, _ in pack.index.iterentries())
            file = Path(pack.data.path)
            ends = [offset for offset, _ in places[1:]] + [file.stat().st_size - _TRAILER]
            new = [(offset, end) for (offset, id), end in zip(places, ends, strict=True) if id not in seen]
            seen.update(id for _, id in places)
            found.append((file, new))
    return found


def _joined(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same, neighbours as one."""
    joined: list[tuple[int, int]] = []
    for start, end in stretches:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
