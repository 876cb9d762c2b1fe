"""Open WebUI 0.12.4 itself, in a browser and by its API.

The tests check each promise of docs/tutor/open-webui.md. Run them with `make openwebui`. They need
minutes and 3 GB of packages, so they are no part of the suite, whose tests use
tests/support/open_webui.py. If the real Open WebUI behaves differently from that module, correct
the module first.
"""

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page

from ricordo.llm.scripted import call
from tests.seams.http import OPERATOR, bearer, ok
from tests.seams.server import MODEL, ServerInThread, serving
from tests.support.browser import open_browser, visit
from tests.support.real_open_webui import Json, RealOpenWebUI

pytestmark = pytest.mark.openwebui
ROOT = Path(__file__).parents[4]
SECRET = "of-both-servers-with-more-than-32-bytes"
COURSE = f"""
[[agent]]
name = "coach"
model = "{MODEL}"
instructions = "Coach them."
[[block]]
label = "student"
"""
DRAFT = "It begins.\n\nThe second line.\nThe third line.\n"
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)
READ_BY_ALL = [{"principal_type": "user", "principal_id": "*", "permission": "read"}]


class Stage:
    """Both servers, two ordinary users, and the rows of the table of promises.

    `models` maps names to ids in Open WebUI.
    """

    def __init__(self, there: RealOpenWebUI, server: ServerInThread, http: httpx2.Client) -> None:
        self.there, self.server, self.http = there, server, http
        self.service = server.key(role="service")
        self.ada, self.bea = there.user("ada"), there.user("bea")
        self.models: dict[str, str] = {}
        self.rows: list[tuple[str, str]] = []
        self.agents = {
            "essay": ok(http.put("/v1/courses/essay", json={"source": COURSE}))["agents"]["coach"],
            "helper": ok(http.post("/v1/agents/", json={"name": "helper", "model": MODEL}))["id"],
        }

    @contextmanager
    def row(self, what: str) -> Iterator[None]:
        """Check one promise; if it holds, add it to the table."""
        began = time.monotonic()
        self.rows.append((what, "FAILED"))
        yield
        self.rows[-1] = (what, f"passed in {time.monotonic() - began:.0f} s")

    @contextmanager
    def page(self, user: Json, path: str) -> Iterator[Page]:
        with open_browser() as browser, visit(browser, self.there.url, height=2000) as visitor:
            visitor.context.set_default_timeout(60_000)
            visitor.context.add_init_script(f"localStorage.token = '{user['token']}'")
            visitor.see(path)
            yield visitor.page
            assert visitor.left == [], "a page asked another host"

    def offer(self, *names: str) -> None:
        """Let users see these models."""
        for name in names:
            form: Json = {"id": name, "base_model_id": None, "name": name, "meta": {}, "params": {}}
            more = {"access_grants": READ_BY_ALL, "is_active": True}
            self.there.call("POST", "/api/v1/models/create", form | more)

    def listed(self, user: Json | None = None) -> dict[str, str]:
        """Return the ids of the models that a user sees, by name."""
        found = self.there.call(
            "GET", "/api/models?refresh=true", token=user["token"] if user else None
        )
        return {one["name"]: one["id"] for one in found["data"]}

    def ask(self, user: Json, model: str, text: str, **more: Any) -> str:
        """Return an answer to a request without a chat, as programs send it."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "stream": False,
            **more,
        }
        answer = self.there.call("POST", "/api/chat/completions", body, user["token"])
        return str(answer["choices"][0]["message"]["content"])

    def chat(self, user: Json, model: str, *texts: str, **more: Any) -> Json:
        """Send messages one by one in a stored chat, as the page does; return the chat."""
        token, chat, above, messages = user["token"], "", None, dict[str, Json]()
        for text in texts:
            sent, answer = str(uuid.uuid4()), str(uuid.uuid4())
            said = {
                "id": sent,
                "parentId": above,
                "childrenIds": [answer],
                "role": "user",
                "content": text,
            }
            empty = {
                "id": answer,
                "parentId": sent,
                "childrenIds": [],
                "role": "assistant",
                "content": "",
            }
            if above:
                messages[above]["childrenIds"] = [sent]
            messages |= {sent: said, answer: empty | {"model": model}}
            stored: Json = {
                "chat": {"title": "New Chat", "models": [model], "history": {"messages": messages}}
            }
            stored["chat"]["history"]["currentId"] = answer
            where = f"/api/v1/chats/{chat or 'new'}"
            chat = self.there.call("POST", where, stored, token)["id"]
            tasks = ("title_generation", "tags_generation", "follow_up_generation")
            asked = {"chat_id": chat, "id": answer, "session_id": f"s-{answer}", "parent_id": sent}
            body = {
                "model": model,
                "stream": True,
                "messages": [],
                "user_message": said,
                **asked,
                **more,
            }
            body |= {"background_tasks": dict.fromkeys(tasks, True)}
            body["messages"] = [
                {"role": one["role"], "content": one["content"]}
                for one in list(messages.values())[:-1]
            ]
            self.there.call("POST", "/api/chat/completions", body, token)

            def found(chat: str = chat, answer: str = answer) -> Json | None:
                now: Json = self.there.call("GET", f"/api/v1/chats/{chat}", token=token)
                is_done = (
                    now["chat"]["history"]["messages"][answer].get("done")
                    and now["title"] != "New Chat"
                )
                return now if is_done else None

            whole: Json = self.there.wait_for(found)
            messages, above = whole["chat"]["history"]["messages"], answer
        return whole

    def name(self, user: Json) -> str:
        return f"open-webui:{user['id']}"

    def said(self, user: Json, chat: str | None = None) -> list[list[str]]:
        """Return this user's messages by conversation, of one chat or of all chats."""
        found = []
        for agent in self.agents.values():
            of_user = {"agent_id": agent, "user_id": self.name(user), "limit": "100"}
            for one in ok(self.http.get("/v1/conversations/", params=of_user)):
                if chat is None or one["summary"] == f"chat_{chat}":
                    stored = ok(
                        self.http.get(f"/v1/conversations/{one['id']}/messages?order=asc&limit=100")
                    )
                    found.append(
                        [str(m["content"]) for m in stored if m["message_type"] == "user_message"]
                    )
        return found

    def sync(self, user: Json) -> Json:
        done: Json = ok(self.http.post(f"/users/{self.name(user)}/workspace/sync"))
        assert done["status"] == "synced"
        return done

    def files(self, user: Json, **changed: str | bytes) -> dict[str, str]:
        """Write the given texts into the workspace, and return all of its texts."""
        place = f"/users/{self.name(user)}/workspace/files"
        for path, text in changed.items():
            ok(self.http.put(f"{place}/{path.replace('__', '.')}", content=text))
        listed = ok(self.http.get(place))
        return {one["path"]: self.http.get(f"{place}/{one['path']}").text for one in listed}

    def block(self, user: Json, label: str, text: str | None = None) -> str:
        place = f"/users/{self.name(user)}/blocks/{label}"
        if text is not None:
            ok(self.http.put(place, json={"body": text}))
        return str(ok(self.http.get(place))["body"])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    assert os.environ.get("OPEN_WEBUI"), "Open WebUI is not installed. Run: make openwebui"
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch, RealOpenWebUI(folder) as there:
        there.start()
        patch.setenv("RICORDO_OPENWEBUI_URL", there.url)
        patch.setenv(
            "RICORDO_OPENWEBUI_API_KEY", there.call("POST", "/api/v1/auths/api_key")["api_key"]
        )
        with (
            serving(folder / "ricordo", api_key=OPERATOR) as server,
            server.http(headers=bearer(OPERATOR)) as http,
        ):
            speak_slowly(server)
            made = Stage(there, server, http)
            yield made
            width = max(len(what) for what, _ in made.rows)
            print("\n\n" + "\n".join(f"| {what:{width}} | {how} |" for what, how in made.rows))


