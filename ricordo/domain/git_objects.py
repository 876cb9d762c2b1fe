"""The ids of git objects, computed without git: what a version's id is made of (the format is git's own).

An object's id is the SHA-1 of `<kind> <size in bytes>`, a NUL and its body. Ids are 20 raw bytes here, 40 hex digits outside.
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
_FILE, _FOLDER = b"100644 ", b"40000 "
# Names that some file system takes for `.git`, `.gitmodules` and the like, also by their short names on Windows.
_GITS_OWN = re.compile(r"\.git(?:[ .:]|$)|\.git(?:modules|attributes)|git~\d|gi[0-9a-f]{4}~\d")


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of a chain's current blocks: its id, and the bodies of all its folders by id, the leaves first."""

    id: bytes
    bodies: Mapping[bytes, bytes]


def object_id(kind: Kind, body: bytes) -> bytes:
    """The id of an object.

    >>> object_id("blob", b"Name: Ada\\n").hex()
    '2273db61e2992c4e5b35786f6b4396069998020a'
    """
    return hashlib.sha1(
        b"%s %d\0" % (kind.encode(), len(body)) + body, usedforsecurity=False
    ).digest()


def blob_id(text: str) -> bytes:
    """The id of a text, as UTF-8 and exactly as it is."""
    return object_id("blob", text.encode())


def path_of(label: str) -> str:
    return label + SUFFIX


def fits_git(label: str) -> bool:
    """Whether a block with this label can stand in a repository that everybody can clone, whatever other blocks there are.

    >>> fits_git("courses/maths"), fits_git("git~1/hooks"), fits_git("human.md/more")
    (True, False, False)
    """
    *folders, name = label.split("/")
    # What is not shown is not seen by some file systems either.
    plain = (
        "".join(sign for sign in part if unicodedata.category(sign) != "Cf").casefold()
        for part in (*folders, name)
    )
    # A folder that ends like a file would meet the file of that name.
    return (
        "\\" not in label
        and not any(map(_GITS_OWN.match, plain))
        and not any(part.casefold().endswith(".md") for part in folders)
    )


def tree_of(blobs: Mapping[str, bytes], suffix: str = SUFFIX) -> Tree:
    """The tree of blocks' texts, by label; a `/` in a label makes a folder, and a folder without files is not there."""
    bodies: dict[bytes, bytes] = {}
    return Tree(_store(blobs, bodies, suffix), bodies)


def commit_body(tree: bytes, parents: tuple[bytes, ...], who: str, at: int, message: str) -> bytes:
    """A commit's body; `at` is in microseconds, of which git keeps the seconds. Author and committer are the same."""
    stamp = f"{who} {at // SECOND} +0000"
    lines = [f"tree {tree.hex()}", *(f"parent {parent.hex()}" for parent in parents)]
    return "\n".join([*lines, f"author {stamp}", f"committer {stamp}", "", message]).encode()


def _store(blobs: Mapping[str, bytes], bodies: dict[bytes, bytes], suffix: str) -> bytes:
    entries: list[tuple[bytes, bytes]] = []
    folders: dict[str, dict[str, bytes]] = {}
    for label, blob in blobs.items():
        name, slash, rest = label.partition("/")
        if slash:
            folders.setdefault(name, {})[rest] = blob
        else:
            raw = (name + suffix).encode()
            entries.append((raw, _FILE + raw + b"\0" + blob))
    for name, inside in folders.items():
        raw = name.encode()
        # A folder stands where it would if its name ended in a slash.
        entries.append((raw + b"/", _FOLDER + raw + b"\0" + _store(inside, bodies, suffix)))
    entries.sort()
    body = b"".join([entry for _, entry in entries])
    id = object_id("tree", body)
    bodies[id] = body
    return id
