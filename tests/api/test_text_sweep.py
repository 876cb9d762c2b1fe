"""Unusual text in every writable field.

Whatever the server accepts, it stores and shows in the normal form.
"""

import importlib
import pkgutil
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

import ricordo.api.models
import ricordo.features
from ricordo.api.models.base import RequestModel
from ricordo.domain.ids import new_id
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.routes import BODIES, fill
from tests.seams.server import MODEL

# Composed and decomposed letters, ends of lines of all systems, a byte order mark.
LINES = "\ufeffGru\u0308ße\r\nZoe\u0308\rend"
NAME = "\u200b\ufeffGru\u0308ße"
WRONG = re.compile("[\u0300-\u036f\ufeff\r]")
# Fields without people's text: programs, addresses, keys, times, and references to objects.
NO_TEXT = re.compile(
    r"(^|_)(id|ids|url|uri|address|model|handle|embedding|cron\w*|schedule|timezone|source_code|api_key|token|secret\w*|key"
    r"|version|sha|type|role|status|signature|data|email|tool_name|before|after|start\w*|end\w*|base64|format|expires?\w*|otid"
    r"|created_at|schema_ref|provider|labels|user|recipients|policy|hostname|source|template|project|run_ids|agent|parameters|otids|origin|command|auth\w*|file|quote)$"
)
NAMES = ("name", "label", "title", "tag", "tags", "file_name", "identifier", "identifier_key")
WRITING = ("post", "put", "patch")
# Routes that run a program, ask another server, or copy all stored data.
LEFT_OUT = re.compile(
    r"/run|/mcp|backups|batches|/generate|/embeddings|/organizations|/keys|preview|/remotes|/erase|restore|reindex"
)


