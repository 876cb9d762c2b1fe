"""Forms of the pages, filled in and sent in a real browser.

The tests check the page and the stored change. Forms without scripts run only under soak, since
other modules in this folder send them over HTTP.
"""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.seams.server import ServerInThread, serving
from tests.support.browser import Visitor, visit


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("actions")) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    server.forget()
    with server.http() as client:
        yield client


@pytest.fixture
def visitor(browser: Browser, server: ServerInThread, http: httpx2.Client) -> Iterator[Visitor]:
    with visit(browser, server.url) as opened:
        opened.page.on("dialog", lambda dialog: dialog.accept())
        yield opened
        opened.require_quiet()


def press(page: Page, name: str, within: str = "main") -> None:
    page.locator(within).get_by_role("button", name=name, exact=True).first.click()


def told(page: Page, words: str) -> None:
    expect(page.locator(".toast")).to_contain_text(words)


def agent_of(http: httpx2.Client, **body: Any) -> str:
    given = {
        "name": "Nina",
        "model": "scripted/model",
        "memory_blocks": [{"label": "human", "value": "Unknown."}],
    }
    return str(http.post("/v1/agents/", json=given | body).json()["id"])


def say(http: httpx2.Client, agent: str, *texts: str) -> None:
    for text in texts:
        http.post(
            f"/v1/agents/{agent}/messages", json={"messages": [{"role": "user", "content": text}]}
        )


@pytest.mark.soak
def test_an_agent_is_made_and_set_up(visitor: Visitor, http: httpx2.Client) -> None:
    page = visitor.see("/ui/agents")
    if page.locator("details:not([open]) > summary", has_text="New agent").count():
        page.get_by_text("New agent").click()
    page.get_by_label("Name", exact=True).fill("Otto")
    page.get_by_label("Model").select_option("scripted/model")
    page.get_by_label("Who it is").fill("I am calm.")
    press(page, "Make it")
    told(page, "Otto is ready.")
    page.get_by_role("navigation", name="Pages of Otto").get_by_role(
        "link", name="Settings"
    ).click()
    page.get_by_label("Description", exact=True).fill("A calm one.")
    page.get_by_label("Tags").fill("calm")
    page.get_by_label("Most tokens a day").fill("9000")
    press(page, "Save")
    told(page, "Otto was changed.")
    press(page, "Ask first")
    told(page, "wait for approval")
    press(page, "No approval")
    told(page, "need no approval")
    press(page, "Take away")
    told(page, "The tool was detached.")
    page.get_by_text("Give it another tool").click()
    press(page, "Give")
    told(page, "The tool was attached.")
    press(page, "Empty its conversation")
    told(page, "The conversation was emptied.")
    made = next(one for one in http.get("/v1/agents/").json() if one["name"] == "Otto")
    assert (made["description"], made["tags"]) == ("A calm one.", ["calm"])


@pytest.mark.soak
def test_the_archive_is_filled_changed_and_emptied(visitor: Visitor, http: httpx2.Client) -> None:
    agent = agent_of(http)
    page = visitor.see(f"/ui/agents/{agent}/archive")
    page.get_by_text("Add a passage").click()
    page.get_by_label("Text").fill("Ada has a dog.")
    page.get_by_label("Tags, with commas between them").fill("pets")
    press(page, "Add")
    told(page, "Added to the archive.")
    page.get_by_text("Change or delete").click()
    page.locator("article textarea").fill("Ada has a cat.")
    press(page, "Save")
    told(page, "Changed.")
    page.get_by_label("Search as the agent does").fill("cat")
    press(page, "Search")
    expect(page.locator("article")).to_contain_text("Ada has a cat.")
    page.get_by_text("Change or delete").click()
    press(page, "Delete", "article")
    told(page, "Deleted from the archive.")


