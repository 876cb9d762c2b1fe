"""Packs that come in a push, read within bounds: whatever is sent, no more memory is taken than was allowed before.

A pack names the size of each object before the object; nothing is unpacked beyond it, and nothing larger than the bounds at all.
"""

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from ricordo.domain.git_objects import Kind
from ricordo.errors import Invalid, TooLong
from ricordo.features.git.objects import ID_SIZE, GitObject, git_object

Find = Callable[[bytes], GitObject | None]
_KINDS: dict[int, Kind] = {1: "commit", 2: "tree", 3: "blob"}
_TAG, _BY_OFFSET, _BY_ID = 4, 6, 7
_HEADER = 12
_MORE, _LOW_7, _LOW_4 = 0x80, 0x7F, 0x0F
_LONGEST_NUMBER = 63  # bits; a longer one is no size, and would take ever longer to read
_BROKEN = "The pack that was sent is damaged. Push again; if that does not help, check the repository with `git fsck`."


class Lacking(Invalid):
    """A push counts on something that is not here."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a pack may hold: so many objects, of so many bytes together once they are unpacked."""

    objects: int = 20_000
    bytes: int = 64 * 1024 * 1024


BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One object as it lies in the pack: whole, or as what differs from the one at an offset or with an id."""

    offset: int
    type: int
    base: int | bytes | None
    data: bytes


def read_pack(pack: bytes, find: Find, bounds: Bounds = BOUNDS) -> dict[bytes, GitObject]:
    """The objects of a pack by id; `find` gives those that it counts on without sending them.

    Raises Invalid where it is damaged, Lacking where it refers to something unknown, TooLong where it would burst the bounds.
    """
    if not pack:
        return {}
    trailer = len(pack) - ID_SIZE
    count = int.from_bytes(pack[8:_HEADER], "big")
    if trailer < _HEADER or pack[:4] != b"PACK" or pack[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        raise Invalid(_BROKEN)
    if hashlib.sha1(pack[:trailer], usedforsecurity=False).digest() != pack[trailer:]:
        raise Invalid(_BROKEN)
    if count > bounds.objects:
        raise TooLong(
            f"This push holds {count} objects, of which {bounds.objects} are allowed at once. Push older commits first, as in "
            "`git push origin HEAD~100:main`."
        )
    return _resolve(_entries(memoryview(pack)[:trailer], count, bounds), find, bounds)


def _entries(pack: memoryview, count: int, bounds: Bounds) -> list[_Entry]:
    entries: list[_Entry] = []
    place, left = _HEADER, bounds.bytes
    for _ in range(count):
        offset = place
        type_, size, place = _head(pack, place)
        base: int | bytes | None = None
        if type_ == _BY_OFFSET:
            back, place = _distance(pack, place)
            base = offset - back
        elif type_ == _BY_ID:
            base = bytes(pack[place : place + ID_SIZE])
            place += ID_SIZE
        elif type_ == _TAG:
            raise Invalid("This push holds a tag, which memory has no place for. Push branches only.")
        elif type_ not in _KINDS:
            raise Invalid(_BROKEN)
        left = _spend(left, size, bounds)
        data, place = _inflate(pack, place, size)
        entries.append(_Entry(offset, type_, base, data))
    if place != len(pack):
        raise Invalid(_BROKEN)
    return entries


def _head(pack: memoryview, place: int) -> tuple[int, int, int]:
    first = _byte(pack, place)
    size, place = _number(pack, place + 1, first & _LOW_4, 4) if first & _MORE else (first & _LOW_4, place + 1)
    return first >> 4 & 7, size, place


def _number(data: memoryview, place: int, number: int = 0, shift: int = 0) -> tuple[int, int]:
    """A number that begins at a place, seven bits a byte, the lowest first; and the place behind it."""
    while shift <= _LONGEST_NUMBER:
        byte = _byte(data, place)
        number |= (byte & _LOW_7) << shift
        place, shift = place + 1, shift + 7
        if not byte & _MORE:
            return number, place
    raise Invalid(_BROKEN)


def _distance(pack: memoryview, place: int) -> tuple[int, int]:
    byte = _byte(pack, place)
    distance = byte & _LOW_7
    while byte & _MORE:
        place += 1
        byte = _byte(pack, place)
        distance = (distance + 1 << 7) | (byte & _LOW_7)
        if distance > len(pack):
            raise Invalid(_BROKEN)
    return distance, place + 1


def _byte(pack: memoryview, place: int) -> int:
    if place >= len(pack):
        raise Invalid(_BROKEN)
    return pack[place]


def _spend(left: int, size: int, bounds: Bounds) -> int:
    if size > left:
        raise TooLong(f"This push unpacks to more than {bounds.bytes} bytes. Push fewer commits at once.")
    return left - size


def _inflate(pack: memoryview, place: int, size: int) -> tuple[bytes, int]:
    unpacker = zlib.decompressobj()
    data = b""
    try:
        # In pieces, as the rest of what goes in is copied each time; one byte more than was announced shows a lie.
        while not unpacker.eof and place < len(pack) and len(data) <= size:
            piece = pack[place : place + max(size // 2, 256)]
            data += unpacker.decompress(piece, size + 1 - len(data))
            while unpacker.unconsumed_tail and not unpacker.eof and len(data) <= size:
                data += unpacker.decompress(unpacker.unconsumed_tail, size + 1 - len(data))
            place += len(piece) - len(unpacker.unused_data)
    except zlib.error:
        raise Invalid(_BROKEN) from None
    if not unpacker.eof or len(data) != size:
        raise Invalid(_BROKEN)
    return data, place


def _resolve(entries: list[_Entry], find: Find, bounds: Bounds) -> dict[bytes, GitObject]:
    found: dict[bytes, GitObject] = {}
    at: dict[int, GitObject] = {}
    pending: dict[int | bytes, list[_Entry]] = {}
    left = bounds.bytes
    waiting = entries[::-1]
    while waiting:
        entry = waiting.pop()
        if entry.base is None:
            made = git_object(_KINDS[entry.type], entry.data)
        else:
            base = at.get(entry.base) if isinstance(entry.base, int) else found.get(entry.base) or find(entry.base)
            if base is None:  # it comes later
                pending.setdefault(entry.base, []).append(entry)
                continue
            made = git_object(base.kind, _applied(base.body, entry.data, left))
            left -= len(made.body)
        at[entry.offset] = found[made.id] = made
        waiting += pending.pop(entry.offset, []) + pending.pop(made.id, [])
    if pending:
        raise Lacking("This push counts on objects that are not here. Fetch first, then push again.")
    return found


def _applied(base: bytes, delta: bytes, left: int) -> bytes:
    from dulwich.errors import ApplyDeltaError  # slow to import, and few servers are pushed to
    from dulwich.pack import apply_delta

    place = size = 0
    for _ in range(2):  # the size of the base, then that of the result
        size, place = _number(memoryview(delta), place)
    if size > left:
        raise TooLong("This push unpacks to more than is allowed at once. Push fewer commits at once.")
    try:
        return b"".join(apply_delta(base, delta))
    except (ApplyDeltaError, AssertionError):
        raise Invalid(_BROKEN) from None
