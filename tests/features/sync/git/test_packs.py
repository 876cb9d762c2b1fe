"""The content of pushes and its meaning.

Nothing takes more memory than allowed, and each fault gets an error.
"""

import subprocess
import tracemalloc
import zlib
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from dulwich.protocol import pkt_line as line

from ricordo.domain.git_objects import GitObject, object_id
from ricordo.domain.redaction import redact
from ricordo.errors import Invalid, RicordoError, TooLong
from ricordo.features.sync.git import objects
from ricordo.features.sync.git import push as pushing
from ricordo.features.sync.git.objects import Lacking, git_object, read_commit, read_pack, read_tree
from ricordo.features.sync.git.push import EntryBudget, Push, Refused
from ricordo.features.sync.git.receiver import PushCommand, read_push
from tests.support.git import WHO, commit_of, entry, git, pack, pack_sum

MAIN, ONE, TWO = b"refs/heads/main", b"\x11" * 20, b"\x22" * 20
COMMAND = b"%s %s " % (ONE.hex().encode(), TWO.hex().encode())
TREE = b"tree " + b"4" * 40 + b"\n"
HEAD = TREE + b"parent " + b"5" * 40 + b"\nauthor " + WHO + b"\ncommitter " + WHO + b"\n"


def test_push_requests_are_parsed_and_invalid_ones_refused() -> None:
    body = (
        line(b"shallow " + ONE.hex().encode())
        + line(COMMAND + MAIN + b"\0 report-status side-band-64k agent=git/2")
        + line(f"{'0' * 40} {TWO.hex()} refs/heads/propose/x\n".encode())
        + line(f"{ONE.hex()} {'0' * 40} refs/tags/y".encode())
        + b"0000PACK..."
    )
    request = read_push(body)
    assert request.commands == (
        PushCommand(ONE, TWO, MAIN),
        PushCommand(None, TWO, b"refs/heads/propose/x"),
        PushCommand(ONE, None, b"refs/tags/y"),
    )
    assert request.capabilities == {b"report-status", b"side-band-64k", b"agent=git/2"}
    assert request.pack == b"PACK..."
    for bad in (
        *(b"", b"000", b"+0f0", b"0003", b"0004", b"00ffabc", line(b"abc") + b"0000"),
        line(COMMAND + b"main") + b"0000",
        line(COMMAND + b"refs/a b") + b"0000",
        line(b"x" * 40 + b" " + TWO.hex().encode() + b" refs/heads/main") + b"0000",
        line(COMMAND + MAIN),
        line(COMMAND + MAIN) * 101 + b"0000",
    ):
        with pytest.raises(Invalid):
            read_push(bad)


def test_a_commit_is_parsed_into_tree_parents_and_message() -> None:
    for extra, message in (
        (b"", ""),
        (b"", "Größe\n\nmore"),
        (b"gpgsig -----BEGIN\n abc\n -----END\n", "signed\n"),
        (b"encoding UTF-8\n", "x"),
    ):
        commit = read_commit(HEAD + extra + b"\n" + message.encode())
        assert (commit.tree, commit.parents, commit.message) == (
            b"\x44" * 20,
            (b"\x55" * 20,),
            message,
        )
        assert commit.id == git_object("commit", commit.body).id


def test_malformed_commits_are_refused() -> None:
    for body in (
        *(b"", HEAD, HEAD + b"\na\0b", HEAD + b"\n\xff", TREE + b"author " + WHO + b"\n\n"),
        HEAD.replace(b"tree", b"Tree") + b"\n",
        HEAD.replace(b"+0100", b"0100") + b"\n",
        HEAD.replace(b"1767225600", b"01767225600") + b"\n",
        HEAD.replace(b"1767225600", b"9" * 13) + b"\n",
        HEAD.replace(b"Ada <", b"<") + b"\n",
        HEAD.replace(b"Ada <", b"Ada<") + b"\n",
        HEAD.replace(b"Ada <", b"A>da <") + b"\n",
        HEAD + b"\n" + b"x" * 70_000,
    ):
        with pytest.raises(Invalid, match=r"Commit|commit"):
            read_commit(body)


def test_truncated_trees_are_refused() -> None:
    whole = b"100644 a.md\0" + b"x" * 20
    assert [(one.mode, one.name, one.id) for one in read_tree(whole * 2)] == [
        (b"100644", b"a.md", b"x" * 20)
    ] * 2
    for end in range(1, len(whole)):
        with pytest.raises(Invalid):
            list(read_tree(whole + whole[:end]))


