"""Strict readers of git objects and of a push's pack, like `git fsck --strict`.

A pack names the size of each object first, and each size is checked before anything is unpacked. So
no input can take more memory than is allowed.
"""

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from ricordo.domain.git_objects import GitObject, Kind, object_id
from ricordo.errors import Invalid, TooLong

if TYPE_CHECKING:
    from dulwich.pack import UnpackedObject

ID_SIZE = 20
FILE = b"100644"
FOLDER = b"40000"
MOST_COMMIT = 65_536  # the most bytes of a commit, including its message
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
# A size with seven bits in each byte. Longer numbers are invalid and would take long to read.
_NUMBER = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")
_sha1 = partial(hashlib.sha1, usedforsecurity=False)
_BROKEN = (
    "The received pack is damaged. Push again; if that does not help, check the repository "
    "with `git fsck`."
)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit.

    It has the ids of its tree and parents, its message, the complete `body`, the author (name,
    address) and the committer's address.
    """

    id: bytes
    tree: bytes
    parents: tuple[bytes, ...]
    message: str
    body: bytes
    author: tuple[str, str] = ("", "")
    committer: str = ""


class TreeEntry(NamedTuple):
    """An entry of a tree, with its git mode."""

    mode: bytes
    name: bytes
    id: bytes


def git_object(kind: Kind, body: bytes) -> GitObject:
    return GitObject(kind, object_id(kind, body), body)


EMPTY_TREE = git_object("tree", b"")


def read_commit(body: bytes) -> Commit:
    """Parse the body of a commit.

    Raises Invalid, with the commit's id, if git too would reject it.
    """
    id = object_id("commit", body)
    short = id.hex()[:10]
    if len(body) > MOST_COMMIT:
        raise Invalid(
            f"Commit {short} has {len(body)} bytes, and {MOST_COMMIT} are allowed. Shorten its "
            "message."
        )
    match = _COMMIT.match(body)
    if not match or b"\0" in body:
        raise Invalid(f"Commit {short} is malformed. Create it again with git.")
    try:
        message = body[match.end() :].decode()
    except UnicodeDecodeError:
        raise Invalid(
            f"The message of commit {short} is not UTF-8. Rewrite it with `git commit --amend`."
        ) from None
    parents = tuple(bytes.fromhex(parent.decode()) for parent in _PARENT.findall(match[2]))
    # Old commits may have another encoding. Unreadable letters of a name are replaced.
    name, address, _, committer = (
        part.decode(errors="replace").strip() for part in match.groups()[2:]
    )
    return Commit(
        id=id,
        tree=bytes.fromhex(match[1].decode()),
        parents=parents,
        message=message,
        body=body,
        author=(name, address),
        committer=committer,
    )


def read_tree(body: bytes) -> Iterator[TreeEntry]:
    """Yield the entries of a tree in their order.

    Raises Invalid if the tree is cut off.
    """
    offset = 0
    while offset < len(body):
        space = body.find(b" ", offset)
        end = body.find(b"\0", space)
        if space < 0 or end < 0 or end + ID_SIZE >= len(body):
            raise Invalid("A tree of this push is malformed. Check the repository with `git fsck`.")
        yield TreeEntry(
            body[offset:space], body[space + 1 : end], body[end + 1 : end + 1 + ID_SIZE]
        )
        offset = end + 1 + ID_SIZE


class Lacking(Invalid):
    """A push refers to an object that is neither stored nor in the pack."""


MOST_OBJECTS = 20_000  # in a pack
MOST_BYTES = 64 * 1024 * 1024  # the most bytes of all objects of a pack, unpacked
# the most bytes of stored objects on which deltas of a pack may be based
_MOST_READ = 4 * MOST_BYTES
Find = Callable[[bytes], GitObject | None]


def read_pack(pack: bytes, find: Find) -> dict[bytes, GitObject]:
    """Return the objects of a pack by id.

    `find` returns objects that are already stored. Raises Invalid (damaged), Lacking, TooLong.
    """
    if not pack:
        return {}
    trailer = len(pack) - ID_SIZE
    count = int.from_bytes(pack[8:_HEADER], "big")
    is_pack = trailer >= _HEADER and pack[:8] in (b"PACK\0\0\0\2", b"PACK\0\0\0\3")
    if not is_pack or _sha1(pack[:trailer]).digest() != pack[trailer:]:
        raise Invalid(_BROKEN)
    if count > MOST_OBJECTS:
        raise TooLong(
            f"This push holds {count} objects, and {MOST_OBJECTS} are allowed at once. Push older "
            "commits first, as in `git push origin HEAD~100:main`."
        )
    return _resolve(_unpack(pack, count), find)


def _unpack(pack: bytes, count: int) -> "list[UnpackedObject]":
    from dulwich.errors import ApplyDeltaError  # slow to import, and few servers receive pushes
    from dulwich.pack import unpack_object_at

    unpacked = []
    offset = _HEADER
    remaining = MOST_BYTES
    for _ in range(count):
        digits, end = _number(pack, offset)
        kind = digits[0] >> 4 & 7
        size = digits[0] & 15 | _value(digits[1:]) << 4
        if kind == _TAG:
            raise Invalid("This push holds a tag, and memory stores no tags. Push branches only.")
        if kind not in (*KINDS, _BY_OFFSET, _BY_ID):
            raise Invalid(_BROKEN)
        if kind == _BY_OFFSET:
            _number(pack, end)
        if size > remaining:
            raise TooLong(
                f"This push unpacks to more than {MOST_BYTES} bytes. Push fewer commits at once."
            )
        remaining -= size
        try:
            unpacked_object, offset = unpack_object_at(pack, offset, _sha1)
        except (ApplyDeltaError, AssertionError, zlib.error):
            raise Invalid(_BROKEN) from None
        unpacked.append(unpacked_object)
    if offset != len(pack) - ID_SIZE:
        raise Invalid(_BROKEN)
    return unpacked


def _resolve(unpacked: "list[UnpackedObject]", find: Find) -> dict[bytes, GitObject]:
    objects: dict[bytes, GitObject] = {}
    objects_by_offset: dict[int, GitObject] = {}
    pending: dict[int | bytes, list[UnpackedObject]] = {}
    remaining = MOST_BYTES
    remaining_to_read = _MOST_READ
    find = lru_cache(16)(find)
    waiting = unpacked[::-1]
    while waiting:
        unpacked_object = waiting.pop()
        offset = unpacked_object.offset or 0
        content = b"".join(unpacked_object.decomp_chunks)
        if unpacked_object.delta_base is None:
            new_object = git_object(KINDS[unpacked_object.pack_type_num], content)
        else:
            delta_base = unpacked_object.delta_base
            key: int | bytes
            if isinstance(delta_base, bytes):
                key = delta_base
                base = objects.get(key)
            else:
                key = offset - delta_base
                base = objects_by_offset.get(key)
            if base is None and isinstance(key, bytes) and (base := find(key)):
                remaining_to_read -= len(base.body)
                if remaining_to_read < 0:
                    raise TooLong(
                        "This push is based on too many objects to be read at once. Push fewer "
                        "commits at once."
                    )
            if base is None:  # the delta's base comes later in the pack
                pending.setdefault(key, []).append(unpacked_object)
                continue
            new_object = git_object(base.kind, _apply(base.body, content, remaining))
            remaining -= len(new_object.body)
        objects_by_offset[offset] = objects[new_object.id] = new_object
        waiting += pending.pop(offset, []) + pending.pop(new_object.id, [])
    if pending:
        raise Lacking(
            "This push refers to objects that the memory does not have. Fetch first, then "
            "push again."
        )
    return objects


def _apply(base: bytes, delta: bytes, limit: int) -> bytes:
    from dulwich.errors import ApplyDeltaError
    from dulwich.pack import apply_delta

    _, offset = _number(delta, 0)  # first the size of the base, then that of the new object
    if _value(_number(delta, offset)[0]) > limit:
        raise TooLong("This push is too large when unpacked. Push fewer commits at once.")
    try:
        return b"".join(apply_delta(base, delta))
    except (ApplyDeltaError, AssertionError):
        raise Invalid(_BROKEN) from None


def _number(content: bytes, offset: int) -> tuple[bytes, int]:
    match = _NUMBER.match(content, offset)
    if match is None:
        raise Invalid(_BROKEN)
    return match[0], match.end()


def _value(digits: bytes) -> int:
    return sum((digit & 127) << 7 * index for index, digit in enumerate(digits))
