"""Conversations over HTTP, with the official client: lists, changes, forks, messages."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from letta_client import APIStatusError, BadRequestError, ConflictError, NotFoundError
from letta_client.types import AgentState
from letta_client.types.conversation import Conversation

from ricordo.api.conversations import ConversationResponse
from ricordo.domain.ids import is_id, new_id
from ricordo.llm.scripted import call
from ricordo.storage import conversations
from tests.api.conftest import Api
from tests.seams import make
from tests.seams.http import ok, refused
from tests.seams.server import MODEL, Gate, ServerInThread, StrictLetta

SMALL = ("scripted/small", 9_000)
BUSY = "Another request is currently being processed for this conversation."


@pytest.fixture
def thread(client: StrictLetta, agent: AgentState) -> Conversation:
    return client.conversations.create(agent_id=agent.id, summary="Tea")


def tell(client: StrictLetta, thread_id: str, words: str, **options: Any) -> list[str]:
    """Send a message in a conversation; return the texts of the agent's messages."""
    stream = client.conversations.messages.create(thread_id, input=words, **options)
    return [event.content for event in stream if event.message_type == "assistant_message"]  # type: ignore[misc]


def texts(client: StrictLetta, thread_id: str, **options: Any) -> list[str]:
    listed = client.conversations.messages.list(thread_id, order="asc", limit=2, **options)
    said = ("user_message", "assistant_message")
    return [message.content for message in listed if message.message_type in said]  # type: ignore[misc, union-attr]


def posted(http: httpx2.Client, path: str, **body: Any) -> httpx2.Response:
    return http.post(f"/v1/conversations/{path}", json=body)


def test_a_conversation_is_created_read_updated_and_deleted(
    client: StrictLetta, http: httpx2.Client, agent: AgentState
) -> None:
    sent = {"provider_type": "openai", "temperature": 0.5, "reasoning": {"reasoning_effort": "low"}}
    made = client.conversations.create(
        agent_id=agent.id,
        summary="Tea",
        description="About tea",
        model=SMALL[0],
        model_settings=sent,  # type: ignore[arg-type]
        context_window_limit=SMALL[1],
    )

    assert is_id(made.id, "conv")
    assert (made.agent_id, made.summary, made.description) == (agent.id, "Tea", "About tea")
    assert (made.model, made.context_window_limit, made.archived, made.archived_at) == (
        *SMALL,
        False,
        None,
    )
    assert made.api_model_settings.model_dump(exclude_unset=True) == sent
    assert made.last_message_at is None
    assert len(made.in_context_message_ids or []) == 1
    assert client.conversations.retrieve(made.id) == made
    ConversationResponse.model_validate(http.get(f"/v1/conversations/{made.id}").json())

    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    taken: Any = {"summary": None, "model": None, "model_settings": None}
    changed = client.conversations.update(
        made.id, **taken, description="Coffee", archived=True, last_message_at=moment
    )
    assert (changed.summary, changed.description, changed.context_window_limit) == (
        None,
        "Coffee",
        None,
    )
    assert (changed.model, changed.api_model_settings) == (None, None)
    assert (changed.archived, changed.archived_at is not None) == (True, True)
    assert changed.last_message_at == moment
    for wrong in ("", "soon", "0001-01-01T00:00:00+14:00"):
        assert "last_message_at" in refused(
            http.patch(f"/v1/conversations/{made.id}", json={"last_message_at": wrong}), 400
        )
    assert client.conversations.retrieve(made.id).last_message_at == moment
    assert not client.conversations.update(made.id, archived=False).archived
    # Settings without a model get the provider type of the agent's model.
    own = client.conversations.create(
        agent_id=agent.id, model_settings={"provider_type": "openai", "temperature": 0.5}
    )
    assert own.api_model_settings.model_dump(exclude_unset=True) == {
        "provider_type": "openai",
        "temperature": 0.5,
    }
    wire = http.get(f"/v1/conversations/{own.id}").json()
    assert (wire["model"], wire["context_window_limit"], wire["user_id"]) == (None, None, None)

    client.conversations.delete(made.id)
    for gone in (
        client.conversations.retrieve,
        client.conversations.delete,
        client.conversations.fork,
    ):
        with pytest.raises(
            NotFoundError, match=f"NOT_FOUND: Conversation with ID {made.id} not found"
        ):
            gone(made.id)


