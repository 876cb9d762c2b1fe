"""Bad input and failures: the errors that clients of the retired Letta V1 server know.

Nothing is left half done.
"""

import gc
import gzip
import json
import re
from pathlib import Path
from secrets import token_hex
from typing import Any, get_args

import httpx2
import letta_client
import pytest
from letta_client import APIStatusError
from letta_client.types import AgentState

from ricordo.domain.ids import new_id
from ricordo.errors import Forbidden, ModelError, ModelErrorKind, RicordoError, Unavailable
from ricordo.offload import SMALL
from ricordo.storage import keys
from tests.api.conftest import Api
from tests.seams.http import ok, refused
from tests.seams.server import MODEL, ServerInThread, serving

JSON = {"content-type": "application/json"}
# Routes on which the named object is missing; the other ids exist.
MISSING = {
    "Agent with ID {no-agent} not found": """
        GET|PATCH|DELETE /agents/{no-agent}
        GET|POST /agents/{no-agent}/messages
        POST /agents/{no-agent}/messages/stream
        POST /agents/{no-agent}/messages/cancel
        PATCH /agents/{no-agent}/reset-messages
        GET /agents/{no-agent}/core-memory
        GET /agents/{no-agent}/core-memory/blocks
        GET|PATCH /agents/{no-agent}/core-memory/blocks/human
        PATCH /agents/{no-agent}/core-memory/blocks/attach/{block}
        PATCH /agents/{no-agent}/core-memory/blocks/detach/{block}
        GET /agents/{no-agent}/tools
        PATCH /agents/{no-agent}/tools/attach/{tool}
        PATCH /agents/{no-agent}/tools/detach/{tool}
        PATCH /agents/{no-agent}/archives/attach/{archive}
        PATCH /agents/{no-agent}/archives/detach/{archive}
        GET|POST /agents/{no-agent}/archival-memory
        GET /agents/{no-agent}/archival-memory/search?query=tea
        DELETE /agents/{no-agent}/archival-memory/{no-passage}
        POST /conversations/?agent_id={no-agent}""",
    "Tool with ID {no-tool} not found": """
        GET /tools/{no-tool}
        PATCH /agents/{agent}/tools/attach/{no-tool}
        PATCH /agents/{agent}/tools/detach/{no-tool}""",
    "Block with id '{no-block}' not found": "GET /blocks/{no-block}",
    "Archive with ID {no-archive} not found": """
        GET /archives/{no-archive}
        GET /archives/{no-archive}/agents
        PATCH /agents/{agent}/archives/attach/{no-archive}
        PATCH /agents/{agent}/archives/detach/{no-archive}
        POST /archives/{no-archive}/passages
        POST /archives/{no-archive}/passages/batch""",
    "Run with ID {no-run} not found": """
        GET|DELETE /runs/{no-run}
        GET /runs/{no-run}/messages
        GET /runs/{no-run}/usage
        GET /runs/{no-run}/steps
        GET /runs/{no-run}/metrics""",
    "Step with ID {no-step} not found": """
        GET /steps/{no-step}
        GET /steps/{no-step}/metrics
        GET /steps/{no-step}/messages
        PATCH /steps/{no-step}/feedback""",
    "Message with ID {no-message} not found": "GET /messages/{no-message}/memory",
    "Conversation with ID {no-conv} not found": """
        GET /conversations/{no-conv}
        POST /conversations/{no-conv}/messages""",
}
# A sufficient body for these routes, by the last word of the route's path.
ENOUGH = {"messages": {"input": "Hello."}, "memory": {"text": "Tea"}, "passages": {"text": "Tea"}}
ENOUGH |= {
    "stream": {"input": "Hello."},
    "async": {"input": "Hello."},
    "batch": {"passages": [{"text": "Tea"}]},
}


