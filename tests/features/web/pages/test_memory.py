"""Pages of memory.

The tests cover reading, editing without losing typed text, settings, new blocks, deletion and undo,
by role.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urldefrag

import pytest
from fastapi.testclient import TestClient

from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.features.skills.service import open_owner
from ricordo.memory.proposals import ProposalDraft
from ricordo.memory.proposals import propose as propose_change
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction
from tests.features.web.pages.test_decisions import human_text, propose
from tests.features.web.pages.test_home import visitor
from tests.features.web.pages.test_rights_of_buttons import Forms


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        client.put(
            "/users/ada/blocks/human",
            json={"body": "# Ada\n\nLikes **tea**.", "message": "First words"},
        )
        yield client


def user_id(browser: TestClient, name: str = "ada") -> str:
    return next(
        str(one["id"]) for one in browser.get("/v1/users/").json() if one["identifier"] == name
    )


def home(browser: TestClient) -> str:
    return f"/ui/people/{user_id(browser)}"


def version_on(page: str) -> str:
    return page.split('name="version" value="')[1].split('"', maxsplit=1)[0]


def test_people_are_listed_with_their_blocks_and_proposals(browser: TestClient) -> None:
    browser.put("/users/ben/blocks/human", json={"body": "Ben."})
    propose(browser, "tea", "coffee")
    page = browser.get("/ui/people").text
    assert f'href="{home(browser)}">ada</a>' in page
    assert page.count("1 proposal waits") == 1
    found = browser.get("/ui/people", params={"q": "BE"}).text
    assert ">ben</a>" in found
    assert ">ada</a>" not in found
    assert "No person has this name." in browser.get("/ui/people", params={"q": "%"}).text


def test_the_people_page_is_paged_by_a_cursor(browser: TestClient) -> None:
    for number in range(51):
        browser.post("/v1/users/", json={"name": f"user {number:02}"})
    page = browser.get("/ui/people").text
    assert page.count("<tr data-item>") == 50
    older = page.split('">Older</a>')[0].rsplit('href="', 1)[1]
    assert browser.get(older.replace("&amp;", "&")).text.count("<tr data-item>") == 3, (
        "the local user is counted too"
    )


def test_a_persons_page_shows_blocks_text_proposals_and_history(
    browser: TestClient,
) -> None:
    browser.put("/users/ada/blocks/school/math", json={"body": "Algebra.", "limit": 40})
    propose(browser, "tea", "coffee")
    page = browser.get(home(browser)).text
    assert "<strong>tea</strong>" in page, "Markdown must be rendered"
    assert "Likes <strong>coffee</strong>" not in page
    assert "Likes **coffee**." in page
    assert f'href="{home(browser)}/blocks/school/math"' in page
    assert "First words" in page
    block = browser.get(f"{home(browser)}/blocks/school/math").text
    assert "Algebra." in block
    assert "8 of 40 characters" in block
    assert '+1 <span class="sr">removed: </span>−0' in block


def test_a_page_without_memory_offers_to_add_a_block(browser: TestClient) -> None:
    browser.post("/v1/users/", json={"name": "eve"})
    page = browser.get(f"/ui/people/{user_id(browser, 'eve')}").text
    assert "Nothing is remembered yet." in page
    assert "/new" in page


def test_an_edit_with_a_reason_can_be_undone(browser: TestClient) -> None:
    page = f"{home(browser)}/blocks/human"
    shown = browser.get(page, params={"edit": "1"}).text
    assert 'data-limit="100000" data-length="length"' in shown
    form = {
        "value": "Ada likes milk.\r\nMuch.",
        "reason": "She said so",
        "version": version_on(shown),
    }
    saved = browser.post(page, data=form)
    assert (saved.status_code, saved.headers["location"]) == (303, page)
    assert human_text(browser) == "Ada likes milk.\nMuch."
    told = browser.get(page).text
    assert "human was saved." in told
    assert "She said so" in told
    undo = told.split('action="')[1].split('"')[0]
    browser.post(undo)
    assert human_text(browser) == "# Ada\n\nLikes **tea**."


def test_an_edit_of_a_changed_block_keeps_the_typed_text(browser: TestClient) -> None:
    page = f"{home(browser)}/blocks/human"
    version = version_on(browser.get(page, params={"edit": "1"}).text)
    browser.put("/users/ada/blocks/human", json={"body": "Another wrote this."})
    refused = browser.post(
        page, data={"value": "Mine <b>", "reason": "My reason", "version": version}
    )
    assert refused.status_code == 409
    assert human_text(browser) == "Another wrote this."
    assert ">\nMine &lt;b&gt;</textarea>" in refused.text
    assert 'value="My reason"' in refused.text
    assert "Another wrote this." in refused.text
    browser.post(page, data={"value": "Both.", "version": version_on(refused.text)})
    assert human_text(browser) == "Both."


def test_a_text_that_is_too_long_stays_in_the_editor(browser: TestClient) -> None:
    browser.patch("/users/ada/blocks/human", json={"limit": 30})
    refused = browser.post(f"{home(browser)}/blocks/human", data={"value": "y" * 31})
    assert refused.status_code == 422
    assert "its limit is 30" in refused.text
    assert "y" * 31 in refused.text


def test_block_settings_can_be_changed_and_invalid_ones_are_refused(browser: TestClient) -> None:
    form = {"title": "About her", "policy": "guarded", "limit": "500", "description": ""}
    browser.post(f"{home(browser)}/settings/human", data=form)
    block = browser.get("/users/ada/blocks/human").json()
    assert (block["title"], block["policy"], block["limit"], block["description"]) == (
        "About her",
        "guarded",
        500,
        None,
    )
    refused = browser.post(f"{home(browser)}/settings/human", data={"limit": "many"})
    assert refused.status_code == 422
    assert "limit" in refused.text


def test_a_new_block_is_created_once(browser: TestClient) -> None:
    form = {
        "label": "school/100% math?",
        "value": "Algebra.",
        "policy": "direct",
        "description": "What she learns",
    }
    made = browser.post(f"{home(browser)}/new", data=form)
    assert made.headers["location"] == f"{home(browser)}/blocks/school/100%25%20math%3F"
    assert "Algebra." in browser.get(made.headers["location"]).text
    again = browser.post(f"{home(browser)}/new", data=form | {"value": "Other."})
    assert again.status_code == 409
    assert "Other." in again.text
    assert 'role="alert"' in again.text


def test_deleting_a_block_can_be_undone(browser: TestClient) -> None:
    page = f"{home(browser)}/blocks/human"
    answer = browser.post(f"{home(browser)}/remove/human")
    assert answer.headers["location"] == home(browser)
    told = browser.get(home(browser)).text
    assert "human was deleted." in told
    assert "1 deleted" in told
    assert browser.get("/users/ada/blocks/human").status_code == 404
    assert "This block was deleted." in browser.get(page).text
    browser.post(told.split('<form method="post" action="')[1].split('"')[0])
    assert human_text(browser) == "# Ada\n\nLikes **tea**."


def test_approve_all_decides_only_the_proposals_on_the_page(browser: TestClient) -> None:
    first, second = propose(browser, "tea", "coffee"), propose(browser, "# Ada", "# Ada L.")
    page = browser.get(home(browser)).text
    assert "2 suggestions" in page
    assert ">Approve all</button>" in page
    later = {"old_string": "", "new_string": "Has a cat.", "reasoning": "Said so."}
    third = browser.post("/users/ada/blocks/pets/propose", json=later).json()["id"]
    browser.post(f"{home(browser)}/decide", data={"id": [first, second], "decision": "approve"})
    assert human_text(browser) == "# Ada L.\n\nLikes **coffee**."
    assert "Remembered." in browser.get(home(browser)).text
    browser.post(
        f"{home(browser)}/decide", data={"id": [third], "decision": "reject", "reason": "No."}
    )
    assert browser.get("/users/ada/diffs").json() == []


@pytest.mark.parametrize("page", ["user", "agent", "block"])
def test_a_page_counts_the_suggestions_that_it_does_not_show(
    browser: TestClient, page: str
) -> None:
    agent = browser.post("/v1/agents/", json={"name": "Nina"}).json()["id"]
    paths = {
        "user": home(browser),
        "agent": f"/ui/agents/{agent}/memory",
        "block": f"{home(browser)}/blocks/human",
    }

    kind, owner_id = ("agent", agent) if page == "agent" else ("user", user_id(browser))

    def work(tx: Transaction) -> None:
        chain = open_owner(tx, Scope(), kind, owner_id, makes=True).chain
        block = blocks.labelled(tx, chain.id, "human")
        for number in range(53):
            author = Actor("agent", f"agent-{number}", f"Tutor {number}")
            draft = ProposalDraft(chain.id, f"new {number}", f"Line {number}")
            if page == "block":
                draft = ProposalDraft(chain.id, "human", f"Line {number}", block)
            propose_change(tx, draft, ChangeMetadata(author, "Said so."))

    assert browser.portal
    browser.portal.call(browser.app.state.runtime.store.write, work)  # type: ignore[attr-defined]
    assert "3 more wait behind these." in browser.get(paths[page]).text


def test_an_agents_blocks_can_be_read_edited_created_and_deleted(browser: TestClient) -> None:
    body = {"name": "Nina & co", "memory_blocks": [{"label": "persona", "value": "I am *kind*."}]}
    agent = browser.post("/v1/agents/", json=body).json()
    memory, block = f"/ui/agents/{agent['id']}/memory", agent["blocks"][0]["id"]
    shown = browser.get(memory).text
    assert "<em>kind</em>" in shown
    assert "Nina &amp; co" in shown
    page = f"/ui/blocks/{block}"
    version = version_on(browser.get(page, params={"edit": "1"}).text)
    browser.post(page, data={"value": "I am brave.", "version": version})
    assert browser.post(page, data={"value": "I am late.", "version": version}).status_code == 409
    assert browser.get(f"/v1/blocks/{block}").json()["value"] == "I am brave."
    browser.post(f"{page}/settings", data={"policy": "read_only", "limit": "99"})
    assert browser.get(f"/v1/blocks/{block}").json()["read_only"]
    made = browser.post(f"{memory}/new", data={"label": "plans", "value": "None."})
    assert "None." in browser.get(made.headers["location"]).text
    assert (
        browser.post(f"{memory}/new", data={"label": "plans", "value": "Two."}).status_code == 409
    )
    assert browser.get("/v1/blocks/", params={"label": "plans"}).json()[0]["value"] == "None."
    browser.post(f"{made.headers['location']}/remove")
    assert "plans" not in [
        one["label"] for one in browser.get(f"/v1/agents/{agent['id']}/core-memory/blocks").json()
    ]


def test_a_users_block_can_be_changed_only_on_the_users_page(
    browser: TestClient,
) -> None:
    block = browser.get("/users/ada/blocks/human").json()["id"]
    assert "Memory of ada" in browser.get(f"/ui/blocks/{block}").text
    assert browser.post(f"/ui/blocks/{block}/remove").status_code == 409
    assert "tea" in human_text(browser)


def test_no_link_of_a_block_without_an_agent_leads_nowhere(browser: TestClient) -> None:
    """The block of a deleted agent stays, and has no page of an agent's memory."""
    block = {"label": "human", "value": "Drinks tea.", "policy": "propose"}
    body = {"name": "Nina", "memory_blocks": [block]}
    agent = browser.post("/v1/agents/", json=body).json()
    (block_id,) = (one["id"] for one in agent["blocks"])
    lone = browser.post("/v1/blocks/", json={"label": "human", "value": "Sings."}).json()["id"]
    browser.delete(f"/v1/agents/{agent['id']}")
    for id, word in ((block_id, "tea"), (lone, "sings")):
        pages = [f"/ui/blocks/{id}", f"/ui/search?q={word}"]
        for page in pages:
            found = Forms()
            found.feed(browser.get(page).text)
            links = {
                urldefrag(link)[0] for link in found.links if "block" in link or "agent" in link
            }
            assert f"/ui/blocks/{id}" in links
            assert {link: browser.get(link).status_code for link in links} == dict.fromkeys(
                links, 200
            )
        deleted = browser.post(f"/ui/blocks/{id}/remove", follow_redirects=True)
        assert (deleted.status_code, "human was deleted." in deleted.text) == (200, True)


def test_rejecting_a_new_block_from_its_page_leads_to_the_memory(browser: TestClient) -> None:
    owner_id = user_id(browser)

    def work(tx: Transaction) -> None:
        chain = open_owner(tx, Scope(), "user", owner_id, makes=True).chain
        author = Actor("agent", "agent-1", "Tutor")
        draft = ProposalDraft(chain.id, "hobby", "Sails.")
        propose_change(tx, draft, ChangeMetadata(author, "Said so."))

    assert browser.portal
    browser.portal.call(browser.app.state.runtime.store.write, work)  # type: ignore[attr-defined]
    page = browser.get(f"{home(browser)}/blocks/hobby").text
    found = Forms()
    found.feed(page)
    form = next(form for form in found.forms if ("decision", "reject") in form.fields)
    answer = browser.post(form.action, data=dict(form.fields), follow_redirects=True)
    assert (answer.status_code, "Rejected" in answer.text) == (200, True)
