"""Git objects as a push brings them, made without git."""

from collections.abc import Mapping

from ricordo.domain.git_objects import tree_of
from ricordo.features.git.objects import GitObject, git_object

WHO = b"Ada <ada@home.example> 1767225600 +0100"


def commit_of(
    files: Mapping[str, str], *parents: bytes, message: str = "By hand\n", extra: bytes = b""
) -> tuple[bytes, dict[bytes, GitObject]]:
    """A commit of these texts by label: its id, and all objects of it by id. `extra` are more lines of its head."""
    blobs = {label: git_object("blob", text.encode()) for label, text in files.items()}
    tree = tree_of({label: blob.id for label, blob in blobs.items()})
    lines = [b"tree " + tree.id.hex().encode(), *(b"parent " + parent.hex().encode() for parent in parents)]
    head = b"\n".join([*lines, b"author " + WHO, b"committer " + WHO]) + b"\n" + extra
    commit = git_object("commit", head + b"\n" + message.encode())
    made = {blob.id: blob for blob in blobs.values()} | {commit.id: commit}
    return commit.id, made | {id: GitObject("tree", id, body) for id, body in tree.bodies.items()}
