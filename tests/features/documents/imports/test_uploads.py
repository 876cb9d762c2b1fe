"""Uploaded exports: imported by a job, visible only to the sender, and shown on a page."""

import asyncio
import html
import json
import re
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from sqlalchemy import select

from ricordo.domain.clock import DAY
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.documents.imports import queries
from ricordo.features.documents.imports.jobs import HANDLERS, UPLOAD
from ricordo.features.documents.imports.queries import import_parts, insert_parts
from ricordo.storage import jobs
from ricordo.storage.engine.store import Store, Transaction
from tests.api.conftest import Api
from tests.features.documents.imports.test_chats import chatgpt
from tests.features.web.pages.test_home import visitor
from tests.seams.http import ok
from tests.seams.jobs import LIMIT, working
from tests.seams.people import OPERATOR, People
from tests.seams.server import MODEL, serving
from tests.seams.waiting import wait_for

Sent = dict[str, Any]


def wait_for_import(ask: Any, id: str) -> Sent:
    deadline = time.monotonic() + 20
    while (one := ask(f"/v1/imports/{id}"))["status"] in ("created", "pending", "running"):
        assert time.monotonic() < deadline, one
        time.sleep(0.02)
    return dict(one)


def upload(http: Any, data: bytes, headers: Sent | None = None, **form: str) -> Any:
    return http.post(
        "/v1/imports",
        data={"kind": "chatgpt", **form},
        files={"file": ("x.json", data)},
        headers=headers,
    )


def test_an_upload_is_imported_once(api: Api) -> None:
    file = json.dumps([chatgpt(), 5]).encode()
    made = ok(upload(api.http, file))
    one = wait_for_import(lambda path: ok(api.http.get(path)), made["id"])
    assert (one["status"], one["report"]["taken"], one["done"]) == (
        "completed",
        {"chats": 1, "messages": 3},
        2,
    )
    assert "3 messages" in one["text"]
    assert [one["what"] for one in one["report"]["left_out"]] == [
        "chats",
        "pictures and files",
        "uses of tools",
    ]
    assert api.client.agents.retrieve(one["agent_id"]).name == "ChatGPT"
    assert api.server.rows()["import_parts"] == 0
    again = ok(upload(api.http, file))
    assert again["agent_id"] == one["agent_id"]
    assert (
        wait_for_import(lambda path: ok(api.http.get(path)), again["id"])["report"] == one["report"]
    )


def test_a_truncated_upload_fails_and_reports_what_was_imported(api: Api) -> None:
    made = ok(upload(api.http, json.dumps([chatgpt("half")]).encode()[:-1] + b', {"id', agent=""))
    one = wait_for_import(lambda path: ok(api.http.get(path)), made["id"])
    assert (one["status"], "is cut off" in one["error"]) == ("failed", True)
    assert one["report"]["taken"]["chats"] >= 1
    assert api.server.rows()["import_parts"] == 0
    assert upload(api.http, b"[]", kind="myspace").status_code == 422
    assert (
        upload(api.http, b"[]", agent="agent-00000000-0000-4000-8000-00000000000a").status_code
        == 404
    )
    assert upload(api.http, b"[]", user="nobody there").status_code == 404


async def test_the_upload_of_a_job_that_was_deleted_is_deleted_soon(
    store: Store, tmp_path: Path
) -> None:
    waiting, deleted = (Job(UPLOAD, LOCAL_ORGANIZATION, {}, key=key) for key in "ab")
    waiting = replace(waiting, not_before=store.clock.now() + DAY)
    counted = select(import_parts.c.job_id)

    def add(tx: Transaction) -> None:
        for job in (waiting, deleted):
            insert_parts(tx, job, b"[]")
        jobs.add(tx, waiting)

    await store.write(add)
    async with working(store, tmp_path, *HANDLERS):
        deadline = time.monotonic() + LIMIT
        while len(left := await store.read(lambda tx: tx.all(counted))) > 1:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
    assert [row.job_id for row in left] == [waiting.id]


