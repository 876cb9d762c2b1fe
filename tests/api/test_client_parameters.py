"""Everything that official clients may send is accepted.

That is each documented parameter, and each object as the server returned it. Fields without effect
here are left out, and named in a header of the response.
"""

import types
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import httpx2
import pytest
from pydantic import BaseModel
from typing_extensions import is_typeddict

from ricordo.api.conversations import (
    ConversationRequest,
    ConversationSendRequest,
    ConversationUpdate,
)
from ricordo.api.models.agents import AgentRequest, AgentUpdate
from ricordo.api.models.archives import ArchiveRequest, ArchiveUpdate
from ricordo.api.models.base import ONLY_ANSWERED, RequestPart, ResponseModel
from ricordo.api.models.memory import BlockRequest, BlockUpdate
from ricordo.api.models.turns import AsyncSendRequest, MessageRequest, SendRequest
from ricordo.api.models.warnings import HEADER
from ricordo.api.routing import GuardedRoute
from ricordo.api.search import MessageSearchRequest, PassageSearchRequest
from ricordo.features.custom_tools.source.models import ToolCreateRequest
from ricordo.features.files.folders.models import FolderRequest
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread

Wire = dict[str, Any]
HELLO = {"messages": [{"role": "user", "content": "Hello."}]}
# The request model, the client's type of the request, its route, and values that a parameter
# requires.
SENT: list[tuple[type[RequestPart], str, str, Wire]] = [
    (
        AgentRequest,
        "AgentCreateParams",
        "POST /v1/agents/",
        {"model": MODEL, "memory_blocks": [{"label": "notes", "value": "{{x}}"}]},
    ),
    (AgentUpdate, "AgentUpdateParams", "PATCH /v1/agents/{agent}", {}),
    (SendRequest, "agents.MessageStreamParams", "POST /v1/agents/{agent}/messages", HELLO),
    (SendRequest, "agents.MessageStreamParams", "POST /v1/agents/{agent}/messages/stream", HELLO),
    (
        AsyncSendRequest,
        "agents.MessageCreateAsyncParams",
        "POST /v1/agents/{agent}/messages/async",
        HELLO,
    ),
    (
        ConversationSendRequest,
        "conversations.MessageCreateParams",
        "POST /v1/conversations/{conversation}/messages",
        HELLO,
    ),
    (BlockRequest, "BlockCreateParams", "POST /v1/blocks/", {"label": "notes", "value": ""}),
    (BlockUpdate, "BlockUpdateParams", "PATCH /v1/blocks/{block}", {}),
    (
        ToolCreateRequest,
        "ToolUpsertParams",
        "PUT /v1/tools/",
        {"source_code": 'def a():\n    "B."'},
    ),
    (ArchiveRequest, "ArchiveCreateParams", "POST /v1/archives/", {"name": "Shelf"}),
    (ArchiveUpdate, "ArchiveUpdateParams", "PATCH /v1/archives/{archive}", {}),
    (FolderRequest, "FolderCreateParams", "POST /v1/folders/", {"name": "Folder"}),
    (
        ConversationRequest,
        "ConversationCreateParams",
        "POST /v1/conversations/?agent_id={agent}",
        {},
    ),
    (ConversationUpdate, "ConversationUpdateParams", "PATCH /v1/conversations/{conversation}", {}),
    (MessageSearchRequest, "MessageSearchParams", "POST /v1/messages/search", {"query": "tea"}),
    (PassageSearchRequest, "PassageSearchParams", "POST /v1/passages/search", {"query": "tea"}),
]
# Fields without effect that the newest client does not document: older clients and templates send
# them.
OLDER: Wire = {
    "template": True,
    "project": "x",
    "deployment_id": "x",
    "entity_id": "x",
    "include_multi_agent_tools": True,
}
# This field is refused. If it were ignored, data that must not be shared would be shared.
REFUSED = {"isolated_block_labels"}
EMPTY: dict[type, Any] = {list: [], dict: {}, bool: False, str: "", int: 0, float: 0.0}


@pytest.fixture
def ids(http: httpx2.Client) -> dict[str, str]:
    """The ids of one object of each kind."""
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))["id"]
    return {
        "agent": agent,
        "block": ok(http.post("/v1/blocks/", json={"label": "notes", "value": "Tea."}))["id"],
        "archive": ok(http.post("/v1/archives/", json={"name": "Shelf"}))["id"],
        "conversation": ok(http.post(f"/v1/conversations/?agent_id={agent}", json={}))["id"],
    }


def value_of(annotation: Any) -> Any:
    """Return some value of a type of the client."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return arguments[0]
    if origin in (Union, types.UnionType):
        return value_of(next(one for one in arguments if one is not type(None)))
    if is_typeddict(annotation):
        hints = get_type_hints(annotation)
        return {name: value_of(hints[name]) for name in annotation.__required_keys__}
    if origin is dict:
        return {"x": "y"}
    if arguments:
        return [value_of(arguments[0])]
    return {bool: True, int: 1, float: 1.0}.get(annotation, "x")


def parameters(name: str) -> Wire:
    """Return each parameter that a type of the client's documents, with some value."""
    module, _, kind = name.rpartition(".")
    documented = getattr(import_module(f"letta_client.types.{module}".removesuffix(".")), kind)
    hints = get_type_hints(documented)
    return {
        name: value_of(annotation)
        for name, annotation in hints.items()
        if name not in ("betas", "agent_id")
    }


