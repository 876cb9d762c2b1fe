"""Storing a step's edits and passages.

A step never overwrites a change of others that it has not seen.
"""

from dataclasses import replace

import pytest
from sqlalchemy import insert

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope
from ricordo.memory import local_user
from ricordo.memory.commit import CommitOutcome, commit
from ricordo.memory.edits import PassageDraft, WorkingMemory
from ricordo.search.index import PassageFilter, Query, find_passages
from ricordo.storage import agents, archives, blocks, proposals, versions
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Overtaken, Transaction
from ricordo.storage.schema.core_tables import agents_archives
from tests.memory.steps import SCOPE, reloaded, save, someone_else
from tests.seams import make
from tests.seams.stores import count_statements

TEXT = "Name: Ada\nDrink: tea\nCity: Turin"
TOO_CLOSE = (
    'Memory block "human" was changed by someone else in the same lines while you edited it. '
    "Read it again in your instructions and repeat the edit."
)

GONE = 'Memory block "human" was deleted while you edited it, so there is nothing to edit.'


async def agent_with(store: SqliteStore, *new: Block) -> AgentState:
    return await make.stored_agent(store, with_blocks=new or (make.block("human", TEXT),))


async def begin(store: SqliteStore, *new: Block) -> tuple[AgentState, WorkingMemory]:
    state = await agent_with(store, *new)
    return state, WorkingMemory(state)


async def block_now(store: SqliteStore, id: str) -> Block:
    return await store.read(lambda tx: blocks.get(tx, SCOPE, id))


async def test_an_edit_is_stored_as_the_next_version_by_the_agent(store: SqliteStore) -> None:
    state, memory = await begin(store)
    memory.write("human", "Name: Eve", "call-1")
    committed = await save(store, state, memory)
    stored = await block_now(store, state.blocks[0].id)
    assert (stored.value, stored.version, stored.updated_by) == ("Name: Eve", 2, state.agent.id)
    assert stored.updated_at > state.blocks[0].updated_at
    assert committed == CommitOutcome((stored,), ())


async def test_two_edits_of_one_block_in_one_step_are_one_write(store: SqliteStore) -> None:
    state, memory = await begin(store, make.block("human", "a"), make.block("persona", "b"))
    memory.write("human", "a1", "call-1")
    memory.write("persona", "b1", "call-2")
    memory.write("human", "a2", "call-3")
    with count_statements(store) as counted:
        committed = await save(store, state, memory)
    # These statements are for the chain, the block, the text, the version and the tip.
    once = [
        "SELECT",
        "UPDATE",
        "INSERT",
        "INSERT",
        "UPDATE",
    ]
    assert [statement.split()[0] for statement in counted.statements] == once * 2
    assert [(block.label, block.value, block.version) for block in committed.blocks] == [
        ("human", "a2", 2),
        ("persona", "b1", 2),
    ]
    assert (committed.results, committed.failed) == ({}, {})


async def test_another_writers_change_of_another_line_is_merged_into_the_result(
    store: SqliteStore,
) -> None:
    state, memory = await begin(store)
    memory.write("human", TEXT.replace("Ada", "Ada L."), "call-1")
    memory.write("human", TEXT.replace("Ada", "Ada Lovelace"), "call-2")
    await someone_else(store, state.blocks[0], value=TEXT.replace("Turin", "London"))
    committed = await save(store, state, memory)
    both = "Name: Ada Lovelace\nDrink: tea\nCity: London"
    stored = await block_now(store, state.blocks[0].id)
    assert (stored.value, stored.version) == (both, 3)
    assert committed.blocks == (stored,)
    # Only the last result of the step shows the current block. The result before it was correct
    # when it was created.
    assert (committed.results, committed.failed) == ({"call-2": both}, {})