def test_an_id_of_nothing_is_not_found_on_every_route(api: Api, agent: AgentState) -> None:
    ids = {
        f"no-{kind}": new_id(kind)
        for kind in "agent tool block archive run step message conv passage".split()
    }
    ids |= {"agent": agent.id, "tool": agent.tools[0].id, "block": agent.blocks[0].id or ""}
    ids["archive"] = api.client.archives.create(name="Notes").id
    rows = api.server.rows()
    for text, routes in MISSING.items():
        lines = [line.split() for line in routes.strip().splitlines()]
        for method, path in (
            (method, path) for methods, path in lines for method in methods.split("|")
        ):
            body = (
                None if method in ("GET", "DELETE") else ENOUGH.get(re.split("[/-]", path)[-1], {})
            )
            answer = api.http.request(method, "/v1" + path.format_map(ids), json=body)
            words = refused(answer, 404)
            assert words.startswith(f"NOT_FOUND: {text.format_map(ids)}"), (method, path, words)
    assert api.server.rows() == rows


def test_a_malformed_id_is_refused_with_an_example(http: httpx2.Client) -> None:
    for kind, path in (
        ("agent", "/v1/agents/nonsense"),
        ("agent", "/v1/agents/a%00b/messages"),
        ("agent", f"/v1/agents/{new_id('agent').upper()}"),
        ("tool", f"/v1/tools/{new_id('agent')}"),
        ("source", "/v1/folders/1"),
        ("run", "/v1/runs/run-1/messages"),
    ):
        answer = http.get(path)
        assert refused(answer, 422).endswith(
            f"This is not an id: it is {kind}- and a lower-case UUID of version 4"
        ), path
        assert answer.json()["examples"] == [f"{kind}-123e4567-e89b-42d3-8456-426614174000"]


REFUSED: list[tuple[str, str, object, int]] = [
    ("POST", "/agents/{agent}/archival-memory", {"text": ""}, 422),
    ("POST", "/agents/{agent}/archival-memory", {"tags": ["x"]}, 422),
    ("POST", "/agents/{agent}/archival-memory", {"text": "Tea", "tags": "x"}, 422),
    (
        "POST",
        "/agents/{agent}/archival-memory",
        {"text": "Tea", "created_at": "9999-12-31T23:59:59-12:00"},
        400,
    ),
    ("GET", "/agents/{agent}/archival-memory/search", None, 422),
    ("GET", "/agents/{agent}/archival-memory/search?query=x&top_k=0", None, 422),
    ("GET", "/agents/{agent}/archival-memory/search?query=x&top_k=101", None, 422),
    ("GET", "/agents/{agent}/archival-memory/search?query=x&tag_match_mode=some", None, 422),
    ("POST", "/passages/search", {"query": "tea", "archive_id": new_id("archive")}, 404),
    ("POST", "/messages/search", {"query": "tea", "roles": ["tool"]}, 422),
    ("POST", "/agents/", {"model": MODEL, "model_settings": {"effort": True}}, 422),
    *(
        ("POST", f"/{path}/search", {"query": "tea", **body}, status)
        for path in ("messages", "agents/messages", "passages")
        for body, status in (
            ({"limit": 0}, 422),
            ({"limit": 101}, 422),
            ({"search_mode": "magic"}, 422),
            ({"start_date": "yesterday"}, 400),
            ({"end_date": "32.13.2025"}, 400),
            ({"agent_id": new_id("agent")}, 404),
        )
    ),
]


def test_invalid_requests_are_refused_and_change_nothing(api: Api, agent: AgentState) -> None:
    rows = api.server.rows()
    for method, path, body, status in REFUSED:
        answer = api.http.request(method, "/v1" + path.format(agent=agent.id), json=body)
        assert answer.status_code == status, (path, body, answer.text)
    assert api.server.rows() == rows


def test_unknown_routes_and_methods_are_refused(http: httpx2.Client) -> None:
    unknown, wrong = (
        [http.get(path) for path in ("/v1/nothing", "/nothing", "/background/nothing")],
        http.put("/v1/agents/"),
    )
    for answer, status in (*((one, 404) for one in unknown), (wrong, 405)):
        words = refused(answer, status)
        assert words.startswith(
            f"There is no route {answer.request.method} {answer.request.url.path} here. "
            "docs/develop/"
        )