AB = object_id("blob", b"ab")


def no_object(_id: bytes) -> GitObject | None:
    return None


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository of similar objects, so that git packs them as deltas."""
    folder = tmp_path_factory.mktemp("git")
    git(folder, "init", "-q")
    for number in range(12):
        (folder / "a.md").write_text(
            "\n".join(f"line {line} {'x' if line == number else ''}" for line in range(300))
        )
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"{number}")
    return folder


def packed(repository: Path, revisions: str, *options: str) -> bytes:
    command = ["git", "pack-objects", "--revs", "--stdout", "-q", *options]
    return subprocess.run(
        command, cwd=repository, input=revisions.encode(), capture_output=True, check=True
    ).stdout


def test_packs_made_by_git_are_read(repository: Path) -> None:
    wanted = {
        line.split()[0] for line in git(repository, "rev-list", "--objects", "main").split("\n")
    }
    for options in ((), ("--delta-base-offset",), ("--no-reuse-delta", "--depth=50")):
        found = read_pack(packed(repository, "main\n", *options), no_object)
        assert {id.hex() for id in found} == wanted
        assert all(object_id(made.kind, made.body) == id for id, made in found.items())


def test_a_thin_pack_is_completed_with_stored_objects(repository: Path) -> None:
    here = read_pack(packed(repository, "main~6\n"), no_object)
    thin = packed(repository, "main\n^main~6\n", "--thin", "--delta-base-offset")
    found = read_pack(thin, here.get)
    assert git(repository, "rev-parse", "main:a.md") in {id.hex() for id in found}
    with pytest.raises(Invalid, match="refers to objects that the memory does not have"):
        read_pack(thin, no_object)


def test_a_delta_before_its_base_is_read() -> None:
    late = git_object("blob", b"0123456789")
    delta = bytes([10, 12, 0b10010000, 10, 2]) + b"ab"
    found = read_pack(pack(entry(7, delta, base=late.id), entry(3, late.body)), no_object)
    assert sorted(made.body for made in found.values()) == [b"0123456789", b"0123456789ab"]


def test_long_delta_chains_are_read_quickly() -> None:
    texts = [git_object("blob", b"%06d" % number) for number in range(3000)]
    entries = [entry(7, bytes([6, 6, 6]) + new.body, base=old.id) for old, new in pairwise(texts)]
    found = read_pack(pack(*reversed(entries), entry(3, texts[0].body)), no_object)
    assert len(found) == 3000


def test_oversized_length_fields_are_refused_early() -> None:
    """In an earlier version each byte took longer than the byte before it.

    A pack of 400 kB kept a processor busy for eight seconds.
    """
    for bad in (
        pack(b"\xbf" + b"\xff" * 40 + b"\x01" + zlib.compress(b"")),
        pack(entry(3, b"ab"), entry(7, b"\2" + b"\xff" * 40 + b"\1", base=AB)),
        pack(entry(3, b"ab"), entry(6, b"x", base=b"\xff" * 40 + b"\1")),
    ):
        with pytest.raises(Invalid, match="damaged"):
            read_pack(bad, no_object)


def test_a_pack_that_copies_one_piece_repeatedly_uses_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two kilobytes unpack to two hundred megabytes, whatever size they claim."""
    large = git_object("blob", bytes(60_000))
    # The claimed sizes of the base and of the result are 60,000 each.
    said = b"\xe0\xd4\3"
    delta = said * 2 + b"\xb0\x60\xea" * 4000
    bomb = pack(entry(3, large.body), entry(7, delta, base=large.id))
    assert len(bomb) < 2_000
    monkeypatch.setattr(objects, "MOST_BYTES", 200_000)
    tracemalloc.start()
    with pytest.raises(Invalid, match="damaged"):
        read_pack(bomb, no_object)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


def test_truncated_and_changed_packs_are_refused(repository: Path) -> None:
    whole = packed(repository, "main~9\n")
    for place in range(0, len(whole) - 1, 29):
        with pytest.raises(Invalid):
            read_pack(whole[:place] if place else b"x", no_object)
        changed = bytearray(whole)
        changed[place] ^= 0x55
        with pytest.raises(Invalid):
            read_pack(bytes(changed), no_object)
        body = bytes(changed[:-20])
        # With a correct checksum at the end, the pack is also read or refused, and has no other
        # effect.
        with suppress(RicordoError):
            read_pack(body + pack_sum(body), no_object)


