"""Agents in storage: attachments, the cost of loading one, lists, and deletion."""

from dataclasses import replace
from itertools import product

import pytest
from sqlalchemy import ColumnElement

from ricordo.domain.agent import AgentState
from ricordo.domain.block import NEVER_REMEMBER, SKILL_LABEL
from ricordo.domain.model import ModelSettings
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.errors import NotFound
from ricordo.search.index import insert_messages
from ricordo.storage import agents, blocks, conversations
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.seams.stores import count_statements

ELSEWHERE = Scope(organization_id="org-2")


async def test_an_agent_reads_back_with_everything_attached_in_order(
    store: SqliteStore, scope: Scope
) -> None:
    agent = make.agent(
        "Ñina 🍵",
        embedding="openai/text-embedding-3-small",
        model_settings=ModelSettings(temperature=0.0, reasoning_effort="low", extra={"seed": 7}),
        context_window=32_000,
        description="A friend",
        metadata={"deep": {"list": [1, 2.5, None, True]}},
        tool_rules=(
            ToolRule("roll_dice", "run_first"),
            ToolRule("stop", "exit_loop", "Now.", {"n": 1}),
        ),
        timezone="Europe/Rome",
        clears_buffer=True,
        hidden=True,
        settings={"k": "v"},
    )
    shown = [make.block("persona"), make.block("human")]
    usable = [make.tool("zebra", tags=("a", "b")), make.tool("ant", return_limit=5)]
    state = await make.stored_agent(
        store, agent, with_blocks=shown, with_tools=usable, tags=["b", "a"]
    )
    archive = await make.stored_archive(store, agent, "Tea grows.", tags=("tea",))
    loaded = await store.read(lambda tx: agents.load_whole(tx, scope, agent.id))
    assert loaded == replace(state, archives=(archive,))
    assert loaded.agent == agent
    assert [block.label for block in loaded.blocks] == ["persona", "human"]
    assert loaded.tools == tuple(usable)
    assert loaded.tags == ("a", "b")
    assert loaded.conversation.is_default
    assert loaded.conversation.id == conversations.default_id(agent.id)


async def test_loading_an_agent_costs_three_statements_also_with_tags(
    store: SqliteStore, scope: Scope
) -> None:
    shown, usable = (
        [make.block(str(number)) for number in range(20)],
        [make.tool(str(number)) for number in range(20)],
    )
    state = await make.stored_agent(store, with_blocks=shown, with_tools=usable, tags=["a", "b"])
    await make.stored_archive(store, state.agent, "one", name="One")
    await make.stored_archive(store, state.agent, "two", name="Two")
    with count_statements(store) as counted:
        loaded = await store.read(lambda tx: agents.load(tx, scope, state.agent.id))
    assert (len(counted.statements), counted.transactions) == (3, 1)
    with count_statements(store) as counted:
        whole = await store.read(lambda tx: agents.load_whole(tx, scope, state.agent.id))
    assert (len(counted.statements), counted.transactions) == (3, 1)
    assert whole == replace(loaded, tags=("a", "b"))
    assert (len(whole.blocks), len(whole.tools)) == (20, 20)
    assert [archive.name for archive in whole.archives] == ["One", "Two"]


async def test_an_agent_is_shown_with_the_blocks_that_its_prompt_has(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store, with_blocks=[make.block("persona")])).agent
    caller = Scope(user_id="user-1", subject_id="user-1")

    def write(tx: Transaction) -> None:
        own = make.chain("user", "user-1")
        labels = ("hobbies", NEVER_REMEMBER, SKILL_LABEL.format("tea"))
        users_blocks = [make.block(label, "Tea.", chain_id=own.id) for label in labels]
        blocks.insert_all(tx, users_blocks, [own], make.change_metadata())

    await store.write(write)

    def labels_of(state: AgentState) -> list[str]:
        return [block.label for block in state.blocks]

    loaded = await store.read(lambda tx: agents.load(tx, caller, agent.id))
    whole = await store.read(lambda tx: agents.load_whole(tx, caller, agent.id))
    (listed,) = await store.read(lambda tx: agents.page(tx, caller, Page()))
    assert labels_of(loaded) == ["persona", "hobbies"]
    assert labels_of(whole) == labels_of(listed) == labels_of(loaded)


