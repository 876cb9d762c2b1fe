from typing import Any

import httpx2
import pytest
from letta_client.types import AgentState

from ricordo.api.models.agents import AgentRequest
from ricordo.api.models.blocks import BlockUpdate
from ricordo.api.models.messages import SendRequest
from tests.support.serving import MODEL, ServerInThread

AGENT_LATER: dict[str, Any] = {
    "enable_sleeptime": True,
    "source_ids": ["source-1"],
    "folder_ids": ["source-1"],
    "identity_ids": ["identity-1"],
    "secrets": {"KEY": "value"},
    "tool_exec_environment_variables": {"KEY": "value"},
    "include_default_source": True,
    "memory_variables": {"name": "Ada"},
    "from_template": "nina:latest",
}
SEND_LATER: dict[str, Any] = {
    "client_skills": [{"name": "draw"}],
    "return_logprobs": True,
    "return_token_ids": True,
}


@pytest.mark.parametrize("name", AGENT_LATER)
def test_what_an_agent_cannot_have_yet_is_refused_by_name(
    http: httpx2.Client, server: ServerInThread, name: str
) -> None:
    rows = server.rows()

    answer = http.post("/v1/agents/", json={"model": MODEL, name: AGENT_LATER[name]})

    assert answer.status_code == 422
    assert answer.json() == {
        "detail": f"INVALID_ARGUMENT: {name} is not supported by this version of Ricordo. Leave it out."
    }
    assert server.rows() == rows


@pytest.mark.parametrize("name", SEND_LATER)
@pytest.mark.parametrize("path", ["messages", "messages/stream"])
def test_what_a_message_cannot_ask_for_yet_is_refused_by_name(
    http: httpx2.Client, server: ServerInThread, agent: AgentState, path: str, name: str
) -> None:
    rows = server.rows()

    answer = http.post(f"/v1/agents/{agent.id}/{path}", json={"input": "Hello.", name: SEND_LATER[name]})

    assert answer.status_code == 422
    assert f"{name} is not supported" in answer.json()["detail"]
    assert server.rows() == rows


def test_the_same_options_switched_off_are_no_reason_to_refuse(http: httpx2.Client, agent: AgentState) -> None:
    off = {list: [], dict: {}, bool: False, str: None}
    agent_off = {name: off[type(value)] for name, value in AGENT_LATER.items()}
    send_off = {name: off[type(value)] for name, value in SEND_LATER.items()}

    assert http.post("/v1/agents/", json={"model": MODEL, **agent_off}).status_code == 200
    assert http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello.", **send_off}).status_code == 200


def test_fields_of_newer_clients_are_let_through(http: httpx2.Client, agent: AgentState) -> None:
    assert http.post("/v1/agents/", json={"model": MODEL, "from_the_future": 1}).status_code == 200
    message = {"role": "user", "content": "Hello.", "from_the_future": 1}
    sent = http.post(f"/v1/agents/{agent.id}/messages", json={"messages": [message], "enable_thinking": "true"})
    assert sent.status_code == 200


def test_a_change_knows_null_from_nothing() -> None:
    assert BlockUpdate.model_validate({"description": None}).model_fields_set == {"description"}
    assert BlockUpdate.model_validate({}).model_fields_set == set()


def test_a_message_without_a_type_is_known_by_what_it_says() -> None:
    body = SendRequest.model_validate(
        {"messages": [{"role": "user", "content": "Hello."}, {"approve": True}, {"type": "approval", "approvals": []}]}
    )

    assert [type(message).__name__ for message in body.messages or ()] == [
        "MessageRequest",
        "ApprovalDecisionRequest",
        "ApprovalDecisionRequest",
    ]


def test_half_a_character_and_numbers_beyond_64_bits_are_refused() -> None:
    for value in ("\ud800", 2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="cannot be stored"):
            AgentRequest.model_validate({"metadata": {"deep": [value]}})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/blocks/", {"label": "human", "value": "a\0b"}),
        ("/v1/agents/", {"model": MODEL, "name": "a\0b"}),
        ("/v1/agents/", {"model": MODEL, "tags": ["\0"]}),
    ],
)
def test_a_nul_is_refused_everywhere(http: httpx2.Client, path: str, body: dict[str, object]) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 422
    assert "NUL" in answer.json()["detail"]


def test_text_that_only_looks_like_a_nul_is_kept(http: httpx2.Client) -> None:
    value = r"\u0000 and \\u0000"
    assert http.post("/v1/blocks/", json={"label": "human", "value": value}).json()["value"] == value


def test_a_body_beyond_the_limit_is_refused(http: httpx2.Client) -> None:
    answer = http.post("/v1/blocks/", content=b'{"value": "' + b"x" * (33 * 1024 * 1024) + b'"}')
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "image/png", "data": "abc"},
        {"type": "base64", "media_type": "audio/wav", "data": "aGk="},
    ],
)
def test_a_picture_no_model_can_read_is_refused(http: httpx2.Client, agent: AgentState, source: dict[str, str]) -> None:
    content = [{"type": "image", "source": source}]
    answer = http.post(f"/v1/agents/{agent.id}/messages", json={"messages": [{"role": "user", "content": content}]})
    assert answer.status_code in (400, 422)
    assert len(http.get(f"/v1/agents/{agent.id}/messages").json()) == 1  # the system message alone
