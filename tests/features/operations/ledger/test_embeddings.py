"""Each door that leads to an embedding model of a provider leaves its tokens in the ledger."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from letta_client import APIStatusError
from letta_client.types import AgentState

from ricordo.background import upkeep
from ricordo.domain.model import EmbeddingInfo
from ricordo.domain.scope import Scope
from ricordo.errors import DatabaseFailed, NotFound
from ricordo.llm.addresses import Connections
from ricordo.llm.embedding.remote import openai_embedder
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_table import Provider
from ricordo.search.index import MessageFilter
from ricordo.storage import agent_access, agents, runs
from ricordo.storage.engine.store import Transaction
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, call
from tests.support.model_server import ModelServer

HANDLE = "far/embed"
Door = Callable[[Api, str], Any]


@pytest.fixture
def provider(server: ServerInThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A provider over HTTP with the default embedding model. Each answer reports one token."""
    models = ModelServer()
    server.run(models.start())
    connections = Connections(timeout=30)
    info = EmbeddingInfo(HANDLE, "far", "embed", "openai", endpoint=models.url)
    embedder = openai_embedder(
        info, connections, CallPolicy(), Provider("far", "", "openai", api_key="key-1")
    )
    embedders = server.runtime.models.embedders
    embedders.add(embedder)
    monkeypatch.setattr(type(embedders), "default_handle", lambda _: HANDLE)

    async def postponed(*_: object) -> bool:
        return True

    # The index's jobs embed texts too, at any time between two counts.
    monkeypatch.setattr(upkeep, "postponed", postponed)
    yield models
    server.run(connections.close())
    server.run(models.stop())


def turn_with(name: str, **arguments: Any) -> Door:
    """Return the door of a tool that the agent calls in a turn."""

    def go(api: Api, agent_id: str) -> Any:
        api.server.says(call(name, **arguments), "Done.")
        return api.client.agents.messages.create(agent_id, input="Look it up.")

    return go


def post(path: str, **body: Any) -> Door:
    """Return the door of a request; `AGENT` is replaced in its path and body."""

    def go(api: Api, agent_id: str) -> Any:
        filled = {key: agent_id if part == "AGENT" else part for key, part in body.items()}
        return ok(api.http.post(path.replace("AGENT", agent_id), json=filled))

    return go


def get(path: str, **query: Any) -> Door:
    def go(api: Api, agent_id: str) -> Any:
        return ok(api.http.get(path.replace("AGENT", agent_id), params=query))

    return go


def page(api: Api, _agent_id: str) -> None:
    assert api.http.get("/ui/search", params={"q": "page tea"}).status_code == 200


# Each query is new, since the vectors of recent queries are cached.
DOORS: dict[str, Door] = {
    "search of messages": post("/v1/messages/search", query="messages tea"),
    "search of an agent's messages": post(
        "/v1/messages/search", query="messages cocoa", agent_id="AGENT"
    ),
    "search of passages": post("/v1/passages/search", query="passages tea"),
    "search of archival memory": get("/v1/agents/AGENT/archival-memory/search", query="memory tea"),
    "passages with vectors": get("/v1/agents/AGENT/archival-memory", include_embeddings=True),
    "search of tools": post("/v1/tools/search", query="tools tea"),
    "vectors": post("/v1/embeddings", input="vectors tea", model="default"),
    "a question about a user": post("/users/Ada/ask", question="Which tea does she like?"),
    "the page of searches": page,
    "an agent's search of messages": turn_with("conversation_search", query="turn tea"),
    "an agent's search of passages": turn_with("archival_memory_search", query="archive tea"),
}
# When a budget is used up, these search by words. All others answer 402.
BY_WORDS = (
    "a question about a user",
    "search of messages",
    "search of an agent's messages",
    "search of passages",
    "search of archival memory",
    "search of tools",
    "the page of searches",
)


@pytest.fixture
def reader(api: Api, provider: ModelServer) -> AgentState:
    """An agent whose archive is embedded by the provider, with a message and a passage."""
    agent = api.client.agents.create(
        model=MODEL,
        embedding=HANDLE,
        tools=["conversation_search", "archival_memory_search"],
        memory_blocks=[{"label": "human", "value": "Her name is Ada."}],
    )
    if api.http.get("/v1/users/Ada").status_code == 404:
        ok(api.http.post("/v1/users/", json={"id": "Ada", "name": "Ada"}))
    api.client.agents.messages.create(agent.id, input="I like green tea.")
    path = f"/v1/agents/{agent.id}/archival-memory"
    ok(api.http.post(path, json={"text": "Ada likes tea."}))
    return agent


def spent(http: httpx2.Client) -> int:
    query = {"group_by": "model", "purpose": "embedding"}
    lines = ok(http.get("/v1/ledger", params=query))["lines"]
    return sum(line["prompt_tokens"] for line in lines if line["key"] == HANDLE)


def test_each_door_to_a_providers_embedding_model_is_in_the_ledger(
    api: Api, provider: ModelServer, reader: AgentState
) -> None:
    for name, door in DOORS.items():
        requests, tokens = len(provider.requests), spent(api.http)
        door(api, reader.id)
        made = len(provider.requests) - requests
        assert made > 0, f"{name} embeds nothing, so it proves nothing"
        assert spent(api.http) - tokens == made, name


def test_nobody_spends_the_tokens_of_an_agent_that_is_not_theirs(
    api: Api, provider: ModelServer, reader: AgentState
) -> None:
    """The tokens of a search count against the agent's budget, so only its users may search."""
    ada = ok(api.http.get("/v1/users/Ada"))["id"]
    api.server.write(lambda tx: agent_access.attach_user(tx, reader.id, ada))
    stranger = Scope(user_id="user-1", subject_id="user-1", role="user")
    recall = api.server.runtime.recall_for(stranger, reader.id)
    asked, tokens = len(provider.requests), spent(api.http)

    def message_filter(tx: Transaction) -> MessageFilter:
        agents.require(tx, stranger, reader.id)
        return MessageFilter((reader.id,))

    with pytest.raises(NotFound):
        api.server.run(recall.messages("strange tea", message_filter, 5))
    assert (len(provider.requests), spent(api.http)) == (asked, tokens)


def test_a_search_uses_the_vector_that_it_paid_for_when_the_ledger_cannot_be_written(
    api: Api, provider: ModelServer, reader: AgentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DatabaseFailed("The disk is full.", "full")

    monkeypatch.setattr(runs, "add_expense", full)
    asked = []
    for _ in range(2):
        body = {"query": "full tea", "agent_id": reader.id}
        assert ok(api.http.post("/v1/messages/search", json=body))[0]["relevance"]["vector_rank"]
        asked.append(len(provider.requests))
    assert asked[0] == asked[1] > 0


def test_no_door_reaches_the_provider_when_the_budget_is_used_up(
    api: Api, provider: ModelServer, reader: AgentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = api.server.runtime
    ok(api.http.post("/v1/embeddings", json={"input": "spent", "model": "default"}))
    limited = runtime.settings.model_copy(update={"daily_tokens": 1})
    monkeypatch.setattr(runtime, "settings", limited)
    runtime.recall_for(Scope()).cache.queries.clear()
    asked = len(provider.requests)
    for name, door in DOORS.items():
        if name in BY_WORDS:
            door(api, reader.id)
        else:
            with pytest.raises((AssertionError, APIStatusError), match="is used up"):
                door(api, reader.id)
        assert len(provider.requests) == asked, name
