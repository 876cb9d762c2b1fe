"""What an agent has in view, over the route's own function on a real store."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from ricordo.api.agents import context
from ricordo.api.call import Call
from ricordo.api.models.context import ContextResponse
from ricordo.domain.agent import AgentState
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.search.index import insert_messages
from ricordo.storage import conversations
from ricordo.storage.store import Store, Transaction
from tests.api.fits import require_fits
from tests.support import make


@pytest.fixture
async def state(store: Store) -> AgentState:
    """An agent with a block and a tool."""
    return await make.stored_agent(store, with_blocks=[make.block()], with_tools=[make.tool()])


async def seen(store: Store, state: AgentState, **query: str) -> dict[str, Any]:
    here = Call(cast(Any, None), cast(Any, SimpleNamespace(store=store)), Scope())
    response = await context(here, state.agent.id, **query)
    wire: dict[str, Any] = orjson.loads(response.body)
    require_fits(ContextResponse, wire)
    return wire


async def test_it_tells_what_fills_the_window_of_the_agents_own_thread(store: Store, state: AgentState) -> None:
    wire = await seen(store, state)
    assert (wire["num_messages"], wire["num_recall_memory"], wire["num_archival_memory"]) == (1, 1, 0)
    assert wire["system_prompt"] == state.agent.system
    assert wire["functions_definitions"][0]["function"]["name"] == "roll_dice"
    assert wire["messages"][0]["id"] == state.conversation.window[0]


async def test_a_thread_of_its_own_is_shown_by_its_id_with_its_own_window(store: Store, state: AgentState) -> None:
    said = make.message(state.agent, "Only here.", conversation_id="conv-2")
    thread = make.conversation(state.agent, id="conv-2", window=(said.id,), context_window=9_000)

    def work(tx: Transaction) -> None:
        conversations.insert_one(tx, thread)
        insert_messages(tx, [said])

    await store.write(work)
    wire = await seen(store, state, conversation_id="conv-2")
    assert [message["id"] for message in wire["messages"]] == [said.id]
    assert wire["context_window_size_max"] == 9_000
    assert (await seen(store, state, conversation_id="default"))["num_messages"] == 1


async def test_another_agents_thread_is_not_found(store: Store, state: AgentState) -> None:
    other = await make.stored_agent(store)
    with pytest.raises(NotFound):
        await seen(store, state, conversation_id=other.conversation.id)
    with pytest.raises(NotFound):
        await seen(store, replace(state, agent=make.agent()))
