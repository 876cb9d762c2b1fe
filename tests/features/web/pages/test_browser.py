"""The pages in a real browser.

They are accessible, usable by the keyboard and without scripts, and send nothing to other hosts.
"""

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from ricordo.domain.scope import LOCAL_USER
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.seams.server import Gate, ServerInThread, serving
from tests.support.browser import Visitor, visit

HOSTILE = (
    '<script>document.title="owned"</script><img src=x onerror="document.title=1"> [click](javascript:alert(1))\n'
    "\u202egnp.exe \u0000 " + "long" * 2000 + "\n| broken | table\n```\nunclosed"
).replace("\u0000", "")
SIZES = [(1440, False), (375, True)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Place"]:
    with serving(tmp_path_factory.mktemp("pages"), traces="all") as server, server.http() as http:
        yield Place(server, http)


class Place:
    """A server with an agent, two users, proposals, an archive, and hostile texts."""

    def __init__(self, server: ServerInThread, http: httpx2.Client) -> None:
        self.server, self.http = server, http
        blocks = [
            {"label": "persona", "value": "I am a companion."},
            {"label": "human", "value": HOSTILE[:5000]},
        ]
        body = {
            "name": "Companion",
            "model": "scripted/model",
            "memory_blocks": blocks,
            "tags": ["tutor"],
        }
        self.agent = str(self.ask("POST", "/v1/agents/", body)["id"])
        self.ask(
            "POST",
            f"/v1/agents/{self.agent}/archival-memory",
            {"text": "Ada has a dog.", "tags": ["pets"]},
        )
        for text in ("My name is Ada, and I play chess.", HOSTILE):
            server.says(f"I see. {text}")
            self.ask(
                "POST",
                f"/v1/agents/{self.agent}/messages",
                {"messages": [{"role": "user", "content": text}]},
            )
        self.ask(
            "PUT",
            "/users/ada/blocks/human",
            {"body": "Ada likes tea.\nAda plays chess.", "policy": "propose"},
        )
        self.ask("PUT", "/users/ada/blocks/notes", {"body": HOSTILE})
        self.ada = next(
            user["id"] for user in self.ask("GET", "/v1/users/") if user["name"] == "ada"
        )
        self.run = self.ask("GET", "/v1/runs/")[0]["id"]
        self.step = self.ask("GET", "/v1/steps/")[0]["id"]
        self.job = self.ask("GET", "/v1/jobs/")[0]["id"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.http.request(method, path, json=body)
        assert answer.is_success, (path, answer.text)
        return answer.json()

    def talker(self, human: str) -> str:
        blocks = [{"label": "human", "value": human}]
        body = {"name": "Talker", "model": "scripted/model", "memory_blocks": blocks}
        return str(self.ask("POST", "/v1/agents/", body)["id"])

    def propose(self, old: str, new: str) -> str:
        body = {
            "old_string": old,
            "new_string": new,
            "reasoning": "She said so.",
            "agent_id": self.agent,
        }
        return str(self.ask("POST", "/users/ada/blocks/human/propose", body)["id"])

    def human(self) -> str:
        return str(self.ask("GET", "/users/ada/blocks/human")["body"])

    def set_human(self, text: str) -> None:
        self.ask("PUT", "/users/ada/blocks/human", {"body": text})

    def folder(self) -> str:
        """A folder with a file that was read and one that failed, which an agent has."""
        found = self.ask("GET", "/v1/folders/")
        made = (
            found[0]["id"]
            if found
            else self.ask("POST", "/v1/folders/", {"name": "<b>Shelf</b>"})["id"]
        )
        for name, data in (("<i>.md", b"# Bees"), ("bad.pdf", b"no")):
            sent = {"file": (name, data)}
            self.http.post(
                f"/v1/folders/{made}/upload", files=sent, params={"duplicate_handling": "skip"}
            )
        self.ask("PATCH", f"/v1/agents/{self.agent}/folders/attach/{made}")
        while "every 2s" in self.http.get(f"/ui/files/{made}").text:
            time.sleep(0.1)
        return str(made)

    def group(self) -> str:
        """A group that an agent with a pair leads."""
        body = {
            "name": "<i>Mara</i>",
            "model": "scripted/model",
            "memory_blocks": [],
            "enable_sleeptime": True,
        }
        leader = self.ask("POST", "/v1/agents/", body)["id"]
        self.ask(
            "POST",
            f"/v1/agents/{leader}/messages",
            {"messages": [{"role": "user", "content": "Hi."}]},
        )
        group = {"agent_ids": [self.agent, leader], "description": HOSTILE[:500]}
        self.leader = str(leader)
        made = str(self.ask("POST", "/v1/groups/", group)["id"])
        self.ask(
            "POST",
            f"/v1/groups/{made}/messages",
            {"messages": [{"role": "user", "content": HOSTILE}]},
        )
        return made

    def pages(self) -> list[str]:
        proposal = self.ask("GET", "/users/ada/diffs")[0]["id"]
        self.ask("POST", "/v1/templates", {"type": "agent", "agent_id": self.agent})
        home, ada = f"/ui/agents/{self.agent}", f"/ui/people/{self.ada}"
        sha = self.ask("GET", "/users/ada/blocks/notes/history")[0]["sha"]
        messages = self.ask("GET", f"/v1/runs/{self.run}/messages")
        answer = next(one["id"] for one in messages if one["message_type"] == "assistant_message")
        tool = self.ask("GET", "/v1/tools/")[0]["id"]
        return [
            "/",
            "/ui/agents",
            f"{home}/chat",
            f"{home}/memory",
            "/ui/people",
            f"/ui/people/{self.ada}",
            f"/ui/people/{self.ada}/blocks/human",
            f"/ui/people/{self.ada}/blocks/human?edit=yes",
            f"/ui/people/{self.ada}/blocks/notes",
            f"/ui/people/{self.ada}/blocks/human/history",
            f"/ui/people/{self.ada}/blocks/human/blame",
            f"{ada}/blocks/human/compare",
            f"{ada}/blocks/notes/blame",
            f"{ada}/blocks/notes/compare",
            f"{ada}/blocks/notes/versions/{sha}",
            f"{ada}/new",
            f"{ada}/audit?run=1",
            f"{ada}/export",
            f"{ada}/forget",
            f"/ui/answers/{answer}",
            f"{home}/context?step={self.step}",
            f"{home}/archive",
            f"{home}/archive?q=dog",
            f"{home}/settings",
            "/ui/search",
            "/ui/search?q=chess",
            "/ui/runs",
            f"/ui/runs/{self.run}",
            "/ui/jobs",
            f"/ui/jobs/{self.job}",
            "/ui/models",
            "/ui/connect",
            "/ui/settings",
            "/ui/login",
            "/ui/tools",
            "/ui/tools/new",
            f"/ui/tools/{tool}",
            "/ui/mcp",
            "/ui/files",
            f"/ui/files/{self.folder()}",
            "/ui/groups",
            f"/ui/groups/{self.group()}",
            "/ui/sleeptime",
            f"/ui/sleeptime/{self.leader}",
            f"/ui/agents/{self.leader}/settings",
            "/ui/templates",
            f"/ui/proposals/{proposal}",
            "/ui/runs/run-00000000-0000-4000-8000-000000000000",
        ]


# Parts of a person's memory page, from the top of a narrow screen.
LAYOUT = (".block-text", "#suggestions", "#rules", "#forget", ".past")


@pytest.fixture
def visitor(browser: Browser, place: Place) -> Iterator[Visitor]:
    with visit(browser, place.server.url) as opened:
        yield opened
        opened.require_quiet()


def look_at(
    visitor: Visitor, path: str, sizes: Sequence[tuple[int, bool]], place: int
) -> list[str]:
    """Open a page and return its faults.

    Since axe-core takes most of the time, it checks only parts of some pages. With one size it
    checks each whole page. With several sizes it checks every sixth page, in one of the sizes. The
    parts that all pages have in common are checked only on the first pages.
    """
    within = "main" if len(sizes) > 1 and place >= len(sizes) else None
    examined = place // 6 % len(sizes) if place % 6 == 0 or len(sizes) == 1 else None
    page = visitor.see(path)
    faults = []
    for number, (width, dark) in enumerate(sizes):
        # A page that fits the last, narrow size also fits the first one.
        if (number, examined) == (0, None):
            continue
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        faults += [f"wider than {width}"] if visitor.is_wider_than_the_screen() else []
        faults += visitor.faults(within) if number == examined else []
    faults += [] if page.title() not in ("owned", "1") else ["a script in a text ran"]
    expected = "Failed to load resource: the server responded with a status of 404 (Not Found)"
    faults += [
        words
        for words in visitor.told
        if words != expected or not path.startswith("/ui/runs/run-0000")
    ]
    visitor.told.clear()
    return faults


class Markup(HTMLParser):
    """The code in a page: attributes, addresses, and scripts that are not files."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        runs = [name for name in given if name.startswith("on") or name == "style"]
        leads = [
            value
            for name, value in given.items()
            if name in ("href", "src", "action", "formaction")
            and re.match(r"\s*(javascript|vbscript|data:text)", value, re.IGNORECASE)
        ]
        if runs or leads or (tag == "script" and "src" not in given):
            self.faults.append((tag, attrs))


def test_every_page_escapes_hostile_text(place: Place) -> None:
    place.set_human("Ada likes tea.\nAda plays chess.")
    place.propose("tea", "coffee")
    shown = 0
    for path in place.pages():
        answer = place.http.get(path)
        assert answer.status_code == (404 if "run-00000000" in path else 200), path
        markup = Markup()
        markup.feed(answer.text)
        assert markup.faults == [], path
        assert not re.search(r"<img src=x|<script>document|<i>|=[\"']?javascript:", answer.text), (
            path
        )
        shown += "&lt;img src=x" in answer.text
    assert shown > 5
    place.ask("POST", "/users/ada/diffs/reject", {"all": True})


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(SIZES, id="in turn", marks=pytest.mark.soak),
        pytest.param(SIZES[:1], id="wide and light", marks=pytest.mark.soak),
        pytest.param(SIZES[1:], id="narrow and dark", marks=pytest.mark.soak),
    ],
)
def test_every_page_loads_without_errors_or_outside_requests(
    browser: Browser, place: Place, sizes: Sequence[tuple[int, bool]]
) -> None:
    """Check for errors, outside requests, axe-core's serious findings, width, and scripts."""
    place.set_human("Ada likes tea.\nAda plays chess.")
    place.propose("tea", "coffee")
    require_sound(browser, place, place.pages(), sizes)
    place.ask("POST", "/users/ada/diffs/reject", {"all": True})


def require_sound(
    browser: Browser, place: Place, paths: Sequence[str], sizes: Sequence[tuple[int, bool]]
) -> None:
    with visit(browser, place.server.url) as visitor:
        faults = {path: look_at(visitor, path, sizes, number) for number, path in enumerate(paths)}
        assert visitor.left == []
    assert {path: found for path, found in faults.items() if found} == {}


def test_the_main_layouts_load_without_errors_or_outside_requests(
    browser: Browser, place: Place
) -> None:
    """Like `test_every_page_loads_without_errors_or_outside_requests`, for one page of each layout.

    These are a list, a chat, a text, a comparison and a form.
    """
    ada, agent = f"/ui/people/{place.ada}", f"/ui/agents/{place.agent}"
    paths = ("/", f"{agent}/chat", f"{ada}/blocks/notes", f"{ada}/blocks/notes/compare")
    require_sound(browser, place, (*paths, f"/ui/runs/{place.run}", f"{agent}/settings"), SIZES)


def test_proposals_can_be_approved_edited_and_rejected_by_keyboard(
    visitor: Visitor, place: Place
) -> None:
    place.set_human("Ada likes tea.\nAda plays chess.")
    place.propose("tea", "espresso")
    page = visitor.see(f"/ui/people/{place.ada}")
    page.keyboard.press("j")
    page.keyboard.press("a")
    expect(page.locator(".toast")).to_contain_text("Remembered.")
    assert "espresso" in place.human()
    place.propose("chess", "backgammon")
    visitor.see(f"/ui/people/{place.ada}")
    page.keyboard.press("j")
    page.keyboard.press("e")
    page.get_by_label("Text of the block").fill("Ada likes espresso.\nAda plays darts.")
    page.get_by_role("button", name="Approve with these words").click()
    expect(page.locator(".toast")).to_contain_text("human: applied.")
    assert place.human() == "Ada likes espresso.\nAda plays darts."
    rejected = place.propose("darts", "cricket")
    visitor.see(f"/ui/people/{place.ada}")
    page.keyboard.press("j")
    page.keyboard.press("r")
    page.keyboard.type("I do not.")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("Rejected, nothing changed.")
    assert "cricket" not in place.human()
    decided = place.http.get("/users/ada/diffs", params={"status": "rejected"}).json()
    assert [one["note"] for one in decided if one["id"] == rejected] == ["I do not."]


def test_a_line_can_be_edited_traced_and_forgotten_in_place(visitor: Visitor, place: Place) -> None:
    place.set_human("Ada likes tea.\nAda plays chess.")
    page = visitor.see(f"/ui/people/{place.ada}")
    line = page.locator(".line").filter(has_text="Ada plays chess.")
    line.hover()
    line.get_by_role("link", name="Who said this?").click()
    expect(page.locator(".who-said")).to_contain_text("wrote this")
    line = page.locator(".line").filter(has_text="Ada likes tea.")
    line.hover()
    line.get_by_role("link", name="Edit this line").click()
    page.get_by_label("This line", exact=True).fill("Ada likes cocoa.")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".toast")).to_contain_text("human was saved.")
    assert place.human() == "Ada likes cocoa.\nAda plays chess."
    line = page.locator(".line").filter(has_text="Ada plays chess.")
    line.hover()
    line.get_by_role("button", name="Forget this line").click()
    expect(page.locator(".toast")).to_contain_text("Forgotten.")
    assert place.human() == "Ada likes cocoa."
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".line").filter(has_text="Ada plays chess.")).to_be_visible()