async def test_an_edit_that_cannot_be_merged_fails_its_blocks_calls_and_the_rest_is_saved(
    store: SqliteStore,
) -> None:
    long = (
        'Block "human" would hold 15 characters, but its limit is 12. Shorten the text or raise '
        "the limit."
    )
    for change, told in (
        ({"value": "a\nB\nc"}, TOO_CLOSE),
        ({"value": "a\nb\ncccccc"}, long),
        ({"read_only": True}, "Error This block is read-only and cannot be edited."),
        (None, GONE),
    ):
        state, memory = await begin(
            store, make.block("human", "a\nb\nc", limit=12), make.block("persona", "b")
        )
        memory.write("human", "aaaaaa\nb\nc", "call-1")
        memory.write("human", "aaaaaa\nb\nc" if told == long else "aaaa\nb!\nc", "call-2")
        memory.write("persona", "b1", "call-3")
        if change:
            await someone_else(store, state.blocks[0], **change)
        else:
            await store.write(
                lambda tx, block=state.blocks[0]: blocks.remove(tx, block, make.change_metadata())
            )  # type: ignore[misc]
        before = (await reloaded(store, state)).blocks[:-1]
        committed = await save(store, state, memory)
        assert set(committed.failed.values()) == {told}
        assert "call-3" not in committed.failed
        assert committed.results == {}
        assert committed.blocks[:-1] == before == (await reloaded(store, state)).blocks[:-1]
        assert committed.blocks[-1].value == "b1"


async def test_an_agent_of_another_organization_cannot_change_the_block(store: SqliteStore) -> None:
    state, memory = await begin(store)
    memory.write("human", "Name: Eve", "call-1")
    await someone_else(store, state.blocks[0], value="Name: Bob")
    committed = await store.write(
        lambda tx: commit(tx, state, memory, Scope("org-other"), make.edit_context(state))
    )
    assert committed.failed == {"call-1": GONE}
    assert (await block_now(store, state.blocks[0].id)).value == "Name: Bob"


def archiving(state: AgentState, *texts: str, tags: tuple[str, ...] = ()) -> WorkingMemory:
    memory = WorkingMemory(state)
    for number, text in enumerate(texts):
        memory.archive(PassageDraft(f"call-{number}", f"passage-{abs(hash(text))}", text, tags))
    return memory


async def found(
    store: SqliteStore, query: str, *archive_ids: str, tags: tuple[str, ...] = ()
) -> list[str]:
    wanted = PassageFilter(archive_ids, tags)

    def find(tx: Transaction) -> list[str]:
        hits = find_passages(tx, Query(query), wanted, 10).hits
        return [
            passage.text
            for passage in archives.passages_by_numbers(tx, [hit.document for hit in hits])
        ]

    return await store.read(find)


async def archives_of(store: SqliteStore, state: AgentState) -> list[Archive]:
    return await store.read(lambda tx: archives.of_agent(tx, state.agent.id))


async def test_passages_are_stored_in_the_agents_own_archive_and_can_be_found(
    store: SqliteStore,
) -> None:
    state = await agent_with(store)
    memory = archiving(
        state, "Ada drinks jasmine tea.", "Ada lives in Turin.", tags=("ada", "facts")
    )
    committed = await save(store, state, memory, "step-7")
    (archive,) = committed.archives
    assert await archives_of(store, state) == [archive]
    assert (archive.name, archive.created_by) == ("Nina's archive", state.agent.id)
    assert (archive.passage_count, archive.tags) == (2, ("ada", "facts"))
    assert (await found(store, "jasmine", archive.id, tags=("facts",)))[
        0
    ] == "Ada drinks jasmine tea."
    assert await found(store, "jasmine", archive.id, tags=("other",)) == []
    (stored,) = await store.read(lambda tx: archives.passages_by_ids(tx, [memory.passages[0].id]))
    assert (stored.step_id, stored.created_by, stored.tags) == (
        "step-7",
        state.agent.id,
        ("ada", "facts"),
    )
    assert stored.organization_id == state.agent.organization_id


async def test_the_archive_is_created_once_also_by_turns_that_began_without_one(
    store: SqliteStore,
) -> None:
    state = await agent_with(store)
    first = await save(store, state, archiving(state, "one"))
    second = await save(store, state, archiving(state, "two", tags=("later",)))
    third = await save(store, replace(state, archives=second.archives), archiving(state, "three"))
    assert len({committed.archives[0].id for committed in (first, second, third)}) == 1
    (archive,) = await archives_of(store, state)
    assert (archive.passage_count, archive.tags) == (3, ("later",))
    assert third.archives == (archive,)


