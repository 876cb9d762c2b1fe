"""Rotation: a full block moves text to the archive, in the step that filled it."""

from dataclasses import replace
from typing import Any

import pytest

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.errors import Invalid
from ricordo.memory.commit import CommitOutcome
from ricordo.memory.edits import WorkingMemory
from ricordo.memory.rotation import TAG, read_rotation
from ricordo.storage import archives, blocks, history
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.memory.steps import save
from tests.seams import make

LINES = "\n".join(["[TASK] Prove it", *(f"Line {number} of her notes" for number in range(22))])


def notes_block(rotation: Any = "adaptive") -> Block:
    metadata = {"rotation": {"strategy": rotation} if isinstance(rotation, str) else rotation}
    return make.block("notes", "Empty.", limit=500, metadata=metadata)


async def write_notes(
    store: SqliteStore, block: Block, text: str = LINES
) -> tuple[AgentState, CommitOutcome]:
    state = await make.stored_agent(store, with_blocks=[block])
    memory = WorkingMemory(state)
    memory.write("notes", text, "call-1")
    return state, await save(store, state, memory)


@pytest.mark.parametrize("strategy", ["adaptive", "preservative", "aggressive"])
async def test_a_full_block_moves_text_to_a_passage_that_the_version_names(
    store: SqliteStore, strategy: str
) -> None:
    _, committed = await write_notes(store, notes_block(strategy))
    (block,), (archive,) = committed.blocks, committed.archives
    assert 0 < len(block.value) <= 250
    (passage,) = await store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page()))
    assert passage.text.startswith("[ARCHIVED ")
    assert set(passage.tags) == {TAG, "notes"}
    assert all(line in f"{block.value}\n{passage.text}" for line in LINES.split("\n"))
    newest, filled, made = await store.read(
        lambda tx: history.page(tx, block.chain_id, label="notes")
    )
    assert passage.id in newest.reason
    assert (newest.id, filled.step_id, made.step_id) == (block.head, "step-1", None)
    assert (
        await store.read(lambda tx: history.text_at(tx, block.chain_id, "notes", filled)) == LINES
    )


async def test_the_passage_of_a_rotation_has_the_policy_of_its_block(store: SqliteStore) -> None:
    _, committed = await write_notes(store, replace(notes_block(), egress="local"))
    (archive,) = committed.archives
    (passage,) = await store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page()))
    assert passage.egress == "local"


async def test_a_block_that_is_not_full_or_has_no_rotation_stays_whole(store: SqliteStore) -> None:
    for block in (notes_block(), replace(notes_block(), metadata={})):
        text = LINES if not block.metadata else LINES[:390]
        _, committed = await write_notes(store, block, text)
        assert [one.value for one in committed.blocks] == [text]
        assert committed.archives == ()


async def test_a_block_that_its_owner_filled_and_protected_meanwhile_is_not_rotated(
    store: SqliteStore,
) -> None:
    state = await make.stored_agent(store, with_blocks=[notes_block(), make.block("human")])

    def owner(tx: Transaction) -> None:
        blocks.update(
            tx,
            state.blocks[0],
            replace(state.blocks[0], value=LINES, policy="propose"),
            make.change_metadata(),
        )

    await store.write(owner)
    memory = WorkingMemory(state)
    memory.create("plans", "Rest", None, "call-1")
    committed = await save(store, state, memory)
    assert committed.failed == {}
    assert [block.value for block in committed.blocks] == [LINES, state.blocks[1].value, "Rest"]


@pytest.mark.parametrize(
    "given",
    [
        "yes",
        {"strategy": "wild"},
        {"treshold": 0.8},
        {"threshold": 2},
        {"threshold": 0.5, "keeps": 0.6},
        {"keeps": 0},
    ],
)
def test_invalid_rotation_settings_are_refused(given: Any) -> None:
    with pytest.raises(Invalid):
        read_rotation({"rotation": given})


async def test_invalid_stored_rotation_settings_do_not_fail_a_step(store: SqliteStore) -> None:
    _, committed = await write_notes(store, notes_block({"strategy": "wild"}))
    assert [one.value for one in committed.blocks] == [LINES]
