"""Forms of the pages, filled in and sent in a real browser.

The tests check the page and the stored change. Forms without scripts run only under soak, since
other modules in this folder send them over HTTP.
"""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, Route, expect

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


def press_button(page: Page, name: str, within: str = "main") -> None:
    page.locator(within).get_by_role("button", name=name, exact=True).first.click()


def expect_notice(page: Page, words: str) -> None:
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
def test_an_agent_can_be_created_and_configured(visitor: Visitor, http: httpx2.Client) -> None:
    page = visitor.see("/ui/agents")
    if page.locator("details:not([open]) > summary", has_text="New agent").count():
        page.get_by_text("New agent").click()
    page.get_by_label("Name", exact=True).fill("Otto")
    page.get_by_label("Model").select_option("scripted/model")
    page.get_by_label("Who it is").fill("I am calm.")
    press_button(page, "Make it")
    expect_notice(page, "Otto is ready.")
    page.get_by_role("navigation", name="Pages of Otto").get_by_role(
        "link", name="Settings"
    ).click()
    page.get_by_label("Description", exact=True).fill("A calm one.")
    page.get_by_label("Tags").fill("calm")
    page.get_by_label("Most tokens a day").fill("9000")
    press_button(page, "Save")
    expect_notice(page, "Otto was changed.")
    press_button(page, "Ask first")
    expect_notice(page, "wait for approval")
    press_button(page, "No approval")
    expect_notice(page, "need no approval")
    press_button(page, "Take away")
    expect_notice(page, "The tool was detached.")
    page.get_by_text("Give it another tool").click()
    press_button(page, "Give")
    expect_notice(page, "The tool was attached.")
    press_button(page, "Empty its conversation")
    expect_notice(page, "The conversation was emptied.")
    made = next(one for one in http.get("/v1/agents/").json() if one["name"] == "Otto")
    assert (made["description"], made["tags"]) == ("A calm one.", ["calm"])