class Fields:
    """The fields of a request's body, with unusual text in each field for free text."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def of(self, schema: Mapping[str, Any], name: str = "", depth: int = 0) -> Any:
        """Return a value that fits the schema, or None if it accepts no value of this test."""
        if "$ref" in schema:
            return self.of(
                self._document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]],
                name,
                depth,
            )
        for option in schema.get("anyOf", schema.get("oneOf", ())):
            if (value := self.of(option, name, depth)) is not None:
                return value
        kind = schema.get("type")
        if (
            kind == "string"
            and not {"enum", "const", "format", "pattern"} & schema.keys()
            and not NO_TEXT.search(name)
        ):
            most = schema.get("maxLength", 1000)
            return NAME if most < 300 or name in NAMES else LINES
        if (
            kind == "array"
            and depth < 3
            and (item := self.of(schema.get("items", {}), name, depth + 1)) is not None
        ):
            return [item]
        if kind == "object" and depth < 3 and "properties" in schema:
            values = {
                key: self.of(each, key, depth + 1) for key, each in schema["properties"].items()
            }
            kept = {key: value for key, value in values.items() if value is not None}
            is_whole = depth == 0 or kept.keys() >= {*schema.get("required", ())}
            return kept if is_whole else None
        if kind == "object" and name == "metadata":
            return {NAME: [LINES]}
        return None


def merged(given: Any, odd: Any) -> Any:
    """Return the given body with unusual text.

    The unusual text is added in missing fields, and replaces meaningless texts.
    """
    if isinstance(given, dict) and isinstance(odd, dict):
        kept = {
            name: value for name, value in odd.items() if name not in given and value is not None
        }
        return {**{name: merged(value, odd.get(name)) for name, value in given.items()}, **kept}
    if isinstance(given, list) and isinstance(odd, list) and given and odd:
        return [merged(given[0], odd[0])]
    return odd if given == "text" and odd is not None else given


@pytest.fixture
def values(api: Api) -> dict[str, str]:
    """Make objects to write to, by the names of route parameters."""
    http = api.http
    agent = ok(
        http.post(
            "/v1/agents/",
            json={"name": "A", "model": MODEL, "memory_blocks": [{"label": "human", "value": "x"}]},
        )
    )
    block = ok(http.post("/v1/blocks/", json={"label": "b", "value": "x"}))
    archive = ok(http.post("/v1/archives/", json={"name": "x"}))
    folder = ok(http.post("/v1/folders/", json={"name": "x"}))
    conversation = ok(http.post("/v1/conversations/", params={"agent_id": agent["id"]}, json={}))
    identity = ok(
        http.post(
            "/v1/identities/",
            json={"name": "x", "identifier_key": new_id("eve"), "identity_type": "user"},
        )
    )
    tool = ok(http.post("/v1/tools/", json={"source_code": "def mine():\n    'Mine.'"}))
    template = ok(http.post("/v1/templates", json={"type": "agent", "agent_id": agent["id"]}))
    return {
        **{
            "agent_id": agent["id"],
            "model_id": agent["id"],
            "block_id": block["id"],
            "archive_id": archive["id"],
        },
        **{
            "folder_id": folder["id"],
            "source_id": folder["id"],
            "conversation_id": conversation["id"],
        },
        **{
            "identity_id": identity["id"],
            "tool_id": tool["id"],
            "template_name": template["name"],
            "tool_name": "mine",
        },
        **{
            "user_id": "ada",
            "label": "made by the sweep",
            "block_label": "human",
            "course_name": "sweep",
            "user": "eve",
        },
    }


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from texts_in(item)


def send(http: httpx2.Client, method: str, path: str, body: Any) -> httpx2.Response:
    """Send the body, and repeat it without the fields that are refused."""
    for _ in range(6):
        answer = http.request(method, path, json=body)
        faults = answer.json().get("errors") if answer.status_code == 422 else None
        places = [fault["loc"] for fault in faults or () if len(fault["loc"]) > 1]
        if not places:
            break
        for place in places:
            drop(body, place[1:])
    return answer


def drop(body: Any, place: Sequence[str | int]) -> None:
    """Remove the refused part from the body: its outermost field."""
    field = (
        next((step for step in place if isinstance(step, str) and step in body), None)
        if isinstance(body, dict)
        else None
    )
    if field is not None:
        body.pop(field)


def odd_rows(path: str) -> list[tuple[str, str, str]]:
    """Return stored texts that are not in the normal form, by table and column."""
    found = []
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for table in tables:
            for column in connection.execute(f"PRAGMA table_info({table})").fetchall():
                if column[2].upper() in ("TEXT", "VARCHAR", "JSON"):
                    like = f'SELECT "{column[1]}" FROM {table} WHERE instr("{column[1]}", ?)'  # noqa: S608 - the schema's own names
                    for sign in ("\u0308", "\ufeff", "\r", "\\r"):
                        found += [
                            (table, column[1], str(text)[:80])
                            for (text,) in connection.execute(like, (sign,))
                        ]
    return found


# Kept unchanged: texts that were sent to a model or came from it.
AS_IT_CAME = {"traces", "run_events"}


def sweep(api: Api, values: dict[str, str]) -> int:
    document = ok(api.http.get("/openapi.json"))
    fields, taken = Fields(document), 0
    for path, item in document["paths"].items():
        for method in WRITING:
            content = (
                item.get(method, {})
                .get("requestBody", {})
                .get("content", {})
                .get("application/json")
            )
            names = re.findall(r"\{(\w+)\}", path)
            if not content or LEFT_OUT.search(path) or not {*names} <= values.keys():
                continue
            whole = next(
                (
                    key
                    for key in BODIES
                    if key[0] == method.upper() and re.sub(r":\w+", "", key[1]) == path
                ),
                None,
            )
            odd = fields.of(content["schema"])
            given = BODIES[whole] if whole else None
            if isinstance(given, bytes) or odd is None:
                continue
            try:
                body = merged(fill(given, values), odd) if given else odd
            except KeyError:
                # The path names an object that does not exist.
                continue
            api.server.forget()
            answer = send(api.http, method.upper(), fill(path, values), body)
            assert answer.status_code < 500, (method, path, answer.text)
            if answer.status_code < 300:
                taken += 1
                if "json" in answer.headers.get("content-type", ""):
                    wrong = [text for text in texts_in(answer.json()) if WRONG.search(text)]
                    assert not wrong, (method, path, wrong[:3])
    found = [
        row
        for row in odd_rows(str(api.server.settings.data_dir / "ricordo.db"))
        if row[0] not in AS_IT_CAME
    ]
    assert found == []
    return taken


def request_models() -> Iterator[type[RequestModel]]:
    """Return every request model."""
    for package in (ricordo.api.models, ricordo.features):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".models" in module.name:
                importlib.import_module(module.name)
    waiting = [RequestModel]
    while waiting:
        model = waiting.pop()
        waiting += model.__subclasses__()
        if model.model_fields and model.__module__.startswith("ricordo."):
            yield model


def test_every_request_model_normalizes_its_texts() -> None:
    checked = 0
    for model in request_models():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        body = Fields({"components": {"schemas": schema.get("$defs", {})}}).of(schema)
        for _ in range(6):
            try:
                made = model.model_validate(body)
            except ValidationError as error:
                for fault in error.errors():
                    drop(body, fault["loc"])
                continue
            texts = [*texts_in(made.model_dump(mode="json"))]
            assert not [text for text in texts if WRONG.search(text)], model
            checked += sum("Grüße" in text for text in texts)
            break
    assert checked >= 100


@pytest.mark.soak
def test_every_writable_field_stores_and_shows_normalized_text(
    api: Api, values: dict[str, str]
) -> None:
    assert sweep(api, values) >= 35
