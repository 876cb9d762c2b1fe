"""The OpenAPI document is complete, typed and valid.

It has every route of the official client that this server serves.
"""

import asyncio
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import jsonschema_rs
import letta_client
import pytest
from fastapi import FastAPI

from ricordo.api import openapi_document
from ricordo.api.call import IGNORED_QUERIES
from ricordo.api.routing import Application
from ricordo.app import create_app
from ricordo.errors import Unavailable
from ricordo.settings import ProviderSettings, Settings
from tests.seams.server import ServerInThread, serving

METHODS = ("get", "post", "put", "patch", "delete")
# Routes of the official client 1.12.1 that this version serves. A stub is not an endpoint, so stubs
# are left out. Each line is a pattern of methods and a pattern of paths.
SERVED = """
patch /v1/agents/{}/identities/(attach|detach)/{}
(post|get) /v1/agents/{}/schedule
(get|delete) /v1/agents/{}/schedule/{}
get /v1/health/
(post|get) /v1/(agents|archives|blocks|conversations)/
(get|patch|delete) /v1/(agents|archives|blocks|conversations)/{}
(post|get) /v1/(agents|conversations)/{}/messages
post /v1/agents/{}/messages/(cancel|stream|async)
(get|post) /v1/client-side-access-tokens
delete /v1/client-side-access-tokens/{}
patch /v1/agents/{}/reset-messages
(get|patch) /v1/agents/{}/core-memory/blocks/{}
get /v1/agents/{}/(core-memory/blocks|tools)
patch /v1/agents/{}/(core-memory/blocks|tools|archives)/(attach|detach)/{}
patch /v1/agents/{}/tools/approval/{}
(post|get) /v1/agents/{}/archival-memory
delete /v1/agents/{}/archival-memory/{}
get /v1/agents/{}/archival-memory/search
post /v1/archives/{}/passages(/batch)?
delete /v1/archives/{}/passages/{}
get /v1/messages/({})?
post /v1/(messages|passages)/search
get /v1/tools/({})?
(post|put) /v1/tools/
(patch|delete) /v1/tools/{}
post /v1/tools/search
post /v1/agents/{}/tools/{}/run
(get|post) /v1/mcp-servers/
(get|patch|delete) /v1/mcp-servers/{}
patch /v1/mcp-servers/{}/refresh
get /v1/mcp-servers/{}/tools(/{})?
post /v1/mcp-servers/{}/tools/{}/run
get /v1/blocks/{}/agents
(get|post) /v1/folders/
(get|patch|delete) /v1/folders/{}
get /v1/folders/{}/(agents|files(/{})?)
delete /v1/folders/{}/{}
post /v1/folders/{}/upload
get /v1/agents/{}/(folders|files)
patch /v1/agents/{}/folders/(attach|detach)/{}
patch /v1/agents/{}/files/(close-all|{}/(open|close))
get /v1/models/(embedding)?
get /v1/(runs|steps)/({})?
get /v1/runs/{}/(messages|trace|usage|steps)
get /v1/steps/{}/(metrics|trace|messages)
patch /v1/steps/{}/feedback
post /v1/conversations/{}/(fork|cancel|compact|recompile)
post /v1/agents/{}/(recompile|summarize)
post /v1/(runs|conversations)/{}/stream
get /v1/(tags/|environments(/{})?)
post /v1/environments/{}/messages
get /v1/agents/{}/export
post /v1/agents/import
post /v1/templates(/{}/(rollback|save|agents))?
(patch|delete) /v1/templates/{}
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(
        Settings(data_dir=tmp_path_factory.mktemp("data")), ProviderSettings.model_construct()
    )


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    made: dict[str, Any] = app.openapi()
    return made


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def _bare(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def calls_of_the_client() -> Iterator[tuple[str, str, set[str]]]:
    """Return every method, path and query of the official client, read from its source."""
    folder = Path(letta_client.__file__).parent
    files = [folder / "_client.py", *(folder / "resources").rglob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    call = re.compile(
        r"self\._?(get_api_list|get|post|put|patch|delete)\(\s*(?:path_template\(\s*)?\"(/v1/[^\"]*)\"(.*?)\n        \)",
        re.S,
    )
    for match in call.finditer(source):
        named = re.search(r'method="(\w+)"', match[3])
        method = named[1] if named else match[1].replace("_api_list", "")
        query = re.search(r"query=(?:await async_)?maybe_transform\(\s*(\{.*?\})", match[3], re.S)
        yield (
            method,
            _bare(match[2]),
            set(re.findall(r'"(?:query_(?=requires))?(\w+)":', query[1])) if query else set(),
        )


def routes_of_the_client() -> set[tuple[str, str]]:
    return {(method, path) for method, path, _ in calls_of_the_client()}


def test_every_served_route_of_the_official_client_is_documented(
    document: dict[str, Any],
) -> None:
    routes = routes_of_the_client()
    documented = {(method, _bare(path)) for method, path, _ in operations(document)}
    assert len(routes) == 129
    lines = [line.replace("{}", r"\{\}") for line in SERVED.strip().splitlines()]
    served = {
        route for route in routes if any(re.fullmatch(line, " ".join(route)) for line in lines)
    }
    assert served == documented & routes
    assert len(served) == 129


def test_every_query_parameter_of_the_official_client_is_known_here(
    document: dict[str, Any],
) -> None:
    """Each parameter has an effect, or is listed as ignored with the reason."""
    documented = {
        (method, _bare(path)): {
            one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"
        }
        for method, path, operation in operations(document)
    }
    sent = [
        (method, path, names)
        for method, path, names in calls_of_the_client()
        if (method, path) in documented
    ]
    assert sum(map(len, (names for _, _, names in sent))) > 300
    unknown = {
        f"{path} {name}"
        for method, path, names in sent
        for name in names - documented[method, path] - IGNORED_QUERIES.keys()
        if re.sub(r"_(\w)", lambda letter: letter[1].upper(), name) not in documented[method, path]
    }
    assert unknown == set()


def test_every_documented_route_answers_and_every_route_is_documented(
    document: dict[str, Any], server: ServerInThread
) -> None:
    with server.http() as http:
        assert http.get("/openapi.json").json() == document
        # An existing route never answers that there is no such route.
        for method, path, _ in operations(document):
            answer = http.request(method, re.sub(r"\{[^}]*\}", "nothing", path))
            if path in ("/metrics", "/v1/audit-log/export"):
                continue
            assert "There is no route" not in answer.text, (method, path)


def test_every_operation_has_a_summary_a_description_and_a_response_schema(
    document: dict[str, Any],
) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"].strip().endswith("."), where
        assert operation["tags"], where
        if "204" in operation["responses"]:
            assert "200" not in operation["responses"], where
            continue
        assert "content" in operation["responses"]["200"], where
        (content,) = operation["responses"]["200"]["content"].items()
        kind, body = content
        ending = (
            "file"
            if path.startswith("/v1/agents/") and path.endswith("/export")
            else path.rsplit("/", 1)[1]
        )
        kinds = {
            "stream": "text/event-stream",
            "ag-ui": "text/event-stream",
            "export": "application/zip",
            "archive": "application/zip",
        }
        if path == "/metrics":
            kinds["metrics"] = "text/plain"
        if path.startswith("/v1/voice-beta/"):
            kinds["completions"] = "text/event-stream"
        if path == "/v1/audit-log/export":
            kinds["export"] = "application/x-ndjson"
        if method == "get":
            kinds |= dict.fromkeys(
                ("{file_path}", "{shared_path}", "{backup_name}"), "application/octet-stream"
            )
        if "/latex/" in path:
            kinds["{file_path}"] = "text/html"
        assert (kind, bool(body["schema"])) == (kinds.get(ending, "application/json"), True), where


def test_every_parameter_is_typed(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        names = {
            parameter["name"]
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "path"
        }
        assert names == set(re.findall(r"\{(\w+)", path)), (method, path)
        for parameter in operation.get("parameters", []):
            assert parameter["schema"].keys() & {"type", "anyOf", "enum", "$ref"}, (
                method,
                path,
                parameter,
            )
        if method in ("post", "patch") and "requestBody" in operation:
            (content,) = operation["requestBody"]["content"].values()
            schema = content["schema"]
            assert schema.keys() & {"$ref", "anyOf", "oneOf"}, (method, path)


def test_every_schema_is_valid_and_every_reference_resolves(
    document: dict[str, Any],
) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "Ricordo"
    schemas = document["components"]["schemas"]
    draft = "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate({"$schema": draft, "$defs": schemas})
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.meta.validate(
            {"$schema": draft, "$defs": {**schemas, "Wrong": {"type": "wrong"}}}
        )

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
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_every_operation_documents_its_refusals(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        schema = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/RefusalResponse"}, (method, path)
        assert "422" not in operation["responses"], (method, path)


async def test_concurrent_requests_make_the_document_once_off_the_event_loop() -> None:
    others, made, go = threading.get_ident(), list[int](), threading.Event()

    def make() -> bytes:
        made.append(threading.get_ident())
        assert go.wait(20)
        return b"{}"

    document = openapi_document.OpenApiDocument(make)
    asking = [asyncio.ensure_future(document.text()) for _ in range(20)]
    asking[3].cancel()
    await asyncio.sleep(0)
    go.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, bytes)] == [b"{}"] * 19
    assert len(made) == 1
    assert made[0] != others


async def test_a_document_that_failed_is_made_again_at_the_next_request() -> None:
    answers = iter([ValueError("No."), b"{}"])

    def make() -> bytes:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    document = openapi_document.OpenApiDocument(make)
    with pytest.raises(ValueError, match="No"):
        await document.text()
    assert await document.text() == b"{}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_makes_the_document_with_the_parents_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openapi_document, "MAY_FORK", True)
    known = "known here alone, " * 100_000
    process = os.getpid()

    def make() -> bytes:
        return f"{known}{os.getpid() == process}".encode()

    text = openapi_document.make_in_child(make)
    assert text.decode() == f"{known}False"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_server_keeps_only_the_bytes_of_the_document_its_child_made(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openapi_document, "MAY_FORK", True)
    children, fork = list[int](), os.fork

    def fork_and_note() -> int:
        child = fork()
        children.append(child)
        return child

    with serving(tmp_path / "data") as running, running.http() as http:
        monkeypatch.setattr(os, "fork", fork_and_note)
        answers = [http.get("/openapi.json") for _ in range(2)]
        assert running.app.openapi_schema is None
    assert len(children) == 1
    assert [answer.json() for answer in answers] == [document] * 2
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's /proc names the open files")
def test_a_child_process_inherits_no_open_files_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file of the server in a child would stop others, such as `ricordo doctor`."""
    monkeypatch.setattr(openapi_document, "MAY_FORK", True)
    process = os.getpid()

    def make() -> bytes:
        # The descriptor by which this folder is read is closed when its entries are checked.
        files = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        held = [str(entry.readlink()) for entry in files if int(entry.name) > 2]
        return json.dumps([os.getpid() != process, *held]).encode()

    with serving(tmp_path / "data"):
        is_child, *held = json.loads(openapi_document.make_in_child(make))
    assert is_child
    assert [name.partition(":")[0] for name in held] == ["pipe"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_server_stops_although_the_child_process_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waited for the child delayed the end of the server by five minutes."""
    monkeypatch.setattr(openapi_document, "MAY_FORK", True)
    monkeypatch.setattr(Application, "_make_document", lambda _: signal.pause())
    children: Queue[int] = Queue()
    fork = os.fork

    def fork_and_note() -> int:
        child = fork()
        children.put(child)
        return child

    monkeypatch.setattr(os, "fork", fork_and_note)
    with serving(tmp_path / "data") as running:
        asyncio.run_coroutine_threadsafe(running.app.document(), running.loop)
        child = children.get(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_who_waits_for_the_document_is_told_that_the_server_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openapi_document, "MAY_FORK", True)
    hangs = [True]

    def make() -> bytes:
        if hangs:
            signal.pause()
        return b"{}"

    document = openapi_document.OpenApiDocument(make)
    asking = asyncio.create_task(document.text())
    await asyncio.sleep(0)
    document.stop()
    with pytest.raises(Unavailable, match="shutting down"):
        await asking
    hangs.clear()
    assert await document.text() == b"{}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_killed_before_it_was_noted_is_killed_then() -> None:
    stopped = openapi_document.Child()
    stopped.stop()
    process = os.fork()
    if process == 0:
        signal.pause()
    stopped.note(process)
    stopped.end()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    stopped.stop()


def _refuse() -> int:
    raise OSError("no more processes")


def _kill_child() -> bytes:
    os.kill(os.getpid(), 9)
    return b""


def _fail() -> bytes:
    raise ValueError("It fails.")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("fault", ["no fork", "killed", "failed", "too slow", "no system"])
def test_the_document_is_made_in_the_server_process_when_the_child_fails(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openapi_document, "MAY_FORK", fault != "no system")
    process = os.getpid()
    if fault == "no fork":
        monkeypatch.setattr(os, "fork", _refuse)
    if fault == "too slow":
        monkeypatch.setattr(openapi_document, "_PATIENCE", 0.0)
    faults = {"killed": _kill_child, "failed": _fail}

    def make() -> bytes:
        return faults.get(fault, lambda: b"other")() if os.getpid() != process else b"own"

    with caplog.at_level("INFO", "ricordo.api.openapi_document"):
        assert openapi_document.make_in_child(make) == b"own"
    assert "made in the server's own process" in caplog.text
