"""Steps that create, delete, rename and describe blocks.

They are stored as a whole, and never overwrite what others did meanwhile.
"""

from collections.abc import Callable
from dataclasses import replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.errors import NotFound
from ricordo.memory.edits import WorkingMemory
from ricordo.storage import agents, blocks, conversations, versions
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.memory.steps import SCOPE, reloaded, save, someone_else
from tests.seams import make
from tests.seams.stores import count_statements

CHANGED = (
    'Memory block "human" was changed by someone else in the meantime. Read it again in your '
    "instructions first."
)
TAKEN = 'The label "plans" belongs to another block, which you cannot see. Choose another label.'
EXISTS = "Error: Memory block 'plans' already exists"


async def agent_with(store: SqliteStore, *labels: str) -> AgentState:
    made = [make.block(label, f"About {label}") for label in labels or ("human", "persona")]
    return await make.stored_agent(store, with_blocks=made)


async def begin(store: SqliteStore, *labels: str) -> tuple[AgentState, WorkingMemory]:
    state = await agent_with(store, *labels)
    return state, WorkingMemory(state)


async def block_texts(store: SqliteStore, state: AgentState) -> dict[str, str]:
    """Return the texts of the agent's blocks, in their order."""
    return {block.label: block.value for block in (await reloaded(store, state)).blocks}


async def shared(store: SqliteStore, label: str, *with_: AgentState) -> Block:
    (block,) = await make.stored_blocks(store, make.block(label, f"About {label}"))
    for state in with_:
        await store.write(lambda tx, id=state.agent.id: blocks.attach(tx, id, [block]))  # type: ignore[misc]
    return block


async def exists(store: SqliteStore, block: Block) -> bool:
    try:
        await store.read(lambda tx: blocks.get(tx, SCOPE, block.id))
    except NotFound:
        return False
    return True


async def test_a_new_block_belongs_to_the_agent_and_is_shown_in_the_next_step(
    store: SqliteStore,
) -> None:
    state, memory = await begin(store)
    memory.create("plans/2026", "Rest\tnow", "What is ahead", "call-1")
    memory.write("plans/2026", "Walk\tnow", "call-2")
    committed = await save(store, state, memory)
    assert committed.failed == {}
    assert committed.blocks == (await reloaded(store, state)).blocks
    made = committed.blocks[-1]
    assert (made.label, made.value, made.description) == (
        "plans/2026",
        "Walk\tnow",
        "What is ahead",
    )
    assert made.chain_id == state.blocks[0].chain_id
    assert (made.created_by, made.version) == (state.agent.id, 1)
    assert made.created_at > state.agent.created_at


async def test_the_first_blocks_of_an_agent_share_a_new_chain(store: SqliteStore) -> None:
    state = await make.stored_agent(store)
    for label in ("human", "plans"):
        memory = WorkingMemory(state)
        memory.create(label, "", None, "call-1")
        state = replace(state, blocks=(await save(store, state, memory)).blocks)
    first, second = state.blocks
    assert first.chain_id == second.chain_id
    chain = await store.read(lambda tx: versions.of_owner(tx, SCOPE, "agent", state.agent.id))
    assert chain.id == first.chain_id


async def test_removing_deletes_an_agents_own_block_and_detaches_a_shared_one(
    store: SqliteStore,
) -> None:
    state, other = await agent_with(store), await make.stored_agent(store, make.agent("Otto"))
    team = await shared(store, "team", state, other)
    loose = await shared(store, "loose", state)
    state = await reloaded(store, state)
    own = state.blocks[0]
    await store.write(lambda tx: blocks.attach(tx, other.agent.id, [state.blocks[1]]))
    memory = WorkingMemory(state)
    for label in ("human", "persona", "team", "loose"):
        memory.remove(label, f"call-{label}")
    committed = await save(store, state, memory)
    assert (committed.blocks, committed.failed) == ((), {})
    assert not await exists(store, own)
    assert [await exists(store, block) for block in (state.blocks[1], team, loose)] == [
        True,
        True,
        True,
    ]
    assert set(await block_texts(store, other)) == {"team", "persona"}


async def test_blocks_can_swap_labels_and_labels_can_be_reused_within_one_step(
    store: SqliteStore,
) -> None:
    state, memory = await begin(store, "a", "b", "c")
    memory.rename("a", "x", "call-1")
    memory.rename("b", "a", "call-2")
    memory.rename("x", "b", "call-3")
    memory.remove("c", "call-4")
    memory.create("c", "New", None, "call-5")
    committed = await save(store, state, memory)
    assert committed.failed == {}
    assert await block_texts(store, state) == {"b": "About a", "a": "About b", "c": "New"}
    assert committed.blocks == (await reloaded(store, state)).blocks