async def test_tags_added_by_two_agents_of_a_shared_archive_are_both_kept(
    store: SqliteStore,
) -> None:
    one = await agent_with(store)
    other = await make.stored_agent(store, make.agent("Otto"))
    shared = await make.stored_archive(store, one.agent, "Begun by hand.")
    share = {"agent_id": other.agent.id, "archive_id": shared.id, "is_owner": False}
    await store.write(lambda tx: tx.run(insert(agents_archives), share))
    # Both read the archive before either of them writes.
    one, other = [
        await store.read(lambda tx, id=state.agent.id: agents.load(tx, SCOPE, id))
        for state in (one, other)
    ]
    await save(store, one, archiving(one, "Tea is hot.", tags=("tea",)))
    last = await save(store, other, archiving(other, "Cake is sweet.", tags=("cake",)))
    (archive,) = await archives_of(store, one)
    assert archive.tags == last.archives[0].tags == ("cake", "tea")
    assert archive.passage_count == 3
    assert sorted(await found(store, "is", archive.id)) == ["Cake is sweet.", "Tea is hot."]


async def test_an_archive_detached_during_the_turn_gets_none_of_its_passages(
    store: SqliteStore,
) -> None:
    state = await agent_with(store)
    left = await make.stored_archive(store, state.agent, "old", name="left")
    kept = await make.stored_archive(store, state.agent, name="kept")
    state = await store.read(lambda tx: agents.load(tx, SCOPE, state.agent.id))
    await store.write(lambda tx: archives.detach(tx, state.agent.id, left.id))

    committed = await save(store, state, archiving(state, "new"))
    assert [(archive.id, archive.passage_count) for archive in committed.archives] == [(kept.id, 1)]
    assert await found(store, "new", kept.id) == ["new"]

    await store.write(lambda tx: archives.detach(tx, state.agent.id, kept.id))
    (own,) = (await save(store, state, archiving(state, "newer"))).archives
    assert own.name == "Nina's archive"
    assert await found(store, "newer", own.id) == ["newer"]
    counts = [
        (await store.read(lambda tx, id=id: archives.get(tx, SCOPE, id))).passage_count
        for id in (left.id, kept.id)
    ]
    assert counts == [1, 1]


@pytest.mark.parametrize("makes_one", [False, True])
async def test_chains_are_locked_in_order_also_if_some_only_get_a_proposal(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, makes_one: bool
) -> None:
    state = await make.stored_agent(store)
    loose = [
        make.block(label, label, policy=policy)
        for label, policy in zip("abcd", ["direct", "propose"] * 2, strict=True)
    ]
    chain_ids = [f"chain-{number}" for number in (2, 1, 4, 3)]
    made = await make.stored_blocks(
        store, *(replace(block, chain_id=id) for block, id in zip(loose, chain_ids, strict=True))
    )
    await store.write(lambda tx: blocks.attach(tx, state.agent.id, made))
    state = replace(state, blocks=tuple(made))
    memory = WorkingMemory(state)
    for label in "dcba":
        memory.write(label, f"more of {label}", f"call-{label}")
    if makes_one:
        memory.create("new", "text", None, "call-new")
    hold, taken = versions.lock, list[str]()

    def noted(tx: Transaction, chain_id: str) -> Chain | None:
        taken.append(chain_id)
        return hold(tx, chain_id)

    monkeypatch.setattr(versions, "lock", noted)
    assert (await save(store, state, memory)).failed == {}
    first = [id for id in dict.fromkeys(taken) if id in chain_ids]
    assert first == sorted(chain_ids)


async def test_a_call_that_fails_in_one_block_proposes_nothing_in_another(
    store: SqliteStore,
) -> None:
    state, memory = await begin(
        store, make.block("human", TEXT), make.block("rules", "Be kind.", policy="propose")
    )
    memory.write("human", TEXT.replace("tea", "coffee"), "call-1")
    memory.write("rules", "Be brief.", "call-1")
    memory.write("rules", "Be brief and kind.", "call-2")
    await someone_else(store, state.blocks[0], value=TEXT.replace("tea", "water"))
    committed = await save(store, state, memory)
    assert committed.failed == {"call-1": TOO_CLOSE, "call-2": TOO_CLOSE}
    assert committed.results == {}
    assert await store.read(lambda tx: proposals.waiting(tx, state.blocks[1].chain_id)) == []


async def test_an_overtaken_fact_proposal_raises_so_that_the_step_is_saved_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(*_: object) -> None:
        raise Overtaken("Someone else wrote first.")

    monkeypatch.setattr(local_user, "propose", overtaken)
    state, memory = await begin(store)
    memory.write("human", f"{TEXT}\nLikes tea.", "call-1")
    scope = Scope(is_local_user=True)
    with pytest.raises(Overtaken):
        await store.write(
            lambda tx: commit(tx, state, memory, scope, make.edit_context(state, step_id="step-1"))
        )