def test_a_line_feed_as_id_is_not_answered_with_the_list(http: httpx2.Client) -> None:
    for path in ("/v1/keys/", "/v1/tools/", "/v1/agents/"):
        for _ in ("when the route is not built yet", "when it is"):
            assert http.get(f"{path}%0A").status_code in (404, 422), path
            assert ok(http.get(path)) is not None


def test_a_malformed_message_is_refused_with_its_faults(api: Api, agent: AgentState) -> None:
    rows = api.server.rows()
    for content, headers, fault in (
        (b'{"messages": [', JSON, "body.14: JSON decode error"),
        (b"", {}, "body: Field required"),
        (b"[]", JSON, "body: Input should be a valid dictionary"),
        (
            b'{"input": "hi"}',
            {"content-type": "text/plain"},
            "body: Only JSON is read here. Send the header Content-Type: application/json",
        ),
        (b'{"messages": ["hi"]}', JSON, "body.messages.0.message: "),
        (b'{"messages": "hi"}', JSON, "body.messages: Input should be a valid list"),
        (
            b'{"messages": [{"role": "user"}]}',
            JSON,
            "body.messages.0.message.content: Field required",
        ),
        (
            b'{"messages": [{"role": "tool", "content": "x"}]}',
            JSON,
            "body.messages.0.message.role: Input should be",
        ),
        (
            b'{"messages": [{"type": "strange"}]}',
            JSON,
            "body.messages.0: Input tag is none of the expected tags: 'message', 'approval'",
        ),
        (
            b'{"input": "x", "max_steps": 0}',
            JSON,
            "body.max_steps: Input should be greater than or equal to 1",
        ),
        (
            b'{"input": "x", "max_steps": "many"}',
            JSON,
            "body.max_steps: Input should be a valid integer",
        ),
        (b'{"input": "\\ud83d"}', JSON, "body: cannot be stored"),
    ):
        answer = api.http.post(f"/v1/agents/{agent.id}/messages", content=content, headers=headers)
        assert (answer.status_code, answer.json()["trace_id"]) == (422, ""), content
        assert answer.json()["detail"].startswith(f"INVALID_ARGUMENT: {fault}"), (
            content,
            answer.json(),
        )
        assert answer.json().keys() == {"trace_id", "detail", "errors"}
    assert api.server.rows() == rows


def test_a_refusal_names_all_errors_and_does_not_repeat_the_input(http: httpx2.Client) -> None:
    answer = http.post("/v1/blocks/", json={"label": 5, "value": ["a secret"]})
    assert answer.json()["detail"] == (
        "INVALID_ARGUMENT: body.label: Input should be a valid string; body.value: Input should "
        "be a valid string"
    )


@pytest.mark.parametrize(
    "content", [b'{"input": "\xff"}', b'{"input":' + b"[" * 20_000 + b"]" * 20_000 + b"}"]
)
def test_an_undecodable_or_too_deep_body_is_refused(
    http: httpx2.Client, agent: AgentState, content: bytes
) -> None:
    # The parser uses the whole stack. If the garbage collector ran there, the code that it calls
    # would find no room on the stack.
    gc.disable()
    try:
        answer = http.post(f"/v1/agents/{agent.id}/messages", content=content, headers=JSON)
    finally:
        gc.enable()

    assert answer.status_code == 400
    assert answer.json() == {"detail": "There was an error parsing the body"}


def test_a_form_field_without_a_file_says_how_to_send_one(http: httpx2.Client) -> None:
    # `curl -F file=notes.md` sends the name as text.
    text_field = {"file": (None, "notes.md")}
    folder = ok(http.post("/v1/folders/", json={"name": "Notes"}))["id"]
    for path in (f"/v1/folders/{folder}/upload", "/v1/agents/import", "/v1/skills"):
        answer = http.post(path, files=text_field)
        assert "body.file: Send it as a file with a name, as `curl -F" in refused(answer, 422)


