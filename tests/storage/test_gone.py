"""Deleting much: gone at once for everyone, removed in portions, and whatever is interrupted can be finished."""

from itertools import pairwise

import pytest
from sqlalchemy import text

from ricordo.domain.agent import Agent
from ricordo.domain.conversation import Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, NotFound
from ricordo.search.flush import merge
from ricordo.search.index import insert_passages
from ricordo.storage import agents, archives, conversations, gone, messages, runs
from ricordo.storage.paging import Page
from ricordo.storage.sqlite import SqliteStore
from tests.support import make

TABLES = ("messages", "runs", "steps", "passages", "passages_tags", "archives", "search_spaces", "search_tail")
INDEX = ("search_postings", "search_documents", "search_terms", "search_vectors")


async def rows(store: SqliteStore) -> dict[str, int]:
    """How many rows there are of what this module deletes; what is not there is left out."""
    counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS n FROM {name}" for name in (*TABLES, *INDEX))  # noqa: S608
    found = await store.read(lambda tx: tx.all(text(counts)))
    return {row.name: row.n for row in found if row.n}


async def stored_archive(store: SqliteStore, size: int) -> Archive:
    """An archive of so many tagged passages, half of them merged into the index."""
    archive = await make.stored_archive(store, (await make.stored_agent(store)).agent)
    for start in range(0, size, 500):
        new = [make.passage(archive, f"tea {number}", tags=("a",)) for number in range(start, min(start + 500, size))]
        await store.write(lambda tx, new=new: insert_passages(tx, archive, new))
    await store.write(lambda tx: merge(tx, "passages", archive.id, size // 2))
    return archive


async def test_an_archive_is_gone_at_once_and_its_rows_go_in_portions(store: SqliteStore, scope: Scope) -> None:
    before = await rows(store)
    archive = await stored_archive(store, 1_100)
    (agent_id,) = await store.read(lambda tx: archives.page_of_agents(tx, scope, archive.id, Page()))

    await store.write(lambda tx: gone.hide_archive(tx, scope, archive.id))

    assert (await rows(store))["passages"] == 1_100
    assert (await store.read(lambda tx: agents.load(tx, scope, agent_id))).archives == ()
    assert await store.read(lambda tx: archives.page(tx, scope, Page())) == []
    for again in (gone.hide_archive, archives.get):
        with pytest.raises(NotFound):
            await store.write(lambda tx, again=again: again(tx, scope, archive.id))
    left = [1_100]
    while await store.write(lambda tx: gone.remove_portion(tx, "archive", archive.id)):
        left.append((await rows(store)).get("passages", 0))
    assert max(more - less for more, less in pairwise(left)) == gone.PORTION
    await make.remove_agent(store, agent_id)
    assert await rows(store) == before
    # What another server removed already is not removed twice.
    assert not await store.write(lambda tx: gone.remove_portion(tx, "archive", archive.id))


async def test_an_agent_takes_its_messages_runs_and_steps_with_it_and_leaves_its_archive(
    store: SqliteStore, scope: Scope
) -> None:
    kept = await make.stored_agent(store)
    await make.stored_messages(store, make.message(kept.agent, "tea"))
    before = await rows(store)
    agent = (await make.stored_agent(store, tags=("a",))).agent
    archive = await make.stored_archive(store, agent, "Tea.")
    await make.stored_messages(store, *(make.message(agent, f"tea {number}") for number in range(600)))
    await store.write(lambda tx: merge(tx, "messages", agent.id))
    for number in range(3):
        run = make.run(agent, ended_at=number + 1)
        await store.write(lambda tx, run=run: (runs.open_run(tx, run), runs.insert_step(tx, make.step(run))))

    await store.write(lambda tx: gone.hide_agent(tx, scope, agent.id))

    assert await store.read(lambda tx: agents.ids(tx, scope)) == [kept.agent.id]
    assert await store.read(lambda tx: agents.tags_in_use(tx, scope)) == []
    assert await store.read(lambda tx: archives.page_of_agents(tx, scope, archive.id, Page())) == []
    with pytest.raises(NotFound):
        await store.read(lambda tx: agents.load(tx, scope, agent.id))
    while await store.write(lambda tx: gone.remove_portion(tx, "agent", agent.id)):
        pass
    after = await rows(store)
    assert (after.pop("archives"), after.pop("passages")) == (1, 1)
    after["search_tail"] -= 1
    assert after == before
    assert await store.read(lambda tx: conversations.ids_of_agent(tx, agent.id)) == []


async def test_only_hidden_owners_are_removed(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    archive = make.archive()
    await store.write(lambda tx: archives.insert_one(tx, archive))
    assert not await store.write(lambda tx: gone.remove_portion(tx, "archive", archive.id))
    assert (await rows(store))["archives"] == 1
    assert await store.read(lambda tx: agents.ids(tx, Scope())) == [agent.id]


async def test_a_conversation_is_emptied_up_to_a_message_and_counts_rightly_all_the_while(
    store: SqliteStore, scope: Scope
) -> None:
    state = await make.stored_agent(store)
    other = make.conversation(state.agent, id="conv-other")
    await store.write(lambda tx: conversations.insert_one(tx, other))
    old = [make.message(state.agent, f"tea {number}") for number in range(1_200)]
    (kept,) = await make.stored_messages(store, make.message(state.agent, "tea", conversation_id="conv-other"))
    id = state.conversation.id
    await make.stored_messages(store, *old)
    await store.write(lambda tx: conversations.add_past(tx, id, len(old), 1))

    newest = await store.write(lambda tx: gone.empty_conversation(tx, scope, id))

    (late,) = await make.stored_messages(store, make.message(state.agent, "later"))
    await store.write(lambda tx: conversations.add_past(tx, id, 1, 2))
    counts = []
    while await store.write(lambda tx: gone.remove_portion(tx, "conversation", id, newest)):
        conversation = await store.read(lambda tx: conversations.get(tx, id))
        assert conversation is not None
        counts.append(conversation.message_count)
    assert counts == [702, 452, 202]
    conversation = await store.read(lambda tx: conversations.get(tx, id))
    assert conversation is not None
    assert conversation.message_count == 1
    left = await store.read(lambda tx: messages.page(tx, scope, Page()))
    assert {message.id for message in left} == {kept.id, late.id}


async def test_a_job_is_left_behind_only_where_more_than_one_portion_is_to_go(store: SqliteStore, scope: Scope) -> None:
    state = await make.stored_agent(store)
    id = state.conversation.id

    async def jobs() -> list[str]:
        statement = text("SELECT CAST(payload AS TEXT) AS payload FROM jobs WHERE kind = 'removal' ORDER BY seq")
        return [row.payload for row in await store.read(lambda tx: tx.all(statement))]

    await store.write(lambda tx: gone.empty_conversation(tx, scope, id))
    assert await jobs() == []
    await make.stored_messages(store, *(make.message(state.agent) for _ in range(gone.PORTION)))
    newest = await store.write(lambda tx: gone.empty_conversation(tx, scope, id))
    await store.write(lambda tx: gone.hide_agent(tx, scope, state.agent.id))
    assert [payload.replace(" ", "") for payload in await jobs()] == [
        f'{{"kind":"conversation","id":"{id}","newest":{newest}}}',
        f'{{"kind":"agent","id":"{state.agent.id}","newest":0}}',
    ]


async def test_what_is_not_there_is_not_hidden(store: SqliteStore, scope: Scope) -> None:
    archive = await stored_archive(store, 1)
    for attempt, id in (
        (gone.hide_archive, archive.id),
        (gone.hide_archive, new_id("archive")),
        (gone.hide_agent, "x"),
    ):
        asking = Scope(organization_id="org-2") if id == archive.id else scope
        with pytest.raises(NotFound):
            await store.write(lambda tx, attempt=attempt, id=id, asking=asking: attempt(tx, asking, id))
    assert [found.id for found in await store.read(lambda tx: archives.page(tx, scope, Page()))] == [archive.id]


async def threads_of(store: SqliteStore, agent: Agent, size: int) -> tuple[Conversation, Conversation]:
    """A thread of so many messages and a fork of it, which shares half of them and has one more in view."""
    root = make.conversation(agent, id=new_id("conv"))
    said = [make.message(agent, f"tea {number}", conversation_id=root.id) for number in range(size)]
    await store.write(lambda tx: conversations.insert_one(tx, root))
    stored = await make.stored_messages(store, *said)
    half = stored[size // 2 - 1]
    fork = make.conversation(
        agent, id=new_id("conv"), forked_from=root.id, forked_seq=half.seq, window=("own", half.id, said[-1].id)
    )
    await store.write(lambda tx: conversations.insert_one(tx, fork))
    run = make.run(agent, conversation_id=root.id, ended_at=1)
    await store.write(lambda tx: (runs.open_run(tx, run), runs.insert_step(tx, make.step(run))))
    return root, fork


async def removed(store: SqliteStore, thread: Conversation) -> list[int]:
    """Remove a thread, as far as it can be; how many messages there are before and after each transaction."""
    left = [(await rows(store)).get("messages", 0)]
    while await store.write(lambda tx: gone.remove_portion(tx, "thread", thread.id)):
        left.append((await rows(store)).get("messages", 0))
    return left


async def test_a_deleted_thread_keeps_what_its_fork_shares_or_has_in_view_and_goes_with_it(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    before = await rows(store)
    root, fork = await threads_of(store, agent, 1_200)

    await store.write(lambda tx: gone.hide_thread(tx, scope, root.id))

    assert await store.read(lambda tx: conversations.get(tx, root.id)) is None
    with pytest.raises(NotFound):
        await store.write(lambda tx: gone.hide_thread(tx, scope, root.id))
    assert await removed(store, root) == [1_201, 951, 701, 602]
    assert await removed(store, root) == [602]
    after = await rows(store)
    assert (after["runs"], after["steps"]) == (1, 1)
    history = await store.read(lambda tx: conversations.page_of_history(tx, scope, fork, Page(1000)))
    assert len(history) == 600

    await store.write(lambda tx: gone.hide_thread(tx, scope, fork.id))
    assert await removed(store, fork) == [602]
    assert set(await store.read(lambda tx: conversations.ids_of_agent(tx, agent.id))) == {
        conversations.default_id(agent.id),
        root.id,
    }
    assert min(await removed(store, root)) == 1
    left = await rows(store)
    assert left.pop("search_tail", 0) >= before.pop("search_tail", 0)  # words about what is gone, until they are merged
    assert left == before
    assert await store.read(lambda tx: conversations.ids_of_agent(tx, agent.id)) == [conversations.default_id(agent.id)]


async def test_the_end_of_the_last_fork_asks_for_that_of_a_deleted_parent_and_of_no_other(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent

    async def wanted() -> list[str]:
        statement = text("SELECT key FROM jobs WHERE kind = 'removal' ORDER BY seq")
        return [row.key for row in await store.read(lambda tx: tx.all(statement))]

    root, fork = await threads_of(store, agent, 4)
    await store.write(lambda tx: gone.hide_thread(tx, scope, fork.id))
    await removed(store, fork)
    assert await wanted() == [fork.id]
    other, second = await threads_of(store, agent, 4)
    await store.write(lambda tx: gone.hide_thread(tx, scope, other.id))
    await removed(store, other)
    await store.write(lambda tx: gone.hide_thread(tx, scope, second.id))
    await removed(store, second)
    assert await wanted() == [fork.id, other.id, second.id, other.id]
    assert await store.read(lambda tx: conversations.get(tx, root.id)) == root


async def test_only_deleted_threads_are_removed_and_never_an_agents_own(store: SqliteStore, scope: Scope) -> None:
    agent = (await make.stored_agent(store)).agent
    root, _ = await threads_of(store, agent, 4)
    assert not await store.write(lambda tx: gone.remove_portion(tx, "thread", root.id))
    own = conversations.default_id(agent.id)
    with pytest.raises(Conflict):
        await store.write(lambda tx: gone.hide_thread(tx, scope, own))
    with pytest.raises(NotFound):
        await store.write(lambda tx: gone.hide_thread(tx, Scope("org-2"), root.id))
    with pytest.raises(Conflict, match="share its messages"):
        await store.write(lambda tx: gone.empty_conversation(tx, scope, root.id))
    assert (await rows(store))["messages"] == 5
