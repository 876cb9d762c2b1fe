"""One thing is forgotten wherever it was said, and everything else is unchanged."""

import re
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy import select

from ricordo.features.documents.templates.tables import template_versions
from ricordo.features.memory_care.erasure import receipts
from ricordo.features.memory_care.forgetting.needle import MARK
from ricordo.features.sync.git.repository import open_repository
from ricordo.llm.scripted import call
from ricordo.secret import Secret
from ricordo.storage.message_cache import MessageCache
from tests.features.memory_care.erasure.test_routes import World, everything_of_bob
from tests.seams.http import ok
from tests.seams.server import MODEL
from tests.seams.waiting import wait_for
from tests.support.canaries import CANARY, canary, in_files, in_heap, in_tables

SHARED = "The weather in Darjeeling hurts at noon"
KINDS = """
said answer streamed streamed-answer tool-call tool-result past past-answer fork other-agent other-answer default default-answer
summary description
block version deleted block-description reason proposal rejected reasoning agent-edit
passage passage-mixed agent-passage own-passage
file workspace schedule request
own-agent-block own-agent-system own-agent-block-version shared-block-of-own
pushed two-lines caps quotes blanks decomposed
""".split()


def fact(kind: str) -> str:
    return f"My “{canary(kind)}” hurts since Zoë's party"


def same_words(kind: str) -> str:
    """Return the same words, written in another way."""
    text = fact(kind)
    match kind:
        case "caps":
            return text.upper()
        case "quotes":
            return text.replace("“", '"').replace("”", '"').replace("'", "’")
        case "blanks":
            return text.replace(" ", "\u00a0 ").replace("hurts", "hu\u00adrts")
        case "decomposed":
            return text.replace("ë", "e\u0308")
        case "two-lines":
            return text.replace(" hurts", "\nhurts")
    return text


def plant(world: World, user: str) -> dict[str, str]:
    """Store each fact in a different kind of Ada's data; return the ids."""
    post, put, ids = world.post, world.put, dict(world.ids)
    memory = f"/users/{user}/blocks"
    put(
        f"{memory}/human",
        f"Ada.\n- {fact('version')}.\n- {fact('pushed')}.",
        message=f"She said: {fact('reason')}. Noted.",
        description=f"About her. {fact('block-description')}.",
    )
    lines = [
        f"- {same_words(kind)}." for kind in ("block", "caps", "quotes", "blanks", "decomposed")
    ]
    put(f"{memory}/human", "\n".join(["Ada.", "- Likes tea.", *lines, same_words("two-lines")]))
    put(f"{memory}/gone", f"{fact('deleted')}.")
    assert world.http.delete(f"{memory}/gone").status_code == 200
    for kind in ("proposal", "rejected", "reasoning"):
        body = {
            "old_string": "Likes tea.",
            "new_string": f"Likes {kind}. {fact(kind)}" if kind != "reasoning" else "Likes cake.",
            "reasoning": f"{fact(kind)}.",
            "agent_id": f"agent-of-{kind}",
        }
        made = post(f"{memory}/human/propose", body)
        if kind == "rejected":
            post(f"{memory}/human/diffs/{made['id']}/reject", {})
    shared = ids["shared"]
    thread = ids["thread"] = world.thread(
        shared, user, summary=f"{fact('summary')}.", description=f"{fact('description')}."
    )
    file = call("archival_memory_insert", content=f"{fact('agent-passage')}.")
    search = call("archival_memory_search", query=fact("tool-call"))
    edit = call("memory_insert", label="human", new_string=f"{fact('agent-edit')}.")
    world.say(thread, f"Hello. {fact('said')}.", [file, search], f"Oh. {fact('answer')}.")
    world.say(thread, "Remember that.", edit, f"{fact('tool-result')}.")
    world.say(
        thread, fact("streamed"), f"{fact('streamed-answer')}.", streaming=True, background=True
    )
    past = [
        {"role": "user", "content": fact("past")},
        {"role": "assistant", "content": fact("past-answer")},
    ]
    post(f"/v1/agents/{shared}/messages/import", {"messages": past, "conversation_id": thread})
    fork = post(f"/v1/conversations/{thread}/fork")["id"]
    world.say(fork, fact("fork"), "ok")
    ids["hers"] = world.agent(
        "Ida",
        user_id=user,
        system=f"You are Ida. {fact('own-agent-system')}.",
        memory_blocks=[{"label": "human", "value": f"{fact('own-agent-block')}."}],
    )
    world.say(ids["hers"], fact("default"), f"{fact('default-answer')}.")
    world.say(world.thread(ids["hers"], user), fact("other-agent"), f"{fact('other-answer')}.")
    edit = call("memory_insert", label="human", new_string=f"{fact('own-agent-block-version')}.")
    undo = call(
        "memory_replace",
        label="human",
        old_string=f"{fact('own-agent-block-version')}.",
        new_string="",
    )
    own = call("archival_memory_insert", content=f"Tea is good. {fact('own-passage')}.")
    world.say(ids["hers"], "Note it.", [edit, own], undo, "Done.")
    block = post("/v1/blocks/", {"label": "alone", "value": f"{fact('shared-block-of-own')}."})
    ok(world.http.patch(f"/v1/agents/{ids['hers']}/core-memory/blocks/attach/{block['id']}"))
    headers = {"x-ricordo-user": user}
    for text in (f"{fact('passage')}.", f"Tea is good. {fact('passage-mixed')}."):
        ok(
            world.http.post(
                f"/v1/agents/{shared}/archival-memory", json={"text": text}, headers=headers
            )
        )
    folder = ok(world.http.post("/v1/folders/", json={"name": "Hers"}, headers=headers))["id"]
    upload = ok(
        world.http.post(
            f"/v1/folders/{folder}/upload",
            files={"file": ("notes.txt", f"Tea.\n{fact('file')}.\nCake.".encode())},
            headers=headers,
        )
    )["id"]
    wait_for(
        lambda: (
            ok(world.http.get(f"/v1/folders/{folder}/files/{upload}", headers=headers))[
                "processing_status"
            ]
            == "completed"
        )
    )
    world.http.put(
        f"/users/{user}/workspace/files/notes.md", content=f"Tea.\n{fact('workspace')}.".encode()
    ).raise_for_status()
    message = {"role": "user", "content": f"{fact('schedule')}."}
    when = {"type": "one-time", "scheduled_at": 4_000_000_000_000}
    body = {"messages": [message], "schedule": when}
    ok(world.http.post(f"/v1/agents/{shared}/schedule", json=body, headers=headers))
    world.say(thread, "Please.", call("forget", text=fact("request"), reason="She asked."), "Ok.")
    return ids