def test_every_documented_client_parameter_is_accepted_or_named_in_a_warning(
    http: httpx2.Client, ids: dict[str, str]
) -> None:
    warned: set[str] = set()
    for model, name, place, beside in SENT:
        method, path = place.format(**ids).split(" ")
        more = (
            OLDER
            if model in (AgentRequest, AgentUpdate)
            else {"enable_thinking": "x"}
            if "Message" in name
            else {}
        )
        for parameter, value in (
            parameters(name) | {one: more[one] for one in more if one in model.ignored}
        ).items():
            if "name" in beside:
                beside = {**beside, "name": f"{name} {parameter}"}  # noqa: PLW2901 - names of folders are told apart
            answer = http.request(method, path, json={**beside, parameter: value})
            where = (name, parameter, answer.text[:300])
            if parameter in REFUSED:
                assert answer.status_code == 422, where
                continue
            assert "no such field" not in answer.text, where
            assert "not supported" not in answer.text, where
            if parameter in model.ignored:
                assert answer.status_code == 200, where
                assert f"{parameter}: {model.ignored[parameter]}" in answer.headers[HEADER], where
                warned.add(parameter)
                again = {"name": f"{name} {parameter} again"} if "name" in beside else {}
                off = http.request(
                    method, path, json={**beside, **again, parameter: EMPTY[type(value)]}
                )
                assert HEADER not in off.headers, where
    assert warned >= {
        *(
            "template",
            "template_id",
            "base_template_id",
            "project",
            "project_id",
            "entity_id",
            "embedding_chunk_size",
        ),
        *(
            "top_logprobs",
            "return_logprobs",
            "return_token_ids",
            "enable_thinking",
            "from_template",
        ),
        *("include_multi_agent_tools", "npm_requirements"),
    }


def test_a_query_parameter_without_effect_is_named_in_the_warnings(
    http: httpx2.Client, ids: dict[str, str]
) -> None:
    for path in ("/v1/agents/", "/v1/blocks/", f"/v1/agents/{ids['agent']}"):
        answer = http.get(path, params={"include_relationships": "tools", "project_id": "x"})
        assert answer.status_code == 200
        assert answer.headers[HEADER].count(": ") == 2
        assert HEADER not in http.get(path).headers
    refused = http.post("/v1/agents/", json={"model": MODEL, "projekt": "x"})
    assert (refused.status_code, "no such field" in refused.text) == (422, True)


def test_warnings_belong_to_one_request_and_are_sent_with_streams_too(
    http: httpx2.Client, ids: dict[str, str]
) -> None:
    body = {**HELLO, "enable_thinking": "x"}
    streamed = http.post(f"/v1/agents/{ids['agent']}/messages/stream", json=body)
    assert streamed.headers[HEADER].startswith("enable_thinking: ")
    assert HEADER not in http.post(f"/v1/agents/{ids['agent']}/messages/stream", json=HELLO).headers
    assert HEADER not in http.get("/v1/health/").headers
    both = http.post(
        "/v1/agents/", json={"model": MODEL, "project": "x", "project_id": "y", "template": True}
    )
    assert "project, project_id, template: There is one project" in both.headers[HEADER]


# Objects as the server returns them.


