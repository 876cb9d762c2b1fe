"""A user's memory from a program of one's own.

The names of the first design, over the same store.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.typed_memory.schemas.user_blocks import (
    GitUserStorage,
    PendingDiffStore,
    UserBlockManager,
)
from ricordo.memory.schemas import FOLDER
from ricordo.settings import Settings

SCHEMA = """
[fields.name]
kind = "string"

[fields.strengths]
kind = "list"
"""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[GitUserStorage]:
    with GitUserStorage(
        tmp_path, settings=Settings(data_dir=tmp_path, find_local_models=False)
    ) as storage:
        yield storage


@pytest.fixture
def ada(storage: GitUserStorage) -> UserBlockManager:
    return UserBlockManager("ada", storage)


@pytest.fixture
def diffs(storage: GitUserStorage) -> PendingDiffStore:
    return PendingDiffStore("ada", storage)


def test_of_somebody_unknown_there_is_nothing_and_asking_makes_nobody(
    ada: UserBlockManager, diffs: PendingDiffStore
) -> None:
    assert (ada.list_blocks(), ada.get_block("student"), ada.get_history("student")) == (
        [],
        None,
        [],
    )
    assert (diffs.list(), diffs.count_pending()) == ([], 0)
    with pytest.raises(NotFound, match="no user"):
        ada.delete_block("student")


def test_every_change_is_a_version_that_can_be_compared_and_restored(ada: UserBlockManager) -> None:
    first = ada.update_block("student", "Likes tea.\nLives in Turin.")
    second = ada.update_block("student", "Likes coffee.\nLives in Turin.", message="She told me")
    history = ada.get_history("student", limit=10)
    assert [(one["sha"], one["message"], one["author"]) for one in history] == [
        (second, "She told me", "ada"),
        (first, "Make student", "ada"),
    ]
    assert "-Likes tea.\n+Likes coffee.\n" in ada.compare("student", first, second)
    third = ada.restore_version("student", first[:10])
    assert third not in (first, second)
    assert (
        ada.get_block("student")
        == ada.get_version("student", first)
        == "Likes tea.\nLives in Turin."
    )
    ada.delete_block("student", message="No longer")
    assert (ada.list_blocks(), ada.get_block("student")) == ([], None)
    assert ada.get_history("student", limit=1)[0]["message"] == "No longer"


def test_a_block_with_a_schema_is_edited_as_markdown_and_as_toml(
    ada: UserBlockManager, tmp_path: Path
) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "student.toml").write_text(SCHEMA)
    ada.update_block("student", "## Name\nAda\n\n## Strengths\n- Proofs", schema_ref="student")
    toml = ada.get_block_toml("student")
    assert 'name = "Ada"' in toml
    ada.update_block_from_toml("student", toml.replace('"Ada"', '"Ada Lovelace"'))
    markdown = ada.get_block_markdown("student")
    assert markdown is not None
    assert "block: student" in markdown
    assert "Ada Lovelace" in markdown
    ada.update_block_from_markdown("student", markdown.replace("- Proofs", "- Proofs\n- Engines"))
    assert (ada.get_block("student") or "").endswith("- Proofs\n- Engines")
    with pytest.raises(Invalid, match="Line"):
        ada.update_block_from_toml("student", "name = ")


def test_what_an_agent_proposes_waits_for_her_and_is_seen_by_nobody(
    ada: UserBlockManager, diffs: PendingDiffStore
) -> None:
    ada.update_block("student", "Likes tea.")
    diff = diffs.propose(
        "tutor", "student", "tea", "coffee", reasoning="She said so", confidence=0.8
    )
    assert ada.get_block("student") == "Likes tea."
    assert (diff.agent_id, diff.current_value, diff.proposed_value) == (
        "tutor",
        "Likes tea.",
        "Likes coffee.",
    )
    assert (diffs.count_pending("student"), diffs.count_pending("other"), diffs.get(diff.id)) == (
        1,
        0,
        diff,
    )
    sha = diffs.approve(diff.id)
    assert (ada.get_history("student")[0]["sha"], ada.get_history("student")[0]["author"]) == (
        sha,
        "tutor",
    )
    assert (ada.get_block("student"), diffs.list()) == ("Likes coffee.", [])
    with pytest.raises(Conflict, match="approved already"):
        diffs.reject(diff.id)


def test_a_proposal_that_meets_another_change_of_the_line_is_hers_to_settle(
    ada: UserBlockManager, diffs: PendingDiffStore
) -> None:
    ada.update_block("student", "Likes tea.")
    older, diff = [
        diffs.propose("tutor", "student", "tea", to, reasoning="So") for to in ("juice", "coffee")
    ]
    assert ([one.id for one in diffs.list()], diffs.get(older.id).status) == (
        [diff.id],
        "superseded",
    )
    ada.update_block("student", "Likes water.")
    with pytest.raises(Conflict, match="same lines"):
        diffs.approve(diff.id)
    assert ada.get_block("student") == "Likes water."
    diffs.approve(diff.id, body="Likes water and coffee.")
    assert ada.get_block("student") == "Likes water and coffee."


def test_another_user_sees_and_decides_nothing_of_hers(
    ada: UserBlockManager, diffs: PendingDiffStore, storage: GitUserStorage
) -> None:
    first = ada.update_block("student", "Likes tea.")
    diff = diffs.propose("tutor", "student", "tea", "coffee", reasoning="She said so")
    bob, his = UserBlockManager("bob", storage), PendingDiffStore("bob", storage)
    bob.update_block("student", "Likes rain.")
    for reach, what in (
        (his.get, (diff.id,)),
        (his.approve, (diff.id,)),
        (bob.restore_version, ("student", first)),
    ):
        with pytest.raises(NotFound):
            reach(*what)  # type: ignore[operator]
    assert (bob.get_block("student"), his.list()) == ("Likes rain.", [])


def test_one_program_at_a_time_has_a_folder_and_a_closed_one_says_so(tmp_path: Path) -> None:
    with GitUserStorage(tmp_path) as storage:
        UserBlockManager("ada", storage).update_block("student", "Likes tea.")
        with pytest.raises(Conflict):
            GitUserStorage(tmp_path)
    with pytest.raises(ValueError, match="closed"):
        UserBlockManager("ada", storage).list_blocks()
    storage.close()
    with GitUserStorage(tmp_path) as again:
        assert UserBlockManager("ada", again).get_block("student") == "Likes tea."
