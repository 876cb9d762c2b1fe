"""Pages of audit, export and forgetting, and the sources of an answer."""

import random
import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from ricordo.features.memory_care.forgetting import queries
from ricordo.features.memory_care.forgetting.queries import ForgetRequest
from ricordo.llm.scripted import ScriptedModel, call
from tests.features.web.pages.test_home import visitor
from tests.features.web.pages.test_memory import home, user_id
from tests.seams.http import ok


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        client.put(
            "/users/ada/blocks/human",
            json={
                "body": "Ada plays chess on Sundays with her brother Ben.\nTODO\nAda plays chess on "
                "Sundays with her brother Ben."
            },
        )
        yield client


def test_an_audit_runs_on_request(browser: TestClient) -> None:
    browser.put("/users/ben/blocks/human", json={"body": "TODO"})
    page = browser.get(f"{home(browser)}/audit").text
    assert "Check this memory" in page
    assert "finding" not in page
    found = browser.get(f"{home(browser)}/audit", params={"run": "1"}).text
    assert "2 findings in 3 lines of 1 block<" in found
    assert "Says nothing, or is left over from a model: says nothing" in found
    assert f'href="{home(browser)}/blocks/human/blame?line=3"' in found


def test_an_audit_of_a_large_memory_refers_to_the_command(browser: TestClient) -> None:
    browser.put("/users/ada/blocks/long", json={"body": "word " * 4_001})
    page = browser.get(f"{home(browser)}/audit")
    assert "ricordo memory audit" in page.text
    assert browser.get(f"{home(browser)}/audit", params={"run": "1"}).status_code == 422


def test_the_links_of_the_export_page_work(browser: TestClient) -> None:
    page = browser.get(f"{home(browser)}/export").text
    assert "git clone http://localhost:8283/users/ada/memory.git" in page
    links = [part.split('"')[0] for part in page.split('href="')[1:] if part.startswith("/users/")]
    assert len(links) == 4
    assert all(browser.get(link.replace("&amp;", "&")).status_code == 200 for link in links)
    assert "This memory follows no repository" in page


def test_the_clone_command_is_safe_for_any_user_name(
    browser: TestClient,
) -> None:
    browser.post("/v1/users/", json={"name": "x; $(touch gone) `id` 'y"})
    id = next(one["id"] for one in browser.get("/v1/users/").json() if one["name"].startswith("x;"))
    shown = unescape(browser.get(f"/ui/people/{id}/export").text)
    clone = shown.split('<code id="clone">')[1].split("</code>")[0]
    assert re.fullmatch(r"git clone [A-Za-z0-9:/.%_-]+", clone)
    browser.put(f"/users/{id}/blocks/human", json={"body": "Here."})
    path = clone.removeprefix("git clone http://localhost:8283")
    assert (
        browser.get(f"{path}/info/refs", params={"service": "git-upload-pack"}).status_code == 200
    )


def test_remotes_are_shown_on_the_export_page(browser: TestClient, tmp_path: Path) -> None:
    place = tmp_path / "remotes" / "a.git"
    browser.put("/users/ada/remotes", json={"kind": "git", "address": str(place)})
    page = browser.get(f"{home(browser)}/export").text
    assert str(place) in page
    assert "1 remote will no longer be followed" in browser.get(f"{home(browser)}/forget").text


def test_erasing_a_person_shows_counts_asks_for_the_name_and_gives_a_receipt(
    browser: TestClient,
) -> None:
    id, page = user_id(browser), f"{home(browser)}/forget"
    shown = browser.get(page).text
    assert "<dt>Blocks</dt><dd>1</dd>" in shown
    assert "<dt>Versions</dt><dd>1</dd>" in shown
    refused = browser.post(page, data={"name": "Ada"})
    assert refused.status_code == 400
    assert "Nothing was deleted." in refused.text
    assert browser.get(f"/users/{id}/blocks/human").status_code == 200
    done = browser.post(page, data={"name": "ada"})
    assert done.status_code == 200
    receipt = done.text.split("<dt>Receipt</dt><dd><code>")[1].split("<")[0]
    assert browser.get(page).status_code == 404
    deadline = time.monotonic() + 30
    while "Everything was deleted." not in (shown := browser.get(f"/ui/receipts/{receipt}").text):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "Signature" in shown