async def test_a_block_created_and_removed_in_one_step_writes_nothing(store: SqliteStore) -> None:
    state, memory = await begin(store)
    memory.create("plans", "Rest", None, "call-1")
    memory.remove("plans", "call-2")
    with count_statements(store) as counted:
        committed = await save(store, state, memory)
    assert (committed.blocks, committed.failed) == (state.blocks, {})
    assert not [one for one in counted.statements if not one.startswith("SELECT")]


async def test_another_writers_change_of_another_line_is_kept_with_a_rename(
    store: SqliteStore,
) -> None:
    state = await make.stored_agent(
        store, with_blocks=[make.block("human", "Name: Ada\nDrink: tea\nCity: Turin")]
    )
    memory = WorkingMemory(state)
    memory.rename("human", "ada", "call-1")
    memory.write("ada", "Name: Ada L.\nDrink: tea\nCity: Turin", "call-2")
    await someone_else(store, state.blocks[0], value="Name: Ada\nDrink: tea\nCity: Rome")
    committed = await save(store, state, memory)
    both = "Name: Ada L.\nDrink: tea\nCity: Rome"
    assert await block_texts(store, state) == {"ada": both}
    assert (committed.results, committed.failed) == ({"call-2": both}, {})


async def test_a_call_that_changes_several_blocks_fails_as_a_whole(store: SqliteStore) -> None:
    state, memory = await begin(store, "human", "persona", "plans")
    memory.write("persona", "Kind.", "call-1", result_kind="nothing")
    memory.write("human", "Ada.", "call-1", result_kind="nothing")
    memory.write("plans", "Rest.", "call-2")
    await someone_else(store, state.blocks[0], value="About Eve")
    committed = await save(store, state, memory)
    assert list(committed.failed) == ["call-1"]
    assert "changed by someone else in the same lines" in committed.failed["call-1"]
    assert await block_texts(store, state) == {
        "human": "About Eve",
        "persona": "About persona",
        "plans": "Rest.",
    }
    assert committed.blocks == (await reloaded(store, state)).blocks


async def test_calls_that_depend_on_a_failed_one_fail_and_others_succeed(
    store: SqliteStore,
) -> None:
    state, memory = await begin(store)
    memory.rename("human", "plans", "call-1")
    memory.create("human", "New", None, "call-2")
    memory.describe("persona", "Who I am", "call-3")
    await shared(store, "plans", state)
    committed = await save(store, state, memory)
    assert committed.failed == {"call-1": EXISTS, "call-2": EXISTS}
    assert await block_texts(store, state) == {
        "human": "About human",
        "persona": "About persona",
        "plans": "About plans",
    }
    assert [block.description for block in committed.blocks] == [None, "Who I am", None]


async def test_a_concurrent_change_is_kept_and_only_the_conflicting_call_fails(
    store: SqliteStore,
) -> None:
    gone, closed = (
        "was deleted while you edited it",
        "Error This block is read-only and cannot be edited.",
    )
    edits: dict[str, Callable[[WorkingMemory], object]] = {
        "write": lambda memory: memory.write("human", "About Eve", "call-1"),
        "remove": lambda memory: memory.remove("human", "call-1"),
        "rename": lambda memory: memory.rename("human", "ada", "call-1"),
        "describe": lambda memory: memory.describe("human", "Mine", "call-1"),
    }
    for name, change, told in (
        ("remove", {"value": "Precious"}, CHANGED),
        ("rename", {"label": "user"}, CHANGED),
        ("describe", {"description": "Theirs"}, CHANGED),
        ("write", {"policy": "propose"}, "policy propose"),
        *((name, {"read_only": True}, closed) for name in ("remove", "rename")),
        *((name, {}, gone) for name in ("write", "rename", "describe")),
        # If somebody else deleted the block first, the deletion succeeds.
        ("remove", {}, None),
    ):
        state, memory = await begin(store)
        edits[name](memory)
        memory.create("plans", "Rest", None, "call-2")
        if change:
            await someone_else(store, state.blocks[0], **change)
        else:
            await store.write(
                lambda tx, block=state.blocks[0]: blocks.remove(tx, block, make.change_metadata())
            )  # type: ignore[misc]
        before = (await reloaded(store, state)).blocks
        committed = await save(store, state, memory)
        assert list(committed.failed) == (["call-1"] if told else []), (name, change)
        assert told is None or told in committed.failed["call-1"], (name, change)
        assert committed.blocks == (await reloaded(store, state)).blocks
        assert committed.blocks[:-1] == before, (name, change)
        assert committed.blocks[-1].value == "Rest"