def test_oversized_and_invalid_packs_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "MOST_OBJECTS", 10)
    monkeypatch.setattr(objects, "MOST_BYTES", 4096)
    for bad in (
        pack(entry(3, b"x" * 5000)),
        pack(*[entry(3, b"%d" % number) for number in range(11)]),
        pack(entry(3, b"x"), count=2**32 - 1),
        pack(
            entry(3, b"ab"),
            entry(7, bytes([2]) + b"\xff\xff\xff\x7f" + bytes([2]) + b"xy", base=AB),
        ),
    ):
        with pytest.raises(TooLong):
            read_pack(bad, no_object)
    for bad in (
        pack(entry(3, b"x" * 4000, size=10)),  # the data is larger than the declared size
        *(
            pack(entry(3, b"x", size=10)),
            pack(entry(5, b"x")),
            pack(entry(4, b"x")),
            pack(b"\xff" * 40),
        ),
        *(
            pack(entry(6, b"x", base=b"\x7f")),
            pack(entry(3, b"x"), count=2),
            pack(entry(3, b"x"), count=0),
        ),
        pack(entry(3, b"ab"), entry(7, b"\2", base=AB)),
        pack(entry(3, b"ab"), entry(7, bytes([2, 2, 0]), base=AB)),
        pack(entry(3, b"ab"), entry(7, bytes([3, 2, 0b10010000, 2]), base=AB)),
        pack(entry(3, b"ab"), entry(7, bytes([2, 2, 0b10010000, 3]), base=AB)),
    ):
        with pytest.raises(Invalid):
            read_pack(bad, no_object)


BASE, HERE = commit_of({"human": "Name: Ada", "goals": "Rest"})


def push(new: Mapping[bytes, GitObject], **limits: int) -> Push:
    return Push(new, HERE.get, {"human": 100, "goals": 100} | limits)


def faults(*objects: GitObject, tree: bytes) -> str:
    head = b"tree " + tree.hex().encode() + b"\nparent " + BASE.hex().encode()
    commit = git_object("commit", head + b"\nauthor " + WHO + b"\ncommitter " + WHO + b"\n\nx")
    with pytest.raises(Refused) as raised:
        push({one.id: one for one in (*objects, commit)}).adoption(BASE, commit.id)
    return "\n".join(raised.value.faults)


def tree_of(*entries: tuple[str, str, bytes]) -> GitObject:
    return git_object(
        "tree", b"".join(f"{mode} {name}".encode() + b"\0" + id for mode, name, id in entries)
    )


def test_invalid_files_are_reported_with_their_line() -> None:
    for name, text, words in (
        ("a", b"x\n\xff", "a.md, line 2: this is not UTF-8"),
        ("a", b"\n\n\0", "a.md, line 3: memory cannot hold NUL"),
        ("human", b"x" * 101, "human.md: 101 characters, but the block's limit is 100"),
        ("a", b"x\npassword: hunter22", "a.md, line 2: this looks like a password or key"),
    ):
        blob = git_object("blob", text)
        root = tree_of(("100644", f"{name}.md", blob.id))
        assert words in faults(blob, root, tree=root.id)
    for mode, name, words in (
        (
            "100755",
            "a.md",
            "a.md: only plain files can be memory (mode 100644); this is an executable file",
        ),
        ("120000", "a.md", "this is a link"),
        ("160000", "a", "this is a submodule"),
        ("100644", "a.txt", "a.txt: each file is a memory block"),
        ("100644", ".md", "cannot be used"),
        ("100644", "versions.md", '"versions" is reserved'),
        ("100644", "git~1.md", "is reserved by git"),
        ("100644", "a/b.md", "the name has a slash"),
        ("0100644", "a.md", "mode 0100644"),
        ("100644", "x" * 300 + ".md", "a label has 255 characters at most"),
    ):
        root = tree_of((mode, name, blob.id))
        assert words in faults(blob, root, tree=root.id)


def test_malformed_trees_are_refused() -> None:
    blob, empty = git_object("blob", b"x"), git_object("tree", b"")
    for root in (
        tree_of(("100644", "b.md", blob.id), ("100644", "a.md", blob.id)),
        tree_of(("100644", "a.md", blob.id), ("100644", "a.md", blob.id)),
        tree_of(("40000", "a", empty.id)),
    ):
        assert "Check" in faults(blob, empty, root, tree=root.id)


