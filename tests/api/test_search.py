"""Searches across agents and archives, and imported history."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from letta_client.types import AgentState

from ricordo.api.models.base import MOST_ITEMS
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.message import ReasoningPart, TextPart
from tests.api.conftest import Api
from tests.campaigns.sizes import short_and_long
from tests.seams import make
from tests.seams.server import MODEL, ServerInThread, StrictLetta


@pytest.fixture
def two(client: StrictLetta) -> Iterator[tuple[AgentState, AgentState]]:
    """Make two agents, one of them in Tokyo; they are deleted after the test."""
    agents = (
        client.agents.create(model=MODEL, name="One"),
        client.agents.create(model=MODEL, name="Two", timezone="Asia/Tokyo"),
    )
    yield agents
    for agent in agents:
        client.agents.delete(agent.id)


def say(http: httpx2.Client, agent: AgentState, *said: tuple[str, str, str]) -> list[str]:
    past = [{"role": role, "content": text, "created_at": date} for role, text, date in said]
    ids: list[str] = http.post(
        f"/v1/agents/{agent.id}/messages/import", json={"messages": past}
    ).json()["message_ids"]
    return ids


def test_messages_are_found_across_agents_best_first_with_their_relevance(
    api: Api, two: tuple[AgentState, AgentState]
) -> None:
    (walk,) = say(
        api.http, two[0], ("user", "We spoke of jasmine once, on a long walk.", "2025-01-01")
    )
    tea, noted = say(
        api.http,
        two[1],
        ("user", "Jasmine tea, only jasmine tea.", "2025-01-02"),
        ("assistant", "Noted.", "2025-01-03"),
    )

    found = api.client.messages.search(query="jasmine tea")

    assert [hit.message_id for hit in found][:2] == [tea, walk]
    first = found[0]
    own = "conv-" + two[1].id.removeprefix("agent-")
    assert (first.message_type, first.agent_id, first.conversation_id) == (
        "user_message",
        two[1].id,
        own,
    )
    assert first.created_at == datetime(2025, 1, 1, 15, tzinfo=UTC)  # midnight in Tokyo
    raw = api.http.post("/v1/messages/search", json={"query": "jasmine tea"}).json()
    assert raw[0]["content"] == "Jasmine tea, only jasmine tea."
    assert raw[0]["relevance"]["fts_rank"] == 1
    assert raw[0]["relevance"]["rrf_score"] >= raw[1]["relevance"]["rrf_score"]
    assert noted not in [
        hit.message_id for hit in api.client.messages.search(query="jasmine tea", limit=2)
    ]


def test_a_message_search_applies_filters_before_the_limit(
    api: Api, two: tuple[AgentState, AgentState]
) -> None:
    one, tokyo = two
    days = [
        (role, f"Tea on day {day}.", f"2025-02-0{day}")
        for day, role in enumerate(("user", "assistant", "user"), 1)
    ]
    say(api.http, one, *days)
    say(api.http, tokyo, *days)

    def texts(**query: Any) -> set[str]:
        hits = api.http.post("/v1/messages/search", json={"query": "tea", **query}).json()
        return {f"{hit['agent_id'] == one.id:d}{hit['content'][-2]}" for hit in hits}

    assert texts() == {"11", "12", "13", "01", "02", "03"}
    assert texts(agent_id=one.id) == {"11", "12", "13"}
    assert texts(agent_id=one.id, roles=["assistant"], limit=1) == {"12"}
    assert texts(roles=["assistant"]) == {"12", "02"}
    assert texts(agent_id=one.id, start_date="2025-02-02") == {"12", "13"}
    assert texts(agent_id=one.id, end_date="2025-02-02") == {"11", "12"}
    # Days are in the agent's zone, or in UTC if no agent is named.
    assert texts(agent_id=tokyo.id, start_date="2025-02-02", end_date="2025-02-02") == {"02"}
    assert texts(start_date="2025-02-02", end_date="2025-02-02") == {"12", "03"}
    assert texts(agent_id=one.id, conversation_id="default") == {"11", "12", "13"}
    assert texts(conversation_id="conv-" + one.id.removeprefix("agent-")) == {"11", "12", "13"}
    assert texts(conversation_id=new_id("conv")) == set()
    for mode in ("vector", "fts", "hybrid"):
        assert len(api.client.messages.search(query="tea", agent_id=one.id, search_mode=mode)) in (
            0,
            3,
        )
    # Without a query the newest messages are returned.
    assert (
        texts(query="", agent_id=one.id, limit=1)
        == texts(query=None, agent_id=one.id, limit=1)
        == {"13"}
    )


def test_the_agents_search_returns_whole_messages_and_tool_results_on_request(
    api: Api, two: tuple[AgentState, AgentState]
) -> None:
    one = make.agent(id=two[0].id)
    thought = (ReasoningPart("She asks for tea."), TextPart("Your jasmine tea is ready."))
    spoken = make.message(one, role="assistant", parts=thought, model="model")
    rolled = make.result(one, "roll_dice", "jasmine six")
    api.server.run(make.stored_messages(api.server.runtime.store, spoken, rolled))

    def search(**query: Any) -> list[dict[str, Any]]:
        body = {"query": "jasmine", "agent_id": one.id, **query}
        hits: list[dict[str, Any]] = api.http.post("/v1/agents/messages/search", json=body).json()
        return hits

    (hit,) = search()
    assert (hit["embedded_text"], hit["message"]["id"]) == ("Your jasmine tea is ready.", spoken.id)
    assert hit["message"]["content"] == [{"type": "text", "text": "Your jasmine tea is ready."}]
    assert (hit["fts_rank"], hit["vector_rank"], hit["rrf_score"] > 0) == (1, 1, True)
    (hit,) = search(roles=["tool"])
    assert hit["message"]["tool_returns"] == [
        {"tool_call_id": "call-1", "status": "success", "func_response": "jasmine six"}
    ]


def test_passages_are_found_across_archives_and_within_one(
    api: Api, two: tuple[AgentState, AgentState]
) -> None:
    own = api.client.archives.create(name="Own")
    loose = api.client.archives.create(name="Loose")
    api.client.agents.archives.attach(own.id, agent_id=two[1].id)
    for day, tags in ((1, ["a"]), (2, ["a", "b"]), (3, ["b"])):
        for archive in (own, loose):
            api.client.archives.passages.create(
                archive.id,
                text=f"Oolong on day {day}",
                tags=tags,
                created_at=f"2025-03-0{day}T00:00+09:00",
            )

    def days(**query: Any) -> list[str]:
        wanted: dict[str, Any] = {"query": "oolong", "limit": 100} | query
        found = api.client.passages.search(**wanted)
        return sorted(
            f"{hit.passage.archive_id == own.id:d}{hit.passage.text[-1]}" for hit in found
        )

    assert days() == ["01", "02", "03", "11", "12", "13"]
    assert days(archive_id=own.id) == days(agent_id=two[1].id) == ["11", "12", "13"]
    assert days(agent_id=two[1].id, archive_id=loose.id) == days(agent_id=two[0].id) == []
    assert days(archive_id=own.id, tags=["a", "b"], tag_match_mode="all") == ["12"]
    assert days(archive_id=own.id, tags=["b"]) == ["12", "13"]
    assert days(agent_id=two[1].id, start_date="2025-03-02", end_date="2025-03-02") == ["12"]
    assert days(archive_id=own.id, start_date="2025-03-02") == ["13"]
    assert days(archive_id=own.id, query=None, limit=1) == ["13"]
    raw = api.http.post(
        "/v1/passages/search", json={"query": "oolong", "archive_id": own.id}
    ).json()
    assert raw[0]["metadata"]["fts_rank"] == 1
    assert [hit["score"] for hit in raw] == sorted((hit["score"] for hit in raw), reverse=True)
    for archive in (own, loose):
        api.client.archives.delete(archive.id)
    assert days() == []


def test_a_search_of_the_default_conversation_needs_an_agent_id(
    http: httpx2.Client, two: tuple[AgentState, AgentState]
) -> None:
    ids = [say(http, agent, ("user", "Gunpowder", "2025-01-01"))[0] for agent in two]
    query = {"query": "gunpowder", "conversation_id": "default"}
    for path in ("messages", "agents/messages"):
        refused = http.post(f"/v1/{path}/search", json=query)
        assert refused.status_code == 422
        assert "Name the agent in agent_id" in refused.json()["detail"]
        (hit,) = http.post(f"/v1/{path}/search", json=query | {"agent_id": two[0].id}).json()
        assert hit.get("message_id", hit.get("message", {}).get("id")) == ids[0]


def test_a_query_is_plain_words_without_syntax(
    client: StrictLetta, http: httpx2.Client, agent: AgentState
) -> None:
    say(http, agent, ("user", "Sencha", "2025-01-01"))
    for query in (
        '"',
        "sencha OR",
        "NEAR(",
        "sencha*",
        "text:sencha",
        "-sencha",
        "'; DROP TABLE messages; --",
        "\x01 %s",
    ):
        assert len(client.messages.search(query=query, agent_id=agent.id)) <= 1
        client.passages.search(query=query)


def test_imported_messages_are_listed_and_found_without_asking_the_model(
    api: Api, agent: AgentState
) -> None:
    past = [
        {
            "role": "user",
            "content": "My cat is called Minka.",
            "created_at": "2024-05-06T07:08:09Z",
            "otid": "a",
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "A lovely name."}],
            "name": "Nina",
        },
    ]

    answer = api.http.post(f"/v1/agents/{agent.id}/messages/import", json={"messages": past})

    assert answer.status_code == 200
    ids = answer.json()["message_ids"]
    assert all(is_id(id, "message") for id in ids)
    listed = [
        one
        for one in api.client.agents.messages.list(agent.id, order="asc")
        if one.message_type != "system_message"
    ]
    assert [item.id for item in listed] == ids
    assert [item.message_type for item in listed] == ["user_message", "assistant_message"]
    assert api.client.agents.retrieve(agent.id).message_ids == agent.message_ids
    (found,) = api.client.messages.search(query="Minka", agent_id=agent.id, limit=1)
    assert found.message_id == ids[0]
    api.server.says("Hello.")
    api.client.agents.messages.create(agent.id, input="Good morning.")
    assert len(api.server.model.requests) == 1
    assert len(api.server.model.requests[0].messages) == 2
    repeated = api.http.post(f"/v1/agents/{agent.id}/messages/import", json={"messages": past[:1]})
    assert repeated.json() == {"message_ids": ids[:1]}


BAD_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "system", "content": "Be kind."}, "The server writes an agent's system message"),
    ({"role": "tool", "content": "six"}, "a tool's result needs its call"),
    ({"role": "nobody", "content": "a"}, "Input should be"),
    ({"role": "user", "content": " "}, "the content is empty"),
    ({"role": "user", "content": []}, "the content is empty"),
    ({"role": "user"}, "Field required"),
    ({"role": "user", "content": [{"type": "image", "source": {}}]}, "Input should be"),
    (
        {"role": "user", "content": "a", "created_at": "yesterday"},
        "Invalid created_at format: yesterday.",
    ),
    ({"role": "user", "content": "a", "otid": "same"}, "Two of these messages have the otid same."),
    ({"role": "user", "content": "a\0"}, "NUL"),
    ({"role": "user", "content": "a", "date": "2024-05-06"}, "messages.600.date: "),
    ({"role": "user", "content": "a", "sender_id": "user-1"}, ".sender_id: "),
    ({"role": "user", "content": "a", "type": "approval"}, "Input should be 'message'"),
    (
        {"role": "user", "content": [{"type": "text", "text": "a", "signature": "b"}]},
        ".signature: ",
    ),
]


def test_one_invalid_message_refuses_the_whole_import(
    http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    rows = server.rows()
    path = f"/v1/agents/{agent.id}/messages/import"
    good = [{"role": "user", "content": f"tea {number}"} for number in range(600)]
    good[3]["otid"] = "same"
    for wrong, told in BAD_MESSAGES:
        answer = http.post(path, json={"messages": [*good, wrong]})
        assert answer.status_code in (400, 422), wrong
        assert told in answer.json()["detail"], wrong
    for size in (0, MOST_ITEMS + 1):
        answer = http.post(path, json={"messages": [{"role": "user", "content": "a"}] * size})
        assert answer.status_code == 400
        assert f"1 to {MOST_ITEMS} messages, not {size}." in answer.json()["detail"]
    body = {"messages": good[:1]}
    assert http.post(f"/v1/agents/{new_id('agent')}/messages/import", json=body).status_code == 404
    assert http.post(path, json=body | {"conversation_id": new_id("conv")}).status_code == 404
    assert server.rows() == rows
    assert http.post(path, json=body | {"conversation_id": "default"}).status_code == 200


@pytest.mark.parametrize("requests", short_and_long(4, 10))
def test_thousands_of_messages_are_imported_while_other_agents_answer(
    api: Api, agent: AgentState, requests: int
) -> None:
    other = api.client.agents.create(model=agent.model)
    words = (
        "The weather in Turin was fine and we walked along the river until the sun went down "
        "behind the hills"
    )
    past = [
        {
            "role": ("user", "assistant")[place % 2],
            "content": f"{words} {place}",
            "otid": f"o-{place}",
        }
        for place in range(requests * MOST_ITEMS)
    ]
    answers: list[httpx2.Response] = []

    def bring_in() -> None:
        with api.server.http() as own:
            for start in range(0, len(past), MOST_ITEMS):
                sent = {"messages": past[start : start + MOST_ITEMS]}
                answers.append(own.post(f"/v1/agents/{agent.id}/messages/import", json=sent))

    importing = threading.Thread(target=bring_in)
    importing.start()
    waits = []
    while importing.is_alive():
        began = time.monotonic()
        api.client.agents.messages.create(other.id, input="Hello.")
        waits.append(time.monotonic() - began)
    importing.join()
    ids = [id for answer in answers for id in answer.json()["message_ids"]]
    assert len(set(ids)) == len(past)
    assert len(waits) > 3
    (found,) = api.client.messages.search(query="river 3777", agent_id=agent.id, limit=1)
    assert found.message_id == ids[3777]


def test_a_hit_in_a_long_text_has_an_excerpt_of_the_matching_part(
    api: Api, two: tuple[AgentState, AgentState]
) -> None:
    sentences = [f"Sentence {number} of it tells nothing." for number in range(200)]
    sentences[150] = "The heliotrope stands by the well."
    long = " ".join(sentences)
    said = ("assistant", long, "2025-01-02"), ("user", "A heliotrope, is it?", "2025-01-03")
    answer, question = say(api.http, two[0], *said)
    archive = api.client.archives.create(name="Plants")
    passage = api.client.archives.passages.create(archive.id, text=long)

    def found(path: str, **more: str) -> list[dict[str, Any]]:
        hits: list[dict[str, Any]] = api.http.post(
            path, json={"query": "heliotrope well", **more}
        ).json()
        return hits

    of_agent = {"agent_id": two[0].id}
    by_id = {hit["message_id"]: hit for hit in found("/v1/messages/search", **of_agent)}
    stored = {hit["message"]["id"]: hit for hit in found("/v1/agents/messages/search", **of_agent)}
    (kept,) = found("/v1/passages/search", archive_id=archive.id)
    for hit in (by_id[answer], stored[answer], kept):
        assert sentences[150] in hit["excerpt"]
        assert sentences[0] not in hit["excerpt"]
        assert hit["excerpt"] in long
    assert (by_id[answer]["content"], stored[answer]["embedded_text"]) == (long, long)
    assert (kept["passage"]["id"], kept["passage"]["text"]) == (passage.id, long)
    assert (by_id[question]["excerpt"], stored[question]["excerpt"]) == (None, None)
    api.client.archives.delete(archive.id)
