"""The chat page without scripts: its content and its forms.

Other tests run its scripts in a browser.
"""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from ricordo.domain.ids import new_id
from ricordo.domain.message import TextPart, ToolCallPart
from ricordo.domain.model import ModelReply
from ricordo.errors import ModelError
from ricordo.features.web.pages.memory_text import panel_lines
from ricordo.llm.scripted import ScriptedModel, call
from tests.features.web.pages.test_home import visitor

HOSTILE = "<script>alert(1)</script> ![x](http://evil.example/x.png) [y](javascript:alert(1))"


class Talk:
    """A browser at a server with a scripted model, and an agent."""

    def __init__(self, http: TestClient, model: ScriptedModel) -> None:
        self.http, self.model = http, model
        blocks = [{"label": "human", "value": "Unknown."}]
        self.agent = self.make(memory_blocks=blocks)
        self.home = f"/ui/agents/{self.agent}/chat"
        shared = http.get("/v1/conversations/default", params={"agent_id": self.agent})
        self.shared = str(shared.json()["id"])

    def make(self, **body: Any) -> str:
        made = self.http.post(
            "/v1/agents/", json={"name": "Nina", "model": "scripted/model", **body}
        )
        return str(made.json()["id"])

    def page(self, **query: str) -> str:
        """The page of the agent's own conversation, or of another one."""
        query = {"conversation": self.shared} | query
        found = self.http.get(self.home, params=query)
        assert found.status_code == 200, found.text
        return found.text

    def say(self, words: str, **form: str) -> Any:
        form = {"conversation": self.shared} | form
        return self.http.post(self.home, data={"message": words, **form})

    def messages(self) -> list[dict[str, Any]]:
        return list(
            self.http.get(f"/v1/agents/{self.agent}/messages", params={"order": "asc"}).json()
        )


@pytest.fixture
def lines() -> list[Any]:
    return []


@pytest.fixture
def talk(tmp_path: Path, lines: list[Any]) -> Iterator[Talk]:
    model = ScriptedModel(lambda _request: lines.pop(0) if lines else "All right.")
    with visitor(tmp_path, model) as http:
        yield Talk(http, model)


def test_messages_are_answered_and_hostile_text_is_escaped(talk: Talk, lines: list[Any]) -> None:
    lines.append(f"**Bold** {HOSTILE}")
    answer = talk.say(HOSTILE)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"{talk.home}?conversation=conv-")
    page = talk.page()
    assert "<strong>Bold</strong>" in page
    assert "<script>alert" not in page
    assert 'href="javascript' not in page
    assert "<img" not in page
    assert "Why this answer?" in page


def test_the_memory_panel_shows_lines_as_text() -> None:
    lines = panel_lines("## Likes\n- 2026-11-27: tea\n#tag\n\nPlain.")
    assert [(line.text, line.day, line.is_heading) for line in lines] == [
        ("Likes", "", True),
        ("- tea", "2026-11-27", False),
        ("#tag", "", False),
        ("", "", False),
        ("Plain.", "", False),
    ]


def test_a_form_sent_twice_creates_one_message(talk: Talk) -> None:
    otid = talk.page().split('name="otid" value="')[1].split('"')[0]
    for _ in range(2):
        assert talk.say("Hello.", otid=otid).status_code == 303
    assert [one["message_type"] for one in talk.messages()].count("user_message") == 1


def test_tool_calls_are_folded_and_memory_changes_are_named(talk: Talk, lines: list[Any]) -> None:
    lines += [
        call("memory_replace", label="human", old_string="Unknown.", new_string="Likes tea."),
        "Noted.",
    ]
    talk.say("I like tea.")
    page = talk.page()
    assert "memory_replace · human" in page
    assert "remembered" in page
    assert "human of Nina" in page
    assert "Likes tea." in page.split("Memory here")[1]


def test_calls_with_any_value_as_label_or_query_are_shown(talk: Talk, lines: list[Any]) -> None:
    """A tool of others, or a small model, may pass more than text under these names."""
    values: list[Any] = [["human"], {"match": 1}, 7, True, None, ""]
    for value in values:
        lines += [call("memory_replace", label=value), call("elsewhere", query=value), "Noted."]
        talk.say("I like tea.")
    assert talk.page().count("memory_replace") >= len(values)