def test_an_invalid_conversation_is_refused_with_what_to_do(
    http: httpx2.Client, agent: AgentState
) -> None:
    path = f"?agent_id={agent.id}"
    for body, status, words in (
        ({"isolated_block_labels": ["human"]}, 422, "isolated_block_labels is not supported"),
        ({"model": "scripted/nothing"}, 404, "scripted/nothing"),
        ({"model_settings": {"effort": 7}}, 422, "effort"),
        ({"context_window_limit": 999}, 422, "1000"),
    ):
        assert words in refused(posted(http, path, **body), status)
    assert posted(http, path, isolated_block_labels=[]).status_code == 200
    assert posted(http, f"?agent_id={new_id('agent')}").status_code == 404
    assert http.post(f"/v1/conversations/{path}").status_code == 200


def test_isolated_block_labels_are_refused_on_every_route(
    http: httpx2.Client, agent: AgentState
) -> None:
    made = ok(posted(http, f"?agent_id={agent.id}"))["id"]
    count = len(http.get("/v1/conversations/", params={"agent_id": agent.id}).json())
    calls = [
        ("POST", f"/v1/conversations/?agent_id={agent.id}"),
        ("PATCH", f"/v1/conversations/{made}"),
        ("POST", f"/v1/conversations/{made}/fork"),
        ("POST", f"/v1/conversations/default/fork?agent_id={agent.id}"),
    ]
    for labels in (["human"], ["human", "persona"], ["nothing"], [""]):
        for method, path in calls:
            told = refused(http.request(method, path, json={"isolated_block_labels": labels}), 422)
            assert "isolated_block_labels is not supported" in told
            assert "user_id" in told
    assert len(http.get("/v1/conversations/", params={"agent_id": agent.id}).json()) == count
    for labels in ([], None):
        for method, path in calls:
            assert (
                ok(http.request(method, path, json={"isolated_block_labels": labels}))[
                    "isolated_block_ids"
                ]
                == []
            )


def test_a_fork_accepts_its_options_in_the_body_too(http: httpx2.Client, agent: AgentState) -> None:
    made = ok(posted(http, f"?agent_id={agent.id}"))["id"]
    path = f"/v1/conversations/{made}/fork"
    assert ok(http.post(path, json={"hidden": True}))["hidden"] is True
    assert ok(http.post(f"{path}?hidden=false", json={"hidden": True}))["hidden"] is False
    assert "is not in view" in refused(http.post(path, json={"message_id": new_id("message")}), 400)
    assert "no such field" in refused(http.post(path, json={"mesage_id": "x"}), 422)


def test_lists_omit_archived_hidden_and_default_conversations(
    client: StrictLetta, agent: AgentState
) -> None:
    client.conversations.create(agent_id=agent.id, hidden=True)
    tea, coffee, old = (
        client.conversations.create(agent_id=agent.id, summary=words)
        for words in ("tea", "coffee", "old tea")
    )
    client.conversations.update(old.id, archived=True)
    tell(client, tea.id, "Hello.")

    def listed(**which: Any) -> list[str]:
        return [one.summary or "" for one in client.conversations.list(agent_id=agent.id, **which)]

    assert listed() == ["tea", "coffee"]
    assert listed(order="asc") == ["coffee", "tea"]
    assert listed(order_by="created_at") == ["coffee", "tea"]
    assert listed(order_by="last_run_completion") == ["tea", "coffee"]
    assert (
        listed(archive_status="archived") == listed(extra_query={"archived": True}) == ["old tea"]
    )
    assert listed(archive_status="all", summary_search="TEA") == ["tea", "old tea"]
    assert listed(limit=1) == ["tea"]
    assert listed(limit=1, after=tea.id) == ["coffee"]
    assert listed(extra_query={"before": coffee.id}) == ["tea"]
    with pytest.raises(NotFoundError):
        client.conversations.list(agent_id=new_id("agent"))