def test_a_returned_object_can_be_sent_back_to_update_or_create(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read each kind of object, and send it back to change it and to create another."""
    # The test fetches no packages.
    monkeypatch.setattr("ricordo.features.custom_tools.source.service.add_build", lambda *_: None)
    block = ok(
        http.post(
            "/v1/blocks/",
            json={"label": "human", "value": "Ada", "tags": ["a"], "metadata": {"b": 1}},
        )
    )
    source = 'def weather(town: str) -> str:\n    """Tell the weather."""\n    return town\n'
    tool = ok(
        http.post("/v1/tools/", json={"source_code": source, "pip_requirements": [{"name": "six"}]})
    )
    folder = ok(http.post("/v1/folders/", json={"name": "Papers", "description": "Of Ada."}))
    identity_of = {"identifier_key": "ada", "name": "Ada", "identity_type": "user"}
    identity = ok(http.post("/v1/identities/", json=identity_of))
    agent = ok(
        http.post(
            "/v1/agents/",
            json={
                "model": MODEL,
                "memory_blocks": [block],
                "tools": [tool],
                "tool_rules": [{"type": "exit_loop", "tool_name": "weather"}],
                "secrets": {"TOKEN": "x"},
                "identity_ids": [identity["id"]],
                "folder_ids": [folder["id"]],
            },
        )
    )
    assert [one["value"] for one in agent["blocks"]] == ["Ada"]
    archive = ok(http.post("/v1/archives/", json={"name": "Shelf", "metadata": {"a": 1}}))
    passage = ok(
        http.post(f"/v1/archives/{archive['id']}/passages", json={"text": "Tea.", "tags": ["a"]})
    )
    conversation = ok(
        http.post(f"/v1/conversations/?agent_id={agent['id']}", json={"summary": "A chat"})
    )
    schedule = {"type": "recurring", "cron_expression": "0 9 * * *"}
    made = ok(http.post(f"/v1/agents/{agent['id']}/schedule", json={**HELLO, "schedule": schedule}))
    planned = ok(http.get(f"/v1/agents/{agent['id']}/schedule/{made['id']}"))
    planned = {**planned, **planned["message"]}
    walks = [
        ("PATCH", f"/v1/blocks/{block['id']}", block),
        ("POST", "/v1/blocks/", block),
        ("PATCH", f"/v1/tools/{tool['id']}", tool),
        ("PUT", "/v1/tools/", tool),
        ("PATCH", f"/v1/folders/{folder['id']}", folder),
        ("POST", "/v1/folders/", {**folder, "name": "Others"}),
        ("PATCH", f"/v1/identities/{identity['id']}", identity),
        ("PUT", "/v1/identities/", identity),
        ("PATCH", f"/v1/agents/{agent['id']}", agent),
        ("POST", "/v1/agents/", agent),
        ("PATCH", f"/v1/archives/{archive['id']}", archive),
        ("POST", "/v1/archives/", archive),
        ("POST", f"/v1/archives/{archive['id']}/passages", passage),
        ("PATCH", f"/v1/conversations/{conversation['id']}", conversation),
        ("POST", f"/v1/conversations/?agent_id={agent['id']}", conversation),
        ("POST", f"/v1/agents/{agent['id']}/schedule", planned),
    ]
    for method, path, sent in walks:
        answer = http.request(method, path, json=sent)
        assert answer.status_code == 200, (method, path, answer.text)
        assert ONLY_ANSWERED in answer.headers.get(HEADER, ""), (method, path)
    # A client that sends an object back unchanged has not changed it.
    for method, path, sent in walks:
        if method == "PATCH":
            after = ok(http.get(path))
            changing = {"updated_at", "last_updated_by_id", "version", "agent_ids"}
            assert {name for name in sent if after[name] != sent[name]} <= changing, path


def test_returned_messages_can_be_sent_as_messages(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))
    server.says("Hello, Ada.")
    ok(http.post(f"/v1/agents/{agent['id']}/messages", json=HELLO))
    listed = ok(http.get(f"/v1/agents/{agent['id']}/messages"))
    roles = {"system_message": "system", "user_message": "user", "assistant_message": "assistant"}
    shown = [one for one in listed if one["message_type"] in roles]
    assert {one["message_type"] for one in shown} == {*roles}
    for one in shown:
        assert MessageRequest.model_validate(one).role == roles[one["message_type"]]
    other = ok(
        http.post("/v1/agents/", json={"model": MODEL, "initial_message_sequence": shown[1:]})
    )
    texts = [one["content"] for one in ok(http.get(f"/v1/agents/{other['id']}/messages"))]
    assert texts[1:] == [one["content"] for one in shown[1:]]
    server.says("Again.")
    answer = ok(
        http.post(
            f"/v1/agents/{other['id']}/messages", json={"messages": [shown[1] | {"otid": None}]}
        )
    )
    assert answer["messages"][-1]["content"] == "Again."


def _pairs(server: ServerInThread) -> Iterator[tuple[str, type[BaseModel], type[ResponseModel]]]:
    """Return each request with the response about the object that it creates or changes."""
    for route in server.app.routes:
        if not isinstance(route, GuardedRoute):
            continue
        body = getattr(route.api_route.body_field, "field_info", None)
        annotation = getattr(body, "annotation", None)
        models = (annotation, *get_args(annotation))
        request = next(
            (one for one in models if isinstance(one, type) and issubclass(one, RequestPart)), None
        )
        answer = route.response_model
        if request and isinstance(answer, type) and issubclass(answer, ResponseModel):
            yield f"{sorted(route.methods)[0]} {route.path}", request, answer


# Requests that need not accept the fields of their response, with the reason.
OTHERS = {
    "BatchRequest": "its requests are answered as counts",
    "FeedbackRequest": "is about a step, of which nothing else can be set",
    "NoteUpdate": "takes any field, as Open WebUI does",
    "ProposalRequest": "says an edit, and the answer what becomes of it",
}


def test_request_models_accept_the_response_models_they_resemble(
    server: ServerInThread,
) -> None:
    missing = []
    pairs = list(_pairs(server))
    assert len(pairs) > 20
    for place, request, answer in pairs:
        own = set(request.model_fields)
        is_same = len(own & set(answer.model_fields)) * 2 >= len(own) and len(own) > 1
        if request.__name__ in OTHERS:
            continue
        if (
            is_same
            and not set(answer.model_fields) <= own | set(request.ignored) | request.only_answered
        ):  # type: ignore[attr-defined]
            missing.append((place, request.__name__, answer.__name__))
    assert missing == []
