"""Bodies of requests.

Large ones are read in a thread, every list has a maximum length, and errors are short.
"""

import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from typing import Any

import httpx2
import orjson
import pytest
from fastapi._compat.v2 import ModelField
from letta_client.types import AgentState
from pydantic import BaseModel

from ricordo.api.models.base import MOST_ITEMS
from ricordo.domain.text import MOST_LEVELS
from ricordo.offload import SMALL
from tests.api.conftest import Api
from tests.campaigns.sizes import short_and_long
from tests.seams.http import bearer, refused
from tests.seams.routes import Cell, cells_of
from tests.seams.server import ServerInThread, StrictLetta, serving

CANARY = "vuqkzoqada-41"
# Error texts for people do not contain Python literals or names of Python types.
PYTHON = re.compile(
    r"\['|\{'|\('|<class|object at 0x|\bNone\b|\bTrue\b|\bFalse\b|Error\b|pydantic|Value error"
)
MEGABYTE = 1024 * 1024
JSON = {"content-type": "application/json"}


KEY = "administrator-of-these-tests"


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server with an administrator's key.

    Some requests create keys, and after the first key the server refuses requests without one.
    """
    with serving(tmp_path_factory.mktemp("data"), api_key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def running_http(running_server: ServerInThread) -> Iterator[httpx2.Client]:
    with running_server.http(headers=bearer(KEY)) as opened:
        yield opened


@pytest.fixture(scope="module")
def running_client(running_server: ServerInThread) -> Iterator[StrictLetta]:
    with running_server.client(api_key=KEY) as opened:
        yield opened


class _Values(dict[str, str]):
    """Values of path parameters; an id is of the right kind, and does not exist."""

    def __missing__(self, name: str) -> str:
        kind = name.removesuffix("_id")
        return (
            "Ada"
            if kind in ("user", "label", "block_label")
            else f"{kind}-123e4567-e89b-42d3-8456-426614174000"
        )


def _cells(server: ServerInThread) -> list[tuple[Cell, dict[str, Any]]]:
    """Return every route that takes JSON, with a valid body.

    MCP is left out: its SDK reads the body, and takes 64 kB at most.
    """
    found = [(cell, cell.parts(_Values())) for cell in cells_of(server.app) if cell.path != "/mcp"]
    with_body = [(cell, parts) for cell, parts in found if "json" in parts]
    assert len(with_body) > 40
    return with_body


def length_of(value: Any) -> int:
    """Return the total length of the texts in a JSON value."""
    if isinstance(value, dict):
        return sum(map(length_of, value.values()))
    if isinstance(value, list):
        return sum(map(length_of, value))
    return len(value) if isinstance(value, str) else 0


def test_no_route_reads_more_than_64_kb_on_the_event_loop(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def note(what: str) -> None:
        seen.append((what, threading.current_thread().name))

    def large(value: Any) -> bool:
        return isinstance(value, dict | list) and length_of(value) > SMALL

    def watched(module: Any) -> Any:
        loads = module.loads

        def read(content: Any, *given: Any, **named: Any) -> Any:
            if len(content) > SMALL:
                note("decoded")
            return loads(content, *given, **named)

        return read

    validate, model_validate = ModelField.validate, BaseModel.model_validate.__func__  # type: ignore[attr-defined]

    def validated(field: Any, value: Any, *given: Any, **named: Any) -> Any:
        if large(value):
            note("checked")
        return validate(field, value, *given, **named)

    def model_validated(cls: Any, value: Any, *given: Any, **named: Any) -> Any:
        if large(value):
            note("checked")
        return model_validate(cls, value, *given, **named)

    for cell, parts in _cells(server):
        body = parts.pop("json")
        long = {"name": "x" * 2 * SMALL}
        sent = json.dumps(
            {**body, "from_the_future": long} if isinstance(body, dict) else [*body, long]
        ).encode()
        with monkeypatch.context() as patch:
            patch.setattr(json, "loads", watched(json))
            patch.setattr(orjson, "loads", watched(orjson))
            patch.setattr(ModelField, "validate", validated)
            patch.setattr(BaseModel, "model_validate", classmethod(model_validated))
            answer = http.request(**parts, content=sent, headers=JSON)
        assert answer.status_code < 500, (cell, answer.text)
        assert "decoded" in {what for what, _ in seen}, (cell, answer.text)
        assert {thread[:7] for _, thread in seen} == {"offload"}, cell
        seen.clear()


def test_a_large_body_gets_the_same_response_as_a_small_one(
    http: httpx2.Client, agent: AgentState
) -> None:
    path = f"/v1/agents/{agent.id}/messages"
    padding = b" " * 2 * SMALL
    for content in (
        b'{"input": "Hello."}',
        b'{"input": 3}',
        b'{"messages": [{"role": "nobody", "content": "Hello."}]}',
        b'{"input": "Hello."',
        b"[" * 60_000,
        b'"\xff"',
        b"[1, 2]",
        b"null",
    ):
        answers = [
            http.post(path, content=sent, headers=JSON) for sent in (content, padding + content)
        ]
        assert answers[0].status_code == answers[1].status_code, content
        if answers[0].status_code != 200:
            small, large = (re.sub(r"\d+", "0", answer.text) for answer in answers)
            assert small == large, content
    for kind in ("text/plain", "application/octet-stream"):
        answer = http.post(
            path, content=b'{"input": "Hello."}' + padding, headers={"content-type": kind}
        )
        assert answer.status_code == 422


def test_deeply_nested_or_compressed_json_is_refused(
    http: httpx2.Client, agent: AgentState
) -> None:
    path = f"/v1/agents/{agent.id}/messages"
    for content in (b"[" * 1_000_000, b'{"a":' * 500_000, b'{"a": [' + b"[]," * 3_000_000 + b"0]}"):
        answer = http.post(path, content=content, headers=JSON)
        assert answer.status_code in (400, 422), answer.text
    assert "commas and brackets" in answer.json()["detail"]
    packed = gzip.compress(b'{"input": "' + b"x" * 10_000_000 + b'"}')
    answer = http.post(path, content=packed, headers={**JSON, "content-encoding": "gzip"})
    assert answer.status_code == 415


def test_a_body_with_a_wrong_or_too_large_length_is_refused(
    server: ServerInThread,
) -> None:
    head = "POST /v1/blocks/ HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\nauthorization: Bearer {KEY}\r\n"
    chunk = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
    for headers, body, statuses in (
        ("content-length: 2", b'{} and more: {"label": "a", "value": "b"}', (422,)),
        (f"content-length: {1 << 40}", b"{}", (413,)),
        ("content-length: -1", b"{}", (400,)),
        ("content-length: 2\r\ncontent-length: 20", b"{}", (400,)),
        ("content-length: 2\r\ntransfer-encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n", (400,)),
        ("transfer-encoding: chunked", chunk * 33, (413,)),
        ("transfer-encoding: chunked", b"-1\r\n{}", (400,)),
        ("transfer-encoding: gzip", b"{}", (400,)),
    ):
        with socket.create_connection(
            ("127.0.0.1", int(server.url.rpartition(":")[2])), 20
        ) as line:
            with suppress(ConnectionError):  # refused before all of it was sent
                line.sendall(head.encode() + headers.encode() + b"\r\n\r\n" + body)
            answer = HTTPResponse(line)
            answer.begin()
            text = answer.read()
        assert answer.status in statuses, (headers, text)
        assert statuses != (413,) or b"longer than 32 MB" in text, text


def test_large_bodies_share_one_memory_limit(server: ServerInThread, http: httpx2.Client) -> None:
    head = (
        "POST /v1/blocks/ HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer "
        f"{KEY}\r\nconnection: close\r\n"
    )
    sent = head.encode() + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
        30 * MEGABYTE
    )
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 20) as line:
        line.sendall(sent + b" " * 29 * MEGABYTE)
        for _ in range(2):
            answer = http.post("/v1/blocks/", content=b" " * 20 * MEGABYTE, headers=JSON)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert http.post("/v1/blocks/", content=b" " * 1000, headers=JSON).status_code == 422
        line.sendall(b" " * MEGABYTE)
        assert b" 422 " in line.recv(65536)
    assert http.post("/v1/blocks/", content=b" " * 20 * MEGABYTE, headers=JSON).status_code == 422


def test_a_request_takes_at_most_a_thousand_messages(api: Api, agent: AgentState) -> None:
    message = {"role": "user", "content": "Hi."}
    conversation = api.http.post(
        "/v1/conversations/", params={"agent_id": agent.id}, json={}
    ).json()["id"]
    rows = api.server.rows()
    for path in (f"/v1/agents/{agent.id}/messages", f"/v1/conversations/{conversation}/messages"):
        for name in ("", "/stream", "/async"):
            if name and "conversations" in path:
                continue
            told = refused(
                api.http.post(path + name, json={"messages": [message] * (MOST_ITEMS + 1)}), 422
            )
            assert "body.messages: List should have at most 1000 items" in told
    assert api.server.rows() == rows
    assert (
        api.http.post(
            path, json={"messages": [message] * MOST_ITEMS, "streaming": False}
        ).status_code
        == 200
    )


def _lists(
    schema: Any, document: Any, place: str, seen: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Return the positions of unlimited lists in the schema."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        if name not in seen:
            yield from _lists(
                document["components"]["schemas"][name], document, place, seen | {name}
            )
        return
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield place
    for name, inner in schema.get("properties", {}).items():
        yield from _lists(inner, document, f"{place} {name}", seen)
    for inner in (
        *schema.get("anyOf", ()),
        *schema.get("oneOf", ()),
        *([schema["items"]] if "items" in schema else ()),
    ):
        yield from _lists(inner, document, place, seen)


def test_every_list_in_a_request_has_a_maximum_length(server: ServerInThread) -> None:
    document = server.app.openapi()
    found = {
        place
        for path, item in document["paths"].items()
        for method, operation in item.items()
        for kind, content in operation.get("requestBody", {}).get("content", {}).items()
        if kind == "application/json"
        for place in _lists(content["schema"], document, f"{method.upper()} {path}")
    }
    assert found == set()


WRONG: tuple[Any, ...] = (
    None,
    True,
    3.5,
    -1,
    "",
    CANARY,
    [CANARY],
    [[CANARY]],
    {CANARY: CANARY},
    [{"type": CANARY}],
)


@pytest.mark.parametrize(("some", "share"), short_and_long((1, 4), (len(WRONG), 1)))
def test_validation_errors_name_the_place_and_never_repeat_the_input(
    server: ServerInThread, http: httpx2.Client, some: int, share: int
) -> None:
    """The suite tests each body and every fourth of its fields.

    The long form tests all fields.
    """
    document = server.app.openapi()
    told = 0
    for cell, parts in _cells(server):
        body = parts.pop("json")
        names = {*_fields(document, cell), *(body if isinstance(body, dict) else ())}
        # In the short form each field gets only some of the wrong values, since few types of fields
        # exist.
        bodies = [WRONG[(told + number) % len(WRONG)] for number in range(some)]
        if isinstance(body, dict):
            bodies += [
                {**body, name: WRONG[(told + place + number) % len(WRONG)]}
                for place, name in enumerate(sorted(names)[::share])
                for number in range(some)
            ]
        for sent in bodies:
            answer = http.request(**parts, content=json.dumps(sent), headers=JSON)
            assert answer.status_code < 500 or answer.json().get("error"), (cell, sent, answer.text)
            if answer.status_code == 422 and "errors" in answer.json():
                told += 1
                refusal = answer.json()
                assert CANARY not in "".join(fault["msg"] for fault in refusal["errors"]), (
                    cell,
                    sent,
                    refusal,
                )
                places = [".".join(map(str, fault["loc"])) for fault in refusal["errors"]]
                sentences = [
                    f"{place}: {fault['msg']}"
                    for place, fault in zip(places, refusal["errors"], strict=True)
                ]
                assert refusal["detail"] == f"INVALID_ARGUMENT: {'; '.join(sentences)}"
            if answer.status_code in (400, 422):
                # Errors of OpenAI's routes have the form that OpenAI's clients read.
                words = answer.json()
                words = words["error"]["message"] if "error" in words else words["detail"]
                assert not PYTHON.search(words), (cell, sent, answer.text)
    assert told > 150 * some / share


def _fields(document: Any, cell: Cell) -> set[str]:
    path = re.sub(r"\{(\w+):\w+\}", r"{\1}", cell.path)
    operation = document["paths"].get(path, {}).get(cell.method.lower(), {})
    schema = (
        operation.get("requestBody", {})
        .get("content", {})
        .get("application/json", {})
        .get("schema", {})
    )
    names: set[str] = set()
    for part in (schema, *schema.get("anyOf", ())):
        name = part.get("$ref", "").rpartition("/")[2]
        names |= (
            (document["components"]["schemas"][name] if name else part).get("properties", {}).keys()
        )
    return names


def test_a_refusal_lists_only_the_first_of_many_errors(
    http: httpx2.Client, agent: AgentState
) -> None:
    wrong = {"role": CANARY * 1000, "content": {"x" * 1000: 1}}
    answer = http.post(f"/v1/agents/{agent.id}/messages", json={"messages": [wrong] * MOST_ITEMS})
    assert answer.status_code == 422
    assert len(answer.content) < 20_000
    assert len(answer.json()["errors"]) == 20
    assert re.search(r"; and \d+ more$", answer.json()["detail"])
    answer = http.post("/v1/agents/", json={"tool_ids": [["x"]], "tags": 3, "y" * 100_000: {}})
    assert answer.status_code == 422
    assert len(answer.content) < 2_000


@pytest.mark.parametrize("levels", [MOST_LEVELS, MOST_LEVELS + 1, 253, 500, 900])
def test_deep_nesting_is_refused_or_cut_and_all_that_is_stored_can_be_read(
    api: Api, agent: AgentState, levels: int
) -> None:
    nested: Any = 7
    for _ in range(levels - 1):
        nested = {"a": nested}
    chat = {"model": agent.id, "messages": [{"role": "user", "content": "Hello."}]}
    strict: list[tuple[str, str, dict[str, Any]]] = [
        ("PATCH", f"/v1/agents/{agent.id}", {}),
        ("POST", "/v1/blocks/", {"label": "tea", "value": "Jasmine."}),
        ("POST", "/v1/archives/", {"name": "tea"}),
    ]
    for method, path, body in strict:
        answer = api.http.request(method, path, json={**body, "metadata": nested})
        assert answer.status_code == (200 if levels <= MOST_LEVELS else 422), answer.text

    answer = api.http.post("/v1/chat/completions", json={**chat, "metadata": nested})

    assert answer.status_code == 200, answer.text
    for path in (f"/v1/agents/{agent.id}", f"/v1/agents/{agent.id}/export", "/v1/blocks/"):
        assert api.http.get(path).status_code == 200