def test_a_message_in_a_conversation_is_streamed_by_default(
    api: Api, thread: Conversation, agent: AgentState
) -> None:
    api.server.says("Hello.", "Hello again.", "And again.")

    streamed = posted(api.http, f"{thread.id}/messages", input="One")
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
    whole = posted(api.http, f"{thread.id}/messages", input="Two", streaming=False).json()
    assert [message["content"] for message in whole["messages"]] == ["Hello again."]
    assert whole["stop_reason"]["stop_reason"] == "end_turn"
    assert tell(api.client, thread.id, "Three", stream_tokens=True, agent_id=agent.id) == [
        "And ",
        "again.",
    ]

    assert texts(api.client, thread.id) == [
        "One",
        "Hello.",
        "Two",
        "Hello again.",
        "Three",
        "And again.",
    ]
    assert texts(api.client, "default", agent_id=agent.id) == []
    newest = api.client.conversations.messages.list(thread.id, limit=1)
    assert newest.items[0].content == "And again."  # type: ignore[union-attr]
    only = api.client.conversations.messages.list(
        thread.id, include_return_message_types=["user_message"], order="asc"
    )
    assert [message.content for message in only] == ["One", "Two", "Three"]  # type: ignore[union-attr]
    answer = posted(
        api.http, f"{thread.id}/messages", input="x", streaming=False, stream_tokens=True
    )
    assert "Streaming options" in refused(answer, 422)
    assert posted(api.http, f"{new_id('conv')}/messages", input="x").status_code == 404


def test_default_and_an_agents_id_name_its_default_conversation(
    api: Api, agent: AgentState
) -> None:
    api.server.says("One.", "Two.", "Three.")
    assert tell(api.client, "default", "1", agent_id=agent.id) == ["One."]
    assert tell(api.client, agent.id, "2") == ["Two."]
    api.client.agents.messages.create(agent.id, input="3")

    said = ["1", "One.", "2", "Two.", "3", "Three."]
    assert texts(api.client, "default", agent_id=agent.id) == texts(api.client, agent.id) == said
    own = api.client.conversations.retrieve(agent.id)
    assert api.http.get(f"/v1/conversations/default?agent_id={agent.id}").json()["id"] == own.id
    assert own.in_context_message_ids == api.client.agents.retrieve(agent.id).message_ids
    fork = api.client.conversations.fork("default", agent_id=agent.id)
    assert texts(api.client, fork.id)[-1] == "Three."
    with pytest.raises(BadRequestError, match="agent_id"):
        api.client.conversations.messages.list("default")
    with pytest.raises(ConflictError, match="Reset the agent's messages instead") as caught:
        api.client.conversations.delete(own.id)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert api.client.conversations.list(agent_id=agent.id)[0].id == fork.id


def test_two_conversations_run_at_once_and_a_second_turn_in_one_is_refused(
    api: Api, thread: Conversation, agent: AgentState
) -> None:
    gate = Gate(api.server, "First.")
    api.server.answers_with(gate)
    with api.http.stream(
        "POST", f"/v1/conversations/{thread.id}/messages", json={"input": "One"}
    ) as first:
        gate.wait()
        answer = posted(api.http, f"{thread.id}/messages", input="Two", streaming=False)
        assert BUSY in refused(answer, 409)
        assert is_id(answer.json()["run_id"], "run")
        assert api.http.post(f"/v1/conversations/{thread.id}/recompile").status_code == 409
        api.server.answers_with(lambda _request: "Beside it.")
        assert tell(api.client, "default", "Three", agent_id=agent.id) == ["Beside it."]
        gate.open()
        assert "First." in "".join(first.iter_text())
    assert texts(api.client, thread.id) == ["One", "First."]


