"""Ids of git objects, computed without git; the id of a version is the id of its commit.

An object's id is the SHA-1 of `<kind> <size in bytes>`, a NUL and its body (git's own format). Ids
are 20 raw bytes here and 40 hex digits outside.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ricordo.domain.clock import SECOND

Kind = Literal["blob", "tree", "commit"]
SUFFIX = ".md"
_FILE = b"100644 "
_FOLDER = b"40000 "
# Names that some file system confuses with `.git`, `.gitmodules` and the like, including their
# short forms on Windows.
_GITS_OWN = re.compile(r"\.git(?:[ .:]|$)|\.git(?:modules|attributes)|git~\d|gi[0-9a-f]{4}~\d")


@dataclass(frozen=True, slots=True)
class Tree:
    """The git tree of a chain's current blocks.

    `bodies` holds the bodies of all its folders by id, the leaves first.
    """

    id: bytes
    bodies: Mapping[bytes, bytes]


def object_id(kind: Kind, body: bytes) -> bytes:
    r"""Return the id of an object.

    >>> object_id("blob", b"Name: Ada\n").hex()
    '2273db61e2992c4e5b35786f6b4396069998020a'

    Args:
        kind: The kind of the object.
        body: The object without its header, as git stores it.

    Returns:
        20 raw bytes.
    """
    return hashlib.sha1(
        b"%s %d\0" % (kind.encode(), len(body)) + body, usedforsecurity=False
    ).digest()


def blob_id(text: str) -> bytes:
    """Return the id of a text, encoded as UTF-8 without any change.

    Args:
        text: The whole text of a block.

    Returns:
        20 raw bytes.
    """
    return object_id("blob", text.encode())


def path_of(label: str) -> str:
    """Return the path of a block's file in a git repository.

    Args:
        label: The label of the block. A "/" in it separates folders.
    """
    return label + SUFFIX


def fits_git(label: str) -> bool:
    """Return True if git can hold a block with this label on any file system.

    The answer does not depend on the other blocks.

    >>> fits_git("courses/maths"), fits_git("git~1/hooks"), fits_git("human.md/more")
    (True, False, False)

    Args:
        label: The label of a block.
    """
    *folders, name = label.split("/")
    # Some file systems ignore characters that are not shown.
    plain = (
        "".join(sign for sign in part if unicodedata.category(sign) != "Cf").casefold()
        for part in (*folders, name)
    )
    # A folder named like a file would collide with that file.
    return (
        "\\" not in label
        and not any(map(_GITS_OWN.match, plain))
        and not any(part.casefold().endswith(".md") for part in folders)
    )


def tree_of(blobs: Mapping[str, bytes], suffix: str = SUFFIX) -> Tree:
    """Return the tree of blocks' texts by label.

    A `/` in a label makes a folder. Folders without files do not exist.

    Args:
        blobs: The ids of the texts (20 raw bytes), by label.
        suffix: The ending that makes a label a file's name.
    """
    entries: list[tuple[bytes, bytes]] = []
    folders: dict[str, dict[str, bytes]] = {}
    for label, blob in blobs.items():
        name, slash, rest = label.partition("/")
        if slash:
            folders.setdefault(name, {})[rest] = blob
        else:
            raw = (name + suffix).encode()
            entries.append((raw, _FILE + raw + b"\0" + blob))
    bodies: dict[bytes, bytes] = {}
    for name, inside in folders.items():
        raw = name.encode()
        folder = tree_of(inside, suffix)
        bodies |= folder.bodies
        # Git sorts a folder by its name with a slash at the end.
        entries.append((raw + b"/", _FOLDER + raw + b"\0" + folder.id))
    entries.sort()
    body = b"".join([entry for _, entry in entries])
    id = object_id("tree", body)
    bodies[id] = body
    return Tree(id, bodies)


def commit_body(
    tree: bytes,
    parents: tuple[bytes, ...],
    author: str,
    at: int,
    message: str,
) -> bytes:
    """Return the body of a commit whose author is also its committer.

    Args:
        tree: The id of its tree, 20 raw bytes.
        parents: The ids of the commits before it, 20 raw bytes each; empty for the first commit.
        author: The author as git writes it: `name <email>`.
        at: The time in microseconds; git keeps only the seconds, in UTC.
        message: The message of the commit.
    """
    stamp = f"{author} {at // SECOND} +0000"
    lines = [f"tree {tree.hex()}", *(f"parent {parent.hex()}" for parent in parents)]
    return "\n".join([*lines, f"author {stamp}", f"committer {stamp}", "", message]).encode()


@dataclass(frozen=True, slots=True)
class GitObject:
    """An object of a repository: its kind, its id (20 bytes) and its body."""

    kind: Kind
    id: bytes
    body: bytes