@pytest.mark.soak
def test_the_archive_can_be_filled_changed_and_emptied(
    visitor: Visitor, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    page = visitor.see(f"/ui/agents/{agent}/archive")
    page.get_by_text("Add a passage").click()
    page.get_by_label("Text").fill("Ada has a dog.")
    page.get_by_label("Tags, with commas between them").fill("pets")
    press_button(page, "Add")
    expect_notice(page, "Added to the archive.")
    page.get_by_text("Change or delete").click()
    page.locator("article textarea").fill("Ada has a cat.")
    press_button(page, "Save")
    expect_notice(page, "Changed.")
    page.get_by_label("Search as the agent does").fill("cat")
    press_button(page, "Search")
    expect(page.locator("article")).to_contain_text("Ada has a cat.")
    page.get_by_text("Change or delete").click()
    press_button(page, "Delete", "article")
    expect_notice(page, "Deleted from the archive.")


def test_a_message_can_be_edited_and_a_conversation_forked_or_started(
    visitor: Visitor, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    say(http, agent, "I like tea.", "I like chess.")
    page = visitor.see(f"/ui/agents/{agent}/chat?conversation=default")
    page.locator(".message.user").last.get_by_role("button", name="Edit and resend").click()
    expect(page.get_by_label("Message to Nina")).to_have_value("I like chess.")
    expect(page.locator("#transcript")).not_to_contain_text("I like chess.")
    page.locator(".message.agent").first.get_by_role("button", name="Fork here").click()
    press_button(page, "New conversation")
    expect(page.locator("#nothing")).to_be_visible()


@pytest.mark.soak
def test_a_conversation_can_be_renamed_archived_and_deleted(
    visitor: Visitor, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    own = http.post(f"/v1/conversations/?agent_id={agent}", json={}).json()["id"]
    page = visitor.see(f"/ui/agents/{agent}/chat?conversation={own}")
    page.get_by_text("Change this conversation").click()
    page.get_by_label("Title").fill("About opera")
    press_button(page, "Rename")
    expect_notice(page, "The conversation was changed.")
    expect(page.locator(".chats")).to_contain_text("About opera")
    page.get_by_text("Change this conversation").click()
    press_button(page, "Archive")
    expect_notice(page, "The conversation was changed.")
    assert [
        one["archived"]
        for one in http.get(f"/v1/conversations/?agent_id={agent}&archive_status=archived").json()
    ]
    other = http.post(f"/v1/conversations/?agent_id={agent}", json={}).json()["id"]
    visitor.see(f"/ui/agents/{agent}/chat?conversation={other}")
    page.get_by_text("Change this conversation").click()
    press_button(page, "Delete")
    expect_notice(page, "The conversation was deleted.")
    assert http.get(f"/v1/conversations/{other}").status_code == 404


def test_a_memory_change_can_be_undone_below_the_answer(
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
    expect_notice(page, "undone")
    assert http.get("/users/ada/blocks/hobby").json()["body"] == "Ada likes tea."


@pytest.mark.soak
def test_a_failed_run_can_be_retried(
    visitor: Visitor, http: httpx2.Client, server: ServerInThread
) -> None:
    agent = agent_of(http)
    server.says(ModelError("llm_bad_request", "No."), "Now it works.")
    say(http, agent, "Hello?")
    page = visitor.see(f"/ui/runs?agent={agent}&status=failed")
    page.locator("tbody a").first.click()
    press_button(page, "Try again")
    expect(page.locator("#transcript .message.agent")).to_contain_text("Now it works.")


@pytest.mark.soak
def test_providers_can_be_added_and_removed(visitor: Visitor, http: httpx2.Client) -> None:
    page = visitor.see("/ui/models")
    page.get_by_text("Add a provider", exact=True).click()
    page.get_by_label("Name").fill("mine")
    page.get_by_label("Key", exact=True).fill("sk-1")
    press_button(page, "Add")
    expect_notice(page, "mine was added.")
    press_button(page, "Remove")
    expect_notice(page, "The provider and its key were removed.")
    assert http.get("/v1/providers/").json() == []


@pytest.mark.soak
def test_memory_can_be_created_compared_restored_configured_and_forgotten(
    visitor: Visitor, http: httpx2.Client
) -> None:
    http.put("/users/mia/blocks/first", json={"body": "One.", "policy": "direct"})
    http.put("/users/mia/blocks/first", json={"body": "Two."})
    mia = next(user["id"] for user in http.get("/v1/users/").json() if user["name"] == "mia")
    page = visitor.see(f"/ui/people/{mia}/new")
    page.get_by_label("Label").fill("goals")
    page.get_by_label("Text").fill("Learn Italian.")
    press_button(page, "Make it")
    assert http.get("/users/mia/blocks/goals").json()["body"] == "Learn Italian."
    visitor.see(f"/ui/people/{mia}/blocks/first/history")
    press_button(page, "Compare the two chosen")
    expect(page.locator("ins").first).to_contain_text("Two")
    visitor.see(f"/ui/people/{mia}/blocks/first/history")
    page.locator("tbody a").last.click()
    page.get_by_role("button", name="Restore").first.click()
    expect(page.locator(".toast")).to_be_visible()
    assert http.get("/users/mia/blocks/first").json()["body"] == "One."
    visitor.see(f"/ui/people/{mia}/blocks/first")
    page.get_by_text("Settings", exact=True).last.click()
    page.get_by_label("Limit in characters").fill("5000")
    press_button(page, "Save settings")
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
    press_button(page, "Forget mia")
    expect(page.locator("main")).to_contain_text("receipt", ignore_case=True)
    assert http.get("/users/mia/blocks").status_code == 404


@pytest.mark.soak
def test_users_and_keys_can_be_managed_and_a_key_logs_in(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serving(tmp_path_factory.mktemp("keys")) as server, visit(browser, server.url) as visitor:
        page = visitor.see("/ui/settings")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_text("Add a user").click()
        page.get_by_label("Name", exact=True).fill("Eve")
        press_button(page, "Add")
        expect_notice(page, "Eve was added.")
        page.locator("tr", has_text="Eve").get_by_role("button", name="Disable").click()
        expect_notice(page, "Eve was changed.")
        page.get_by_label("User", exact=True).fill("Boss")
        press_button(page, "Make the key")
        key = page.locator("#new-key").inner_text()
        page.get_by_role("link", name="Log in with it").click()
        page.get_by_label("Key", exact=True).fill(f"{key}x")
        press_button(page, "Log in")
        expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
        visitor.told.clear()  # The browser's console reports the status 401.
        page.get_by_label("Key", exact=True).fill(key)
        press_button(page, "Log in")
        expect(page.locator(".who")).to_contain_text("Boss")
        visitor.see("/ui/settings")
        page.get_by_text("Make a key").click()
        page.get_by_label("User", exact=True).fill("Eve2")
        press_button(page, "Make the key")
        expect(page.locator("#new-key")).to_be_visible()
        visitor.see("/ui/settings")
        page.locator("tr", has_text="Eve2").first.get_by_role("button", name="Revoke").click()
        expect_notice(page, "The key was revoked.")
        press_button(page, "Log out", ".side")
        expect(page.get_by_label("Key", exact=True)).to_be_visible()
        visitor.require_quiet()


def test_a_double_click_sends_a_form_once(visitor: Visitor, http: httpx2.Client) -> None:
    agent = agent_of(http)
    http.post(f"/v1/agents/{agent}/archival-memory", json={"text": "Tea."})
    sent: list[str] = []

    def answer_late(route: Route) -> None:
        sent.append(route.request.url)
        visitor.page.wait_for_timeout(300)
        route.continue_()

    for text in ("Milk.", "Water."):  # also after a return to the same form
        page = visitor.see(f"/ui/agents/{agent}/archive")
        page.route("**/archive/*", answer_late)
        page.evaluate(
            """(text) => {
              const area = [...document.querySelectorAll("textarea[name=text]")]
                .find((area) => area.form.action.includes("/passage-"));
              area.value = text;
              const button = area.form.querySelector("button");
              button.click();
              setTimeout(() => button.click(), 100);
            }""",
            text,
        )
        expect_notice(page, "Changed.")
        page.unroute("**/archive/*")
    assert len(sent) == 2
    passages = http.get(f"/v1/agents/{agent}/archival-memory").json()
    assert [one["text"] for one in passages] == ["Water."]


def test_a_name_of_one_long_word_makes_no_page_wider_than_a_phone(
    browser: Browser, server: ServerInThread, http: httpx2.Client
) -> None:
    word = "W" * 100
    agent = agent_of(http, name=word, tags=[word], description=word)
    server.says(call("memory_insert", label="human", new_string=word), word)
    say(http, agent, word)
    http.post(f"/v1/agents/{agent}/archival-memory", json={"text": word, "tags": [word]})
    folder = http.post("/v1/folders/", json={"name": word}).json()["id"]
    group = http.post("/v1/groups/", json={"agent_ids": [agent], "description": word}).json()["id"]
    user = http.post("/v1/users/", json={"name": word, "identifier": word}).json()["id"]
    http.put(f"/users/{user}/blocks/human", json={"body": word, "message": word})
    block = http.get(f"/v1/agents/{agent}/core-memory/blocks").json()[0]["id"]
    home = f"/ui/agents/{agent}"
    pages = ["/", f"/ui/agents?tag={word}", f"{home}/chat", f"{home}/memory", f"{home}/archive"]
    pages += [f"{home}/settings", f"/ui/blocks/{block}", f"/ui/people/{user}"]
    pages += [f"/ui/people/{user}/blocks/human", f"/ui/people/{user}/forget"]
    pages += [f"/ui/files/{folder}", f"/ui/groups/{group}"]
    with visit(browser, server.url, width=390, height=844) as visitor:
        wide = []
        for page in pages:
            visitor.see(page)
            if visitor.is_wider_than_the_screen():
                wide.append(page)
        visitor.require_quiet()
    assert wide == []
    for path in (f"/v1/groups/{group}", f"/v1/agents/{agent}", f"/v1/folders/{folder}"):
        assert http.delete(path).status_code < 300
    http.delete(f"/users/{user}")