def test_a_fork_shares_the_messages_in_the_window_and_may_end_at_one(
    api: Api, thread: Conversation
) -> None:
    api.server.says("Uno.", "Due.", "Tre.")
    tell(api.client, thread.id, "One")
    tell(api.client, thread.id, "Two")
    (system, one, uno, *_) = (
        api.client.conversations.retrieve(thread.id).in_context_message_ids or []
    )

    fork = api.client.conversations.fork(thread.id)
    early = api.client.conversations.fork(thread.id, message_id=uno, hidden=True)

    window = api.client.conversations.retrieve(thread.id).in_context_message_ids or []
    assert (fork.in_context_message_ids or [])[1:] == window[1:]
    assert (early.in_context_message_ids or [])[1:] == [one, uno]
    assert fork.summary == thread.summary
    tell(api.client, early.id, "Three")
    assert texts(api.client, early.id) == ["One", "Uno.", "Three", "Tre."]
    assert (
        texts(api.client, fork.id) == texts(api.client, thread.id) == ["One", "Uno.", "Two", "Due."]
    )
    assert {one.id for one in api.client.conversations.list(agent_id=thread.agent_id)} == {
        thread.id,
        fork.id,
    }
    with pytest.raises(BadRequestError, match="not in view"):
        api.client.conversations.fork(thread.id, message_id=new_id("message"))
    tell(api.client, fork.id, "Four")
    whole = [
        message.id
        for message in api.client.conversations.messages.list(fork.id, order="asc", limit=100)
    ]
    page = api.http.get(
        f"/v1/conversations/{fork.id}/messages",
        params={"before": whole[-1], "order": "asc", "limit": 2},
    ).json()
    assert [one["id"] for one in page] == whole[-3:-1]
    api.client.conversations.delete(thread.id)
    assert texts(api.client, fork.id)[:4] == ["One", "Uno.", "Two", "Due."]
    assert system not in whole


def test_a_running_thread_is_cancelled_and_deleted(
    api: Api, agent: AgentState, thread: Conversation
) -> None:
    with pytest.raises(ConflictError, match="No active runs"):
        api.client.conversations.cancel(thread.id)
    gate = Gate(api.server)
    api.server.answers_with(gate)
    with api.http.stream(
        "POST", f"/v1/conversations/{thread.id}/messages", json={"input": "One"}
    ) as stream:
        gate.wait()
        outcome = api.client.conversations.cancel(thread.id)
        assert '"cancelled"' in "".join(stream.iter_text())
    (run_id,) = outcome
    assert outcome == {run_id: "cancelled"}
    assert api.client.runs.retrieve(run_id).status == "cancelled"

    gate = Gate(api.server)
    api.server.answers_with(gate)
    with api.http.stream(
        "POST", f"/v1/conversations/{thread.id}/messages", json={"input": "Two"}
    ) as stream:
        gate.wait()
        api.client.conversations.delete(thread.id)
        assert "[DONE]" in "".join(stream.iter_text())
    with pytest.raises(NotFoundError):
        api.client.runs.retrieve(run_id)
    assert api.server.read(lambda tx: make.conversation_ids(tx, agent.id)) == [
        conversations.default_id(agent.id)
    ]


def test_recompile_stores_and_returns_a_new_system_prompt(
    api: Api, agent: AgentState, thread: Conversation
) -> None:
    api.client.agents.blocks.update("human", agent_id=agent.id, value="Her name is Bea.")

    def stored() -> str:
        (system,) = api.client.conversations.messages.list(
            thread.id, include_return_message_types=["system_message"]
        )
        return str(system.content)  # type: ignore[union-attr]

    dry = api.client.conversations.recompile(thread.id, dry_run=True)
    assert "Her name is Bea." in dry
    assert "Her name is Ada." in stored()
    # The response is JSON, as the OpenAPI document says and the retired server answers. The client
    # returns the string unchanged.
    assert json.loads(api.client.conversations.recompile(thread.id)) == stored()
    assert "Her name is Bea." in stored()
    own = api.client.agents.recompile(agent.id, dry_run=True)
    assert "- CONVERSATION_ID: default" in own
    assert "Her name is Bea." in api.client.conversations.recompile("default", agent_id=agent.id)
    assert "Her name is Bea." in api.client.agents.recompile(agent.id, update_timestamp=True)
    assert "Her name is Bea." in api.client.conversations.recompile(
        thread.id, compaction_settings={"mode": "all"}
    )
    with pytest.raises(APIStatusError):
        api.client.agents.recompile(new_id("agent"))