def forget(world: World, user: str, text: str, **choice: Any) -> Any:
    told = world.http.post(f"/users/{user}/forget", json={"text": text, **choice})
    assert told.status_code == 202, told.text
    id = told.json()["id"]
    wait_for(lambda: world.http.get(f"/v1/receipts/{id}").status_code != 202)
    return ok(world.http.get(f"/v1/receipts/{id}"))


def preview(world: World, user: str, text: str) -> Any:
    return ok(world.http.post(f"/users/{user}/forget", json={"text": text}))


def searches(world: World, user: str, ids: dict[str, str], kinds: Sequence[str]) -> str:
    """Return the results of all searches."""
    headers = {"x-ricordo-user": user}
    answers = []
    for kind in kinds:
        query = {"query": fact(kind)}
        for path in ("/v1/messages/search", "/v1/passages/search"):
            answers.append(world.http.post(path, json=query, headers=headers))
        answers.append(world.http.post(f"/users/{user}/memories/search", json=query))
    for agent in (ids["shared"], ids["hers"]):
        answers.append(
            world.http.get(
                f"/v1/agents/{agent}/archival-memory/search",
                params={"query": fact("passage")},
                headers=headers,
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    return "\n".join(answer.text for answer in answers)


def test_a_forgotten_text_is_nowhere_and_other_data_is_unchanged(world: World) -> None:
    ids = plant(world, "ada")
    world.say(world.ids["bob"], f"{SHARED}.", f"{SHARED}.")
    world.flush(ids["shared"])
    remote = world.data / "remotes" / "ada.git"
    made = ok(world.http.put("/users/ada/remotes", json={"kind": "git", "address": str(remote)}))
    ok(world.http.post(f"/users/ada/remotes/{made['id']}/follow"))
    wait_for(lambda: bool(ok(world.http.get("/users/ada/remotes"))[0]["last_at"]))
    before = world.rows()

    for kinds in (KINDS[:20], KINDS[20:40], KINDS[40:]):
        text = "\n".join(map(fact, kinds))
        listed = preview(world, "ada", text)
        excerpts = orjson.dumps(listed["items"]).decode().lower()
        assert [kind for kind in kinds if canary(kind) not in excerpts] == []
        receipt = forget(world, "ada", text, all=True)

    assert world.server.read(in_tables) == []
    assert in_files(world.data) == []
    for folder in (remote, *(world.data / "repositories").glob("*.git")):
        with closing(open_repository(folder)) as repository:
            objects = repository.object_store
            assert CANARY not in b"".join(objects.get_raw(id)[1] for id in objects).decode("latin")
    if url := world.server.settings.postgres_url:
        assert in_heap(url) == []
    assert CANARY not in searches(world, "ada", ids, KINDS[::8])
    assert everything_of_bob(world.rows(), world) == everything_of_bob(before, world)
    assert CANARY not in orjson.dumps(receipt).decode()
    assert receipts.verify(receipt, Secret(world.data))
    assert receipts.read(receipts.path_of(world.data, receipt["id"])) == receipt
    assert any("git remote" in sentence for sentence in receipt["elsewhere"])
    human = ok(world.http.get("/users/ada/blocks/human"))["body"]
    assert human.split("\n")[:2] == ["Ada.", "- Likes tea."]
    said = world.http.get(f"/v1/conversations/{ids['thread']}/messages").text
    assert f"Hello. {MARK}" in said
    assert MODEL


def test_a_forgotten_text_is_in_no_later_prompt_or_cache(world: World) -> None:
    thread = world.thread(world.agent("Tess"), "gil")
    world.say(thread, f"{fact('window')}.", "Noted.")
    world.say(thread, "Hello.", "Hello.")
    assert CANARY in str(world.server.model.requests[-1].messages).lower()
    forget(world, "gil", fact("window"), all=True)
    world.say(thread, "Hello again.", "Hello.")
    assert CANARY not in str(world.server.model.requests[-1].messages).lower()
    cached = world.server.read(lambda tx: repr(tx.cache[MessageCache]))
    assert "Hello again." in cached or "Hello." in cached
    assert CANARY not in cached.lower()


def test_saved_versions_of_a_users_template_forget_too(world: World) -> None:
    headers = {"x-ricordo-user": "tom"}
    block = {"label": "human", "value": f"Tom.\n{fact('template')}."}
    agent = world.agent("Tims", user_id="tom", memory_blocks=[block])
    body = {"type": "agent", "agent_id": agent, "name": "Tims"}
    ok(world.http.post("/v1/templates", json=body, headers=headers))
    forget(world, "tom", fact("template"), all=True)
    assert world.server.read(in_tables) == []
    rows = world.server.read(
        lambda tx: tx.all(select(template_versions.c.content, template_versions.c.digest))
    )
    assert rows
    for row in rows:
        content = orjson.dumps(row.content, option=orjson.OPT_SORT_KEYS)
        assert row.digest == sha256(content).hexdigest()
        assert b"Tom." in content


def test_the_memory_page_lists_matches_and_removes_chosen_ones(world: World) -> None:
    put, page = world.put, "/ui/people/eve"
    put("/users/eve/blocks/human", f"Eve.\n{fact('page')}.\nLikes cake.")
    agent = world.agent("Tilda", tools=["forget"])
    # With this conversation the agent does not belong only to Eve.
    world.say(world.thread(agent, "finn"), "Hello.", "Hello.")
    thread = world.thread(agent, "eve")
    ask = call("forget", text=f"{fact('page')}", reason="Eve asked.")
    world.say(thread, "Please forget it.", ask, "I asked you on your page.")
    (request,) = ok(world.http.get("/users/eve/forget"))
    assert (request["text"], request["conversation_id"]) == (fact("page"), thread)
    memory = world.http.get(page).text
    assert "asks whether this shall be forgotten" in memory
    assert "1 request to forget something" in memory
    assert re.search(r'formaction="/ui/people/[^/"]+/forget-one"', memory)

    form = {"text": request["text"], "request_id": request["id"]}
    listed = world.http.post(f"{page}/forget-one", data=form)
    assert listed.status_code == 200, listed.text
    ids = re.findall(r'name="id" value="([^"]+)" checked', listed.text)
    assert len(ids) >= 3
    nothing = world.http.post(f"{page}/forget-one/remove", data=form)
    assert (nothing.status_code, "Choose what to remove" in nothing.text) == (400, True)
    removed = world.http.post(
        f"{page}/forget-one/remove", data={**form, "id": ids, "never_again": "yes"}
    )
    assert removed.status_code == 303, removed.text
    receipt = removed.headers["location"].partition("?")[0]
    assert receipt.startswith("/ui/receipts/")
    wait_for(lambda: "The chosen was removed." in world.http.get(receipt).text)

    assert world.server.read(lambda tx: in_tables(tx, canary("page"))) == []
    assert ok(world.http.get("/users/eve/forget")) == []
    assert ok(world.http.get("/users/eve/blocks/human"))["body"] == "Eve.\nLikes cake."
    # The agent cannot store the text again, even if its window still contains it.
    again = call("memory_insert", label="human", new_string=f"{fact('page')}!")
    answer = world.say(thread, "Do you know me?", again, "No.")
    assert "never remembered" in answer, re.findall(r"tool_return.{200}", answer)


def test_invalid_forget_requests_remove_nothing(world: World) -> None:
    world.put("/users/finn/blocks/human", f"Finn.\n{fact('finn')}.")
    body = {"text": fact("finn"), "all": True}
    assert world.http.post("/users/nobody-here/forget", json=body).status_code == 404
    for wrong in ({"text": ""}, {"text": "…"}, {"text": fact("finn"), "ids": "all"}, {}):
        answer = world.http.post("/users/finn/forget", json=wrong)
        assert answer.status_code in (400, 422), answer.text
    assert len(preview(world, "finn", fact("finn"))["items"]) >= 1