def test_a_forget_request_of_an_agent_can_be_reviewed_and_confirmed(
    visitor: Visitor, place: Place
) -> None:
    said = "I work as a lighthouse keeper"
    agent = place.talker("Likes tea.")
    page = visitor.see(f"/ui/agents/{agent}/chat")
    answer = page.locator("#transcript .message.agent").last
    for text, reply in (
        (f"{said}. My work keeps a lighthouse lit. I like tea.", ["I see."]),
        ("Please forget my job.", [call("forget", text=f"{said}."), "A list waits for you."]),
    ):
        place.server.says(*reply)
        page.get_by_label("Message to Talker").fill(text)
        page.keyboard.press("Enter")
        expect(answer).to_contain_text(reply[-1])
        expect(page.locator("#live")).to_be_empty()
    conversation = page.locator("#transcript").get_attribute("data-conversation")
    assert "lighthouse" in visitor.see("/ui/search?q=lighthouse+keeper").content()

    page = visitor.see(f"/ui/people/{LOCAL_USER}")
    request = page.locator("#forget .card").filter(has_text=said)
    request.get_by_role("button", name="See the list").click()
    choice = page.locator("form").filter(has=page.get_by_role("button", name="Remove the chosen"))
    expect(choice.get_by_text(f"{said}.")).not_to_have_count(0)
    assert visitor.faults() == []
    # A paraphrase is offered too.
    other = choice.locator("label").filter(has_text="keeps a lighthouse lit").locator("input")
    expect(other).not_to_be_checked()
    other.check()
    page.get_by_role("button", name="Remove the chosen").click()
    page.wait_for_url("**/ui/receipts/*")
    receipt = page.url.rpartition("/")[2]
    while place.ask("GET", f"/v1/receipts/{receipt}")["status"] != "done":
        time.sleep(0.05)
    page.reload()
    expect(page.get_by_role("status").first).to_contain_text("The chosen was removed.")
    expect(page.locator("main")).not_to_contain_text("lighthouse")
    page = visitor.see("/ui/search?q=lighthouse+keeper")
    expect(page.locator("main .result")).to_have_count(0)
    page = visitor.see(f"/ui/agents/{agent}/chat?conversation={conversation}")
    expect(page.locator("#transcript")).to_contain_text("[forgotten]")
    expect(page.locator("#transcript")).to_contain_text("I like tea.")
    expect(page.locator("#transcript")).not_to_contain_text("lighthouse")
    page = visitor.see(f"/ui/people/{LOCAL_USER}")
    expect(page.locator("#forget .card").filter(has_text="forgotten:")).to_have_count(0)