def test_a_search_in_a_fork_finds_the_messages_it_shares(api: Api, thread: Conversation) -> None:
    api.server.says("Uno.", "Due.", "Tre.")
    tell(api.client, thread.id, "Tea one")
    fork = api.client.conversations.fork(thread.id)
    tell(api.client, thread.id, "Tea two")
    tell(api.client, fork.id, "Tea three")

    def found(thread_id: str) -> set[str]:
        hits = api.client.messages.search(
            query="tea", agent_id=thread.agent_id, conversation_id=thread_id, search_mode="fts"
        )
        return {hit.content for hit in hits if hit.message_type == "user_message"}  # type: ignore[misc]

    assert found(fork.id) == {"Tea one", "Tea three"}
    assert found(thread.id) == {"Tea one", "Tea two"}
    api.client.conversations.delete(thread.id)
    assert found(thread.id) == set()
    assert found(fork.id) == {"Tea one", "Tea three"}


def test_a_conversation_sees_its_users_memory_and_creates_a_new_user(
    api: Api, agent: AgentState
) -> None:
    ada = new_id("ada")
    made = api.client.conversations.create(agent_id=agent.id, extra_body={"user_id": ada})
    wire = api.http.get(f"/v1/conversations/{made.id}").json()
    assert is_id(wire["user_id"], "user")
    assert api.http.get(f"/users/{ada}/blocks").json() == []

    api.http.put(f"/users/{ada}/blocks/human", json={"body": "Her name is Ada Lovelace."})
    api.http.put(
        f"/users/{ada}/blocks/other", json={"body": "For another.", "agent_id": new_id("agent")}
    )
    api.client.conversations.messages.create(made.id, input="Hello.", streaming=False)

    prompt = api.server.model.requests[-1].messages[0].text
    assert "Ada Lovelace" in prompt
    assert "Her name is Ada.\n" not in prompt
    assert "For another." not in prompt
    fork = api.client.conversations.fork(made.id)
    assert api.http.get(f"/v1/conversations/{fork.id}").json()["user_id"] == wire["user_id"]
    again = api.http.post(
        f"/v1/conversations/?agent_id={agent.id}", json={"user_id": wire["user_id"]}
    ).json()
    assert again["user_id"] == wire["user_id"]
    assert (
        "Ada Lovelace"
        in api.http.post(f"/v1/conversations/{again['id']}/recompile?dry_run=true").json()
    )


def test_an_invalid_user_creates_no_conversation(
    http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    before = server.rows()
    nobody = "user-00000000-0000-4000-8000-00000000dead"
    for user, status in (("", 422), ("a/b", 400), (nobody, 404), (5, 422), ("x" * 300, 422)):
        for path in (f"/v1/conversations/?agent_id={agent.id}", "/v1/agents/"):
            assert http.post(path, json={"user_id": user, "model": MODEL}).status_code == status, (
                user,
                path,
            )
    assert server.rows() == before


def test_messages_in_one_users_conversation_are_not_found_in_anothers(
    api: Api, agent: AgentState
) -> None:
    """Two users talk with one agent.

    A search in a conversation finds its user's messages in other conversations, and never the other
    user's.
    """
    ada, bob = new_id("ada"), new_id("bob")
    said, again, others = (
        api.client.conversations.create(agent_id=agent.id, extra_body={"user_id": user})
        for user in (ada, ada, bob)
    )
    api.client.conversations.messages.create(
        said.id, input="My locker opens with kingfisher.", streaming=False
    )
    for thread, is_found in ((others, False), (again, True)):
        api.server.says(call("conversation_search", query="locker kingfisher"), "Done.")
        api.client.conversations.messages.create(thread.id, input="What opens it?", streaming=False)
        shown = str(api.server.model.requests[-1].messages[-1].tool_returns[0])
        assert ("My locker" in shown) == is_found
