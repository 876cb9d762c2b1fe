"""The stock git client with isolated settings, and git objects made without it."""

import hashlib
import os
import subprocess
import zlib
from collections.abc import Mapping
from pathlib import Path

from ricordo.domain.git_objects import GitObject, tree_of
from ricordo.features.sync.git.objects import git_object

WHO = b"Ada <ada@home.example> 1767225600 +0100"

_QUIET = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_COMMITTER_NAME": "Ada",
    "LC_ALL": "C",
}


def run_git(
    folder: Path, *arguments: str, check: bool = True, email: str = "ada@home.example"
) -> subprocess.CompletedProcess[str]:
    """Run git in a folder; with `check` a failure fails the test with git's output."""
    address = {"GIT_AUTHOR_EMAIL": email, "GIT_COMMITTER_EMAIL": email}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **_QUIET, **address}
    done = subprocess.run(
        [
            "git",
            "-c",
            "init.defaultBranch=main",
            "-c",
            "pull.rebase=false",
            "-c",
            "gc.auto=0",
            *arguments,
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert not check or done.returncode == 0, (
        f"git {' '.join(arguments)}: {done.stdout}{done.stderr}"
    )
    return done


def git(folder: Path, *arguments: str) -> str:
    return run_git(folder, *arguments).stdout.strip()


def ids(repository: Path, branch: str = "main") -> list[str]:
    return git(repository, "rev-list", "--first-parent", "--reverse", branch).split()


def fsck(repository: Path) -> str:
    done = run_git(repository, "fsck", "--strict", "--no-dangling", "--no-progress", check=False)
    lines = (done.stdout + done.stderr).splitlines()
    # An empty repository has no branch yet.
    return "\n".join(line for line in lines if not line.startswith("notice: "))


def commit_of(
    files: Mapping[str, str], *parents: bytes, message: str = "By hand\n", extra: bytes = b""
) -> tuple[bytes, dict[bytes, GitObject]]:
    """Return the id of a commit of these texts by label, and all its objects by id.

    `extra` holds more lines of its header.
    """
    blobs = {label: git_object("blob", text.encode()) for label, text in files.items()}
    tree = tree_of({label: blob.id for label, blob in blobs.items()})
    lines = [
        b"tree " + tree.id.hex().encode(),
        *(b"parent " + parent.hex().encode() for parent in parents),
    ]
    head = b"\n".join([*lines, b"author " + WHO, b"committer " + WHO]) + b"\n" + extra
    commit = git_object("commit", head + b"\n" + message.encode())
    made = {blob.id: blob for blob in blobs.values()} | {commit.id: commit}
    return commit.id, made | {id: GitObject("tree", id, body) for id, body in tree.bodies.items()}


def pack_sum(body: bytes) -> bytes:
    """Return the checksum at the end of a pack."""
    return hashlib.sha1(body, usedforsecurity=False).digest()


def entry(kind: int, data: bytes, *, size: int | None = None, base: bytes = b"") -> bytes:
    """Return an object as it is stored in a pack."""
    size = len(data) if size is None else size
    head = [kind << 4 | size & 15]
    size >>= 4
    while size:
        head[-1] |= 128
        head.append(size & 127)
        size >>= 7
    return bytes(head) + base + zlib.compress(data)


def pack(*entries: bytes, count: int | None = None) -> bytes:
    """A pack of these entries."""
    body = (
        b"PACK\0\0\0\2"
        + (len(entries) if count is None else count).to_bytes(4, "big")
        + b"".join(entries)
    )
    return body + pack_sum(body)