def test_a_compressed_body_is_refused_as_such(http: httpx2.Client, agent: AgentState) -> None:
    for size in (1, SMALL):
        content = gzip.compress(json.dumps({"input": token_hex(size)}).encode())
        headers = JSON | {"content-encoding": "gzip"}
        answer = http.post(f"/v1/agents/{agent.id}/messages", content=content, headers=headers)

        assert answer.status_code == 415
        assert answer.json() == {
            "detail": "Compressed requests are not read here. Send the body without Content-Encoding."
        }


DECISION = {"type": "approval", "tool_call_id": "x", "approve": True}
NONSENSE: list[tuple[dict[str, Any], int, str]] = [
    ({}, 422, "Must specify either 'input' or 'messages'."),
    (
        {"input": "Hello.", "messages": [{"role": "user", "content": "Hello."}]},
        422,
        "Must specify either 'input' or",
    ),
    ({"messages": []}, 400, "There is no message to answer. Send at least one"),
    ({"messages": [{"approve": False}]}, 400, "No tool call is currently awaiting approval"),
    (
        {"messages": [{"type": "approval", "approvals": [DECISION]}]},
        400,
        "No tool call is currently awaiting approval",
    ),
    (
        {"input": [{"type": "image", "source": {"type": "url"}}]},
        400,
        "A picture needs its data in base64, or its url",
    ),
]


def test_an_invalid_message_is_refused_before_the_model_is_asked(
    api: Api, agent: AgentState
) -> None:
    rows = api.server.rows()
    for path in ("messages", "messages/stream"):
        for body, status, text in NONSENSE:
            words = refused(api.http.post(f"/v1/agents/{agent.id}/{path}", json=body), status)
            assert words.startswith(f"INVALID_ARGUMENT: {text}"), (path, body)
    assert api.server.rows() == rows
    assert api.server.model.requests == []


IMPOSSIBLE_AGENTS: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "x/y"}, 404, "NOT_FOUND: Handle x/y not found, must be one of ["),
    ({"model": "gpt"}, 404, "NOT_FOUND: Handle gpt not found, must be one of ["),
    (
        {"model": "openai/gpt-4.1"},
        404,
        "NOT_FOUND: Handle openai/gpt-4.1 not found, must be one of [",
    ),
    (
        {"tools": ["no_such_tool", "nor_this"]},
        404,
        "NOT_FOUND: Tool with name no_such_tool, nor_this not found",
    ),
    ({"tool_ids": ["tool-x"]}, 404, "NOT_FOUND: Tool with ID tool-x not found"),
    ({"block_ids": ["block-x"]}, 404, "NOT_FOUND: Block with "),
    (
        {"memory_blocks": [{"label": "human", "value": ""}]},
        400,
        'INVALID_ARGUMENT: Two blocks are labelled "human".',
    ),
    (
        {"agent_type": "voice_convo_agent"},
        422,
        "INVALID_ARGUMENT: A voice_convo_agent needs another agent",
    ),
    (
        {"timezone": "../../etc/passwd"},
        400,
        'INVALID_ARGUMENT: Time zone "../../etc/passwd" is unknown.',
    ),
]


def test_nan_and_infinite_numbers_are_refused(http: httpx2.Client, server: ServerInThread) -> None:
    rows = server.rows()
    for number in ("NaN", "Infinity", "-Infinity", '"1e400"', "1e400"):
        for place in ("model_settings", "llm_config"):
            body = f'{{"model": "{MODEL}", "{place}": {{"temperature": {number}}}}}'
            answer = http.post("/v1/agents/", content=body, headers=JSON)
            assert f"{place}.temperature: Input should be a finite number" in refused(
                answer, 422
            ), body
    assert server.rows() == rows


def test_a_refusal_that_quotes_a_lone_surrogate_is_readable(http: httpx2.Client) -> None:
    answer = http.put(
        "/users/ada/blocks/notes", content=rb'{"body": "", "schema_ref": "x\ud800"}', headers=JSON
    )
    assert 'There is no block schema "x?"' in refused(answer, 400)