def test_suggestions_stand_below_the_text_on_narrow_screens(visitor: Visitor, place: Place) -> None:
    place.set_human("Ada likes tea.\nAda plays chess.")
    place.propose("plays chess", "plays the cello")
    page = visitor.see(f"/ui/people/{place.ada}")

    def tops() -> list[float]:
        found = (page.locator(one).first.bounding_box() for one in LAYOUT)
        return [box["y"] for box in found if box]

    for width in (390, 1024):
        page.set_viewport_size({"width": width, "height": 900})
        assert len(tops()) == len(LAYOUT)
        assert tops() == sorted(tops())
        assert not visitor.is_wider_than_the_screen()
    page.set_viewport_size({"width": 1440, "height": 900})
    text, suggestions, *_ = tops()
    # The suggestions are beside the text.
    assert abs(text - suggestions) < 100
    place.ask("POST", "/users/ada/diffs/reject", {"all": True})


def test_the_chat_title_stays_on_one_line_on_a_phone(visitor: Visitor, place: Place) -> None:
    agent = place.talker("Unknown.")
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.see(f"/ui/agents/{agent}/chat")
    name = page.locator(".chat-head h1")
    box = name.bounding_box()
    assert box
    assert box["height"] < 40
    assert page.locator(".chat-head .chip").is_visible()
    assert not visitor.is_wider_than_the_screen()