async def test_an_agent_loads_with_the_requested_conversation(
    store: SqliteStore, scope: Scope
) -> None:
    agent, other = (await make.stored_agent(store)).agent, (await make.stored_agent(store)).agent
    await store.write(
        lambda tx: conversations.insert_one(
            tx, make.conversation(agent, id="conv-2", summary="Tea")
        )
    )
    state = await store.read(lambda tx: agents.load(tx, scope, agent.id, "conv-2"))
    assert (state.conversation.summary, state.conversation.is_default) == ("Tea", False)
    with pytest.raises(NotFound, match="Conversation with ID conv-2 not found"):
        await store.read(lambda tx: agents.load(tx, scope, other.id, "conv-2"))


async def test_another_organizations_agent_is_not_found(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store, tags=["tea"])).agent
    for look in (agents.load, agents.load_whole, agents.require):
        with pytest.raises(NotFound, match=f"Agent with ID {agent.id} not found"):
            await store.read(lambda tx, look=look: look(tx, ELSEWHERE, agent.id))
    assert await store.read(lambda tx: agents.page(tx, ELSEWHERE, Page())) == []
    assert await store.read(lambda tx: agents.count(tx, ELSEWHERE)) == 0


async def test_a_page_is_filtered_by_tags_name_block_and_columns(
    store: SqliteStore, scope: Scope
) -> None:
    one = (await make.stored_agent(store, make.agent("Ännä Ann_1"), tags=["a", "b"])).agent
    two = (await make.stored_agent(store, make.agent("annX1", hidden=True), tags=["b"])).agent
    three = await make.stored_agent(store, make.agent("Bob"), with_blocks=[make.block()])

    async def found(*conditions: ColumnElement[bool], **filters: object) -> list[str]:
        states = await store.read(
            lambda tx: agents.page(tx, scope, Page(order="asc"), *conditions, **filters)
        )  # type: ignore[arg-type]
        return [state.agent.id for state in states]

    assert await found() == [one.id, two.id, three.agent.id]
    assert await found(tags=["a", "b"]) == [one.id, two.id]
    assert await found(tags=["a", "b", "a"], all_tags=True) == [one.id]
    assert await found(agents.is_named_like("ANN")) == [one.id, two.id]
    assert await found(agents.is_named_like("n_1")) == [one.id]
    assert await found(agents.is_named_like("Än")) == [one.id]
    assert await found(agents.has_block(three.blocks[0].id)) == [three.agent.id]
    assert await found(hidden=True) == [two.id]
    assert await found(name="Bob", tags=["a"]) == []


@pytest.mark.parametrize("order_by", ["created_at", "updated_at", "last_run_completion"])
async def test_pages_of_agents_have_every_agent_once_in_every_order(
    store: SqliteStore, scope: Scope, order_by: agents.AgentOrder
) -> None:
    made = []
    for created, updated, ran in ((1, 9, None), (2, 5, 7), (2, 7, 5), (3, 5, 7), (4, 4, None)):
        agent = make.agent(created_at=created, updated_at=updated)
        id = (await make.stored_agent(store, agent)).conversation.id
        await store.write(
            lambda tx, id=id, ran=ran: conversations.change(tx, id, last_run_ended_at=ran)
        )  # type: ignore[misc]
        made.append(agent.id)
    places = {
        "created_at": [0, 1, 2, 3, 4],
        "updated_at": [4, 1, 3, 2, 0],
        "last_run_completion": [0, 4, 2, 1, 3],
    }
    expected = [made[place] for place in places[order_by]]

    async def page(wanted: Page) -> list[str]:
        def read(tx: Transaction) -> list[str]:
            place = agents.place_of(tx, scope, order_by)
            return [state.agent.id for state in agents.page(tx, scope, wanted, position=place)]

        with count_statements(store) as counted:
            found = await store.read(read)
        assert len(counted.statements) <= 4
        return found

    for order, limit in product(("asc", "desc"), (1, 2, 5)):
        ordered = expected if order == "asc" else expected[::-1]
        pages: list[str] = []
        while found := await page(Page(limit, None, pages[-1] if pages else None, order)):  # type: ignore[arg-type]
            pages += found
        assert pages == ordered
        assert await page(Page(2, ordered[3], None, order)) == ordered[1:3]  # type: ignore[arg-type]