async def test_the_label_of_an_agents_detached_block_cannot_be_reused(
    store: SqliteStore,
) -> None:
    state = await agent_with(store, "human", "plans")
    await store.write(lambda tx: blocks.detach(tx, state.agent.id, state.blocks[1].id))
    state = await reloaded(store, state)
    memory = WorkingMemory(state)
    memory.create("plans", "Mine", None, "call-1")
    memory.describe("human", "The user", "call-2")
    committed = await save(store, state, memory)
    assert committed.failed == {"call-1": TAKEN}
    memory = WorkingMemory(replace(state, blocks=committed.blocks))
    memory.rename("human", "plans", "call-1")
    committed = await save(store, replace(state, blocks=committed.blocks), memory)
    assert committed.failed == {"call-1": TAKEN}


async def test_the_label_of_a_removed_block_that_another_agent_keeps_cannot_be_reused(
    store: SqliteStore,
) -> None:
    state, other = (
        await agent_with(store, "plans"),
        await make.stored_agent(store, make.agent("Otto")),
    )
    await store.write(lambda tx: blocks.attach(tx, other.agent.id, state.blocks))
    memory = WorkingMemory(state)
    memory.remove("plans", "call-1")
    memory.create("plans", "New", None, "call-2")
    committed = await save(store, state, memory)
    assert committed.failed == {"call-1": TAKEN, "call-2": TAKEN}
    assert (
        await block_texts(store, state)
        == await block_texts(store, other)
        == {"plans": "About plans"}
    )


async def test_a_shared_block_cannot_get_a_label_that_another_of_its_agents_uses(
    store: SqliteStore,
) -> None:
    state = await agent_with(store)
    other = await make.stored_agent(store, make.agent("Otto"), with_blocks=[make.block("plans")])
    await shared(store, "team", state, other)
    state = await reloaded(store, state)
    memory = WorkingMemory(state)
    memory.rename("team", "plans", "call-1")
    committed = await save(store, state, memory)
    assert committed.failed == {"call-1": TAKEN}
    assert "team" in await block_texts(store, other)


async def test_of_two_new_labels_that_differ_only_in_capitals_one_is_refused(
    store: SqliteStore,
) -> None:
    state = await make.stored_agent(
        store, with_blocks=[make.block("human", "About human", shared=True)]
    )
    chain = make.chain("user", "user-1")
    new = [
        make.block(label, f"About {label}", chain_id=chain.id, policy="direct")
        for label in ("a", "b")
    ]

    def own(tx: Transaction) -> AgentState:
        conversations.change(tx, state.conversation.id, user_id="user-1")
        blocks.attach(
            tx, state.agent.id, blocks.insert_all(tx, new, [chain], make.change_metadata("user-1"))
        )
        return agents.load(tx, SCOPE, state.agent.id)

    state = await store.write(own)
    memory = WorkingMemory(state)
    memory.rename("a", "Notes", "call-1")
    memory.rename("b", "notes", "call-2")
    memory.write("human", "Name: Ada", "call-3")
    committed = await save(store, state, memory)
    assert committed.failed.keys() == {"call-2"}
    assert "only in capitals" in committed.failed["call-2"]
    assert await block_texts(store, state) == {
        "human": "Name: Ada",
        "Notes": "About a",
        "b": "About b",
    }


async def test_the_label_of_a_users_attached_but_hidden_block_cannot_be_used(
    store: SqliteStore,
) -> None:
    state = await agent_with(store, "human")
    chain = make.chain("user", "user-1")
    hers = make.block("plans", "Ada's", chain_id=chain.id)

    def attach(tx: Transaction) -> None:
        blocks.attach(
            tx,
            state.agent.id,
            blocks.insert_all(tx, [hers], [chain], make.change_metadata("user-1")),
        )

    await store.write(attach)
    memory = WorkingMemory(state)
    memory.rename("human", "plans", "call-1")
    memory.create("notes", "New", "Notes", "call-2")
    committed = await save(store, state, memory)
    assert committed.failed == {"call-1": TAKEN}
    memory = WorkingMemory(await reloaded(store, state))
    memory.create("plans", "New", "Plans", "call-3")
    assert (await save(store, state, memory)).failed == {"call-3": TAKEN}
    assert list(await block_texts(store, state)) == ["human", "notes"]
