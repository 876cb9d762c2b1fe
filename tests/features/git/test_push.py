"""What a push means, and what is wrong with it: each fault with its file and line, all at once."""

from collections.abc import Mapping

import pytest

from ricordo.domain.git_objects import object_id
from ricordo.errors import Invalid
from ricordo.features.git import push as pushing
from ricordo.features.git.objects import GitObject, Lacking, git_object
from ricordo.features.git.push import Push, Refused
from tests.support.git import WHO, commit_of

BASE, HERE = commit_of({"human": "Name: Ada", "goals": "Rest"})


def push(new: Mapping[bytes, GitObject], **limits: int) -> Push:
    """A push to a memory that has one commit."""
    return Push(new, HERE.get, {"human": 100, "goals": 100} | limits)


def faults(*objects: GitObject, tree: bytes) -> str:
    """What is wrong with a commit of this tree."""
    head = b"tree " + tree.hex().encode() + b"\nparent " + BASE.hex().encode()
    commit = git_object("commit", head + b"\nauthor " + WHO + b"\ncommitter " + WHO + b"\n\nx")
    with pytest.raises(Refused) as raised:
        push({one.id: one for one in (*objects, commit)}).adoption(BASE, commit.id)
    return "\n".join(raised.value.faults)


def tree(*entries: tuple[str, str, bytes]) -> GitObject:
    """A tree of modes, names and ids, as they stand here."""
    return git_object("tree", b"".join(f"{mode} {name}".encode() + b"\0" + id for mode, name, id in entries))


def test_a_file_that_is_no_block_is_told_and_a_text_that_no_block_can_hold_with_its_line() -> None:
    for name, text, words in (
        ("a", b"x\n\xff", "a.md, line 2: this is not UTF-8"),
        ("a", b"\n\n\0", "a.md, line 3: memory cannot hold NUL"),
        ("human", b"x" * 101, "human.md: 101 characters, but the block's limit is 100"),
        ("a", b"x\npassword: hunter22", "a.md, line 2: this looks like a password or key"),
    ):
        blob = git_object("blob", text)
        root = tree(("100644", f"{name}.md", blob.id))
        assert words in faults(blob, root, tree=root.id)
    for mode, name, words in (
        ("100755", "a.md", "a.md: only plain files can be memory (mode 100644); this is an executable file"),
        ("120000", "a.md", "this is a link"),
        ("160000", "a", "this is a submodule"),
        ("100644", "a.txt", "a.txt: each file is a memory block"),
        ("100644", ".md", "cannot be used"),
        ("100644", "versions.md", '"versions" has a meaning of its own'),
        ("100644", "git~1.md", "means something of its own to git"),
        ("100644", "a/b.md", "with a slash in it"),
        ("0100644", "a.md", "mode 0100644"),
        ("100644", "x" * 300 + ".md", "a label has 255 characters at most"),
    ):
        root = tree((mode, name, blob.id))
        assert words in faults(blob, root, tree=root.id)


def test_trees_that_git_would_not_make_are_refused() -> None:
    blob, empty = git_object("blob", b"x"), git_object("tree", b"")
    for root in (
        tree(("100644", "b.md", blob.id), ("100644", "a.md", blob.id)),
        tree(("100644", "a.md", blob.id), ("100644", "a.md", blob.id)),
        tree(("40000", "a", empty.id)),
    ):
        assert "Check" in faults(blob, empty, root, tree=root.id)


def test_a_small_push_cannot_name_one_folder_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "_MOST_ENTRIES", 1000)
    blob = git_object("blob", b"x")
    made = [tree(("100644", "a.md", blob.id))]
    for _ in range(8):
        made.append(tree(*(("40000", f"{number}", made[-1].id) for number in range(8))))
    assert "too many files" in faults(blob, *made, tree=made[-1].id)
    deep = [tree(("100644", "a.md", blob.id))]
    for _ in range(2000):
        deep.append(tree(("40000", "d", deep[-1].id)))
    monkeypatch.undo()
    assert "a label has 255 characters at most" in faults(blob, *deep, tree=deep[-1].id)


def test_an_older_commit_of_the_push_is_looked_at_too() -> None:
    first, new = commit_of({"human": "password: hunter22"}, BASE)
    second, more = commit_of({"human": "none"}, first, message="key: sk-abcdefghijklmnop")
    with pytest.raises(Refused) as raised:
        push(new | more).adoption(BASE, second)
    assert [fault.partition(":")[0] for fault in raised.value.faults] == [
        "human.md, line 1",
        f"The message of commit {second.hex()[:10]} holds what looks like a password or key. Amend it.",
    ]


def test_what_is_lacking_or_malformed_is_told() -> None:
    tip, new = commit_of({"human": "x"}, BASE)
    for id in new:
        with pytest.raises(Lacking, match="lacks the"):
            push({key: one for key, one in new.items() if key != id}).adoption(BASE, tip)
    bad = git_object("commit", new[tip].body.replace(b" +0100", b" soon"))
    with pytest.raises(Invalid, match="is malformed"):
        push({**new, bad.id: bad}).adoption(BASE, bad.id)


def test_a_push_has_so_many_commits_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "MOST_COMMITS", 3)
    tip, new = BASE, dict[bytes, GitObject]()
    for number in range(4):
        tip, more = commit_of({"human": f"{number}"}, tip)
        new |= more
    with pytest.raises(Refused, match="Push older ones first"):
        push(new).adoption(BASE, tip)


def test_a_memory_can_be_emptied() -> None:
    tip, new = commit_of({}, BASE)
    del new[object_id("tree", b"")]  # git does not always send it
    (one,) = push(new).adoption(BASE, tip).main
    assert [change.value for change in one.changes] == [None, None]