def test_a_proposal_of_a_turn_can_be_decided_below_its_answer(talk: Talk, lines: list[Any]) -> None:
    talk.http.put("/users/ada/blocks/human", json={"body": "Ada likes tea.", "policy": "propose"})
    begun = talk.http.post(f"{talk.home}/new", data={"user": "ada"})
    conversation = begun.headers["location"].split("conversation=")[1]
    lines += [
        call("memory_replace", label="human", old_string="tea", new_string="coffee"),
        "I have proposed it.",
    ]
    talk.say("I like coffee now.", conversation=conversation)
    page = talk.page(conversation=conversation)
    assert "wants to remember" in page
    assert "</svg>proposed</span>" in page
    proposal = talk.http.get("/users/ada/diffs").json()[0]["id"]
    assert f"/ui/proposals/{proposal}/approve" in page
    talk.http.post(f"/ui/proposals/{proposal}/approve")
    page = talk.page(conversation=conversation)
    assert "wants to remember" not in page
    assert "</svg>approved</span>" in page
    assert "Ada likes coffee." in page.split("Memory here")[1]


def test_a_memory_change_of_a_user_can_be_undone(talk: Talk, lines: list[Any]) -> None:
    talk.http.put("/users/ada/blocks/human", json={"body": "Ada likes tea.", "policy": "direct"})
    begun = talk.http.post(f"{talk.home}/new", data={"user": "ada"})
    conversation = begun.headers["location"].split("conversation=")[1]
    lines += [
        call("memory_replace", label="human", old_string="tea", new_string="coffee"),
        "Noted.",
    ]
    talk.say("I like coffee now.", conversation=conversation)
    page = talk.page(conversation=conversation)
    form = page.split("chat/undo")[1].split("</form>")[0]
    given = {
        name: form.split(f'name="{name}" value="')[1].split('"')[0]
        for name in ("conversation", "user", "run")
    }
    assert talk.http.post(f"{talk.home}/undo", data=given).status_code == 303
    assert talk.http.get("/users/ada/blocks/human").json()["body"] == "Ada likes tea."


def test_invalid_ids_in_forms_and_queries_never_reach_api_paths(talk: Talk) -> None:
    """Any other text gets the response of an unknown id, and no other route is called for it."""
    conversation = talk.http.get(f"/v1/conversations/default?agent_id={talk.agent}").json()["id"]
    user = new_id("user")
    folder = talk.http.post("/v1/folders/", json={"name": "Shelf"}).json()["id"]
    group = talk.http.post("/v1/groups/", json={"agent_ids": [talk.agent], "description": "Us."})
    run, step, variable = new_id("run"), new_id("step"), new_id("sandbox-env")
    group_page = f"/ui/groups/{group.json()['id']}"
    fields = [
        (f"{talk.home}/undo", {"user": user, "run": run}, "user"),
        (f"{talk.home}/undo", {"user": user, "run": run}, "run"),
        (f"{talk.home}/change", {"conversation": conversation, "title": "x"}, "conversation"),
        (f"/ui/files/{folder}/agents", {"agent": talk.agent}, "agent"),
        ("/ui/tools/variables", {"delete": variable}, "delete"),
    ]
    queries = [
        (talk.home, {"conversation": conversation}, "conversation"),
        (talk.home, {"edit": new_id("message"), "of": conversation}, "of"),
        (f"/ui/agents/{talk.agent}/context", {"step": step}, "step"),
        (group_page, {"run": run}, "run"),
    ]
    for method, pages in (("POST", fields), ("GET", queries)):
        for path, sent, name in pages:
            id = sent[name]
            assert talk.http.request(method, path, **_sent(method, sent)).status_code != 500
            for odd in (f"{id}/messages", f"{id}/", f"../{id}", f"{id}%2Fx", f"{id}?x=1", f"{id}#x",
                        f"x/{id}", id.upper(), f"{id} ", f"{id}\n", ".", "..", "ä"):  # fmt: skip
                answer = talk.http.request(method, path, **_sent(method, sent | {name: odd}))
                assert answer.status_code == 404, (path, name, odd, answer.status_code)
                assert "is not an id of this kind" in unescape(answer.text), (path, name, odd)


def _sent(method: str, fields: dict[str, str]) -> dict[str, Any]:
    return {"data": fields} if method == "POST" else {"params": fields}


@pytest.mark.parametrize(("decision", "value"), [("approve", "Likes tea."), ("deny", "Unknown.")])
def test_a_waiting_call_can_be_approved_or_denied(
    talk: Talk, lines: list[Any], decision: str, value: str
) -> None:
    path = f"/v1/agents/{talk.agent}/tools/approval/memory_replace"
    talk.http.patch(path, json={"requires_approval": True})
    lines += [
        call("memory_replace", label="human", old_string="Unknown.", new_string="Likes tea."),
        "Done.",
    ]
    talk.say("I like tea.")
    page = talk.page()
    assert "asks to use a tool" in page
    assert "asks to use a tool" in talk.http.get("/").text
    waiting = page.split('name="request" value="')[1].split('"')[0]
    answer = {"decision": decision, "request": waiting, "reason": "So."}
    talk.http.post(f"{talk.home}/decide", data={**answer, "conversation": talk.shared})
    assert (
        talk.http.get(f"/v1/agents/{talk.agent}/core-memory/blocks/human").json()["value"] == value
    )
    page = talk.page()
    assert "asks to use a tool" not in page
    assert ("approved" if decision == "approve" else "denied") in page