def test_a_stream_cannot_be_resumed_after_an_impossible_event_number(
    api: Api, agent: AgentState
) -> None:
    said = {
        "messages": [{"role": "user", "content": "Hello."}],
        "background": True,
        "streaming": True,
    }
    assert "[DONE]" in api.http.post(f"/v1/agents/{agent.id}/messages", json=said).text
    (run,) = ok(api.http.get("/v1/runs/", params={"agent_id": agent.id}))
    for number in (2**63, 2**64, 10**30):
        for path in (f"/v1/runs/{run['id']}/stream", "/v1/conversations/default/stream"):
            answer = api.http.post(path, json={"starting_after": number, "agent_id": agent.id})
            assert "starting_after" in refused(answer, 422), number


def test_an_invalid_agent_is_refused_and_nothing_of_it_is_stored(api: Api) -> None:
    rows = api.server.rows()
    for body, status, text in IMPOSSIBLE_AGENTS:
        blocks = [{"label": "human", "value": "Ada", "tags": ["x"]}, *body.get("memory_blocks", [])]
        sent = {"model": MODEL, "tags": ["t"], **body, "memory_blocks": blocks}
        answer = api.http.post("/v1/agents/", json=sent)
        assert (answer.status_code, answer.json()["detail"][: len(text)]) == (status, text), body
        assert api.server.rows() == rows, body


MALFORMED_AGENTS: list[tuple[dict[str, Any], str]] = [
    ({"agent_type": "strange"}, "body.agent_type"),
    ({"name": "x" * 257}, "body.name"),
    ({"context_window_limit": 100}, "body.context_window_limit"),
    ({"context_window_limit": 2**63}, "body.context_window_limit"),
    ({"memory_blocks": [{"label": "human"}]}, "body.memory_blocks.0.value"),
    (
        {"memory_blocks": [{"label": "human", "value": "", "limit": -1}]},
        "body.memory_blocks.0.limit",
    ),
    (
        {"memory_blocks": [{"label": "human", "value": "", "limit": 2**63}]},
        "body.memory_blocks.0.limit",
    ),
    ({"model_settings": {"temperature": "hot"}}, "body.model_settings.temperature"),
    ({"model_settings": {"max_output_tokens": 0}}, "body.model_settings.max_output_tokens"),
    ({"model_settings": {"reasoning": "hard"}}, "body.model_settings.reasoning"),
    (
        {"model_settings": {"thinking": {"budget_tokens": "x"}}},
        "body.model_settings.thinking.budget_tokens",
    ),
    ({"llm_config": {"handle": 5}}, "body.llm_config.handle"),
    ({"embedding_config": {"handle": 5}}, "body.embedding_config.handle"),
    ({"max_tokens": -1}, "body.max_tokens"),
    ({"metadata": []}, "body.metadata"),
    ({"metadata": {"n": 2**70}}, "body"),
    ({"tags": "x"}, "body.tags"),
]


def test_a_malformed_agent_is_refused_with_the_place_of_the_error(
    http: httpx2.Client, server: ServerInThread
) -> None:
    rows = server.rows()
    for body, place in MALFORMED_AGENTS:
        answer = http.post("/v1/agents/", json={"model": MODEL, **body})
        assert answer.status_code == 422, body
        assert answer.json()["detail"].startswith(f"INVALID_ARGUMENT: {place}: "), (
            body,
            answer.json(),
        )
    assert server.rows() == rows


IMPOSSIBLE_CHANGES: list[tuple[dict[str, Any], int]] = [
    ({"model": "x/y"}, 404),
    ({"tool_ids": ["tool-x"]}, 404),
    ({"block_ids": ["block-x"]}, 404),
    ({"timezone": "Mars/Base"}, 400),
    ({"model_settings": {"temperature": "hot"}}, 422),
    ({"message_ids": ["message-1"]}, 400),
]


def test_an_invalid_update_leaves_the_agent_unchanged(api: Api, agent: AgentState) -> None:
    before, rows = api.client.agents.retrieve(agent.id).to_dict(), api.server.rows()
    for body, status in IMPOSSIBLE_CHANGES:
        answer = api.http.patch(
            f"/v1/agents/{agent.id}", json={"name": "Half", "tags": ["half"], **body}
        )
        assert answer.status_code == status, body
        assert api.client.agents.retrieve(agent.id).to_dict() == before, body
    assert api.server.rows() == rows