def test_users_import_into_their_own_memory_only(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        people = People(server, http)
        agent = people.ask(
            OPERATOR, "POST", "/v1/agents/", json={"name": "Tutor", "model": "scripted/model"}
        )["id"]
        ada, bob = people.key("ada"), people.key("bob")
        sent: Sent = {"files": {"file": ("x.json", json.dumps([chatgpt()]).encode())}}
        bare = people.send(ada, "POST", "/v1/imports", data={"kind": "chatgpt"}, **sent)
        assert (bare.status_code, "agents:write" in bare.text) == (403, True)
        form = {"kind": "chatgpt", "agent": agent}
        other = people.send(ada, "POST", "/v1/imports", data={**form, "user": "bob"}, **sent)
        assert other.status_code == 403
        made = people.ask(ada, "POST", "/v1/imports", data=form, **sent)
        assert people.send(bob, "GET", f"/v1/imports/{made['id']}").status_code == 404
        one = wait_for_import(lambda path: people.ask(ada, "GET", path), made["id"])
        assert (one["status"], one["user_id"]) == ("completed", people.id_of("ada"))
        assert len(people.ask(ada, "GET", "/v1/conversations/", params={"agent_id": agent})) == 1
        assert people.ask(bob, "GET", "/v1/conversations/", params={"agent_id": agent}) == []
        # The same file of another sender is a separate import.
        wait_for_import(
            lambda path: people.ask(bob, "GET", path),
            people.ask(bob, "POST", "/v1/imports", data=form, **sent)["id"],
        )
        assert len(people.ask(bob, "GET", "/v1/conversations/", params={"agent_id": agent})) == 1
        # Forgetting a user deletes their imports too.
        people.send(OPERATOR, "DELETE", "/users/ada")
        wait_for(lambda: people.server.rows()["imported_items"] == 2)


def test_the_imports_page_accepts_a_file_and_shows_the_report(tmp_path: Path) -> None:
    with visitor(tmp_path) as browser:
        assert "Moving in" in browser.get("/ui/imports").text
        file = {"file": ("x.json", json.dumps([chatgpt("<i>")]).encode())}
        refused = browser.post(
            "/ui/imports", data={"kind": "chatgpt", "agent": "agent-x", "user": ""}, files=file
        )
        assert (refused.status_code, "Agent with ID agent-x not found" in refused.text) == (
            404,
            True,
        )
        home = browser.post(
            "/ui/imports", data={"kind": "chatgpt", "agent": "", "user": ""}, files=file
        ).headers["location"]
        deadline = time.monotonic() + 20
        while "every 2s" in (page := browser.get(home).text) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "3 messages" in page
        listed = browser.get("/ui/imports").text
        assert home in listed
        assert "/export" in listed
        assert browser.get("/ui/imports/job-1").status_code == 404


def test_the_imports_page_links_exports_of_memory_and_all_agents(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        people = People(server, http)
        ada = people.key("ada")
        people.ask(ada, "PUT", "/users/ada/blocks/human", json={"body": "Ada sails."})
        for number in range(101):
            people.ask(
                OPERATOR, "POST", "/v1/agents/", json={"model": MODEL, "name": f"agent {number}"}
            )
        page = people.send(ada, "GET", "/ui/imports").text
        (memory,) = re.findall(r'href="(/users/[^"]*/export)"', page)
        with ZipFile(BytesIO(people.send(ada, "GET", memory).content)) as archive:
            assert archive.read("blocks/human.md") == b"Ada sails."
        older = html.unescape(re.findall(r'href="(/ui/imports\?after=[^"]*)"', page)[0])
        files = re.findall(
            r'href="(/v1/agents/[^"]*/export)"', page + people.send(ada, "GET", older).text
        )
        assert len(set(files)) == 101
        assert people.ask(ada, "GET", files[-1])["agents"]
        assert "/ui/people" in people.send(OPERATOR, "GET", "/ui/imports").text


def test_the_imports_page_offers_a_list_only_to_those_who_may_import_it(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        people = People(server, http)
        sent: Sent = {"files": {"file": ("x.txt", b"Likes the sea.")}, "data": {"kind": "pasted"}}

        def offers(key: str) -> bool:
            return 'value="pasted"' in people.send(key, "GET", "/ui/imports").text

        # A developer who reads no memory has none either.
        dora = people.key("dora", "developer")
        assert not offers(dora)
        refused = people.send(dora, "POST", "/v1/imports", **sent)
        assert (refused.status_code, "has no memory" in refused.text) == (403, True)
        assert "`user`" not in refused.text
        # Without a name, the operator must name a user; all others import their own list.
        assert offers(OPERATOR)
        assert "Name the user" in people.send(OPERATOR, "POST", "/v1/imports", **sent).text
        for key in (people.key("boss", "admin"), people.key("ada")):
            assert offers(key)
            made = people.ask(key, "POST", "/v1/imports", **sent)
            job = wait_for_import(lambda path, key=key: people.ask(key, "GET", path), made["id"])
            assert job["report"]["taken"] == {"memories proposed": 1}
        assert len(people.ask(OPERATOR, "GET", "/users/boss/diffs")) == 1


def test_a_chat_with_the_id_refused_is_imported_once(api: Api) -> None:
    file = json.dumps([chatgpt("refused"), 5]).encode()
    agent = api.client.agents.create(model=MODEL).id
    for _ in range(2):
        made = ok(upload(api.http, file, agent=agent))
        one = wait_for_import(lambda path: ok(api.http.get(path)), made["id"])
        reasons = [left["reason"] for left in one["report"]["left_out"]]
        assert (one["report"]["taken"], "it is not a JSON object" in reasons) == (
            {"chats": 1, "messages": 3},
            True,
        )
    source = one["report"]["source"]
    items = api.server.read(lambda tx: queries.done_items(tx, LOCAL_ORGANIZATION, source))
    assert set(items) == {"refused", ""}
