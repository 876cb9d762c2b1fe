"""`/docs` has every operation of the document, and loads nothing from anywhere else."""

import re
from html import unescape
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from ricordo.features.web.api_docs.pages import shape_of
from tests.api.test_openapi import operations
from tests.seams.server import ServerInThread
from tests.support.browser import visit

SCHEMAS = {
    "Node": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"$ref": "#/components/schemas/Node"}},
        "required": ["name"],
    },
    "Kind": {"enum": ["a", "b"], "type": "string"},
}


def test_schemas_are_shown_as_example_bodies_and_recursion_ends() -> None:
    shown = shape_of({"$ref": "#/components/schemas/Node"}, SCHEMAS)
    assert shown == {
        "name": "string",
        "next?": {"name": "string", "next?": {"name": "string", "next?": "Node"}},
    }
    optional = {
        "anyOf": [
            {"type": "array", "items": {"$ref": "#/components/schemas/Kind"}},
            {"type": "null"},
        ]
    }
    assert shape_of(optional, SCHEMAS) == ['"a" | "b"']
    either = {
        "anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Node"}, {"type": "null"}]
    }
    assert shape_of(either, SCHEMAS) == "string or Node"
    assert shape_of({}, SCHEMAS) == "any"


def test_every_operation_is_documented(server: ServerInThread) -> None:
    with server.http() as http:
        document = http.get("/openapi.json").json()
        index = http.get("/docs")
        assert "script-src" in index.headers["content-security-policy"]
        links = {unescape(link) for link in re.findall(r'href="(/docs/[^"]*)"', index.text)}
        pages = {link.partition("#")[0] for link in links}
        texts = {page: unescape(http.get(page).text) for page in pages}
        for method, path, operation in operations(document):
            text = texts[f"/docs/{quote(operation['tags'][0])}"]
            assert f"<code>{method.upper()} {path}</code>" in text, (method, path)
        agents = texts["/docs/agents"]
        assert '"memory_blocks?": [' in agents
        assert f"curl -X POST {server.url}/v1/agents/" in agents
        assert "\n  -F file=@file" in texts["/docs/folders"]
        assert "\n  -F file=@file \\\n  -F kind=kind" in texts["/docs/imports"]
        assert "'content-type: multipart" not in texts["/docs/folders"]  # it has no boundary
        assert http.get("/docs/nothing").status_code == 404
        assert http.get("/redoc").headers["location"] == "/docs"


@pytest.mark.soak
def test_the_api_docs_work_in_a_browser_without_other_hosts(
    browser: Browser, server: ServerInThread
) -> None:
    with visit(browser, server.url) as visitor:
        page = visitor.see("/docs")
        page.get_by_role("link", name="/v1/agents/{agent_id}/messages", exact=True).first.click()
        page.get_by_role(
            "heading", name="POST /v1/agents/{agent_id}/messages", exact=True
        ).wait_for()