def test_a_message_is_edited_and_a_conversation_is_forked_and_begun(
    visitor: Visitor, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    say(http, agent, "I like tea.", "I like chess.")
    page = visitor.see(f"/ui/agents/{agent}/chat?conversation=default")
    page.locator(".message.user").last.get_by_role("button", name="Edit and resend").click()
    expect(page.get_by_label("Message to Nina")).to_have_value("I like chess.")
    expect(page.locator("#transcript")).not_to_contain_text("I like chess.")
    page.locator(".message.agent").first.get_by_role("button", name="Fork here").click()
    press(page, "New conversation")
    expect(page.locator("#nothing")).to_be_visible()


@pytest.mark.soak
def test_a_conversation_is_renamed_archived_and_deleted(
    visitor: Visitor, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    own = http.post(f"/v1/conversations/?agent_id={agent}", json={}).json()["id"]
    page = visitor.see(f"/ui/agents/{agent}/chat?conversation={own}")
    page.get_by_text("Change this conversation").click()
    page.get_by_label("Title").fill("About opera")
    press(page, "Rename")
    told(page, "The conversation was changed.")
    expect(page.locator(".chats")).to_contain_text("About opera")
    page.get_by_text("Change this conversation").click()
    press(page, "Archive")
    told(page, "The conversation was changed.")
    assert [
        one["archived"]
        for one in http.get(f"/v1/conversations/?agent_id={agent}&archive_status=archived").json()
    ]
    other = http.post(f"/v1/conversations/?agent_id={agent}", json={}).json()["id"]
    visitor.see(f"/ui/agents/{agent}/chat?conversation={other}")
    page.get_by_text("Change this conversation").click()
    press(page, "Delete")
    told(page, "The conversation was deleted.")
    assert http.get(f"/v1/conversations/{other}").status_code == 404


def test_what_was_remembered_is_undone_below_the_answer(
    visitor: Visitor, http: httpx2.Client, server: ServerInThread
) -> None:
    http.put("/users/ada/blocks/hobby", json={"body": "Ada likes tea.", "policy": "direct"})
    agent = agent_of(http)
    talk = http.post(f"/v1/conversations/?agent_id={agent}", json={"user_id": "ada"}).json()["id"]
    change = call("memory_replace", label="hobby", old_string="tea", new_string="coffee")
    server.says(change, "Noted.")
    page = visitor.see(f"/ui/agents/{agent}/chat?conversation={talk}")
    page.get_by_label("Message to Nina").fill("I like coffee.")
    page.keyboard.press("Enter")
    page.locator("#transcript").get_by_role("button", name="Undo").click()
    told(page, "undone")
    assert http.get("/users/ada/blocks/hobby").json()["body"] == "Ada likes tea."


@pytest.mark.soak
def test_a_failed_run_is_tried_again(
    visitor: Visitor, http: httpx2.Client, server: ServerInThread
) -> None:
    agent = agent_of(http)
    server.says(ModelError("llm_bad_request", "No."), "Now it works.")
    say(http, agent, "Hello?")
    page = visitor.see(f"/ui/runs?agent={agent}&status=failed")
    page.locator("tbody a").first.click()
    press(page, "Try again")
    expect(page.locator("#transcript .message.agent")).to_contain_text("Now it works.")


@pytest.mark.soak
def test_providers_are_added_and_removed(visitor: Visitor, http: httpx2.Client) -> None:
    page = visitor.see("/ui/models")
    page.get_by_text("Add a provider", exact=True).click()
    page.get_by_label("Name").fill("mine")
    page.get_by_label("Key", exact=True).fill("sk-1")
    press(page, "Add")
    told(page, "mine was added.")
    press(page, "Remove")
    told(page, "The provider and its key were removed.")
    assert http.get("/v1/providers/").json() == []


@pytest.mark.soak
def test_memory_is_made_compared_restored_set_up_and_forgotten(
    visitor: Visitor, http: httpx2.Client
) -> None:
    http.put("/users/mia/blocks/first", json={"body": "One.", "policy": "direct"})
    http.put("/users/mia/blocks/first", json={"body": "Two."})
    mia = next(user["id"] for user in http.get("/v1/users/").json() if user["name"] == "mia")
    page = visitor.see(f"/ui/people/{mia}/new")
    page.get_by_label("Label").fill("goals")
    page.get_by_label("Text").fill("Learn Italian.")
    press(page, "Make it")
    assert http.get("/users/mia/blocks/goals").json()["body"] == "Learn Italian."
    visitor.see(f"/ui/people/{mia}/blocks/first/history")
    press(page, "Compare the two chosen")
    expect(page.locator("ins").first).to_contain_text("Two")
    visitor.see(f"/ui/people/{mia}/blocks/first/history")
    page.locator("tbody a").last.click()
    page.get_by_role("button", name="Restore").first.click()
    expect(page.locator(".toast")).to_be_visible()
    assert http.get("/users/mia/blocks/first").json()["body"] == "One."
    visitor.see(f"/ui/people/{mia}/blocks/first")
    page.get_by_text("Settings", exact=True).last.click()
    page.get_by_label("Limit in characters").fill("5000")
    press(page, "Save settings")
    assert http.get("/users/mia/blocks/first").json()["limit"] == 5000
    body = {"old_string": "One.", "new_string": "Three.", "reasoning": "So."}
    http.patch("/users/mia/blocks/first", json={"policy": "propose"})
    http.post("/users/mia/blocks/first/propose", json=body)
    http.post("/users/mia/blocks/goals/propose", json={**body, "old_string": "Italian"})
    visitor.see(f"/ui/people/{mia}/blocks/first")
    page.locator(".suggestion").get_by_role("button", name="Approve").click()
    expect(page.locator(".suggestion")).to_have_count(0)
    assert http.get("/users/mia/blocks/first").json()["body"] == "Three."
    visitor.see(f"/ui/people/{mia}/audit")
    expect(page.locator("h1")).to_contain_text("mia")
    visitor.see(f"/ui/people/{mia}/forget")
    page.get_by_label("Type mia to go on").fill("mia")
    press(page, "Forget mia")
    expect(page.locator("main")).to_contain_text("receipt", ignore_case=True)
    assert http.get("/users/mia/blocks").status_code == 404


@pytest.mark.soak
def test_users_and_keys_come_and_go_and_a_key_logs_in(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serving(tmp_path_factory.mktemp("keys")) as server, visit(browser, server.url) as visitor:
        page = visitor.see("/ui/settings")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_text("Add a user").click()
        page.get_by_label("Name", exact=True).fill("Eve")
        press(page, "Add")
        told(page, "Eve was added.")
        page.locator("tr", has_text="Eve").get_by_role("button", name="Disable").click()
        told(page, "Eve was changed.")
        page.get_by_label("User", exact=True).fill("Boss")
        press(page, "Make the key")
        key = page.locator("#new-key").inner_text()
        page.get_by_role("link", name="Log in with it").click()
        page.get_by_label("Key", exact=True).fill(f"{key}x")
        press(page, "Log in")
        expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
        visitor.told.clear()  # The browser's console reports the status 401.
        page.get_by_label("Key", exact=True).fill(key)
        press(page, "Log in")
        expect(page.locator(".who")).to_contain_text("Boss")
        visitor.see("/ui/settings")
        page.get_by_text("Make a key").click()
        page.get_by_label("User", exact=True).fill("Eve2")
        press(page, "Make the key")
        expect(page.locator("#new-key")).to_be_visible()
        visitor.see("/ui/settings")
        page.locator("tr", has_text="Eve2").first.get_by_role("button", name="Revoke").click()
        told(page, "The key was revoked.")
        press(page, "Log out", ".side")
        expect(page.get_by_label("Key", exact=True)).to_be_visible()
        visitor.require_quiet()