def test_an_answers_explanation_shows_its_prompt_versions_and_proposals(tmp_path: Path) -> None:
    replies = [
        call("memory_insert", label="persona", new_string="Be brief."),
        call("memory_insert", label="human", new_string="Plays <chess>."),
        "Noted <b>.",
    ]
    with visitor(tmp_path, ScriptedModel(replies), traces="all") as browser:
        browser.put(
            "/users/ada/blocks/human", json={"body": "Likes tea.", "message": "Her <first> words"}
        )
        made = {
            "model": "scripted/model",
            "name": "Nina",
            "memory_blocks": [{"label": "persona", "value": "Kind."}],
        }
        agent = browser.post("/v1/agents/", json=made | {"tools": ["memory_insert"]}).json()["id"]
        about = {"user_id": "ada"}
        conversation = browser.post(
            "/v1/conversations/", params={"agent_id": agent}, json=about
        ).json()["id"]
        said = {"messages": [{"role": "user", "content": "I play chess."}], "streaming": False}
        answer = browser.post(f"/v1/conversations/{conversation}/messages", json=said)
        assert answer.status_code == 200, answer.text
        messages = browser.get(f"/v1/conversations/{conversation}/messages").json()
        last = next(one["id"] for one in messages if one["message_type"] == "assistant_message")
        page = browser.get(f"/ui/answers/{last}").text
        assert "Noted &lt;b&gt;." in page
        assert "Her &lt;first&gt; words" in page
        links = {part.split('"')[0].replace("&amp;", "&") for part in page.split('<a href="')[1:]}
        versions = [link for link in links if "/versions/" in link]
        assert len(versions) >= 2
        assert all(browser.get(link).status_code == 200 for link in versions)
        assert f"/ui/agents/{agent}/context?step=" in page
        question = next(one["id"] for one in messages if one["message_type"] == "user_message")
        assert f"message={question}" in page
        asked = browser.get(f"/ui/answers/{question}").text
        assert "No step of a model is stored for this message" in asked
        first = next(one for one in messages if one["message_type"] == "tool_call_message")
        assert first
        proposals = browser.get(f"/ui/people/{user_id(browser)}").text
        assert "Plays &lt;chess&gt;." in proposals
        assert f"message={question}" in proposals, "a proposal must link to its message"


def _people(seed: int, count: int) -> list[str]:
    """Return names with every character that has a meaning in URLs."""
    chance = random.Random(seed)  # noqa: S311 - a seed, no secret
    return ["".join(chance.choices("a?#%&=+;:é@ ", k=9)).strip() or "?" for _ in range(count)]


@pytest.mark.parametrize("name", ["100%", "who?", "#1", "a&b=c", "a b", *_people(5, 4)])
def test_pages_of_a_person_with_any_name_lead_to_each_other(browser: TestClient, name: str) -> None:
    person = f"/ui/people/{quote(name, safe='')}"
    path = f"/users/{quote(name, safe='')}/blocks/human"
    user = ok(browser.put(path, json={"body": "Likes tea."})) and ok(
        browser.get(f"/v1/users/{quote(name, safe='')}")
    )
    fact = ok(browser.post(f"/v1/users/{user['id']}/facts", json={"sentence": "I live in Graz."}))

    async def ask() -> None:
        request = ForgetRequest("", user["organization_id"], user["id"], "Likes tea")
        await runtime.store.write(lambda tx: requests.append(queries.add(tx, request)))

    runtime = browser.app.state.runtime  # type: ignore[attr-defined]
    requests: list[ForgetRequest] = []
    browser.portal.call(ask)  # type: ignore[union-attr]
    file = {"file": ("notes.txt", b"Tea.")}
    for page, form in (
        (f"{person}/facts/policy", {"policy": "off"}),
        (f"{person}/facts/{fact['id']}", {"action": "forget"}),
        (f"{person}/forget-one/decline", {"request_id": requests[0].id}),
    ):
        answer = browser.post(page, data=form, follow_redirects=True)
        assert (answer.status_code, answer.url.path.startswith("/ui/people/")) == (200, True), page
    workspace = browser.get("/ui/workspace", params={"user": name}, follow_redirects=True)
    assert workspace.status_code == 200, workspace.url
    (form_path,) = re.findall(r'action="([^"]*/upload)"', workspace.text)
    stored = browser.post(unescape(form_path), files=file, follow_redirects=True)
    assert (stored.status_code, "notes.txt was stored" in stored.text) == (200, True)
    (link,) = re.findall(r'href="([^"]*path=notes.txt)"', stored.text)
    assert "Tea." in browser.get(unescape(link)).text
