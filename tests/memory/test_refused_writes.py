"""Steps of which memory refuses one write: only that call fails, and the rest of the step is saved.

An error that left `commit` would lose the answer and all results of the step.
"""

from contextlib import suppress

import pytest

from ricordo.domain.quotas import MemoryQuotas
from ricordo.errors import Invalid
from ricordo.memory.edits import WorkingMemory
from ricordo.storage import blocks
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.listed_texts import listed_texts
from tests.memory.steps import reloaded, save
from tests.seams import make

HALF = "x" * 600_000


async def test_a_new_block_is_refused_if_attached_blocks_of_others_fill_the_memory(
    store: Store,
) -> None:
    store.quotas = MemoryQuotas(blocks=3)
    state = await make.stored_agent(store, with_blocks=[make.block("own", "About me")])
    others = [make.block("a", "x"), make.block("b", "y")]
    attached = await make.stored_blocks(store, *others)
    await store.write(lambda tx: blocks.attach(tx, state.agent.id, attached))
    state = await reloaded(store, state)
    memory = WorkingMemory(state)
    memory.write("own", "Changed.", "call-0")
    memory.create("c", "z", None, "call-1")
    memory.describe("own", "The first.", "call-2")
    outcome = await save(store, state, memory)
    assert list(outcome.failed) == ["call-1"]
    assert "RICORDO_MAX_MEMORY_BLOCKS" in outcome.failed["call-1"]
    now = (await reloaded(store, state)).blocks
    assert [(block.label, block.value, block.description) for block in now] == [
        ("own", "Changed.", "The first."),
        ("a", "x", None),
        ("b", "y", None),
    ]
    assert outcome.blocks == now


@pytest.mark.parametrize("is_planned", [False, True])
async def test_a_text_that_ends_like_a_shortened_one_is_refused_alone(
    store: Store, is_planned: bool
) -> None:
    made = [make.block("human", "x" * 200_000), make.block("persona", "Kind.")]
    state = await make.stored_agent(store, with_blocks=made)
    human = state.blocks[0]
    lengths = {human.id: len(human.value)}
    pasted = (await store.read(lambda tx: listed_texts(tx, [human], lengths)))[human.id].value
    memory = WorkingMemory(state)
    memory.write("human", pasted[-300:], "call-1")
    memory.write("persona", "Curt.", "call-2")
    if is_planned:
        memory.describe("persona", "Who I am.", "call-3")
    outcome = await save(store, state, memory)
    assert list(outcome.failed) == ["call-1"]
    assert [block.value for block in (await reloaded(store, state)).blocks] == [
        human.value,
        "Curt.",
    ]


async def test_a_call_moves_text_between_blocks_of_a_full_memory(store: Store) -> None:
    store.quotas = MemoryQuotas(block_kb=900, memory_mb=1)
    made = [make.block("to", "", limit=2_000_000), make.block("from", HALF, limit=2_000_000)]
    state = await make.stored_agent(store, with_blocks=made)
    memory = WorkingMemory(state)
    memory.write("to", HALF, "call-1", result_kind="nothing")
    memory.write("from", "", "call-1", result_kind="nothing")
    outcome = await save(store, state, memory)
    assert outcome.failed == {}
    assert [block.value for block in (await reloaded(store, state)).blocks] == [HALF, ""]


async def test_a_savepoint_undoes_only_its_part(store: Store) -> None:
    state = await make.stored_agent(store, with_blocks=[make.block("a", "1"), make.block("b", "1")])
    first, second = state.blocks
    metadata = make.change_metadata("user-else")
    called: list[str] = []

    def work(tx: Transaction) -> None:
        blocks.write(tx, first, "2", metadata)
        tx.after_commit.append(lambda: called.append("kept"))
        with suppress(Invalid), tx.savepoint():
            blocks.write(tx, second, "2", metadata)
            tx.after_commit.append(lambda: called.append("undone"))
            tx.locked_ids.add("undone")
            raise Invalid("no")
        assert "undone" not in tx.locked_ids
        with tx.savepoint():
            blocks.write(tx, second, "3", metadata)

    await store.write(work)
    assert [block.value for block in (await reloaded(store, state)).blocks] == ["2", "3"]
    assert called == ["kept"]