def test_a_failed_turn_shows_the_reason_and_keeps_the_message(talk: Talk, lines: list[Any]) -> None:
    lines.append(ModelError("llm_bad_request", "The <model> is gone."))
    page = talk.say("Keep this.")
    assert page.status_code == 400
    assert page.text.count("The &lt;model&gt; is gone.") == 1
    assert "Keep this." in page.text
    # A reader who comes later sees the reason too, also after later messages.
    lines.append("Back.")
    talk.say("Again.")
    assert talk.page().count("The &lt;model&gt; is gone.") == 1
    assert "data-ending" in talk.page(message=talk.messages()[-1]["id"])


def test_a_failed_form_shows_the_conversation_in_which_the_message_was_sent(
    talk: Talk, lines: list[Any]
) -> None:
    begun = talk.http.post(f"{talk.home}/new")
    conversation = begun.headers["location"].split("conversation=")[1]
    lines.append(ModelError("llm_bad_request", "The model is gone."))
    page = talk.say("Keep this.", conversation=conversation)
    assert page.status_code == 400
    assert f'data-conversation="{conversation}"' in page.text
    transcript, box = page.text.split('<textarea id="message"')
    assert "Keep this." in transcript.split('id="transcript"')[1]
    assert "Keep this." not in box.split("</textarea>")[0], "sent again, it would be there twice"


def test_a_refused_message_stays_in_the_box(talk: Talk) -> None:
    page = talk.say("Keep this.", otid="x" * 100_000)
    assert page.status_code >= 400
    transcript, box = page.text.split('<textarea id="message"')
    assert "Keep this." not in transcript
    assert "Keep this." in box.split("</textarea>")[0]


SILENT: list[tuple[ModelReply, str]] = [
    (ModelReply((), finish="content_filter"), "content filter withheld the answer"),
    (ModelReply((), finish="length"), "limit of tokens before it gave an answer"),
    (ModelReply((TextPart("One, two, th"),), finish="length"), "The answer is cut off"),
]


@pytest.mark.parametrize(("reply", "sentence"), SILENT)
def test_an_answer_that_is_missing_or_cut_off_has_its_reason_below_the_message(
    talk: Talk, lines: list[Any], reply: ModelReply, sentence: str
) -> None:
    lines.append(reply)
    talk.say("Count to ten.")
    page = talk.page()
    assert page.count(sentence) == 1
    part = talk.http.get(f"{talk.home}/part", params={"conversation": talk.shared}).text
    assert part.count(sentence) == 1
    lines.append("Ten.")
    talk.say("Go on.")
    assert talk.page().count("data-ending") == 1


def test_the_end_of_a_turn_whose_answer_is_shown_has_no_such_reason(
    talk: Talk, lines: list[Any]
) -> None:
    """A page that is opened during a turn asks for the rest of it."""
    search = ToolCallPart("call-1", "conversation_search", '{"query": "tea"}')
    again = call("conversation_search", query="green tea")
    lines += [ModelReply((TextPart("You like tea."), search)), again, ModelReply(())]
    talk.say("What do I like?")
    assert "data-ending" not in talk.page()
    answer = next(one for one in talk.messages() if one["message_type"] == "assistant_message")
    query = {"conversation": talk.shared, "after": answer["id"]}
    part = talk.http.get(f"{talk.home}/part", params=query).text
    assert "data-message" in part
    assert "data-ending" not in part


def test_an_agent_that_reached_its_limit_of_steps_says_so(talk: Talk, lines: list[Any]) -> None:
    lines += [call("conversation_search", query=f"q{number}") for number in range(60)]
    talk.say("Search for ever.")
    assert talk.page().count("stopped at its limit of steps") == 1


def test_complete_and_waiting_turns_have_no_such_reason(talk: Talk, lines: list[Any]) -> None:
    lines += [call("memory_insert", label="human", new_string="Likes tea."), "Noted."]
    talk.say("I like tea.")
    assert "data-ending" not in talk.page()