def test_a_push_with_repeated_nested_folders_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(
        pushing.objects, "read_tree", lambda body: read.append(body) or read_tree(body)
    )
    blob = git_object("blob", b"x")
    for first in (git_object("tree", b""), tree_of(("100644", "a.md", blob.id))):
        made = [first]
        for _ in range(10):  # ten billion files in eleven trees
            made.append(tree_of(*(("40000", f"{number}", made[-1].id) for number in range(10))))
        assert "more than 10000 files and folders" in faults(blob, *made, tree=made[-1].id)
        # the trees, and the tree of the memory, which is read twice
        assert len(read) <= len(made) + 2
        read.clear()
    deep = [tree_of(("100644", "a.md", blob.id))]
    for _ in range(2000):
        deep.append(tree_of(("40000", "d", deep[-1].id)))
    assert "a label has 255 characters at most" in faults(blob, *deep, tree=deep[-1].id)


def test_the_number_of_entries_is_limited_over_all_branches_of_a_push() -> None:
    first, new = commit_of({f"b{number}": "x" for number in range(40)}, BASE)
    second, more = commit_of({f"c{number}": "x" for number in range(40)}, BASE)
    budget = EntryBudget(60)
    for tip, fits in ((first, True), (second, False)):
        with nullcontext() if fits else pytest.raises(Refused, match="hold too many files"):
            Push(new | more, HERE.get, budget=budget).adoption(BASE, tip)


def test_a_parent_named_repeatedly_is_looked_up_once() -> None:
    asked: list[bytes] = []
    tip, new = commit_of({"human": "x"}, *[BASE] * 1000)
    one = Push(new, lambda id: asked.append(id) or HERE.get(id))
    assert [commit.id for commit in one.new_commits(tip)] == [tip]
    assert asked.count(BASE) == 1


def test_a_stored_delta_base_is_read_once_and_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = git_object("blob", bytes(60_000))
    deltas = [entry(7, b"\xe0\xd4\3\1\1" + bytes([sign]), base=large.id) for sign in range(1, 100)]
    read: list[bytes] = []
    assert len(read_pack(pack(*deltas), lambda id: read.append(id) or large)) == len(deltas)
    assert read == [large.id]
    monkeypatch.setattr(objects, "_MOST_READ", 59_999)
    with pytest.raises(TooLong, match="Push fewer commits"):
        read_pack(pack(*deltas), lambda _: large)


def test_texts_beyond_the_limit_are_not_searched_for_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    monkeypatch.setattr(
        pushing, "redact", lambda text, **how: searched.append(len(text)) or redact(text, **how)
    )
    tip, new = commit_of({"human": "x" * 1_000_000}, BASE)
    with pytest.raises(Refused, match="limit is 100"):
        push(new).adoption(BASE, tip)
    assert max(searched) < 1000


def test_every_commit_of_a_push_is_checked() -> None:
    first, new = commit_of({"human": "password: hunter22"}, BASE)
    second, more = commit_of({"human": "none"}, first, message="key: sk-abcdefghijklmnop")
    with pytest.raises(Refused) as raised:
        push(new | more).adoption(BASE, second)
    assert [fault.partition(":")[0] for fault in raised.value.faults] == [
        "human.md, line 1",
        f"The message of commit {second.hex()[:10]} holds what looks like a password or key. "
        "Amend it.",
    ]


def test_missing_and_malformed_objects_are_reported() -> None:
    tip, new = commit_of({"human": "x"}, BASE)
    for id in new:
        with pytest.raises(Lacking, match="lacks the"):
            push({key: one for key, one in new.items() if key != id}).adoption(BASE, tip)
    bad = git_object("commit", new[tip].body.replace(b" +0100", b" soon"))
    with pytest.raises(Invalid, match="is malformed"):
        push({**new, bad.id: bad}).adoption(BASE, bad.id)


def test_the_number_of_commits_in_a_push_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "MOST_COMMITS", 3)
    tip, new = BASE, dict[bytes, GitObject]()
    for number in range(4):
        tip, more = commit_of({"human": f"{number}"}, tip)
        new |= more
    with pytest.raises(Refused, match="Push older ones first"):
        push(new).adoption(BASE, tip)


def test_a_push_can_empty_the_memory() -> None:
    tip, new = commit_of({}, BASE)
    del new[object_id("tree", b"")]  # git does not always send it
    (one,) = push(new).adoption(BASE, tip).main
    assert [change.value for change in one.changes] == [None, None]
