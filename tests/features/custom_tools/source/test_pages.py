"""The pages of tools: creating, reading, trying, changing and deleting them in the browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.features.web.pages.test_home import visitor
from tests.seams.http import bearer

HALVE = '''
def halve(number: float, note: str = "<b>") -> float:
    """Halve a number.

    Args:
        number: Which <number>.
    """
    print("halving")
    return number / 2
'''


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        yield client


def test_a_tool_can_be_created_tried_changed_and_deleted(browser: TestClient) -> None:
    assert "price_of" in browser.get("/ui/tools/new").text
    made = browser.post(
        "/ui/tools",
        data={"source_code": HALVE, "limit": "100", "tags": "sums, new", "approval": "on"},
    )
    home = made.headers["location"]
    (tool,) = browser.get("/v1/tools/", params={"name": "halve"}).json()
    assert home == f"/ui/tools/{tool['id']}"
    assert (tool["tags"], tool["return_char_limit"], tool["default_requires_approval"]) == (
        ["sums", "new"],
        100,
        True,
    )
    page = browser.get(home).text
    for words in (
        "Halve a number.",
        "Which &lt;number&gt;.",
        "&#34;note&#34;: &#34;&lt;b&gt;&#34;",
        "Save",
        "Delete halve",
    ):
        assert words in page
    tried = browser.post(f"{home}/try", data={"arguments": '{"number": 3}'}).text
    for words in ("It worked", "1.5", "halving"):
        assert words in tried
    failed = browser.post(f"{home}/try", data={"arguments": '{"number": "<x>"}'}).text
    assert "It failed" in failed
    assert "&lt;x&gt;" in failed
    for arguments in ("{", "[1]"):
        wrong = browser.post(f"{home}/try", data={"arguments": arguments})
        assert (wrong.status_code, "The arguments " in wrong.text) == (422, True)

    changed = browser.post(
        home, data={"source_code": HALVE.replace("/ 2", "/ 4"), "limit": "50", "tags": "sums"}
    )
    assert changed.headers["location"] == home
    tool = browser.get(f"/v1/tools/{tool['id']}").json()
    assert (tool["tags"], tool["return_char_limit"], tool["default_requires_approval"]) == (
        ["sums"],
        50,
        False,
    )
    assert "/ 4" in tool["source_code"]
    assert browser.post(f"{home}/delete").headers["location"] == "/ui/tools"
    assert browser.get(home).status_code == 404


def test_a_source_error_is_shown_beside_the_source(browser: TestClient) -> None:
    page = browser.post("/ui/tools", data={"source_code": "def f(x): 'Do <it>.'", "limit": "100"})
    assert page.status_code == 400
    assert "The parameter x of f has no type." in page.text
    assert "Do &lt;it&gt;." in page.text


def test_built_in_tools_are_shown_and_some_of_their_settings_can_change(
    browser: TestClient,
) -> None:
    page = browser.get("/ui/tools", params={"q": "memory_ins"}).text
    assert "built in" in page
    assert 1 <= page.count("<tr data-item>") <= 3
    (own,) = browser.get("/v1/tools/", params={"name": "memory_insert"}).json()
    page = browser.get(f"/ui/tools/{own['id']}").text
    assert "source_code" not in page
    assert "Try it" not in page
    saved = browser.post(f"/ui/tools/{own['id']}", data={"limit": "77"})
    assert saved.status_code == 303, saved.text
    assert browser.get(f"/v1/tools/{own['id']}").json()["return_char_limit"] == 77
    assert "No tool has this in its name." in browser.get("/ui/tools", params={"q": "qwertz"}).text


def test_a_user_sees_tools_but_cannot_change_them(browser: TestClient) -> None:
    browser.post("/ui/tools", data={"source_code": HALVE, "limit": "100"})
    key = browser.post("/v1/keys/", json={"user": "ada", "role": "user"}).json()["key"]
    headers = bearer(key)
    (tool,) = browser.get("/v1/tools/", params={"name": "halve"}, headers=headers).json()
    page = browser.get(f"/ui/tools/{tool['id']}", headers=headers).text
    assert "return number / 2" in page
    assert "<button" not in page.partition("<main")[2].partition("</main>")[0]
    for path in ("", f"/{tool['id']}", f"/{tool['id']}/try", f"/{tool['id']}/delete"):
        assert (
            browser.post(f"/ui/tools{path}", data={"limit": "1"}, headers=headers).status_code
            == 403
        )