def test_long_conversations_can_be_paged_and_opened_at_a_message(talk: Talk) -> None:
    past = [{"role": "user", "content": f"Message {number}."} for number in range(100)]
    talk.http.post(f"/v1/agents/{talk.agent}/messages/import", json={"messages": past})
    page = talk.page()
    assert "Message 99." in page
    assert "Message 30." not in page
    older = page.split('">Older messages</a>')[0].rsplit('href="', 1)[1].replace("&amp;", "&")
    page = talk.http.get(older).text
    assert "Message 50." in page
    assert "Newest messages" in page
    wanted = next(one["id"] for one in talk.messages() if one.get("content") == "Message 10.")
    page = talk.page(message=wanted)
    assert f'class="message user selected" id="{wanted}"' in page
    assert "Message 5." in page
    assert "Message 15." in page


def test_a_default_conversation_shows_no_button_that_deletes_it(talk: Talk) -> None:
    default = talk.http.get("/v1/conversations/default", params={"agent_id": talk.agent}).json()[
        "id"
    ]
    assert 'value="delete"' not in talk.page(conversation=default)
    created = talk.http.post("/v1/conversations/", params={"agent_id": talk.agent}, json={}).json()
    assert 'value="delete"' in talk.page(conversation=created["id"])


def test_conversations_can_be_created_renamed_archived_and_deleted(talk: Talk) -> None:
    begun = talk.http.post(f"{talk.home}/new")
    conversation = begun.headers["location"].split("conversation=")[1]
    form = {"conversation": conversation}
    talk.http.post(f"{talk.home}/change", data={**form, "title": "About <tea>"})
    assert "About &lt;tea&gt;" in talk.page(conversation=conversation)
    talk.http.post(f"{talk.home}/change", data={**form, "do": "archive"})
    assert talk.http.get(f"/v1/conversations/{conversation}").json()["archived"]
    talk.http.post(f"{talk.home}/change", data={**form, "do": "delete"})
    assert talk.http.get(f"/v1/conversations/{conversation}").status_code == 404
    assert talk.http.get(talk.home, params=form).status_code == 404


def test_editing_a_message_forks_the_conversation(talk: Talk) -> None:
    talk.say("I like tea.")
    talk.say("I like chess.")
    home = talk.page().split('name="conversation" value="')[1].split('"')[0]
    second = next(one["id"] for one in talk.messages() if one.get("content") == "I like chess.")
    forked = talk.http.post(
        f"{talk.home}/fork", data={"conversation": home, "message": second, "edit": "yes"}
    )
    page = talk.http.get(forked.headers["location"]).text
    transcript, box = page.split('<textarea id="message"')
    assert "I like tea." in transcript
    assert "I like chess." not in transcript
    assert "I like chess." in box
    assert "I like chess." in talk.page(), "the first conversation must be unchanged"


def test_a_conversation_of_another_agent_is_not_found(talk: Talk) -> None:
    other = talk.make(memory_blocks=[])
    begun = talk.http.post(f"/ui/agents/{other}/chat/new")
    conversation = begun.headers["location"].split("conversation=")[1]
    assert talk.http.get(talk.home, params={"conversation": conversation}).status_code == 404
    assert talk.say("Hello.", conversation=conversation).status_code == 404


def test_stored_pictures_are_shown_and_picture_urls_are_not_loaded(talk: Talk) -> None:
    stored = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    far = {"type": "url", "url": "http://evil.example/x.png"}
    content = [{"type": "text", "text": "Look."}, {"type": "image", "source": stored}]
    talk.http.post(
        f"/v1/agents/{talk.agent}/messages",
        json={"messages": [{"role": "user", "content": content}]},
    )
    page = talk.page()
    assert "data:image/png;base64,iVBORw0KGgo=" in page
    assert far["url"] not in page


def test_links_work_for_block_labels_with_any_characters(talk: Talk) -> None:
    labels = [
        *("why?", "50%", "a#b", "x&y=z", "über mich", "a+b", "it's", "a;b", "früh/Stück 2", "%3F"),
    ]
    for label in labels:
        path = f"/users/ada/blocks/{quote(label)}"
        talk.http.put(path, json={"body": "zebra", "policy": "direct"}).raise_for_status()
    made = talk.http.post(
        "/v1/conversations/", params={"agent_id": talk.agent}, json={"user_id": "ada"}
    )
    chat = talk.page(conversation=made.json()["id"])
    search = talk.http.get("/ui/search", params={"q": "zebra", "kind": "memory"}).text
    for page in (chat, search):
        links = set(re.findall(r'href="(/ui/people/[^"]*/blocks/[^"]*)"', page))
        links = {link for link in links if not link.endswith("?edit=yes")}
        assert len(links) == len(labels)
        shown = [talk.http.get(unescape(link)) for link in links]
        assert {response.status_code for response in shown} == {200}