def test_pages_can_be_reached_by_keyboard(visitor: Visitor) -> None:
    page = visitor.see("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.wait_for_url("**/ui/agents")
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.wait_for_url(f"{visitor.url}/")
    page.keyboard.press("/")
    page.wait_for_url("**/ui/search")
    expect(page.get_by_label("Words or a question")).to_be_focused()
    page.keyboard.type("chess")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/search?q=chess*")
    expect(page.locator("mark").first).to_have_text("chess")


def test_deleting_asks_for_confirmation(visitor: Visitor, place: Place) -> None:
    other = place.ask(
        "POST", "/v1/agents/", {"name": "Gone", "model": "scripted/model", "memory_blocks": []}
    )["id"]
    page = visitor.see(f"/ui/agents/{other}/settings")
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.get_by_role("button", name="Delete Gone").click()
    assert asked[0].startswith("Delete Gone, its 0 blocks and 1 conversations")
    assert place.http.get(f"/v1/agents/{other}").status_code == 200
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete Gone").click()
    page.wait_for_url("**/ui/agents")
    expect(page.get_by_role("status")).to_contain_text("Gone was deleted.")
    assert place.http.get(f"/v1/agents/{other}").status_code == 404


def test_an_edit_of_memory_can_be_undone(visitor: Visitor, place: Place) -> None:
    place.set_human("Ada likes tea.")
    page = visitor.see(f"/ui/people/{place.ada}/blocks/human")
    page.get_by_role("link", name="Edit", exact=True).click()
    page.get_by_label("Text", exact=True).fill("Ada likes 🍵.")
    expect(page.locator("#length")).to_have_text(re.compile(r"^12 of \d+ characters$"))
    page.get_by_label("Why, for its history").fill("It is a sign")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("article", name="Text of About ada")).to_contain_text("Ada likes 🍵.")
    expect(page.locator(".timeline > li").first).to_contain_text("It is a sign")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("article", name="Text of About ada")).to_contain_text("Ada likes tea.")
    page.get_by_text("Delete", exact=True).click()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete human").click()
    expect(page.get_by_role("status")).to_contain_text("human was deleted.")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("article", name="Text of About ada")).to_contain_text("Ada likes tea.")


