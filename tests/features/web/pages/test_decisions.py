"""Proposals on the home page and on their page.

They are approved, edited, rejected or in conflict, by each role.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.memory import proposals
from ricordo.memory.proposals import ProposalDraft
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction
from tests.features.web.pages.test_home import visitor

HTMX = {"hx-request": "true"}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        client.put(
            "/users/ada/blocks/human",
            json={"body": "Ada likes tea.\nAda plays chess.", "policy": "propose"},
        )
        yield client


def propose(browser: TestClient, old: str, new: str, user: str = "ada") -> str:
    body = {"old_string": old, "new_string": new, "reasoning": "Said <b>today</b>."}
    made: dict[str, Any] = browser.post(f"/users/{user}/blocks/human/propose", json=body).json()
    return str(made["id"])


def human_text(browser: TestClient) -> str:
    return str(browser.get("/users/ada/blocks/human").json()["body"])


def person_page(browser: TestClient) -> str:
    users = browser.get("/v1/users/").json()
    return "/ui/people/" + next(str(one["id"]) for one in users if one["identifier"] == "ada")


def test_a_persons_page_shows_proposals_with_escaped_reasons(browser: TestClient) -> None:
    proposal = propose(browser, "tea", "coffee")
    page = browser.get(person_page(browser)).text
    assert "1 suggestion<" in page
    assert "Ada likes coffee." in page
    assert "Said &lt;b&gt;today&lt;/b&gt;." in page
    assert "coffee</ins>" in browser.get(f"/ui/proposals/{proposal}").text


def test_approving_changes_the_block_and_returns_to_the_previous_page(
    browser: TestClient,
) -> None:
    proposal = propose(browser, "tea", "coffee")
    answer = browser.post(f"/ui/proposals/{proposal}/approve", data={"next": "/"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert human_text(browser) == "Ada likes coffee.\nAda plays chess."
    page = browser.get("/").text
    assert "human: applied." in page
    assert "human: applied." not in browser.get("/").text, "the notice must be shown once"


def test_a_proposal_can_be_approved_with_other_words_or_rejected(browser: TestClient) -> None:
    first, second = propose(browser, "tea", "coffee"), propose(browser, "chess", "go")
    assert "Ada likes coffee." in browser.get(f"/ui/proposals/{first}").text
    browser.post(
        f"/ui/proposals/{first}/approve", data={"body": "Ada likes cocoa.\r\nAda plays chess."}
    )
    assert human_text(browser) == "Ada likes cocoa.\nAda plays chess."
    done = browser.post(f"/ui/proposals/{second}/reject", data={"reason": "No."})
    assert done.status_code == 303
    found = browser.get("/users/ada/diffs", params={"status": "rejected"}).json()
    assert [(one["id"], one["note"]) for one in found] == [(second, "No.")]


def test_a_decision_on_a_decided_proposal_gets_the_reason(browser: TestClient) -> None:
    proposal = propose(browser, "tea", "coffee")
    home = person_page(browser)
    browser.post(f"/ui/proposals/{proposal}/approve")
    for decision in ("approve", "reject"):
        browser.post(f"{home}/decide", data={"id": proposal, "decision": decision})
        assert "1 failed. The proposal" in (page := browser.get(home).text)
        assert "is approved already" in page


def test_a_conflict_shows_both_texts_and_accepts_a_third(browser: TestClient) -> None:
    proposal = propose(browser, "Ada likes tea.", "Ada likes coffee.")
    browser.put("/users/ada/blocks/human", json={"body": "Ada likes milk.\nAda plays chess."})
    page = browser.post(f"/ui/proposals/{proposal}/approve")
    assert page.status_code == 409
    assert "What stands there now" in page.text
    assert "milk" in page.text
    assert "coffee" in page.text
    answer = browser.get(f"/ui/proposals/{proposal}")
    later = answer.text
    assert answer.status_code == 200
    assert "What stands there now" in later, "the page must still show why the proposal waits"
    assert "milk</ins>" in later
    assert "collides" in browser.get(person_page(browser)).text
    browser.post(f"/ui/proposals/{proposal}/approve", data={"body": "Ada likes both."})
    assert human_text(browser) == "Ada likes both."


@pytest.mark.parametrize("end", ["approve", "reject", "delete"])
def test_the_page_of_a_proposal_that_no_longer_waits_offers_no_decision(
    browser: TestClient, end: str
) -> None:
    proposal = propose(browser, "tea", "coffee")
    assert "Approve with these words" in browser.get(f"/ui/proposals/{proposal}").text
    if end == "delete":
        browser.delete("/users/ada/blocks/human").raise_for_status()
    else:
        browser.post(f"/ui/proposals/{proposal}/{end}", data={"reason": "I drink <b>tea</b>."})
    page = browser.get(f"/ui/proposals/{proposal}").text
    assert "Approve with these words" not in page
    words = {
        "approve": "it is approved.",
        "reject": "it is rejected.",
        "delete": "it is expired.",
    }
    assert words[end] in page
    if end == "reject":
        assert "I drink &lt;b&gt;tea&lt;/b&gt;." in page


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_decision_about_a_deleted_block_of_an_agent_says_that_it_was_deleted(
    browser: TestClient, decision: str
) -> None:
    agent = browser.post(
        "/v1/agents/",
        json={
            "model": "ricordo/librarian",
            "embedding": None,
            "memory_blocks": [{"label": "notes", "value": "Tea."}, {"label": "me", "value": "I."}],
        },
    ).json()
    block_id = next(block["id"] for block in agent["blocks"] if block["label"] == "notes")

    def suggest(tx: Transaction) -> Proposal:
        block = blocks.get(tx, Scope(), block_id)
        draft = ProposalDraft(block.chain_id, "notes", "Coffee.", block)
        author = Actor("agent", agent["id"], agent["name"])
        return proposals.propose(tx, draft, ChangeMetadata(author, "Said so."))

    assert browser.portal
    app: Any = browser.app
    proposal = browser.portal.call(app.state.runtime.store.write, suggest)
    browser.delete(f"/v1/blocks/{block_id}").raise_for_status()
    answer = browser.post(f"/ui/proposals/{proposal.id}/{decision}")
    assert answer.status_code == 409
    assert "The block was deleted." in answer.text
    assert "path.block_id" not in answer.text


def test_an_htmx_request_gets_only_the_card(browser: TestClient) -> None:
    done = browser.post(f"/ui/proposals/{propose(browser, 'tea', 'coffee')}/approve", headers=HTMX)
    assert done.text.lstrip().startswith("<article")
    assert "applied" in done.text


@pytest.mark.parametrize(
    "next", ["//evil.example/", "https://evil.example/", "/\\evil.example", "/\t/evil.example"]
)
def test_a_decision_never_redirects_to_another_server(browser: TestClient, next: str) -> None:
    answer = browser.post(
        f"/ui/proposals/{propose(browser, 'tea', 'coffee')}/approve", data={"next": next}
    )
    assert answer.headers["location"].startswith("/ui/people/user-")


def test_a_missing_proposal_shows_a_not_found_page(browser: TestClient) -> None:
    page = browser.post("/ui/proposals/proposal-00000000-0000-4000-8000-000000000000/approve")
    assert page.status_code == 404
    assert "<h1>Not found</h1>" in page.text


def test_the_first_message_creates_an_agent_that_remembers_it(tmp_path: Path) -> None:
    with visitor(tmp_path) as browser:
        assert "Say something to remember" in browser.get("/").text
        answer = browser.post("/ui/first", data={"message": "My name is Ada."})
        agent = browser.get("/v1/agents/").json()[0]
        assert answer.headers["location"] == f"/ui/agents/{agent['id']}/chat"
        user = browser.get("/v1/users/").json()[0]["id"]
        assert "Ada" in browser.get(f"/users/{user}/blocks/human").json()["body"]
        assert "Last chat" in browser.get("/").text