def speak_slowly(server: ServerInThread) -> None:
    """Let the model stream word by word, and record its requests."""
    answer = server.model.answer

    async def slowly(request: Any) -> Any:
        import asyncio

        async for piece in answer(request):
            yield piece
            await asyncio.sleep(0.1)

    def line(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user" and last.text.startswith("Remember"):
            return call(
                "memory_insert", label="student", new_string=last.text.removeprefix("Remember: ")
            )
        if last.role == "user" and last.text.startswith("Slowly"):
            return " ".join(f"step{number}" for number in range(2000))
        words = " ".join(
            f"word{number}" for number in range(80 if last.text.startswith("At length") else 0)
        )
        return f"You said {last.text!r}, {words} and that is the end."

    server.model.answer = slowly  # type: ignore[method-assign]
    server.answers_with(line)


def send(page: Page, text: str) -> None:
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def answer_to(page: Page, text: str) -> list[str]:
    """Wait for the whole answer; return the text that was shown meanwhile."""
    seen: list[str] = []
    until = time.monotonic() + 120
    while not seen or text not in seen[-1] or not seen[-1].endswith("the end."):
        assert time.monotonic() < until, seen[-3:]
        shown = page.locator(".chat-assistant").last
        now = shown.inner_text() if shown.count() else ""
        seen += [now] if not seen or now != seen[-1] else []
        page.wait_for_timeout(50)
    page.locator(".message-listitem").last.get_by_label("Regenerate").wait_for(state="attached")
    return seen


def test_an_administrator_can_install_the_pipe_and_share_its_models(stage: Stage) -> None:
    there, form = (
        stage.there,
        {"id": "ricordo", "name": "Ricordo", "meta": {"description": "", "manifest": {}}},
    )
    source = (ROOT / "ricordo/features/openwebui/mirror/pipe.py").read_text("utf-8")
    there.call("POST", "/api/v1/functions/create", form | {"content": source})
    there.call("POST", "/api/v1/functions/id/ricordo/toggle")
    valves = {"SERVER_URL": stage.server.url, "API_KEY": "wrong"}
    with stage.row("pipe: what is wrong with its valves is the name of its one model"):
        there.call("POST", "/api/v1/functions/id/ricordo/valves/update", valves)
        assert stage.listed() == {"Ricordo refuses API_KEY (401)": "ricordo.none"}
    there.call(
        "POST", "/api/v1/functions/id/ricordo/valves/update", valves | {"API_KEY": stage.service}
    )
    with stage.row("pipe: courses and agents are models, for users once they may see them"):
        stage.models = {name: f"ricordo.{id}" for name, id in stage.agents.items()}
        assert stage.listed() == stage.models
        assert stage.listed(stage.ada) == {}
        stage.offer(*stage.models.values())
        assert set(stage.listed(stage.ada).values()) == set(stage.models.values())


def test_a_user_can_chat_with_the_pipe_in_a_browser(stage: Stage) -> None:
    with stage.page(stage.ada, f"/?models={stage.models['essay']}") as page:
        with stage.row("pipe, page: the answer grows while it is written"):
            send(page, "At length: how are you?")
            assert len(answer_to(page, "You said")) > 3
            page.wait_for_url("**/c/*")
            chat = page.url.rpartition("/")[2]
        with stage.row(
            "pipe, page: what is proposed is said above the answer, with the address to decide"
        ):
            send(page, "Remember: plays the cello.")
            answer_to(page, "You said ''")
            told = page.locator(".status-description").last
            told.get_by_text(
                f"Proposed to remember: plays the cello. ({stage.server.url}/ui/people/"
            ).wait_for()
        with stage.row("pipe, page: regenerated and edited messages go on in forks"):
            # A script clicks the button, since another element may cover it.
            page.locator(".message-listitem").last.get_by_label("Regenerate").evaluate(
                "button => button.click()"
            )
            page.get_by_text("Try Again").click()
            page.get_by_text("2/2").wait_for()
            answer_to(page, "You said ''")
            mine = page.locator(".user-message").last
            mine.hover()
            mine.get_by_label("Edit").click()
            mine.locator("textarea").fill("Which instrument?")
            mine.get_by_role("button", name="Send", exact=True).click()
            answer_to(page, "Which instrument?")
            first, again = "At length: how are you?", "Remember: plays the cello."
            assert sorted(stage.said(stage.ada, chat)) == sorted(
                [[first, again], [first, again], [first, "Which instrument?"]]
            )
        with stage.row("pipe, page: the stop button ends the turn, and the chat goes on"):
            send(page, "Slowly.")
            page.get_by_text("step20").wait_for()
            page.get_by_label("Stop").last.click()
            newest = "/v1/runs/?limit=1"
            stage.there.wait_for(lambda: ok(stage.http.get(newest))[0]["status"] == "cancelled")
            send(page, "And now?")
            answer_to(page, "And now?")
            assert [first, "Which instrument?", "Slowly.", "And now?"] in stage.said(
                stage.ada, chat
            )
    with stage.row("pipe: titles, tags and follow-ups reach no agent"):
        stored = stage.there.call("GET", f"/api/v1/chats/{chat}", token=stage.ada["token"])
        assert stored["title"] == "At length: how are you?"
        assert not any(
            "### Task:" in message.text
            for one in stage.server.model.requests
            for message in one.messages
        )


def test_the_pipe_keeps_users_apart_and_reports_errors(stage: Stage) -> None:
    essay = stage.models["essay"]
    with stage.row("pipe: memories are apart, also without a chat"):
        ok(stage.http.post(f"/users/{stage.name(stage.ada)}/diffs/approve", json={"all": True}))
        for user in (stage.ada, stage.bea):
            stage.ask(user, essay, "What do I play?")
        of_ada, of_bea = stage.server.model.requests[-2:]
        assert "plays the cello" in str([one.text for one in of_ada.messages])
        assert "cello" not in str([one.text for one in of_bea.messages])
        assert stage.said(stage.bea) == [["What do I play?"]]
    with stage.row("pipe: both ways of calling tools, whose built-in ones stay away from agents"):
        for way in ("native", "default"):
            assert "Hello" in stage.ask(
                stage.bea, essay, f"Hello, {way}", params={"function_calling": way}
            )
            assert {tool.name for tool in stage.server.model.requests[-1].tools} == {
                tool.name for tool in of_bea.tools
            }
    with stage.row("pipe: what fails is said in words"):
        valves = {"SERVER_URL": "http://127.0.0.1:9", "API_KEY": stage.service}
        place = "/api/v1/functions/id/ricordo/valves/update"
        stage.there.call("POST", place, valves)
        assert stage.ask(stage.bea, essay, "Hello").startswith(
            "Ricordo does not answer (ConnectError)"
        )
        stage.there.call("POST", place, valves | {"SERVER_URL": stage.server.url})
    with stage.row("pipe: a stored chat of several messages is one conversation"):
        chat = stage.chat(stage.bea, essay, "One.", "Two.", "Three.")
        assert stage.said(stage.bea, chat["id"]) == [["One.", "Two.", "Three."]]


def test_the_agent_reads_messages_as_edited_in_place(stage: Stage) -> None:
    with (
        stage.row("pipe, page: messages saved in place are read as saved, each answer once"),
        stage.page(stage.bea, f"/?models={stage.models['helper']}") as page,
    ):
        for text in ("First question.", "Second question."):
            send(page, text)
            answer_to(page, text)
        mine = page.locator(".user-message").first
        mine.hover()
        mine.get_by_label("Edit").click()
        mine.locator("textarea").fill("First question, put better.")
        page.locator("#save-edit-message-button").click()
        page.get_by_text("First question, put better.").wait_for()
        theirs = page.locator(".message-listitem").last
        theirs.get_by_label("Edit").first.evaluate("button => button.click()")
        theirs.locator("textarea").fill("The second answer, corrected.")
        page.locator("#confirm-edit-message-button").click()
        page.get_by_text("The second answer, corrected.").wait_for()
        send(page, "Third question.")
        answer_to(page, "Third question.")
        request = next(
            one
            for one in reversed(stage.server.model.requests)
            if "Third question." in one.messages[-1].text
        )
        read = "\n".join(one.text for one in request.messages[1:])
        for part, times in (
            ("First question, put better.", 1),
            ("You said 'First question.'", 1),
            ("Second question.", 1),
            ("You said 'Second question.'", 0),
            ("The second answer, corrected.", 1),
            ("Third question.", 1),
        ):
            assert read.count(part) == times, (part, read)


def test_files_are_synced_both_ways(stage: Stage) -> None:
    there, ada, token = stage.there, stage.ada, stage.ada["token"]
    # Open WebUI searches files by meaning by default. Here our server computes the vectors.
    by = {"url": f"{stage.server.url}/v1", "key": stage.service}
    engine = {
        "RAG_EMBEDDING_ENGINE": "openai",
        "RAG_EMBEDDING_MODEL": "default",
        "openai_config": by,
    }
    there.call("POST", "/api/v1/retrieval/embedding/update", engine)
    there.call("POST", "/api/v1/retrieval/config/update", {"BYPASS_EMBEDDING_AND_RETRIEVAL": False})
    allowed = there.call("GET", "/api/v1/users/default/permissions")
    allowed["workspace"]["knowledge"] = True
    there.call("POST", "/api/v1/users/default/permissions", allowed)

    def listed() -> dict[str, Json]:
        found = there.call("GET", f"/api/v1/knowledge/{base()}/files", token=token)["items"]
        return {
            "/".join(filter(None, (one["directory_path"], one["filename"]))): one for one in found
        }

    def base() -> str:
        (found,) = there.call("GET", "/api/v1/knowledge/", token=token)["items"]
        return str(found["id"])

    def texts() -> dict[str, str]:
        get = "/api/v1/files/{}/data/content"
        return {
            path: there.call("GET", get.format(one["id"]), token=token)["content"]
            for path, one in listed().items()
        }

    def edit(path: str, text: str) -> None:
        there.call(
            "POST",
            f"/api/v1/files/{listed()[path]['id']}/data/content/update",
            {"content": text},
            token,
        )

    def delete(path: str) -> None:
        there.call(
            "POST",
            f"/api/v1/knowledge/{base()}/file/remove",
            {"file_id": listed()[path]["id"]},
            token,
        )

    def synced() -> dict[str, str]:
        """Sync; return the workspace once both sides are the same."""
        stage.sync(ada)
        here = stage.files(ada)
        assert {path: text.strip() for path, text in texts().items()} == {
            path: text.strip() for path, text in here.items()
        }
        return here

    with stage.row("files: the workspace is a knowledge base that its user alone sees"):
        stage.files(ada, **{"essays/draft.md": DRAFT, "plan.md": "Plan."})
        assert stage.sync(ada)["problem"] is None
        assert texts() == {"essays/draft.md": DRAFT, "plan.md": "Plan."}
        assert there.call("GET", "/api/v1/knowledge/", token=stage.bea["token"])["items"] == []
    with stage.row("files: a text that is edited in the page of the knowledge base"):
        with stage.page(ada, f"/workspace/knowledge/{base()}") as page:
            page.get_by_text("plan.md").first.click()
            page.get_by_role("button", name="Edit", exact=True).click()
            page.locator("[contenteditable=true]").last.click()
            page.keyboard.press("Control+End")
            page.keyboard.type(" And more.")
            page.get_by_role("button", name="Save", exact=True).click()
            there.wait_for(lambda: texts()["plan.md"] == "Plan. And more.")
        stage.sync(ada)
        assert stage.files(ada)["plan.md"] == "Plan. And more."
    with stage.row("files: one that is added, and one that is removed"):
        form = {"metadata": json.dumps({"knowledge_id": base()})}
        path = "/api/v1/files/?process=true&process_in_background=false"
        there.call(
            "POST",
            path,
            token=token,
            files={"file": ("mine.md", b"Mine.", "text/markdown")},
            data=form,
        )
        delete("plan.md")
        assert synced().keys() == {"essays/draft.md", "mine.md"}
    with stage.row("files: both sides changed different lines, and the same"):
        edit("essays/draft.md", DRAFT.replace("third", "3rd"))
        stage.files(ada, **{"essays/draft.md": DRAFT.replace("begins", "ends")})
        merged = DRAFT.replace("third", "3rd").replace("begins", "ends")
        assert synced()["essays/draft.md"] == merged
        edit("essays/draft.md", merged.replace("second", "2nd"))
        stage.files(ada, **{"essays/draft.md": merged.replace("second", "last")})
        both = synced()
        assert both["essays/draft (conflict 1).md"] == merged.replace("second", "2nd")
        assert both["essays/draft.md"] == merged.replace("second", "last")
    with stage.row("files: one side deleted what the other changed"):
        delete("mine.md")
        stage.files(ada, mine__md="Mine, anew.")
        edit("essays/draft (conflict 1).md", "Changed there.")
        ok(
            stage.http.delete(
                f"/users/{stage.name(ada)}/workspace/files/essays/draft (conflict 1).md"
            )
        )
        both = synced()
        assert (both["mine.md"], both["essays/draft (conflict 1).md"]) == (
            "Mine, anew.",
            "Changed there.\n",
        )
    with stage.row("files: a knowledge base that is suddenly empty, or gone"):
        for method, path in (("POST", f"{base()}/reset"), ("DELETE", f"{base()}/delete")):
            there.call(method, f"/api/v1/knowledge/{path}")
            assert len(synced()) == 3
    with stage.row("files: what Open WebUI does not take is named, and so is how the sync went"):
        stage.files(ada, double__md="Mine, anew.", picture__png=PICTURE, empty__md="")
        told = stage.sync(ada)
        assert "refuses double.md: Duplicate content" in told["problem"]
        assert "refuses picture.png: File type" in told["problem"]
        assert ok(stage.http.get(f"/users/{stage.name(ada)}/workspace/sync")) == told
        assert len(texts()) == 3
    with stage.row(
        "files: passages of the knowledge base reach the agent, and no instruction stays in recall"
    ):
        files = [{"type": "collection", "id": base(), "name": "Workspace"}]
        chat = stage.chat(
            ada, stage.models["essay"], "What is mine?", "And the draft?", files=files
        )
        (said,) = stage.said(ada, chat["id"])
        assert [one.rpartition("</context>")[2].strip() for one in said] == [
            "What is mine?",
            "And the draft?",
        ]
        assert "Mine, anew." in said[0]
        assert "### Task:" not in str(said)


def test_notes_are_synced_both_ways(stage: Stage) -> None:
    there, ada, token = stage.there, stage.ada, stage.ada["token"]
    text = "# Ada\n\n- likes *tea*\n- likes the sea\n\nMaths: $x^2$\n"

    def note() -> Json:
        (found,) = [
            one
            for one in there.call("GET", "/api/v1/notes/", token=token)
            if one["title"] == "human"
        ]
        whole: Json = there.call("GET", f"/api/v1/notes/{found['id']}", token=token)
        return whole

    def written() -> str:
        return str(note()["data"]["content"]["md"])

    def write(md: str) -> None:
        content = {"json": None, "html": "", "md": md}
        there.call(
            "POST", f"/api/v1/notes/{note()['id']}/update", {"data": {"content": content}}, token
        )

    def versions() -> int:
        return len(ok(stage.http.get(f"/users/{stage.name(ada)}/blocks/human/history")))

    with stage.row("notes: each block is a note, which its user alone sees"):
        stage.block(ada, "human", text)
        assert stage.sync(ada)["notes"] >= 1
        assert written() == text
        assert there.call("GET", "/api/v1/notes/", token=stage.bea["token"]) == []
    with stage.row("notes: the editor that opens one, and writes it in its way, changes nothing"):
        before = versions()
        with stage.page(ada, f"/notes/{note()['id']}") as page:
            page.locator(".ProseMirror").first.wait_for()
            there.wait_for(lambda: written() != text)
            stage.sync(ada)
            assert (stage.block(ada, "human"), versions()) == (text, before)
            page.locator(".ProseMirror").first.click()
            page.keyboard.press("Control+End")
            page.keyboard.press("Enter")
            page.keyboard.type("Plays the cello.")
            there.wait_for(lambda: written().endswith("Plays the cello."))
    with stage.row("notes: what is typed into the editor is a version of its owner"):
        stage.sync(ada)
        text += "Plays the cello.\n"
        assert (stage.block(ada, "human"), versions()) == (text, before + 1)
    with stage.row("notes: one that is emptied or deleted is written again"):
        write("")
        stage.sync(ada)
        assert (written(), stage.block(ada, "human")) == (text, text)
        there.call("DELETE", f"/api/v1/notes/{note()['id']}/delete", token=token)
        stage.sync(ada)
        assert (written(), stage.block(ada, "human")) == (text, text)
    with stage.row("notes: both sides changed different lines, and the same"):
        write(written().replace("tea", "coffee"))
        stage.block(ada, "human", text.replace("Maths", "Math"))
        stage.sync(ada)
        text = text.replace("tea", "coffee").replace("Maths", "Math")
        assert (written(), stage.block(ada, "human")) == (text, text)
        write(written().replace("sea", "lake"))
        stage.block(ada, "human", text.replace("sea", "hills"))
        assert (
            "in the same lines. The note's text waits as the proposal proposal-"
            in stage.sync(ada)["problem"]
        )
        assert (written(), stage.block(ada, "human")) == (text.replace("sea", "hills"),) * 2


def test_the_openai_connection_identifies_users_by_headers_or_signed_tokens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = stage.there
    headers = {"X-Ricordo-Task": "{{TASK}}", "X-Ricordo-Tools": "off"}
    config = {"0": {"enable": True, "prefix_id": "agents", "headers": headers}}
    urls = {"OPENAI_API_BASE_URLS": [f"{stage.server.url}/v1"], "OPENAI_API_KEYS": [stage.service]}
    there.call(
        "POST",
        "/openai/config/update",
        {"ENABLE_OPENAI_API": True, **urls, "OPENAI_API_CONFIGS": config},
    )
    stage.listed()
    stage.offer("agents.essay")

    def check(first: str) -> None:
        stage.server.model.requests.clear()
        chat = stage.chat(stage.bea, "agents.essay", first, "Two.")
        assert stage.said(stage.bea, chat["id"]) == [[first, "Two."]]
        agents = [
            one for one in stage.server.model.requests if "### Task:" not in one.messages[-1].text
        ]
        assert [one.messages[-1].text for one in agents] == [first, "Two."]
        # For titles, tags and follow-ups only the model was called.
        assert len(stage.server.model.requests) > 3

    with stage.row("connection: users by headers; titles, tags and follow-ups are no turns"):
        check("By headers.")
    with stage.row("connection: where a secret is set, plain headers are refused"):
        monkeypatch.setenv("RICORDO_OPENWEBUI_SECRET", SECRET)
        body = {"model": "agents.essay", "messages": [{"role": "user", "content": "Hello"}]}
        refused = there.send("POST", "/api/chat/completions", body, stage.bea["token"])
        assert (
            "must be signed; set FORWARD_USER_INFO_HEADER_JWT_SECRET in Open WebUI" in refused.text
        )
    with stage.row("connection: users by signed tokens are the same users"):
        there.stop()
        there.start(FORWARD_USER_INFO_HEADER_JWT_SECRET=SECRET)
        check("By a token.")
        assert "By headers." in str(stage.said(stage.bea))


def test_users_decide_proposals_in_the_chat_and_temporary_chats_are_not_stored(
    stage: Stage,
) -> None:
    essay = stage.models["essay"]
    scopes = ["agents:read", "messages:read", "messages:write", "memory:read", "memory:write"]
    approving = stage.server.key(
        role="service", scopes=[*scopes, "tools:read", "memory:approve", "users:impersonate"]
    )
    place = "/api/v1/functions/id/ricordo/valves/update"
    valves = {"SERVER_URL": stage.server.url}
    stage.there.call("POST", place, valves | {"API_KEY": approving})
    decisions = (
        (stage.ada, "Likes figs.", ["Confirm"], "approved", "Remembered: student"),
        (stage.bea, "Likes dates.", ["Cancel", "Confirm"], "rejected", "Not remembered: student"),
    )
    for user, line, buttons, status, told in decisions:
        with (
            stage.row(f"pipe, page: a proposal is {status} in the chat"),
            stage.page(user, f"/?models={essay}") as page,
        ):
            send(page, f"Remember: {line}")
            for title, button in zip(("Remember this?", "Reject it?"), buttons, strict=False):
                page.get_by_text(title).wait_for()
                page.get_by_text(f"+ {line}").wait_for()
                page.get_by_role("button", name=button, exact=True).click()
            page.locator(".status-description").last.get_by_text(told).wait_for()
            (newest, *_) = ok(
                stage.http.get(f"/users/{stage.name(user)}/diffs", params={"status": "all"})
            )
            assert (newest["status"], newest["label"]) == (status, "student")
            assert (line in stage.block(user, "student")) == (status == "approved")
    with stage.row("pipe: users have their names here"):
        for user in (stage.ada, stage.bea):
            shown = ok(stage.http.get(f"/v1/users/{stage.name(user)}"))["name"]
            assert shown == user["name"]
    with (
        stage.row("pipe, page: a temporary chat is answered, and leaves nothing"),
        stage.page(stage.ada, f"/?models={essay}&temporary-chat=true") as page,
    ):
        send(page, "I am kanari.")
        answer_to(page, "I am kanari.")
        database = sqlite3.connect(stage.server.settings.data_dir / "ricordo.db")
        with closing(database):
            assert not [row for row in database.iterdump() if "kanari" in row]
    stage.there.call("POST", place, valves | {"API_KEY": stage.service})


def test_chats_deleted_in_open_webui_are_marked_and_proposals_become_a_note(stage: Stage) -> None:
    there, bea, essay = stage.there, stage.bea, stage.models["essay"]
    kept, gone = (
        stage.chat(bea, essay, text)["id"] for text in ("Keep this.", "Remember: likes boats.")
    )

    def descriptions() -> dict[str, str | None]:
        of_user = {"agent_id": stage.agents["essay"], "user_id": stage.name(bea), "limit": "100"}
        listed = ok(stage.http.get("/v1/conversations/", params=of_user))
        return {one["summary"]: one["description"] for one in listed}

    with stage.row("chats: one that is deleted there is marked here, and no other"):
        there.call("DELETE", f"/api/v1/chats/{gone}", token=bea["token"])
        stage.sync(bea)
        shown = descriptions()
        assert "gone" in (shown[f"chat_{gone}"] or "")
        assert shown[f"chat_{kept}"] is None
    with stage.row("notes: what waits is a note of its owner alone, while it waits"):

        def waiting() -> list[str]:
            notes = there.call("GET", "/api/v1/notes/", token=bea["token"])
            ids = [note["id"] for note in notes if note["title"] == "Waiting for you"]
            whole = [there.call("GET", f"/api/v1/notes/{id}", token=bea["token"]) for id in ids]
            return [note["data"]["content"]["md"] for note in whole]

        (text,) = waiting()
        assert "+ likes boats." in text
        ok(stage.http.post(f"/users/{stage.name(bea)}/diffs/reject", json={"all": True}))
        stage.sync(bea)
        assert waiting() == []
    with stage.row("function for deleted chats: one is deleted here as it is deleted there"):
        source = (ROOT / "ricordo/features/openwebui/mirror/deleted_chats.py").read_text("utf-8")
        meta: Json = {"description": "", "manifest": {}}
        form = {"id": "deleted", "name": "Deleted chats", "content": source, "meta": meta}
        there.call("POST", "/api/v1/functions/create", form)
        there.call("POST", "/api/v1/functions/id/deleted/toggle")
        valves = {"SERVER_URL": stage.server.url, "API_KEY": stage.service}
        there.call("POST", "/api/v1/functions/id/deleted/valves/update", valves)
        chat = stage.chat(bea, essay, "Delete this.")["id"]
        assert f"chat_{chat}" in descriptions()
        there.call("DELETE", f"/api/v1/chats/{chat}", token=bea["token"])
        there.wait_for(lambda: f"chat_{chat}" not in descriptions())
        assert f"chat_{kept}" in descriptions()