async def test_a_window_and_the_counts_of_a_conversation_are_saved_together(
    store: SqliteStore, scope: Scope
) -> None:
    state = await make.stored_agent(store)
    id = state.conversation.id
    await store.write(lambda tx: conversations.save_window(tx, id, ["a", "b"], "key-1", added=3))
    first = (await store.read(lambda tx: agents.load(tx, scope, state.agent.id))).conversation
    assert (first.window, first.prompt_key, first.message_count) == (("a", "b"), "key-1", 4)
    assert first.last_message_at == first.updated_at > state.conversation.updated_at
    assert (first.last_run_ended_at, first.last_run_ms, first.last_stop_reason) == (
        None,
        None,
        None,
    )
    ended = make.run(state.agent, ended_at=77, duration_ns=5_000_000, stop_reason="end_turn")
    await store.write(
        lambda tx: conversations.save_window(tx, id, ["b"], "key-2", added=1, ended=ended)
    )
    await store.write(lambda tx: conversations.save_window(tx, id, ["b", "c"], "key-2", added=1))
    last = (await store.read(lambda tx: agents.load(tx, scope, state.agent.id))).conversation
    assert (last.window, last.message_count) == (("b", "c"), 6)
    assert (last.last_run_ended_at, last.last_run_ms, last.last_stop_reason) == (77, 5, "end_turn")
    assert await store.read(lambda tx: conversations.get(tx, id)) == last


async def test_a_conversation_that_starts_over_counts_its_stored_messages(
    store: SqliteStore, scope: Scope
) -> None:
    state = await make.stored_agent(store)
    id = state.conversation.id
    system = make.message(state.agent, "Anew.", "system")

    def start_over(tx: Transaction) -> None:
        insert_messages(tx, [system])
        conversations.start_over(tx, id, [system.id], "key")

    await store.write(start_over)
    after = (await store.read(lambda tx: agents.load(tx, scope, state.agent.id))).conversation
    assert (after.window, after.message_count, after.prompt_key) == ((system.id,), 2, "key")


async def test_imported_messages_are_counted_and_the_newest_date_stays(
    store: SqliteStore, scope: Scope
) -> None:
    id = (await make.stored_agent(store)).conversation.id
    seen = []
    for newest in (50, 40, 60):
        await store.write(lambda tx, newest=newest: conversations.add_past(tx, id, 3, newest))
        after = await store.read(lambda tx: conversations.get(tx, id))
        seen.append((after.message_count, after.last_message_at))
    assert seen == [(4, 50), (7, 50), (10, 60)]


async def test_creating_an_agent_costs_eleven_inserts_for_any_number_of_blocks_and_tools(
    store: SqliteStore,
) -> None:
    shown, usable = (
        [make.block(str(number)) for number in range(5)],
        [make.tool(str(number)) for number in range(5)],
    )
    with count_statements(store) as counted:
        await make.stored_agent(store, with_blocks=shown, with_tools=usable, tags=["a"])
    inserts = [sql for sql in counted.statements if sql.startswith("INSERT")]
    assert (len(inserts), len(counted.statements), counted.transactions) == (11, 14, 1)
