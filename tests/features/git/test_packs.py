"""Packs: what git makes is read, and nothing that is sent takes more memory than is allowed."""

import hashlib
import subprocess
import tracemalloc
import zlib
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from ricordo.domain.git_objects import object_id
from ricordo.errors import Invalid, RicordoError, TooLong
from ricordo.features.git.objects import GitObject, git_object
from ricordo.features.git.packs import Bounds, read_pack
from tests.support.git import git


def nothing(_id: bytes) -> GitObject | None:
    """There is nothing here yet."""
    return None


def _sum(body: bytes) -> bytes:
    return hashlib.sha1(body, usedforsecurity=False).digest()


def entry(kind: int, data: bytes, *, size: int | None = None, base: bytes = b"") -> bytes:
    """An object as it lies in a pack."""
    size = len(data) if size is None else size
    head = [kind << 4 | size & 15]
    size >>= 4
    while size:
        head[-1] |= 128
        head.append(size & 127)
        size >>= 7
    return bytes(head) + base + zlib.compress(data)


def pack(*entries: bytes, count: int | None = None) -> bytes:
    """A pack of these."""
    body = b"PACK\0\0\0\2" + (len(entries) if count is None else count).to_bytes(4, "big") + b"".join(entries)
    return body + _sum(body)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose objects differ little from each other, so that git packs them as deltas."""
    folder = tmp_path_factory.mktemp("git")
    git(folder, "init", "-q")
    for number in range(12):
        (folder / "a.md").write_text("\n".join(f"line {line} {'x' if line == number else ''}" for line in range(300)))
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"{number}")
    return folder


def packed(repository: Path, revisions: str, *options: str) -> bytes:
    """What git packs of these revisions."""
    command = ["git", "pack-objects", "--revs", "--stdout", "-q", *options]
    return subprocess.run(command, cwd=repository, input=revisions.encode(), capture_output=True, check=True).stdout


@pytest.mark.parametrize("options", [(), ("--delta-base-offset",), ("--no-reuse-delta", "--depth=50")])
def test_what_git_packs_is_read(repository: Path, options: tuple[str, ...]) -> None:
    found = read_pack(packed(repository, "main\n", *options), nothing)
    wanted = {line.split()[0] for line in git(repository, "rev-list", "--objects", "main").split("\n")}
    assert {id.hex() for id in found} == wanted
    assert all(object_id(made.kind, made.body) == id for id, made in found.items())


def test_a_thin_pack_counts_on_what_is_here(repository: Path) -> None:
    here = read_pack(packed(repository, "main~6\n"), nothing)
    thin = packed(repository, "main\n^main~6\n", "--thin", "--delta-base-offset")
    found = read_pack(thin, here.get)
    assert git(repository, "rev-parse", "main:a.md") in {id.hex() for id in found}
    with pytest.raises(Invalid, match="counts on objects that are not here"):
        read_pack(thin, nothing)


def test_what_differs_from_an_object_that_comes_later_is_read_too() -> None:
    late = git_object("blob", b"0123456789")
    delta = bytes([10, 12, 0b10010000, 10, 2]) + b"ab"
    found = read_pack(pack(entry(7, delta, base=late.id), entry(3, late.body)), nothing)
    assert sorted(made.body for made in found.values()) == [b"0123456789", b"0123456789ab"]


def test_long_chains_of_what_differs_are_read_in_a_moment() -> None:
    texts = [git_object("blob", b"%06d" % number) for number in range(3000)]
    entries = [entry(7, bytes([6, 6, 6]) + new.body, base=old.id) for old, new in pairwise(texts)]
    found = read_pack(pack(*reversed(entries), entry(3, texts[0].body)), nothing)
    assert len(found) == 3000


@pytest.mark.parametrize(
    "bad",
    [
        pack(b"\xbf" + b"\xff" * 40 + b"\x01" + zlib.compress(b"")),
        pack(entry(3, b"ab"), entry(7, b"\2" + b"\xff" * 40 + b"\1", base=object_id("blob", b"ab"))),
        pack(entry(3, b"ab"), entry(6, b"x", base=b"\xff" * 40 + b"\1")),
    ],
    ids=["of an object", "in a difference", "of a distance"],
)
def test_a_size_of_hundreds_of_bits_is_read_no_further(bad: bytes) -> None:
    """Each of its bytes took longer than the one before: a pack of 400 kB held a processor for eight seconds."""
    with pytest.raises(Invalid, match="damaged"):
        read_pack(bad, nothing)


def test_a_small_pack_that_asks_for_one_large_piece_again_and_again_takes_no_memory_for_it() -> None:
    """Two kilobytes that would have unpacked to two hundred megabytes, whatever size they said they had."""
    large = git_object("blob", bytes(60_000))
    said = b"\xe0\xd4\3"  # 60,000, for what it is made from and for what it claims to become
    delta = said * 2 + b"\xb0\x60\xea" * 4000
    bomb = pack(entry(3, large.body), entry(7, delta, base=large.id))
    assert len(bomb) < 2_000
    tracemalloc.start()
    with pytest.raises(Invalid, match="damaged"):
        read_pack(bomb, nothing, Bounds(objects=10, bytes=200_000))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


def test_a_cut_or_changed_pack_is_refused(repository: Path) -> None:
    whole = packed(repository, "main~9\n")
    for place in range(0, len(whole) - 1, 29):
        with pytest.raises(Invalid):
            read_pack(whole[:place] if place else b"x", nothing)
        changed = bytearray(whole)
        changed[place] ^= 0x55
        with pytest.raises(Invalid):
            read_pack(bytes(changed), nothing)
        body = bytes(changed[:-20])
        # Also where the sum at the end fits: it is read or refused, and does nothing else.
        with suppress(RicordoError):
            read_pack(body + _sum(body), nothing)


@pytest.mark.parametrize(
    "bad",
    [
        pack(entry(3, b"x" * 5000)),
        pack(*[entry(3, b"%d" % number) for number in range(11)]),
        pack(entry(3, b"x"), count=2**32 - 1),
        pack(
            entry(3, b"ab"),
            entry(7, bytes([2]) + b"\xff\xff\xff\x7f" + bytes([2]) + b"xy", base=object_id("blob", b"ab")),
        ),
    ],
)
def test_what_would_burst_the_bounds_is_refused(bad: bytes) -> None:
    with pytest.raises(TooLong):
        read_pack(bad, nothing, Bounds(objects=10, bytes=4096))


@pytest.mark.parametrize(
    "bad",
    [
        pack(entry(3, b"x" * 4000, size=10)),  # unpacks to more than it says
        pack(entry(3, b"x", size=10)),
        pack(entry(5, b"x")),
        pack(entry(4, b"x")),
        pack(entry(6, b"x", base=b"\x7f")),
        pack(entry(3, b"x"), count=2),
        pack(entry(3, b"x"), count=0),
        pack(entry(3, b"ab"), entry(7, b"\2", base=object_id("blob", b"ab"))),
        pack(entry(3, b"ab"), entry(7, bytes([2, 2, 0]), base=object_id("blob", b"ab"))),
        pack(b"\xff" * 40),
        pack(entry(3, b"ab"), entry(7, bytes([3, 2, 0b10010000, 2]), base=object_id("blob", b"ab"))),
        pack(entry(3, b"ab"), entry(7, bytes([2, 2, 0b10010000, 3]), base=object_id("blob", b"ab"))),
    ],
)
def test_what_is_no_pack_is_refused(bad: bytes) -> None:
    with pytest.raises(Invalid):
        read_pack(bad, nothing)
