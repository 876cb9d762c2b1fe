"""Importing past messages over HTTP."""

import threading
import time
from typing import Any

import httpx2
import pytest
from letta_client.types import AgentState

from ricordo.api.models.archives import MOST_ITEMS
from ricordo.domain.ids import is_id, new_id
from tests.support.serving import ServerInThread, StrictLetta


def test_past_messages_are_listed_found_and_answered_to(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    past = [
        {"role": "user", "content": "My cat is called Minka.", "created_at": "2024-05-06T07:08:09Z", "otid": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "A lovely name."}], "name": "Nina"},
    ]

    answer = http.post(f"/v1/agents/{agent.id}/messages/import", json={"messages": past})

    assert answer.status_code == 200
    ids = answer.json()["message_ids"]
    assert all(is_id(id, "message") for id in ids)
    listed = [
        item for item in client.agents.messages.list(agent.id, order="asc") if item.message_type != "system_message"
    ]
    assert [(item.id, item.message_type) for item in listed] == list(
        zip(ids, ["user_message", "assistant_message"], strict=True)
    )
    assert client.agents.retrieve(agent.id).message_ids == agent.message_ids
    (found,) = client.messages.search(query="Minka", agent_id=agent.id, limit=1)
    assert found.message_id == ids[0]
    server.says("Hello.")
    client.agents.messages.create(agent.id, input="Good morning.")
    assert len(server.model.requests) == 1
    assert len(server.model.requests[0].messages) == 2
    repeated = http.post(f"/v1/agents/{agent.id}/messages/import", json={"messages": past[:1]})
    assert repeated.json() == {"message_ids": ids[:1]}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"role": "system", "content": "Be kind."}, "an agent has one system message"),
        ({"role": "tool", "content": "six"}, "a tool's result means nothing without its call"),
        ({"role": "nobody", "content": "a"}, "Input should be"),
        ({"role": "user", "content": " "}, "the content is empty"),
        ({"role": "user", "content": []}, "the content is empty"),
        ({"role": "user"}, "Field required"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "Input should be"),
        ({"role": "user", "content": "a", "created_at": "yesterday"}, "Invalid created_at format: yesterday."),
        ({"role": "user", "content": "a", "otid": "same"}, "Two of these messages have the otid same."),
        ({"role": "user", "content": "a\0"}, "NUL"),
        ({"role": "user", "content": "a", "date": "2024-05-06"}, "messages.600.date: "),
        ({"role": "user", "content": "a", "sender_id": "user-1"}, ".sender_id: "),
        ({"role": "user", "content": "a", "type": "approval"}, "Input should be 'message'"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "signature": "b"}]}, ".signature: "),
    ],
)
def test_one_bad_message_refuses_all(
    http: httpx2.Client, server: ServerInThread, agent: AgentState, wrong: dict[str, Any], told: str
) -> None:
    rows = server.rows()
    good = [{"role": "user", "content": f"tea {number}"} for number in range(600)]
    good[3]["otid"] = "same"

    answer = http.post(f"/v1/agents/{agent.id}/messages/import", json={"messages": [*good, wrong]})

    assert answer.status_code in (400, 422)
    assert told in answer.json()["detail"]
    assert server.rows() == rows


def test_an_otid_stands_for_one_message(http: httpx2.Client, agent: AgentState) -> None:
    path = f"/v1/agents/{agent.id}/messages/import"
    first = {"role": "user", "content": "My cat is called Minka.", "otid": "o-1", "type": "message"}
    stored = http.post(path, json={"messages": [first]})
    same = first | {"content": [{"type": "text", "text": first["content"]}]}
    assert http.post(path, json={"messages": [same], "newer_option": 1}).json() == stored.json()

    refused = http.post(path, json={"messages": [first | {"content": "My cat is called Mia."}]})

    assert refused.status_code == 409
    assert "The otid o-1 stands for another message" in refused.json()["detail"]


@pytest.mark.parametrize("size", [0, MOST_ITEMS + 1])
def test_an_import_has_a_size(http: httpx2.Client, server: ServerInThread, agent: AgentState, size: int) -> None:
    rows = server.rows()
    body = {"messages": [{"role": "user", "content": "a"}] * size}
    answer = http.post(f"/v1/agents/{agent.id}/messages/import", json=body)
    assert answer.status_code == 400
    assert f"1 to {MOST_ITEMS} messages, not {size}." in answer.json()["detail"]
    assert server.rows() == rows


def test_nobody_takes_nothing_in(http: httpx2.Client, server: ServerInThread, agent: AgentState) -> None:
    rows = server.rows()
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert http.post(f"/v1/agents/{new_id('agent')}/messages/import", json=body).status_code == 404
    wrong_thread = body | {"conversation_id": new_id("conv")}
    assert http.post(f"/v1/agents/{agent.id}/messages/import", json=wrong_thread).status_code == 404
    assert server.rows() == rows
    own_thread = body | {"conversation_id": "default"}
    assert http.post(f"/v1/agents/{agent.id}/messages/import", json=own_thread).status_code == 200


def test_ten_thousand_messages_come_in_at_once_while_others_talk(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    other = client.agents.create(model=agent.model)
    words = "The weather in Turin was fine and we walked along the river until the sun went down behind the hills"
    past = [
        {"role": ("user", "assistant")[place % 2], "content": f"{words} {place}", "otid": f"o-{place}"}
        for place in range(MOST_ITEMS)
    ]
    answers: list[httpx2.Response] = []

    def bring_in() -> None:
        with server.http() as own:
            answers.append(own.post(f"/v1/agents/{agent.id}/messages/import", json={"messages": past}))

    importing = threading.Thread(target=bring_in)
    importing.start()
    waits = []
    while importing.is_alive():
        began = time.monotonic()
        client.agents.messages.create(other.id, input="Hello.")
        waits.append(time.monotonic() - began)
    importing.join()
    (answer,) = answers
    ids = answer.json()["message_ids"]
    assert len(set(ids)) == MOST_ITEMS
    assert len(waits) > 3
    (found,) = client.messages.search(query="river 7777", agent_id=agent.id, limit=1)
    assert found.message_id == ids[7777]