@pytest.mark.soak
def test_reading_and_approving_work_without_scripts(browser: Browser, place: Place) -> None:
    place.set_human("Ada likes tea.")
    place.propose("tea", "milk")
    with visit(browser, place.server.url, java_script_enabled=False) as visitor:
        page = visitor.see(f"/ui/people/{place.ada}")
        page.get_by_role("button", name="Approve").first.click()
        expect(page.locator(".toast")).to_contain_text("Remembered.")
        assert place.human() == "Ada likes milk."


def test_a_first_message_on_an_empty_server_is_remembered(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http, visit(browser, server.url) as visitor:
        page = visitor.see("/")
        page.get_by_label("Your first message makes an agent that remembers it").fill(
            "My name is Ada."
        )
        with page.expect_navigation():
            page.get_by_role("button", name="Say it").click()
        user = http.get("/v1/users/").json()[0]["id"]
        assert "My name is Ada." in http.get(f"/users/{user}/blocks/human").json()["body"]


def test_an_answer_streams_in_and_the_memory_panel_shows_changes(
    visitor: Visitor, place: Place
) -> None:
    agent = place.talker("Unknown.")
    change = call("memory_replace", label="human", old_string="Unknown.", new_string="Likes tea.")
    place.server.says(change, "You like **tea**. <b>Noted</b>.")
    page = visitor.see(f"/ui/agents/{agent}/chat")
    page.get_by_label("Message to Talker").fill("I like tea.")
    page.keyboard.press("Enter")
    answer = page.locator("#transcript .message.agent")
    expect(answer.locator("strong")).to_have_text("tea")
    expect(answer).to_contain_text("<b>Noted</b>")
    expect(page.locator("#live")).to_be_empty()
    expect(page.locator("#memory .changed")).to_have_text("Likes tea.")
    expect(page.locator("#transcript .change")).to_contain_text("human of local")
    expect(page.get_by_label("Message to Talker")).to_have_value("")


@pytest.mark.parametrize("size", [(1440, 900), (1024, 768), (390, 844)])
def test_the_chat_scrolls_to_new_messages_unless_the_reader_scrolled_up(
    browser: Browser, place: Place, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    agent = place.talker("Unknown.")
    past = [{"role": "user", "content": f"Message {number}."} for number in range(200)]
    place.ask("POST", f"/v1/agents/{agent}/messages/import", {"messages": past})
    request.addfinalizer(place.server.forget)
    with visit(browser, place.server.url, width=size[0], height=size[1]) as visitor:
        page = visitor.see(f"/ui/agents/{agent}/chat?conversation=default")
        expect(page.get_by_text("Message 199.", exact=True)).to_be_in_viewport()

        for question, scrolls in (("Is this in view?", False), ("And while I read?", True)):
            gate = Gate(
                place.server, "".join(f"Line {line}.\n\n" for line in range(80)) + "The end."
            )
            place.server.answers_with(gate)
            page.get_by_label("Message to Talker").fill(question)
            page.keyboard.press("Enter")
            gate.wait()
            for shown in (
                page.get_by_text(question, exact=True),
                page.get_by_role("button", name="Stop", exact=True),
                page.locator("#progress"),
            ):
                expect(shown).to_be_in_viewport()
            expect(page.get_by_role("button", name="Send", exact=True)).to_be_hidden()
            if scrolls:
                page.mouse.move(size[0] / 2, size[1] / 3)
                page.mouse.wheel(0, -900)
                page.wait_for_function("innerHeight + scrollY < document.body.scrollHeight - 300")
                position = page.evaluate("scrollY")
            gate.open()
            expect(page.locator("#live")).to_be_empty()
            expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
            answer = page.locator(".message.agent").last.get_by_text("The end.")
            if scrolls:
                assert page.evaluate("scrollY") == position
                expect(answer).not_to_be_in_viewport()
                page.get_by_role("button", name="new", exact=True).click()
            expect(answer).to_be_in_viewport()
            expect(page.locator("#to-new")).to_be_hidden()
        visitor.require_quiet()


def test_a_regenerated_answer_is_shown_beside_the_first(visitor: Visitor, place: Place) -> None:
    agent = place.talker("Unknown.")
    page = visitor.see(f"/ui/agents/{agent}/chat")
    for question in ("What is red?", "What is tea?"):
        place.server.says(f"First: {question}")
        page.get_by_label("Message to Talker").fill(question)
        page.keyboard.press("Enter")
        expect(page.locator("#transcript .message.agent").last).to_contain_text("First")
        expect(page.locator("#live")).to_be_empty()
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    place.server.says("Second: a drink.")
    again = page.locator("#transcript .message.agent").last
    again.hover()
    again.get_by_role("button", name="Answer again").click()
    expect(page.locator("#transcript .message.agent").last).to_contain_text("Second: a drink.")
    expect(page.locator("#transcript")).to_contain_text("First: What is red?")
    assert page.locator(".chats a[aria-current]").count() == 1
    page.get_by_role("link", name="Version before").click()
    expect(page.locator("#transcript .message.agent").last).to_contain_text("First: What is tea?")
    page.get_by_role("link", name="1 / 2").click()
    expect(page.locator(".versions .card")).to_have_count(2)
    expect(page.locator(".versions .card").last).to_contain_text("Second: a drink.")
    visitor.see("/ui/chat")
    expect(page.locator("#transcript .message.agent").last).to_contain_text("Second: a drink.")


def test_a_line_of_memory_can_be_changed_beside_the_chat(visitor: Visitor, place: Place) -> None:
    agent = place.talker("Keeps bees.\nPlays chess.")
    page = visitor.see(f"/ui/agents/{agent}/chat")
    line = page.locator("#memory [data-line]", has_text="Keeps bees.")
    line.hover()
    line.get_by_role("button").click()
    page.get_by_label("This line", exact=True).fill("Keeps hens.")
    page.keyboard.press("Enter")
    expect(page.locator("#memory .changed")).to_have_text("Keeps hens.")
    block = place.ask("GET", f"/v1/agents/{agent}")["blocks"][0]
    assert block["value"] == "Keeps hens.\nPlays chess."


def test_a_running_turn_can_be_stopped_and_followed_after_a_reload(
    visitor: Visitor, place: Place, request: pytest.FixtureRequest
) -> None:
    agent = place.talker("Unknown.")
    go = threading.Event()
    request.addfinalizer(lambda: (go.set(), place.server.forget()))

    def slowly(_request: Any) -> str:
        go.wait(20)
        return "It is done."

    place.server.answers_with(lambda request: asyncio.to_thread(slowly, request))
    page = visitor.see(f"/ui/agents/{agent}/chat")
    page.get_by_label("Message to Talker").fill("Take your time.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    go.set()
    expect(page.locator("#transcript .message.agent")).to_have_text(re.compile("It is done."))
    go.clear()
    page.get_by_label("Message to Talker").fill("And again.")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#live")).to_contain_text("And again.")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    runs = place.ask("GET", f"/v1/runs/?agent_id={agent}")
    assert [run["status"] for run in runs] == ["cancelled", "completed"]
    expect(page.locator("#transcript .ending")).to_have_text("This turn was stopped.")
    go.set()
    # The reason of a failure stands below the message, once, and also for a later reader.
    gone = ModelError("llm_bad_request", "The model is gone.")
    place.server.answers_with(lambda _request: gone)
    page.get_by_label("Message to Talker").fill("Still there?")
    page.keyboard.press("Enter")
    expect(page.locator("#transcript .ending")).to_have_count(2)
    expect(page.locator("#transcript .ending").last).to_have_text("The model is gone.")
    expect(page.locator("#chat-error")).to_be_hidden()
    page.reload()
    expect(page.get_by_text("The model is gone.")).to_have_count(1)


def test_a_group_can_be_created_and_messaged_by_keyboard(visitor: Visitor, place: Place) -> None:
    for name in ("Rosa", "Otto"):
        place.ask(
            "POST", "/v1/agents/", {"name": name, "model": "scripted/model", "memory_blocks": []}
        )
    place.server.says("Rosa's word.", "Otto's word.")
    page = visitor.see("/ui/groups")
    if not page.get_by_label("What it is for").is_visible():
        page.get_by_text("New group").focus()
        page.keyboard.press("Enter")
    page.get_by_label("What it is for").fill("A panel.")
    for name in ("Rosa", "Otto"):
        page.get_by_role("checkbox", name=name).focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Make it").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The group was created.")
    page.get_by_label("Message to the group").fill("Good morning.")
    page.get_by_role("button", name="Send").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#talk .message.agent")).to_have_count(2)
    expect(page.locator("#talk")).not_to_contain_text("They are talking")


def test_a_call_waits_for_approval_in_the_chat(visitor: Visitor, place: Place) -> None:
    agent = place.talker("Unknown.")
    place.ask(
        "PATCH", f"/v1/agents/{agent}/tools/approval/memory_replace", {"requires_approval": True}
    )
    place.server.says(
        call("memory_replace", label="human", old_string="Unknown.", new_string="Likes tea."),
        "Done.",
    )
    page = visitor.see(f"/ui/agents/{agent}/chat")
    page.get_by_label("Message to Talker").fill("I like tea.")
    page.keyboard.press("Enter")
    page.locator("#transcript .approval").get_by_role("button", name="Approve").click()
    expect(page.locator("#transcript .message.agent")).to_contain_text("Done.")
    expect(page.locator("#memory")).to_contain_text("Likes tea.")


def test_files_can_be_sent_with_a_message_and_large_ones_are_refused(
    visitor: Visitor, place: Place, tmp_path: Path
) -> None:
    agent = place.talker("Unknown.")
    page = visitor.see(f"/ui/agents/{agent}/chat")
    notes, picture, large = tmp_path / "notes.txt", tmp_path / "dot.png", tmp_path / "large.txt"
    notes.write_text("Otto is a dog.")
    picture.write_bytes(page.screenshot(clip={"x": 0, "y": 0, "width": 8, "height": 8}))
    large.write_text("x" * 300_000)
    chooser = page.locator("#file")
    chooser.set_input_files([str(large)])
    expect(page.locator("#chat-error")).to_contain_text("large.txt is too large.")
    chooser.set_input_files([str(notes), str(picture)])
    expect(page.locator("#files")).to_contain_text("dot.png")
    expect(page.get_by_label("Message to Talker")).to_have_value(re.compile("Otto is a dog"))
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#transcript img.picture")).to_be_visible()
    conversation = page.locator("#transcript").get_attribute("data-conversation")
    said = place.ask("GET", f"/v1/conversations/{conversation}/messages?order=asc")[1]["content"]
    assert [part["type"] for part in said] == ["text", "image"]


def test_a_message_that_cannot_be_sent_stays_in_the_box(visitor: Visitor, place: Place) -> None:
    agent = place.talker("Unknown.")
    page = visitor.see(f"/ui/agents/{agent}/chat")
    place.ask("DELETE", f"/v1/agents/{agent}")
    page.get_by_label("Message to Talker").fill("Where are you?")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-error")).to_contain_text("not found")
    expect(page.get_by_label("Message to Talker")).to_have_value("Where are you?")
    assert all("404" in words for words in visitor.told)
    visitor.told.clear()


def test_a_checkbox_stands_beside_its_words(browser: Browser, tmp_path: Path) -> None:
    with (
        serving(tmp_path, api_key="the-operators-own-key") as server,
        visit(browser, server.url, width=390) as visitor,
    ):
        label = visitor.see("/ui/login").locator("label", has=visitor.page.get_by_role("checkbox"))
        box, whole = label.get_by_role("checkbox").bounding_box(), label.bounding_box()
    assert box
    assert whole
    assert box["x"] - whole["x"] < box["width"]
    assert whole["height"] < 2 * box["height"] + 10
