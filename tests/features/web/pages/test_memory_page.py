"""The memory page and the home page: suggestions, lines, fields, rules, and who may decide."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.engine import Engine

from ricordo.features.web.pages import memory_rules
from ricordo.features.web.pages.memory_text import pieces_of, with_lines
from ricordo.pages.inside import Api
from ricordo.pages.reasons import own_reason, shown_reason
from ricordo.pages.titles import title_of
from tests.features.web.pages.test_home import visitor
from tests.seams.http import OPERATOR, ok

SCHEMA = """
title = "Profile"
[fields.name]
max_length = 20
[fields.about]
kind = "text"
title = "Background"
[fields.interests]
kind = "list"
[fields.finished]
kind = "boolean"
[fields.deadline]
kind = "date"
"""
PROFILE = (
    "## Name\nAda\n## Background\nFrom Camogli.\n## Interests\n- cello\n- sea\n## Finished\nno"
)


class School:
    """A server with a student, an administrator, and two tutors."""

    def __init__(self, browser: TestClient, folder: Path) -> None:
        self.browser = browser
        self.keys = {"operator": OPERATOR}
        for name, role in (("ada", "user"), ("ben", "user"), ("tess", "admin")):
            made = self.ask("operator", "POST", "/v1/keys/", json={"user": name, "role": role})
            self.keys[name] = ok(made)["key"]
        self.ids = {
            one["identifier"]: one["id"] for one in ok(self.ask("operator", "GET", "/v1/users/"))
        }
        own = [{"label": "persona", "value": "Kind."}, {"label": "human", "value": ""}]
        self.tutors = [
            ok(
                self.ask(
                    "operator", "POST", "/v1/agents/", json={"name": name, "memory_blocks": own}
                )
            )["id"]
            for name in ("Essay tutor", "Maths tutor")
        ]
        (folder / "block_schemas").mkdir(exist_ok=True)
        (folder / "block_schemas" / "profile.toml").write_text(SCHEMA)

    def ask(self, name: str, method: str, path: str, **options: Any) -> Any:
        self.browser.cookies.clear()
        headers = {"authorization": f"Bearer {self.keys[name]}"} | options.pop("headers", {})
        if path == "/":  # The page at `/` is for browsers, which have their key in a session.
            logged_in = self.browser.post("/ui/login", data={"key": self.keys[name]})
            assert logged_in.status_code == 303
            headers = {}
        return self.browser.request(method, path, headers=headers, **options)

    def see(self, name: str, path: str = "") -> str:
        answer = self.ask(name, "GET", path or self.memory)
        assert answer.status_code == 200, answer.text[-900:]
        return str(answer.text)

    def send(self, name: str, path: str, **form: Any) -> Any:
        answer = self.ask(name, "POST", path, data=form)
        assert answer.status_code == 303, answer.text[-600:]
        return answer

    @property
    def memory(self) -> str:
        return f"/ui/people/{self.ids['ada']}"

    def put(self, text: str, label: str = "human", **fields: Any) -> None:
        body = {"body": text, "policy": "propose", **fields}
        ok(self.ask("ada", "PUT", f"/users/ada/blocks/{label}", json=body))

    def text(self, label: str = "human") -> str:
        return str(ok(self.ask("ada", "GET", f"/users/ada/blocks/{label}"))["body"])

    def propose(self, line: str, tutor: int = 0, user: str = "ada") -> Any:
        body = {
            "old_string": "Likes tea.",
            "new_string": f"Likes tea.\n{line}",
            "agent_id": self.tutors[tutor],
            "reasoning": "",
        }
        path = f"/users/{user}/blocks/human/propose"
        return self.ask("operator", "POST", path, json=body)

    def waiting(self) -> list[Any]:
        return list(ok(self.ask("ada", "GET", "/users/ada/diffs")))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[School]:
    folder = tmp_path_factory.mktemp("memory")
    with visitor(folder, api_key=OPERATOR) as browser:
        yield School(browser, folder)


@pytest.fixture
def school(opened: School) -> School:
    opened.ask("ada", "POST", "/users/ada/diffs/approve", json={"all": True})
    opened.put("Ada Rossi.\nLikes tea.")
    return opened


def test_equal_suggestions_of_two_agents_are_decided_together(school: School) -> None:
    ids = [ok(school.propose("Has a cat.", tutor))["id"] for tutor in (0, 1)]
    ok(school.propose("Plays chess."))
    page = school.see("ada")
    assert "2 suggestions" in page
    assert page.index("Ada Rossi.") < page.index('id="suggestions"'), "the text must come first"
    card = page.split(f'id="{ids[1]}"')[1].split("</li>")[0]
    assert "Essay tutor" in card
    assert "Maths tutor" in card
    assert '<span class="plain">Has a cat.</span>' in card
    school.send("ada", f"{school.memory}/decide", id=ids, decision="approve")
    assert school.text() == "Ada Rossi.\nLikes tea.\nHas a cat."
    assert len(school.waiting()) == 1


def test_not_now_hides_a_suggestion_but_leaves_it_waiting(school: School) -> None:
    id = ok(school.propose("Has a cat."))["id"]
    answer = school.send("ada", f"{school.memory}/decide", id=id, decision="later", next="/")
    assert answer.headers["location"] == "/"
    cookie = re.search("ricordo_later=[^;]+", "; ".join(answer.headers.get_list("set-cookie")))
    assert cookie
    page = school.ask("ada", "GET", school.memory, headers={"cookie": cookie[0]}).text
    assert "1 put off until tomorrow" in page
    assert "0 suggestions" in page
    assert [one["id"] for one in school.waiting()] == [id]
    assert "1 suggestion<" in school.see("ada"), "another browser must still show the suggestion"


def test_each_suggestion_is_shown_again_a_day_after_it_was_put_off(
    school: School, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, later = 24 * 60, 23 * 60
    cookie = "ricordo_later=abc.-.abc-.abc-x.abc-1"
    ids = [ok(school.propose(text))["id"] for text in ("Has a cat.", "Plays chess.")]
    for id, minute in zip(ids, (0, later), strict=True):
        monkeypatch.setattr(memory_rules, "_minute_now", lambda minute=minute: 10**7 + minute)
        form = {"id": id, "decision": "later", "next": "/"}
        answer = school.ask(
            "ada", "POST", f"{school.memory}/decide", data=form, headers={"cookie": cookie}
        )
        found = re.search("ricordo_later=[^;]+", "; ".join(answer.headers.get_list("set-cookie")))
        assert found
        cookie = found[0]
    assert "abc" not in cookie, "overdue and unreadable entries must be removed"
    counts = {later: "2", day - 1: "2", day: "1", later + day - 1: "1", later + day: ""}
    for minute, count in counts.items():
        monkeypatch.setattr(memory_rules, "_minute_now", lambda minute=minute: 10**7 + minute)
        page = school.ask("ada", "GET", school.memory, headers={"cookie": cookie}).text
        assert "".join(re.findall(r"(\d+) put off until tomorrow", page)) == count, minute


def test_a_rejection_may_have_a_reason(school: School) -> None:
    ids = [ok(school.propose(line))["id"] for line in ("Sings in a choir.", "Paints boats.")]
    for id, reason in zip(ids, ("It is a dog.", ""), strict=True):
        school.send("ada", f"{school.memory}/decide", id=id, decision="reject", reason=reason)
    rejected = ok(school.ask("ada", "GET", "/users/ada/diffs", params={"status": "rejected"}))
    assert {one["id"]: one["note"] for one in rejected if one["id"] in ids} == {
        ids[0]: "It is a dog.",
        ids[1]: None,
    }


@pytest.mark.parametrize("exists", [True, False])
def test_a_rule_that_others_add_meanwhile_is_kept(
    school: School, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    block = f"/users/{school.ids['ben']}/blocks/never-remember"
    if exists:
        school.ask("ben", "PUT", block, json={"body": "topic: money"})
    else:
        school.ask("ben", "DELETE", block)
    rules = f"/ui/people/{school.ids['ben']}/rules"
    change = Api.ask
    others = ["topic: health", "topic: love"]

    async def change_after_others(api: Api, method: str, path: str, *args: Any, **more: Any) -> Any:
        if method == "PUT" and others:
            other = others.pop()
            monkeypatch.setattr(Api, "ask", change)
            await memory_rules.add_rule(api, school.ids["ben"], other)
            monkeypatch.setattr(Api, "ask", change_after_others)
        return await change(api, method, path, *args, **more)

    monkeypatch.setattr(Api, "ask", change_after_others)
    school.send("ben", rules, rule="topic: faith")
    assert others == []
    stored = ok(school.ask("ben", "GET", block))["body"].split("\n")
    assert set(stored) == {"topic: health", "topic: love", "topic: faith"} | (
        {"topic: money"} if exists else set()
    )
    others.append("topic: love again")
    school.send("ben", rules, remove="topic: faith")
    stored = ok(school.ask("ben", "GET", block))["body"].split("\n")
    assert "topic: love again" in stored
    assert "topic: faith" not in stored


def test_removing_a_rule_that_is_missing_changes_nothing(school: School) -> None:
    block = f"/users/{school.ids['ben']}/blocks/never-remember"
    school.ask("ben", "DELETE", block)
    school.send("ben", f"/ui/people/{school.ids['ben']}/rules", remove="topic: weather")
    assert school.ask("ben", "GET", block).status_code == 404


def test_never_remember_refuses_similar_proposals_until_the_rule_is_removed(school: School) -> None:
    id = ok(school.propose('2026-11-27: "I have dyslexia."'))["id"]
    page = school.see("ada")
    assert 'value="I have dyslexia."' in page
    school.send("ada", f"{school.memory}/decide", id=id, decision="never", rule="I have dyslexia.")
    assert school.waiting() == []
    refused = school.propose("Needs time because of dyslexia")
    assert refused.status_code == 409
    assert "never remembered" in refused.text
    page = school.see("ada")
    assert "Remove the rule I have dyslexia." in page
    assert "never-remember" not in page, "the rules must not be shown as text for agents"
    assert "Remove the rule" not in school.see("tess")
    school.send("ada", f"{school.memory}/rules", remove="I have dyslexia.")
    assert ok(school.propose("Needs time because of dyslexia"))["id"]
    assert "Remove the rule" not in school.see("ada")


def test_a_topic_can_be_excluded_from_memory(school: School) -> None:
    assert '<option value="topic: health">health</option>' in school.see("ada")
    school.send("ada", f"{school.memory}/rules", rule="topic: health")
    for line in ("Has asthma.", "Sees a therapist on Mondays.", "2026-11-27: Ist krank."):
        assert school.propose(line).status_code == 409, line
    assert ok(school.propose("Plays chess."))["id"]
    school.send("ada", f"{school.memory}/rules", remove="topic: health")
    assert ok(school.propose("Has asthma."))["id"]


def test_an_approval_can_be_undone_with_its_notices_button(school: School) -> None:
    def undo_after(answer: Any) -> str:
        cookie = "; ".join(answer.headers.get_list("set-cookie"))
        page = school.ask("ada", "GET", school.memory, headers={"cookie": cookie}).text
        return re.findall(r'<form method="post" action="([^"]+)"><button class="quiet">Undo', page)[
            0
        ]

    before = school.text()
    ids = [ok(school.propose(line))["id"] for line in ("Has a cat.", "Has a dog.")]
    decided = school.send("ada", f"{school.memory}/decide", id=ids, decision="approve")
    assert school.text() != before
    school.send("ada", undo_after(decided))
    assert school.text() == before
    id = ok(school.propose("Has a cow."))["id"]
    decided = school.send("ada", f"/ui/proposals/{id}/approve")
    assert "cow" in school.text()
    school.send("ada", undo_after(decided))
    assert school.text() == before
    rejected = ok(school.propose("Has a pig."))["id"]
    answer = school.send("ada", f"{school.memory}/decide", id=rejected, decision="reject")
    assert "Undo" not in str(answer.headers)


def test_a_line_can_be_changed_forgotten_and_traced_without_scripts(school: School) -> None:
    block = school.memory + "/line/human"
    school.put("Ada Rossi.\nLikes tea.\nClass 10b.\nHas a dog.")
    shown = school.see("ada", f"{block}?lines=2-2&next={school.memory}")
    version = shown.split('name="version" value="')[1].split('"')[0]
    assert ">\nLikes tea.</textarea>" in shown
    assert "Ada Rossi." in shown, "the rest of the page must be shown too"
    school.put("Ada Rossi.\nLikes tea.\nClass 10b.\nHas a cat.")  # changed meanwhile
    form = {"version": version, "lines": "2-2", "text": "Likes cocoa.", "next": school.memory}
    assert school.send("ada", block, **form).headers["location"] == school.memory
    assert school.text() == "Ada Rossi.\nLikes cocoa.\nClass 10b.\nHas a cat."
    school.send("ada", block, forget="3-4")
    assert school.text() == "Ada Rossi.\nLikes cocoa."
    said = school.see("ada", f"{block}?lines=1-1&who=1")
    assert '<div class="who-said"' in said
    assert "<strong>ada</strong> wrote this" in said
    same = {"version": version, "lines": "2-2", "text": "Eve."}
    refused = school.ask("ada", "POST", block, data=same)
    assert refused.status_code == 409
    assert "Eve." in refused.text, "the typed text must be kept"
    for lines in ("9-9", "2-1", "x", "0-0"):
        assert school.ask("ada", "GET", f"{block}?lines={lines}").status_code == 400


def test_an_approved_line_names_its_agent_and_the_message(school: School) -> None:
    talk = ok(school.ask("ada", "POST", f"/v1/conversations/?agent_id={school.tutors[0]}", json={}))
    words = {"messages": [{"role": "user", "content": "I write best at night."}]}
    school.ask("ada", "POST", f"/v1/conversations/{talk['id']}/messages", json=words)
    school.send(
        "ada", f"{school.memory}/decide", id=[school.waiting()[0]["id"]], decision="approve"
    )
    assert "I write best at night." in school.text()
    line = (
        school.text()
        .split("\n")
        .index(next(line for line in school.text().split("\n") if "night" in line))
    )
    said = school.see("ada", f"{school.memory}/line/human?lines={line + 1}-{line + 1}&who=1")
    part = said.split('<div class="who-said"')[1].split("</div>")[0]
    assert "Essay tutor" in part
    assert "it was approved" in part
    assert "I write best at night." in part
    assert f"conversation={talk['id']}" in part


def test_schema_fields_are_shown_as_a_form_and_as_lines(school: School) -> None:
    school.put(PROFILE, "profile", schema_ref="profile")
    page = school.see("ada")
    assert "## " not in page
    assert "<h3>Background</h3>" in page
    edited = school.see("ada", f"{school.memory}/blocks/profile?edit=1")
    assert 'name="field.name" value="Ada" maxlength="20"' in edited
    assert ">\ncello\nsea</textarea>" in edited
    form = {"field.interests": "cello\nchess", "field.finished": "yes"}
    form |= {"field.deadline": "2026-12-04", "field.about": "## no heading", "field.name": "Ada"}
    school.send("ada", f"{school.memory}/blocks/profile", **form)
    text = school.text("profile")
    assert text == (
        "## Name\nAda\n## Background\n\\## no heading\n## Interests\n- cello\n- chess\n"
        "## Finished\nyes\n## Deadline\n2026-12-04"
    )
    assert ">Dec 4, 2026</time>" in school.see("ada")
    school.send("ada", f"{school.memory}/line/profile", **{"lines": "1-2", "field.name": "Eve"})
    assert school.text("profile").startswith("## Name\nEve\n")
    for wrong in ({"field.deadline": "soon"}, {"field.name": "x" * 21}):
        assert (
            school.ask("ada", "POST", f"{school.memory}/blocks/profile", data=wrong).status_code
            == 400
        )
    ok(school.ask("ada", "DELETE", "/users/ada/blocks/profile"))


def test_a_form_of_a_field_keeps_later_changes(school: School) -> None:
    line = school.memory + "/line/profile"
    school.put(PROFILE, "profile", schema_ref="profile")
    shown = school.see("ada", f"{line}?lines=5-7")
    version = shown.split('name="version" value="')[1].split('"')[0]
    changed = PROFILE.replace("## Finished", "- chess\n- judo\n## Finished").replace("no", "yes")
    school.put(changed, "profile")

    form = {"version": version, "lines": "5-7", "field.interests": "violin\nsea"}
    school.send("ada", line, **form)
    assert school.text("profile") == changed.replace("cello", "violin")
    clash = {**form, "field.interests": "drums\nsea"}
    refused = school.ask("ada", "POST", line, data=clash)
    assert refused.status_code == 409
    assert "drums" in refused.text, "the typed text must be kept"
    assert school.text("profile") == changed.replace("cello", "violin")
    ok(school.ask("ada", "DELETE", "/users/ada/blocks/profile"))


def test_a_line_of_an_agents_block_is_not_saved_over_a_later_change(school: School) -> None:
    body = {"name": "Lines", "memory_blocks": [{"label": "persona", "value": "One.\nTwo."}]}
    agent = ok(school.ask("operator", "POST", "/v1/agents/", json=body))
    block = f"/v1/blocks/{agent['blocks'][0]['id']}"
    page = f"/ui/blocks/{agent['blocks'][0]['id']}/line"
    shown = school.see("operator", f"{page}?lines=1-1")
    version = shown.split('name="version" value="')[1].split('"')[0]
    ok(school.ask("operator", "PATCH", block, json={"value": "One.\nThree."}))

    stale = {"version": version, "lines": "1-1", "text": "Eins."}
    refused = school.ask("operator", "POST", page, data=stale)

    assert refused.status_code == 409
    assert ok(school.ask("operator", "GET", block))["value"] == "One.\nThree."
    shown = school.see("operator", f"{page}?lines=1-1")
    version = shown.split('name="version" value="')[1].split('"')[0]
    school.send("operator", page, **{**stale, "version": version})
    assert ok(school.ask("operator", "GET", block))["value"] == "Eins.\nThree."
    ok(school.ask("operator", "DELETE", f"/v1/agents/{agent['id']}"))


def test_blocks_of_a_course_are_listed_before_its_first_message(school: School) -> None:
    block = {"label": "journey", "value": "", "description": "How far the essay is."}
    block["metadata"] = {"copy": "for_all_agents"}  # type: ignore[assignment]
    body = {"name": "Essay coach", "memory_blocks": [block]}
    agent = ok(school.ask("operator", "POST", "/v1/agents/", json=body))["id"]
    page = school.see("ada").split("Before you begin")[1]
    assert "Journey" in page
    assert "How far the essay is." in page
    assert "Essay coach" in page
    school.put("Begun.", "journey")
    assert "Before you begin" not in school.see("ada")
    ok(school.ask("ada", "DELETE", "/users/ada/blocks/journey"))
    ok(school.ask("operator", "DELETE", f"/v1/agents/{agent}"))


def test_the_memory_page_shows_no_raw_ids_times_or_internal_reasons(school: School) -> None:
    school.put("# Ada\n\n- 2026-11-01: wrote *much*", "agents/essay-tutor/journal")
    ok(school.propose("Has a cat."))
    shown = school.see("ada").split('<main id="content"')[1]
    words = re.sub(r"<[^>]*>", " ", shown)
    assert not re.search(r"(user|agent|block|proposal|run|conv)-[0-9a-f]{8}", words)
    assert not re.search(r"\d{4}-\d\d-\d\d", words)
    assert "##" not in words
    assert "Copy of the agent" not in words
    assert "<h1>Ada</h1>" in shown
    ok(school.ask("ada", "DELETE", "/users/ada/blocks/agents/essay-tutor/journal"))


def test_home_decides_own_suggestions_and_counts_those_of_others(school: School) -> None:
    ok(school.ask("ben", "PUT", "/users/ben/blocks/human", json={"body": "Likes tea."}))
    for line in ("Has a cat.", "Plays chess."):
        ok(school.propose(line, user="ben"))
    ok(school.propose("Has a dog."))
    home = school.see("ada", "/")
    assert "1 suggestion<" in home
    assert 'value="approve"' in home
    assert "Has a dog." in home
    assert "Has a cat." not in home
    assert "Ada Rossi." in home
    counts = school.see("tess", "/")
    assert 'value="approve"' not in counts
    assert "Has a dog." not in counts
    assert re.search(r"ben</span><span class=\"quiet\">2 suggestions", counts)
    assert re.search(r"ada</span><span class=\"quiet\">1 suggestion<", counts)
    school.ask("ben", "POST", "/users/ben/diffs/reject", json={"all": True})


def test_home_counts_proposals_with_a_constant_number_of_statements(school: School) -> None:
    seen: list[str] = []

    def see(_connection: Any, _cursor: Any, statement: str, *_options: Any) -> None:
        # The other statements depend on when a key was last looked up.
        if "proposals" in statement:
            seen.append(statement)

    def statements() -> int:
        seen.clear()
        school.see("tess", "/")
        return len(seen)

    event.listen(Engine, "before_cursor_execute", see)
    try:
        statements()
        few = statements()
        for number in range(6):
            user = f"pupil-{number}"
            path = f"/users/{user}/blocks/human"
            ok(school.ask("operator", "PUT", path, json={"body": "Likes tea."}))
            ok(school.propose("Has a cat.", user=user))
        assert statements() == few
    finally:
        event.remove(Engine, "before_cursor_execute", see)


def test_a_message_from_home_starts_a_private_conversation(school: School) -> None:
    form = {"agent": school.tutors[1], "message": "Good morning."}
    there = school.send("ada", "/ui/say", **form).headers["location"]
    id = there.split("conversation=")[1].split("#")[0]
    assert ok(school.ask("ada", "GET", f"/v1/conversations/{id}"))["user_id"] == school.ids["ada"]
    assert school.ask("ben", "GET", f"/v1/conversations/{id}").status_code == 404
    assert "Last chat" in school.see("ada", "/")


def test_a_message_from_home_continues_the_conversation_that_the_page_names(
    school: School,
) -> None:
    form = {"agent": school.tutors[1], "message": "Good morning."}
    begun = school.send("ada", "/ui/say", **form).headers["location"]
    id = begun.split("conversation=")[1].split("#")[0]
    assert f'name="conversation" value="{id}"' in school.see("ada", "/")
    continued = school.send("ada", "/ui/say", conversation=id, **form)
    assert (continued.status_code, continued.headers.get("location")) == (303, begun)


def test_an_empty_message_from_home_is_not_sent(school: School) -> None:
    form = {"agent": school.tutors[1], "message": " "}
    page = school.send("ada", "/ui/say", **form).headers["location"]
    headers = {"authorization": f"Bearer {school.keys['ada']}"}
    assert "Write something first." in school.browser.get(page, headers=headers).text


def test_the_first_page_has_the_login_form(school: School) -> None:
    school.browser.cookies.clear()
    page = school.browser.get("/", headers={"accept": "text/html"}).text
    assert '<input name="key" type="password"' in page


# Texts and reasons, without a server.

TEXTS = (
    "a",
    "",
    "\n\n",
    "# Ada\n\nLikes **tea**.\nAnd x",
    "- a\n  - b\n- c\n\n\n",
    "1. a\n\n   more\n2. b",
    "```\n# no heading\n\n```\nend",
    "| a | b |\n|---|---|\n| 1 | 2 |\nafter",
    "[x]: https://e.example\n> quote\nlazy",
    "    code\n\n***\n<div>\nhtml\n</div>",
    "Title\n=====\ntext  \nbreak",
    "- [ ] task\n+ plus\n* star",
    "~~~\nunclosed",
    "2026-11-01: a\n- 2026-11-02: b",
)


@pytest.mark.parametrize("text", TEXTS)
def test_every_line_of_a_text_belongs_to_one_piece(text: str) -> None:
    lines = text.split("\n")
    covered = [
        number
        for piece in pieces_of(text)
        for number in range(piece.first, piece.last + 1)
        if lines[number - 1].strip()
    ]
    assert covered == [number for number, line in enumerate(lines, 1) if line.strip()]
    for piece in pieces_of(text):
        kept = with_lines(
            text, piece.first, piece.last, "\n".join(lines[piece.first - 1 : piece.last])
        )
        assert kept == text
        assert with_lines(text, piece.first, piece.last, None).count("\n") <= text.count("\n")


@pytest.mark.parametrize(
    ("reason", "words", "own"),
    [
        ('human: + "2026-11-27: "My deadline is near.""', "Added: My deadline is near.", ""),
        ('human: - "## Likes"', "Removed: Likes", ""),
        ("Copy of the agent's block", "Started by an agent", ""),
        ("Make human", "Begun", ""),
        ("Edit human", "Changed", ""),
        (
            "Undo run-00000000-0000-4000-8000-000000000000",
            "The changes of a turn were undone",
            "",
        ),
        ("Edit the plan", "Edit the plan", "Edit the plan"),
        ("She said so", "She said so", "She said so"),
        ("", "Changed", ""),
        (None, "Changed", ""),
    ],
)
def test_reasons_are_shown_in_plain_words(reason: str | None, words: str, own: str) -> None:
    assert shown_reason(reason, "human") == words
    assert own_reason(reason, "human") == own


@pytest.mark.parametrize(
    ("label", "title", "shown"),
    [
        ("human", None, "About me"),
        ("human", "Ada", "Ada"),
        ("agents/essay-tutor/human", None, "About me"),
        ("agents/essay-tutor/reading_list", None, "Reading list"),
        ("school/math", None, "School / math"),
        ("agents/x", None, "Agents / x"),
        ("journal", None, "Journal"),
    ],
)
def test_labels_are_shown_as_titles(label: str, title: str | None, shown: str) -> None:
    assert title_of(label, title, "Ada", is_self=True) == shown
