"""Reading git objects that others made: commits and trees as they come in a push. It is as strict as `git fsck --strict`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ricordo.domain.git_objects import Kind, object_id
from ricordo.errors import Invalid

ID_SIZE = 20
FILE, FOLDER = b"100644", b"40000"
MOST_COMMIT = 65_536  # bytes of a commit, message and all
_IDENTITY = rb"[^<>\n\0]+ <[^<>\n\0]*> (?:0|[1-9]\d{0,11}) [+-]\d{4}\n"
_COMMIT = re.compile(
    rb"tree ([0-9a-f]{40})\n((?:parent [0-9a-f]{40}\n)*)"
    rb"author " + _IDENTITY + rb"committer " + _IDENTITY + rb"(?:[a-z][^\n]*\n(?: [^\n]*\n)*)*\n"
)
_PARENT = re.compile(rb"parent ([0-9a-f]{40})\n")


@dataclass(frozen=True, slots=True)
class GitObject:
    """One object of a repository: its kind, its id (20 bytes) and its body."""

    kind: Kind
    id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says: the id of its tree, those of its parents, and its message; `body` is the whole of it."""

    id: bytes
    tree: bytes
    parents: tuple[bytes, ...]
    message: str
    body: bytes


@dataclass(frozen=True, slots=True)
class TreeEntry:
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
        raise Invalid(f"Commit {short} has {len(body)} bytes, of which {MOST_COMMIT} are allowed. Shorten its message.")
    found = _COMMIT.match(body)
    if not found or b"\0" in body:
        raise Invalid(f"Commit {short} is malformed. Make it again with git.")
    try:
        message = body[found.end() :].decode()
    except UnicodeDecodeError:
        raise Invalid(f"The message of commit {short} is not UTF-8. Rewrite it with `git commit --amend`.") from None
    parents = tuple(bytes.fromhex(parent.decode()) for parent in _PARENT.findall(found[2]))
    return Commit(id, bytes.fromhex(found[1].decode()), parents, message, body)


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
