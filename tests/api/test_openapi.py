"""The OpenAPI document: complete, typed, sound, and with every route that the official client knows and this server has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import letta_client
import pytest
from fastapi import FastAPI

from ricordo.api.models.base import RefusalResponse
from ricordo.app import create_app
from ricordo.errors import ModelError
from ricordo.settings import ProviderSettings, Settings
from tests.seams.http import require_fits
from tests.seams.server import MODEL, ServerInThread

METHODS = ("get", "post", "put", "patch", "delete")
# Routes of the official client 1.12.1 that this version serves; a stub is no endpoint, so the others are missing.
SERVED = """
get /v1/health/
post get /v1/agents/
get patch delete /v1/agents/{}
post get /v1/agents/{}/messages
post /v1/agents/{}/messages/cancel
post /v1/agents/{}/messages/stream
patch /v1/agents/{}/reset-messages
get patch /v1/agents/{}/core-memory/blocks/{}
get /v1/agents/{}/core-memory/blocks
patch /v1/agents/{}/core-memory/blocks/attach/{}
patch /v1/agents/{}/core-memory/blocks/detach/{}
get /v1/agents/{}/tools
patch /v1/agents/{}/tools/attach/{}
patch /v1/agents/{}/tools/detach/{}
post get /v1/agents/{}/archival-memory
delete /v1/agents/{}/archival-memory/{}
get /v1/agents/{}/archival-memory/search
post get /v1/archives/
get patch delete /v1/archives/{}
post /v1/archives/{}/passages
post /v1/archives/{}/passages/batch
delete /v1/archives/{}/passages/{}
patch /v1/agents/{}/archives/attach/{}
patch /v1/agents/{}/archives/detach/{}
post /v1/messages/search
post /v1/passages/search
get /v1/tools/{}
get /v1/tools/
post get /v1/blocks/
get patch delete /v1/blocks/{}
get /v1/blocks/{}/agents
get /v1/models/
get /v1/models/embedding
get /v1/runs/{}
get /v1/runs/
get /v1/runs/{}/messages
get /v1/runs/{}/trace
get /v1/runs/{}/usage
get /v1/runs/{}/steps
get /v1/steps/{}
get /v1/steps/
get /v1/steps/{}/metrics
get /v1/steps/{}/trace
get /v1/steps/{}/messages
post /v1/agents/{}/messages/async
patch /v1/agents/{}/tools/approval/{}
post get /v1/conversations/
patch delete get /v1/conversations/{}
post /v1/conversations/{}/fork
post /v1/agents/{}/recompile
post /v1/agents/{}/summarize
post /v1/conversations/{}/cancel
post /v1/conversations/{}/compact
get post /v1/conversations/{}/messages
post /v1/conversations/{}/recompile
post /v1/conversations/{}/stream
post /v1/runs/{}/stream
patch /v1/steps/{}/feedback
"""


def _pairs(text: str) -> set[tuple[str, str]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return {(method, path) for *methods, path in lines for method in methods}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The app, not started: its document needs no database."""
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("data")), ProviderSettings.model_construct())


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    made: dict[str, Any] = app.openapi()
    return made


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every (method, path, operation) of the document."""
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def _bare(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def routes_of_the_client() -> set[tuple[str, str]]:
    """Every (method, path) that the official client sends, read from its source."""
    folder = Path(letta_client.__file__).parent
    files = [folder / "_client.py", *(folder / "resources").rglob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    call = re.compile(
        r"self\._?(get_api_list|get|post|put|patch|delete)\(\s*(?:path_template\(\s*)?\"(/v1/[^\"]*)\"(.*?)\n        \)",
        re.S,
    )
    found = set()
    for match in call.finditer(source):
        named = re.search(r'method="(\w+)"', match[3])
        method = named[1] if named else match[1].replace("_api_list", "")
        found.add((method, _bare(match[2])))
    return found


def test_every_route_of_the_client_that_is_served_is_documented_as_it_is_sent(document: dict[str, Any]) -> None:
    routes = routes_of_the_client()
    documented = {(method, _bare(path)) for method, path, _ in operations(document)}
    assert len(routes) == 129
    assert _pairs(SERVED) == documented & routes


def test_every_documented_route_answers_and_every_route_is_documented(
    document: dict[str, Any], server: ServerInThread
) -> None:
    with server.http() as http:
        assert http.get("/openapi.json").json() == document
        # A route that is there never answers "Not Found" or "Method Not Allowed" in the framework's own words.
        for method, path, _ in operations(document):
            answer = http.request(method, re.sub(r"\{[^}]*\}", "nothing", path))
            assert answer.json() not in ({"detail": "Not Found"}, {"detail": "Method Not Allowed"}), (method, path)


def test_every_operation_says_what_it_does_and_what_it_answers(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"].strip().endswith("."), where
        assert operation["tags"], where
        if "204" in operation["responses"]:
            assert "200" not in operation["responses"], where
            continue
        (content,) = operation["responses"]["200"]["content"].items()
        kind, body = content
        ending = path.rsplit("/", 1)[1]
        assert kind == {"stream": "text/event-stream", "export": "application/zip"}.get(ending, "application/json"), (
            where
        )
        assert body["schema"], where
        assert body["schema"] != {}, where


def test_every_parameter_is_typed(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        names = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
        assert names == set(re.findall(r"\{(\w+)", path)), (method, path)
        for parameter in operation.get("parameters", []):
            assert parameter["schema"].keys() & {"type", "anyOf", "enum", "$ref"}, (method, path, parameter)
        if method in ("post", "patch") and "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert schema.keys() & {"$ref", "anyOf"}, (method, path)


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]

    assert len(ids) == len(set(ids))


def test_every_schema_is_sound_and_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "Ricordo"
    schemas = document["components"]["schemas"]
    jsonschema.Draft202012Validator.check_schema({"$defs": schemas})

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "$ref":
                    yield item
                else:
                    yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    used = set(references(document))
    assert used
    for reference in used:
        assert reference.removeprefix("#/components/schemas/") in schemas
    assert {f"#/components/schemas/{name}" for name in schemas} == used


def test_pages_that_load_scripts_from_elsewhere_are_not_served(http: httpx2.Client) -> None:
    assert [http.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]


def test_refusals_are_documented_as_they_are_sent(document: dict[str, Any], server: ServerInThread) -> None:
    for method, path, operation in operations(document):
        schema = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/RefusalResponse"}, (method, path)
        assert "422" not in operation["responses"], (method, path)

    with server.http() as http, server.client() as client:
        made = client.agents.create(model=MODEL)
        talk = f"/v1/agents/{made.id}/messages"
        server.says(ModelError("llm_rate_limit", "Slow down."))
        refused = [
            http.post(talk, json={"input": "Hello."}),
            http.get("/v1/agents/nobody"),
            http.post("/v1/agents/", json={"name": 5}),
            http.post(talk, json={}),
            http.get("/v1/agents/", headers={"host": "elsewhere.example"}),
        ]
    assert [answer.status_code for answer in refused] == [429, 404, 422, 422, 403]
    for answer in refused:
        require_fits(RefusalResponse, answer.json())
