"""Deferred deletion: hidden at once, purged in portions, and finished after any interruption."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Index, Table, insert, select, text

from ricordo.agents.deletion import before_purge, empty_conversation, purge_portion
from ricordo.domain.agent import Agent, Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.errors import Conflict, NotFound
from ricordo.search.index import insert_passages
from ricordo.search.vectors import add_vectors, next_batch
from ricordo.storage import agents, archives, conversations, deletion, messages, runs
from ricordo.storage.deletion import PORTION, Kind
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema import columns
from ricordo.storage.schema.columns import metadata
from ricordo.storage.schema.core_tables import messages as message_rows
from tests.seams import make
from tests.seams.stores import flush

TABLES = (
    "messages",
    "runs",
    "steps",
    "passages",
    "passages_tags",
    "archives",
    "search_partitions",
    "search_buffer",
)
MOST_ROWS = 500
INDEX = ("search_postings", "search_documents", "search_terms", "search_vectors")


async def rows(store: SqliteStore) -> dict[str, int]:
    """Return the number of rows of each table that is purged; empty tables are left out."""
    counts = " UNION ALL ".join(
        f"SELECT '{name}' AS name, count(*) AS n FROM {name}"  # noqa: S608
        for name in (*TABLES, *INDEX)
    )
    found = await store.read(lambda tx: tx.all(text(counts)))
    return {row.name: row.n for row in found if row.n}


async def purged(store: SqliteStore, kind: Kind, id: str, table: str = "messages") -> list[int]:
    """Purge as far as possible.

    Returns the rows in the table before and after each transaction.
    """

    def portion(tx: Transaction) -> bool:
        driver: Any = tx.connection.connection.driver_connection
        before = getattr(driver, "total_changes", 0)
        is_more = purge_portion(tx, kind, id)
        assert getattr(driver, "total_changes", 0) - before <= MOST_ROWS
        return is_more

    left = [(await rows(store)).get(table, 0)]
    while await store.write(portion):
        left.append((await rows(store)).get(table, 0))
    return left


async def keys_of_jobs(store: SqliteStore) -> list[str]:
    statement = text("SELECT key FROM jobs WHERE kind = 'deletion' ORDER BY seq")
    return [row.key for row in await store.read(lambda tx: tx.all(statement))]


async def stored_archive(store: SqliteStore, size: int) -> Archive:
    """Store an archive of this number of tagged passages, half of them flushed into the index."""
    archive = await make.stored_archive(store, (await make.stored_agent(store)).agent)
    for start in range(0, size, 500):
        new = [
            make.passage(archive, f"tea {number}", tags=("a",))
            for number in range(start, min(start + 500, size))
        ]
        await store.write(lambda tx, new=new: insert_passages(tx, archive, new))
    await store.write(lambda tx: flush(tx, archive.id, size // 2))
    if batch := await store.read(lambda tx: next_batch(tx, archive.id, "scripted/embedder", 10)):
        await store.write(lambda tx: add_vectors(tx, batch, {}, 2))
    return archive


async def test_an_archive_is_hidden_at_once_and_purged_in_portions(
    store: SqliteStore, scope: Scope
) -> None:
    before = await rows(store)
    archive = await stored_archive(store, 620)
    (state,) = await store.read(
        lambda tx: agents.page(tx, scope, Page(), agents.uses_archive(archive.id))
    )
    agent_id = state.agent.id

    await store.write(lambda tx: deletion.hide_archive(tx, scope, archive.id))

    assert (await rows(store))["passages"] == 620
    assert (await store.read(lambda tx: agents.load(tx, scope, agent_id))).archives == ()
    assert await store.read(lambda tx: archives.page(tx, scope, Page())) == []
    for again in (deletion.hide_archive, archives.get):
        with pytest.raises(NotFound):
            await store.write(lambda tx, again=again: again(tx, scope, archive.id))
    left = await purged(store, "archive", archive.id, "passages")
    assert 0 < max(more - less for more, less in pairwise(left)) <= PORTION
    await make.remove_agent(store, agent_id)
    assert await rows(store) == before
    # Rows that another server has purged are not purged twice.
    assert not await store.write(lambda tx: purge_portion(tx, "archive", archive.id))


async def test_purging_an_agent_removes_its_messages_runs_and_steps_but_not_its_archive(
    store: SqliteStore, scope: Scope
) -> None:
    kept = await make.stored_agent(store)
    await make.stored_messages(store, make.message(kept.agent, "tea"))
    before = await rows(store)
    agent = (await make.stored_agent(store, tags=("a",))).agent
    archive = await make.stored_archive(store, agent, "Tea.")
    await make.stored_messages(
        store, *(make.message(agent, f"tea {number}") for number in range(450))
    )
    await store.write(lambda tx: flush(tx, agent.id))
    for number in range(3):
        run = make.run(agent, ended_at=number + 1)
        await store.write(
            lambda tx, run=run: (runs.open_run(tx, run), runs.insert_step(tx, make.step(run)))
        )

    await store.write(lambda tx: deletion.hide_agent(tx, scope, agent.id))

    assert await store.read(lambda tx: agents.ids(tx, scope)) == [kept.agent.id]
    assert await store.read(make.tags_in_use) == []
    assert (
        await store.read(lambda tx: agents.page(tx, scope, Page(), agents.uses_archive(archive.id)))
        == []
    )
    with pytest.raises(NotFound):
        await store.read(lambda tx: agents.load(tx, scope, agent.id))
    counts = Counter[str]()
    while await store.write(lambda tx: purge_portion(tx, "agent", agent.id, counts=counts)):
        pass
    assert {
        name: counts[name] for name in ("agents", "conversations", "messages", "runs", "steps")
    } == {
        "agents": 1,
        "conversations": 1,
        "messages": 451,
        "runs": 3,
        "steps": 3,
    }
    after = await rows(store)
    assert (after.pop("archives"), after.pop("passages")) == (1, 1)
    after["search_buffer"] -= 1
    assert after == before
    assert await store.read(lambda tx: make.conversation_ids(tx, agent.id)) == []


async def test_an_agents_usage_is_kept_once_when_several_servers_purge_it(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    run = make.run(agent, ended_at=1, usage=Usage(400))
    steps = [make.step(run, usage=Usage(1)) for _ in range(400)]
    await store.write(
        lambda tx: (runs.open_run(tx, run), [runs.insert_step(tx, step) for step in steps])
    )
    await store.write(lambda tx: deletion.hide_agent(tx, scope, agent.id))

    async def purge() -> None:
        while await store.write(lambda tx: purge_portion(tx, "agent", agent.id)):
            pass

    await asyncio.gather(*(purge() for _ in range(4)))
    assert await store.read(lambda tx: runs.used_since(tx, scope.organization_id, 0)) == 400


async def test_a_conversation_is_emptied_up_to_a_message_with_correct_counts(
    store: SqliteStore, scope: Scope
) -> None:
    state = await make.stored_agent(store)
    other = make.conversation(state.agent, id="conv-other")
    await store.write(lambda tx: conversations.insert_one(tx, other))
    old = [make.message(state.agent, f"tea {number}") for number in range(620)]
    (kept,) = await make.stored_messages(
        store, make.message(state.agent, "tea", conversation_id="conv-other")
    )
    id = state.conversation.id
    await make.stored_messages(store, *old)
    await store.write(lambda tx: conversations.add_past(tx, id, len(old), 1))

    newest = await store.write(lambda tx: empty_conversation(tx, scope, id))

    (late,) = await make.stored_messages(store, make.message(state.agent, "later"))
    await store.write(lambda tx: conversations.add_past(tx, id, 1, 2))

    async def count() -> int:
        conversation = await store.read(lambda tx: conversations.get(tx, id))
        assert conversation is not None
        return conversation.message_count

    counts = []
    while await store.write(lambda tx: purge_portion(tx, "messages", id, newest)):
        counts.append(await count())
    assert (counts, await count()) == ([322, 172, 22], 1)
    left = await store.read(lambda tx: messages.page(tx, scope, Page()))
    assert {message.id for message in left} == {kept.id, late.id}


@pytest.fixture
async def notes(store: SqliteStore) -> AsyncIterator[Table]:
    """A plugin's table whose rows refer to messages."""
    table = columns.table(
        "plugin_notes",
        columns.seq(),
        columns.reference("message_id", "messages"),
        Index("plugin_notes_by_message", "message_id"),
        erasure="delete",
    )
    caches = (deletion._children, deletion._find_children)
    for cache in caches:
        cache.cache_clear()
    await store.write(lambda tx: table.create(tx.connection))
    yield table
    await store.write(lambda tx: table.drop(tx.connection))
    metadata.remove(table)
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("way", ["reset", "named", "forgotten"])
async def test_messages_go_although_rows_of_a_plugin_refer_to_them(
    store: SqliteStore, notes: Table, way: str
) -> None:
    agent = (await make.stored_agent(store)).agent
    said = await make.stored_messages(store, *(make.message(agent) for _ in range(PORTION + 5)))
    ids = [message.id for message in said]

    def remove(tx: Transaction) -> None:
        tx.run(insert(notes), [{"message_id": id} for id in ids for _ in range(2)])
        if way == "reset":
            while purge_portion(tx, "messages", said[0].conversation_id, said[-1].seq):
                pass
        elif way == "named":
            deletion.purge_these(tx, ids, before_purge)
        else:
            removed = Counter[str]()
            deletion.purge_all(tx, message_rows, "id", ids, before_purge, removed)
            assert removed == {"messages": len(ids), "plugin_notes": 2 * len(ids)}

    await store.write(remove)
    assert await store.read(lambda tx: messages.by_ids(tx, ids)) == []
    assert await store.read(lambda tx: tx.all(select(notes))) == []


