"""Git objects that others made, alone and in the pack of a push, read as strictly as by `git fsck --strict`.

A pack names the size of each object before the object, and each size is checked before anything is unpacked: whatever is sent, no
more memory is taken than was allowed before.
"""

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from ricordo.domain.git_objects import Kind, object_id
from ricordo.errors import Invalid, TooLong

if TYPE_CHECKING:
    from dulwich.pack import UnpackedObject

ID_SIZE = 20
FILE = b"100644"
FOLDER = b"40000"
MOST_COMMIT = 65_536  # bytes of a commit, message and all
KINDS: dict[int, Kind] = {1: "commit", 2: "tree", 3: "blob"}  # by their numbers in packs
_IDENTITY = rb"([^<>\n\0]+) <([^<>\n\0]*)> (?:0|[1-9]\d{0,11}) [+-]\d{4}\n"
_COMMIT = re.compile(
    rb"tree ([0-9a-f]{40})\n((?:parent [0-9a-f]{40}\n)*)"
    rb"author " + _IDENTITY + rb"committer " + _IDENTITY + rb"(?:[a-z][^\n]*\n(?: [^\n]*\n)*)*\n"
)
_PARENT = re.compile(rb"parent ([0-9a-f]{40})\n")

_TAG = 4
_BY_OFFSET = 6
_BY_ID = 7
_HEADER = 12
# Seven bits a byte. A longer number is no size, and would take ever longer to read.
_NUMBER = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")
_sha1 = partial(hashlib.sha1, usedforsecurity=False)
_BROKEN = "The pack that was sent is damaged. Push again; if that does not help, check the repository with `git fsck`."


@dataclass(frozen=True, slots=True)
class GitObject:
    """One object of a repository: its kind, its id (20 bytes) and its body."""

    kind: Kind
    id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: the ids of its tree and parents, its message and whole `body`, author (name, address), and committer's address."""

    id: bytes
    tree: bytes
    parents: tuple[bytes, ...]
    message: str
    body: bytes
    author: tuple[str, str] = ("", "")
    committer: str = ""


class TreeEntry(NamedTuple):
    """One entry of a tree: a file, a folder or something else, by its mode as git writes it."""

    mode: bytes
    name: bytes
    id: bytes


def git_object(kind: Kind, body: bytes) -> GitObject:
    return GitObject(kind, object_id(kind, body), body)


EMPTY_TREE = git_object("tree", b"")


def read_commit(body: bytes) -> Commit:
    """The commit with this body. Raises Invalid, naming it, where git itself would find fault with it."""
    id = object_id("commit", body)
    short = id.hex()[:10]
    if len(body) > MOST_COMMIT:
        raise Invalid(
            f"Commit {short} has {len(body)} bytes, of which {MOST_COMMIT} are allowed. Shorten its message."
        )
    found = _COMMIT.match(body)
    if not found or b"\0" in body:
        raise Invalid(f"Commit {short} is malformed. Make it again with git.")
    try:
        message = body[found.end() :].decode()
    except UnicodeDecodeError:
        raise Invalid(
            f"The message of commit {short} is not UTF-8. Rewrite it with `git commit --amend`."
        ) from None
    parents = tuple(bytes.fromhex(parent.decode()) for parent in _PARENT.findall(found[2]))
    # Old commits may be in another encoding; a name is shown as well as it can be.
    name, address, _, committer = (
        part.decode(errors="replace").strip() for part in found.groups()[2:]
    )
    return Commit(
        id, bytes.fromhex(found[1].decode()), parents, message, body, (name, address), committer
    )


def read_tree(body: bytes) -> Iterator[TreeEntry]:
    """The entries of a tree in their order. Raises Invalid where it is cut off."""
    place = 0
    while place < len(body):
        space = body.find(b" ", place)
        end = body.find(b"\0", space)
        if space < 0 or end < 0 or end + ID_SIZE >= len(body):
            raise Invalid("A tree of this push is malformed. Check the repository with `git fsck`.")
        yield TreeEntry(body[place:space], body[space + 1 : end], body[end + 1 : end + 1 + ID_SIZE])
        place = end + 1 + ID_SIZE


class Lacking(Invalid):
    """A push refers to something that is not here."""


MOST_OBJECTS = 20_000  # in a pack
MOST_BYTES = 64 * 1024 * 1024  # of them together, once they are unpacked
_MOST_READ = (
    4 * MOST_BYTES
)  # bytes of what is here already, for objects that are sent as their differences from it
Find = Callable[[bytes], GitObject | None]


