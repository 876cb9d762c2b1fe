"""The page that shows how to connect clients.

It has the texts of the docs, with this server's address, and never a key.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.seams.http import OPERATOR, bearer, ok
from tests.seams.server import ServerInThread, serving
from tests.support.browser import visit

DOC = (Path(__file__).parents[4] / "docs" / "start" / "connect.md").read_text()
DOCS = "http://127.0.0.1:8283"


def snippets(page: str) -> list[str]:
    return [
        html.unescape(code)
        for code in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)
    ]


def of_the_docs(address: str) -> set[str]:
    return {
        code.rstrip("\n").replace(DOCS, address)
        for code in re.findall(r"```\w+\n(.*?)```", DOC, re.DOTALL)
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInThread]:
    with serving(tmp_path) as running:
        yield running


def test_the_connect_page_shows_the_tested_snippets_of_the_docs(server: ServerInThread) -> None:
    with server.http() as http:
        page = http.get("/ui/connect").text
    shown = snippets(page)
    assert set(shown) == of_the_docs(server.url)
    assert len(shown) == len(set(shown)) == 12
    assert "You need no key on this machine" in page
    assert re.search(r"before others reach the server\.\s+All requests", page)
    for name in re.findall(r'href="/help/([a-z/-]+)"', page):
        assert (Path(__file__).parents[4] / "docs" / f"{name}.md").exists()


def test_the_settings_for_mcp_reach_a_users_memory(server: ServerInThread) -> None:
    with server.http() as http:
        ok(http.put("/users/ada/blocks/human", json={"body": "Ada sails."}))
        settings = next(one for one in snippets(http.get("/ui/connect").text) if '"url"' in one)
        program = json.loads(settings)["mcpServers"]["ricordo"]
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "read_memory", "arguments": {}},
        }
        accept = {"accept": "application/json, text/event-stream"}
        assert (
            "Ada sails."
            in http.post(program["url"], json=call, headers=program["headers"] | accept).text
        )


def test_snippets_name_the_caller_and_contain_no_key(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        boss = bearer(OPERATOR)
        assert http.get("/ui/connect").status_code == 401
        for name, shown in (("grace", "grace"), ("Bobby'; drop", None)):
            made = ok(http.post("/v1/keys/", json={"user": name, "role": "user"}, headers=boss))
            page = http.get("/ui/connect", headers={"authorization": f"Bearer {made['key']}"}).text
            found = snippets(page)
            assert f"git clone {server.url}/users/{shown or made['user_id']}/memory.git" in found
            assert any('-H "authorization: Bearer $RICORDO_API_KEY"' in one for one in found)
            assert made["key"] not in page
            assert "drop" not in "".join(found)
            assert "Ask whoever runs this server" in page
        assert "Make a key</a>" in http.get("/ui/connect", headers=boss).text
        plain = {one.replace(' -H "authorization: Bearer $RICORDO_API_KEY"', "") for one in found}
        same = {one for one in plain if "mcp" not in one and "/users/" not in one}
        assert same
        assert same <= of_the_docs(server.url)


def test_snippets_use_the_requested_host_behind_a_proxy(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, root_path="/ricordo") as server, server.http() as http:
        asked = {"host": "localhost:9000"}
        assert "git clone http://localhost:9000/ricordo/users/ada/memory.git" in snippets(
            http.get("/ricordo/ui/connect", headers=asked).text
        )


def test_a_snippet_can_be_copied_in_a_browser(browser: Browser, server: ServerInThread) -> None:
    with visit(browser, server.url, width=390, dark=True) as visitor:
        visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = visitor.see("/ui/connect")
        page.get_by_role("button", name="Copy: git").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Copy: git")).to_have_text("Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == f"git clone {server.url}/users/ada/memory.git"
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        visitor.require_quiet()