async def test_only_existing_objects_are_hidden_and_only_hidden_ones_purged(
    store: SqliteStore, scope: Scope
) -> None:
    archive = await stored_archive(store, 1)
    for hide, asking, id in (
        (deletion.hide_archive, Scope("org-2"), archive.id),
        (deletion.hide_archive, scope, new_id("archive")),
        (deletion.hide_agent, scope, "x"),
    ):
        with pytest.raises(NotFound):
            await store.write(lambda tx, hide=hide, asking=asking, id=id: hide(tx, asking, id))
    (agent_id,) = await store.read(lambda tx: agents.ids(tx, scope))
    before = await rows(store)
    kinds: tuple[tuple[Kind, str], ...] = (
        ("archive", archive.id),
        ("agent", agent_id),
        ("conversation", conversations.default_id(agent_id)),
    )
    for kind, id in kinds:
        assert not await store.write(lambda tx, kind=kind, id=id: purge_portion(tx, kind, id))
    assert await rows(store) == before


async def fork_of(store: SqliteStore, agent: Agent, size: int) -> tuple[Conversation, Conversation]:
    """Store a conversation, and a fork that shares half of it and has one more message."""
    root = make.conversation(agent, id=new_id("conv"))
    said = [make.message(agent, f"tea {number}", conversation_id=root.id) for number in range(size)]
    await store.write(lambda tx: conversations.insert_one(tx, root))
    stored = await make.stored_messages(store, *said)
    half = stored[size // 2 - 1]
    fork = make.conversation(
        agent,
        id=new_id("conv"),
        forked_from=root.id,
        forked_seq=half.seq,
        window=("own", half.id, said[-1].id),
    )
    await store.write(lambda tx: conversations.insert_one(tx, fork))
    run = make.run(agent, conversation_id=root.id, ended_at=1)
    await store.write(lambda tx: (runs.open_run(tx, run), runs.insert_step(tx, make.step(run))))
    return root, fork


async def test_a_deleted_conversation_keeps_messages_of_its_fork_until_the_fork_is_gone(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    before = await rows(store)
    root, fork = await fork_of(store, agent, 900)

    await store.write(lambda tx: deletion.hide_conversation(tx, scope, root.id))

    assert await store.read(lambda tx: conversations.get(tx, root.id)) is None
    with pytest.raises(NotFound):
        await store.write(lambda tx: deletion.hide_conversation(tx, scope, root.id))
    assert await purged(store, "conversation", root.id) == [901, 751, 601, 452]
    assert await purged(store, "conversation", root.id) == [452]
    after = await rows(store)
    assert (after["runs"], after["steps"]) == (1, 1)
    history = await store.read(
        lambda tx: conversations.page_of_history(tx, scope, fork, Page(1000))
    )
    assert len(history) == 450

    await store.write(lambda tx: deletion.hide_conversation(tx, scope, fork.id))
    assert await purged(store, "conversation", fork.id) == [452]
    ids = await store.read(lambda tx: make.conversation_ids(tx, agent.id))
    assert set(ids) == {conversations.default_id(agent.id), root.id}
    assert min(await purged(store, "conversation", root.id)) == 1
    left = await rows(store)
    # The write buffer may still contain words of deleted texts, until the partitions are merged.
    assert left.pop("search_buffer", 0) >= before.pop("search_buffer", 0)
    assert left == before
    assert await store.read(lambda tx: make.conversation_ids(tx, agent.id)) == [
        conversations.default_id(agent.id)
    ]


async def test_purging_the_last_fork_adds_a_job_only_for_a_deleted_parent(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    root, fork = await fork_of(store, agent, 4)
    other, second = await fork_of(store, agent, 4)
    for conversation in (fork, other, second):
        await store.write(lambda tx, id=conversation.id: deletion.hide_conversation(tx, scope, id))
        await purged(store, "conversation", conversation.id)
    assert await keys_of_jobs(store) == [fork.id, other.id, second.id, other.id]
    assert await store.read(lambda tx: conversations.get(tx, root.id)) == root


async def test_only_deleted_conversations_are_purged_and_never_a_default_one(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    root, _ = await fork_of(store, agent, 4)
    assert await purged(store, "conversation", root.id) == [5]
    own = conversations.default_id(agent.id)
    with pytest.raises(Conflict):
        await store.write(lambda tx: deletion.hide_conversation(tx, scope, own))
    with pytest.raises(NotFound):
        await store.write(lambda tx: deletion.hide_conversation(tx, Scope("org-2"), root.id))
    with pytest.raises(Conflict, match="share its messages"):
        await store.write(lambda tx: empty_conversation(tx, scope, root.id))
    assert (await rows(store))["messages"] == 5


@pytest.mark.parametrize("seed", range(12))
async def test_only_existing_forks_keep_a_conversation_from_being_emptied(
    store: SqliteStore, scope: Scope, seed: int
) -> None:
    """Random trees of forks, whose forks are deleted in random order."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    agent = (await make.stored_agent(store)).agent
    root, fork = await fork_of(store, agent, 4)
    forks = [fork]
    for _ in range(chance.randrange(5)):
        forked_from = chance.choice([root, *forks]).id
        other = make.conversation(
            agent, id=new_id("conv"), forked_from=forked_from, forked_seq=fork.forked_seq
        )
        await store.write(partial(conversations.insert_one, conversation=other))
        forks.append(other)
    existing = [fork.id for fork in forks]
    for fork in chance.sample(forks, len(forks)):
        with pytest.raises(Conflict, match="share its messages") as refusal:
            await store.write(lambda tx: empty_conversation(tx, scope, root.id))
        assert f"number is {len(existing)}, and the oldest is {existing[0]}" in str(refusal.value)
        await store.write(partial(deletion.hide_conversation, scope=scope, conversation_id=fork.id))
        existing.remove(fork.id)
        if chance.random() < 0.5:
            await purged(store, "conversation", fork.id)
    await store.write(lambda tx: empty_conversation(tx, scope, root.id))
    assert await store.read(lambda tx: conversations.newest_of(tx, root.id)) == 0
    for fork in forks:
        await purged(store, "conversation", fork.id)
    assert root.id in await store.read(lambda tx: make.conversation_ids(tx, agent.id))


def test_every_foreign_key_is_covered_by_an_index_or_another_key() -> None:
    """Without an index, deletion is left to the cascade, which can make a transaction long."""
    skipped = {
        str(key.parent)
        for table in metadata.sorted_tables
        for key in table.foreign_keys
        if key.column.table.name != "organizations" and not deletion._is_looked_up_by(key.parent)
    }
    # Steps go with their runs.
    assert skipped == {"steps.conversation_id"}