def read_pack(pack: bytes, find: Find) -> dict[bytes, GitObject]:
    """The objects of a pack by id; `find` gives those that are here already. Raises Invalid (damaged), Lacking, TooLong."""
    if not pack:
        return {}
    trailer = len(pack) - ID_SIZE
    count = int.from_bytes(pack[8:_HEADER], "big")
    is_pack = trailer >= _HEADER and pack[:8] in (b"PACK\0\0\0\2", b"PACK\0\0\0\3")
    if not is_pack or _sha1(pack[:trailer]).digest() != pack[trailer:]:
        raise Invalid(_BROKEN)
    if count > MOST_OBJECTS:
        raise TooLong(
            f"This push holds {count} objects, of which {MOST_OBJECTS} are allowed at once. Push older commits first, as in "
            "`git push origin HEAD~100:main`."
        )
    return _resolve(_unpack(pack, count), find)


def _unpack(pack: bytes, count: int) -> "list[UnpackedObject]":
    from dulwich.errors import ApplyDeltaError  # slow to import, and few servers are pushed to
    from dulwich.pack import unpack_object_at

    found = []
    place = _HEADER
    left = MOST_BYTES
    for _ in range(count):
        digits, end = _number(pack, place)
        kind = digits[0] >> 4 & 7
        size = digits[0] & 15 | _value(digits[1:]) << 4
        if kind == _TAG:
            raise Invalid(
                "This push holds a tag, which memory has no place for. Push branches only."
            )
        if kind not in (*KINDS, _BY_OFFSET, _BY_ID):
            raise Invalid(_BROKEN)
        if kind == _BY_OFFSET:
            _number(pack, end)
        if size > left:
            raise TooLong(
                f"This push unpacks to more than {MOST_BYTES} bytes. Push fewer commits at once."
            )
        left -= size
        try:
            one, place = unpack_object_at(pack, place, _sha1)
        except (ApplyDeltaError, AssertionError, zlib.error):
            raise Invalid(_BROKEN) from None
        found.append(one)
    if place != len(pack) - ID_SIZE:
        raise Invalid(_BROKEN)
    return found


def _resolve(unpacked: "list[UnpackedObject]", find: Find) -> dict[bytes, GitObject]:
    found: dict[bytes, GitObject] = {}
    at: dict[int, GitObject] = {}
    pending: dict[int | bytes, list[UnpackedObject]] = {}
    left = MOST_BYTES
    left_to_read = _MOST_READ
    find = lru_cache(16)(find)
    waiting = unpacked[::-1]
    while waiting:
        one = waiting.pop()
        offset = one.offset or 0
        data = b"".join(one.decomp_chunks)
        if one.delta_base is None:
            made = git_object(KINDS[one.pack_type_num], data)
        else:
            key = one.delta_base if isinstance(one.delta_base, bytes) else offset - one.delta_base
            base = at.get(key) if isinstance(key, int) else found.get(key)
            if base is None and isinstance(key, bytes) and (base := find(key)):
                left_to_read -= len(base.body)
                if left_to_read < 0:
                    raise TooLong(
                        "This push differs from more than can be read at once. Push fewer commits at once."
                    )
            if base is None:  # it comes later
                pending.setdefault(key, []).append(one)
                continue
            made = git_object(base.kind, _applied(base.body, data, left))
            left -= len(made.body)
        at[offset] = found[made.id] = made
        waiting += pending.pop(offset, []) + pending.pop(made.id, [])
    if pending:
        raise Lacking(
            "This push counts on objects that are not here. Fetch first, then push again."
        )
    return found


def _applied(base: bytes, delta: bytes, left: int) -> bytes:
    from dulwich.errors import ApplyDeltaError
    from dulwich.pack import apply_delta

    _, place = _number(delta, 0)  # the size of the base, then that of the result
    if _value(_number(delta, place)[0]) > left:
        raise TooLong(
            "This push unpacks to more than is allowed at once. Push fewer commits at once."
        )
    try:
        return b"".join(apply_delta(base, delta))
    except (ApplyDeltaError, AssertionError):
        raise Invalid(_BROKEN) from None


def _number(data: bytes, place: int) -> tuple[bytes, int]:
    found = _NUMBER.match(data, place)
    if found is None:
        raise Invalid(_BROKEN)
    return found[0], found.end()


def _value(digits: bytes) -> int:
    return sum((digit & 127) << 7 * place for place, digit in enumerate(digits))
