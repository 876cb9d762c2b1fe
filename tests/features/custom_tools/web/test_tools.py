"""The web tools as agents call them, with scripted search engines."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.server import MODEL
from tests.support.sandboxes import bubblewrap

FOUND = {
    "title": "Bees",
    "url": "https://bees.example",
    "publishedDate": "2026-01-01",
    "page_age": "2026-01-01",
}
FOUND |= dict.fromkeys(("content", "description", "text"), "They make honey.") | {
    "published_date": "2026-01-01"
}
PAGE = (
    "<html><title>Bees</title><body><article>" + "<p>They make honey, and more honey.</p>" * 1_000
)


class Engine(BaseHTTPRequestHandler):
    """A server for all search engines, and one page."""

    asked: ClassVar[list[dict[str, Any]]] = []
    answer: tuple[int, bytes] = (200, b"")

    def do_GET(self) -> None:
        if self.path == "/page":
            self._send(200, PAGE.encode(), "text/html")
            return
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.asked.append(
            {"path": urlsplit(self.path).path, "query": query, "headers": dict(self.headers)}
        )
        self._send(*self.answer)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append({"path": self.path, "query": body, "headers": dict(self.headers)})
        self._send(*self.answer)

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    bubblewrap()
    running = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


def call_tool(api: Api, name: str, **arguments: Any) -> tuple[str, str]:
    tool = api.client.tools.list(name=name).items[0]
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    api.server.says(call(name, **arguments), "Done.")
    answer = api.client.agents.messages.create(agent.id, input="Go.")
    (returned,) = [each for each in answer.messages if each.message_type == "tool_return_message"]
    assert api.server.model.requests[-1].messages[-1].is_untrusted
    return returned.status, returned.tool_return


ENGINES: list[tuple[str, Any, dict[str, Any], str]] = [
    (
        "searxng",
        {"results": [FOUND]},
        {"q": "bees site:a.example -site:b.example", "format": "json"},
        "",
    ),
    (
        "brave",
        {"web": {"results": [FOUND]}},
        {"q": "bees site:a.example -site:b.example", "count": "3"},
        "X-Subscription-Token",
    ),
    (
        "exa",
        {"results": [FOUND]},
        {
            **{"query": "bees", "numResults": 3, "contents": {"text": {"maxCharacters": 500}}},
            **{"includeDomains": ["a.example"], "excludeDomains": ["b.example"]},
        },
        "x-api-key",
    ),
    (
        "tavily",
        {"results": [FOUND]},
        {
            "query": "bees",
            "max_results": 3,
            "include_domains": ["a.example"],
            "exclude_domains": ["b.example"],
        },
        "Authorization",
    ),
]


@pytest.mark.parametrize(
    ("name", "answer", "query", "header"), ENGINES, ids=[each[0] for each in ENGINES]
)
def test_each_search_engine_gets_its_own_request_format(
    api: Api,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    answer: Any,
    query: dict[str, Any],
    header: str,
) -> None:
    monkeypatch.setenv("RICORDO_WEB_SEARCH", name)
    monkeypatch.setenv("RICORDO_WEB_SEARCH_URL", engine)
    monkeypatch.setenv("RICORDO_WEB_SEARCH_KEY", "k-123")
    Engine.asked.clear()
    Engine.answer = (200, json.dumps(answer).encode())
    asked = {
        "query": "bees",
        "num_results": 3,
        "include_domains": ["a.example"],
        "exclude_domains": ["b.example"],
    }
    status, content = call_tool(api, "web_search", **asked)
    assert status == "success"
    result = {
        "title": "Bees",
        "url": "https://bees.example",
        "snippet": "They make honey.",
        "published_date": "2026-01-01",
    }
    assert json.loads(content) == {"query": "bees", "results": [result]}
    (seen,) = Engine.asked
    assert seen["query"] == query
    headers = {key.lower(): value for key, value in seen["headers"].items()}
    assert headers.get(header.lower(), "") == (
        "Bearer k-123" if name == "tavily" else "k-123" if header else ""
    )
    assert headers["accept-encoding"] == "gzip, identity"
    assert seen["path"] == ("/search" if name == "searxng" else "/")


FAULTS = [
    ((401, b"no k-123"), "401. Check RICORDO_WEB_SEARCH_KEY"),
    ((500, b""), "answered 500"),
    ((200, b"<html>"), "an answer without results"),
]
FAULTS += [
    ((200, b'{"web": []}'), "an answer without results"),
    ((200, b'{"web": {"results": ["x"]}}'), "an answer without results"),
    ((200, b"x" * 6 * 1024**2), "The search engine's answer has more than 5 MB"),
]


@pytest.mark.parametrize(("answer", "words"), FAULTS, ids=range(len(FAULTS)))
def test_a_search_engine_error_is_reported_without_the_key(
    api: Api, engine: str, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes], words: str
) -> None:
    monkeypatch.setenv("RICORDO_WEB_SEARCH", "brave")
    monkeypatch.setenv("RICORDO_WEB_SEARCH_URL", engine)
    monkeypatch.setenv("RICORDO_WEB_SEARCH_KEY", "k-123")
    Engine.answer = answer
    status, content = call_tool(api, "web_search", query="bees")
    assert status == "error"
    assert words in content
    assert "k-123" not in content


def test_without_a_search_engine_the_error_names_the_setting(api: Api) -> None:
    status, content = call_tool(api, "web_search", query="bees")
    assert status == "error"
    assert "RICORDO_WEB_SEARCH" in content


def test_a_long_page_is_read_in_parts(
    api: Api, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, content = call_tool(api, "fetch_webpage", url=f"{engine}/page")
    assert status == "error"
    assert "RICORDO_FETCH_PRIVATE_PAGES" in content
    monkeypatch.setenv("RICORDO_FETCH_PRIVATE_PAGES", "true")
    status, content = call_tool(api, "fetch_webpage", url=f"{engine}/page")
    assert status == "success"
    assert content.startswith(f"# Bees\n\n{engine}/page\n\nThey make honey, and more honey.\n\n")
    assert "Call again with offset=20000 for more.]" in content
    _, rest = call_tool(api, "fetch_webpage", url=f"{engine}/page", offset=20_000)
    assert "for more.]" not in rest
    assert rest.endswith("honey.")