MODEL_ERRORS: dict[ModelErrorKind, tuple[int, type[APIStatusError]]] = {
    "llm_timeout": (504, letta_client.InternalServerError),
    "llm_rate_limit": (429, letta_client.RateLimitError),
    "llm_authentication": (401, letta_client.AuthenticationError),
    "llm_insufficient_credits": (402, APIStatusError),
    "llm_bad_request": (400, letta_client.BadRequestError),
    "llm_empty_response": (500, letta_client.InternalServerError),
    "llm_error": (500, letta_client.InternalServerError),
}


def test_a_model_error_is_returned_with_its_message_and_not_retried(api: Api) -> None:
    assert MODEL_ERRORS.keys() | {"context_window_exceeded"} == set(get_args(ModelErrorKind))
    for kind, (status, error) in MODEL_ERRORS.items():
        # A later turn of the same agent would be tried without the messages of the failed one.
        agent = api.client.agents.create(model=MODEL)
        api.server.forget()
        api.server.says(ModelError(kind, "The provider said no."))
        with pytest.raises(error) as caught:
            api.client.with_options(max_retries=2).agents.messages.create(agent.id, input="Hello.")
        assert caught.value.status_code == status
        assert caught.value.body == {
            "error": {"type": kind, "message": "The provider said no.", "detail": None}
        }
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert len(api.server.model.requests) == 1


def test_an_error_in_a_turn_is_returned_without_internal_details(
    api: Api, agent: AgentState
) -> None:
    for error, status, detail in (
        (
            ModelError("context_window_exceeded", "Too long."),
            400,
            "CONTEXT_WINDOW_EXCEEDED: Too long.",
        ),
        (RuntimeError("secret words"), 500, "An unknown error occurred"),
        (Unavailable("The sandbox is down."), 500, "The sandbox is down."),
    ):
        api.server.forget()
        api.server.says(*[error] * 5)
        answer = api.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello."})
        assert (answer.status_code, answer.json()) == (status, {"detail": detail})
        assert bool(api.server.provoked()) is (status == 500)


def test_every_error_of_a_route_has_a_status_and_no_traceback(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status, detail in (
        (Forbidden("Not yours."), 403, "Not yours."),
        (Unavailable("Shutting down."), 503, "Shutting down."),
        (RicordoError("Odd."), 500, "INTERNAL_SERVER_ERROR: Odd."),
        (ValueError("secret words"), 500, "An unknown error occurred"),
    ):

        async def fail(work: Any, error: Exception = error, **_options: Any) -> Any:
            if work is keys.are_any:  # The guard runs this statement once a second.
                return False
            raise error

        monkeypatch.setattr(server.runtime.store, "read", fail)
        # The test uses a separate connection, since the server closes it after an unexpected error.
        with server.http() as http:
            answer = http.get("/v1/agents/count")
        assert (answer.status_code, answer.json()) == (status, {"detail": detail})
        assert [fault.partition(": ")[0] for fault in server.provoked()] == [
            "GET /v1/agents/count?"
        ] * (status >= 500)


def test_the_test_server_fails_to_stop_after_an_unprovoked_500(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server, server.http() as http:
        errors = (RuntimeError("secret words"), ModelError("llm_error", "The provider said no."))
        for error in errors:
            server.says(error)
            made = ok(http.post("/v1/agents/", json={"model": MODEL}))
            answer = http.post(f"/v1/agents/{made['id']}/messages", json={"input": "Hello."})
            assert answer.status_code == 500
        with pytest.raises(AssertionError, match="An unknown error occurred") as caught:
            server.stop()
        assert len(server.provoked()) == str(caught.value).count("POST") == 1


def test_a_stopping_server_refuses_new_turns(
    api: Api, agent: AgentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = api.server.rows()
    monkeypatch.setattr(api.server.runtime, "is_stopping", True)
    words = refused(api.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello."}), 503)
    assert words.startswith("The server is shutting down.")
    assert api.server.rows() == rows
