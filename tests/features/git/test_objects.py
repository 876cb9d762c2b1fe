"""Reading git objects that others made."""

import pytest

from ricordo.errors import Invalid
from ricordo.features.git.objects import git_object, read_commit, read_tree

TREE = b"tree " + b"4" * 40 + b"\n"
WHO = b"Ada <ada@home.example> 1767225600 +0100\n"
HEAD = TREE + b"parent " + b"5" * 40 + b"\nauthor " + WHO + b"committer " + WHO


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (b"", ""),
        (b"", "Größe\n\nmore"),
        (b"gpgsig -----BEGIN\n abc\n -----END\n", "signed\n"),
        (b"encoding UTF-8\n", "x"),
    ],
)
def test_a_commit_says_its_tree_parents_and_message(extra: bytes, message: str) -> None:
    commit = read_commit(HEAD + extra + b"\n" + message.encode())
    assert (commit.tree, commit.parents, commit.message) == (b"\x44" * 20, (b"\x55" * 20,), message)
    assert commit.id == git_object("commit", commit.body).id


@pytest.mark.parametrize(
    "body",
    [
        b"",
        HEAD,  # no empty line
        HEAD + b"\na\0b",
        HEAD + b"\n\xff",
        HEAD.replace(b"tree", b"Tree") + b"\n",
        HEAD.replace(b"+0100", b"0100") + b"\n",
        HEAD.replace(b"1767225600", b"01767225600") + b"\n",
        HEAD.replace(b"1767225600", b"9" * 13) + b"\n",
        HEAD.replace(b"Ada <", b"<") + b"\n",
        HEAD.replace(b"Ada <", b"Ada<") + b"\n",
        HEAD.replace(b"Ada <", b"A>da <") + b"\n",
        TREE + b"author " + WHO + b"\n",
        HEAD + b"\n" + b"x" * 70_000,
    ],
)
def test_a_commit_that_git_would_find_fault_with_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match=r"Commit|commit"):
        read_commit(body)


def test_a_tree_that_is_cut_off_is_refused() -> None:
    whole = b"100644 a.md\0" + b"x" * 20
    assert [(one.mode, one.name, one.id) for one in read_tree(whole * 2)] == [(b"100644", b"a.md", b"x" * 20)] * 2
    for end in range(1, len(whole)):
        with pytest.raises(Invalid):
            list(read_tree(whole + whole[:end]))
