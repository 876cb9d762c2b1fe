"""A server that is configured for Open WebUI.

Its users are synced in the background or on request, and can be forgotten here.
"""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import httpx2
import pytest

from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.openwebui.mirror.queries import openwebui_items
from ricordo.features.openwebui.mirror.sync import ALL_USERS
from ricordo.storage.conversations import GONE_THERE
from tests.features.openwebui.mirror.conftest import USER
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, serving
from tests.seams.waiting import wait_for
from tests.support.open_webui import FakeOpenWebUI

SYNC = f"/users/{USER}/workspace/sync"


@pytest.fixture
def server(tmp_path: Path, there: FakeOpenWebUI) -> Iterator[ServerInThread]:
    assert there.url
    with serving(tmp_path, api_key=OPERATOR) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


def test_a_user_can_be_synced_on_request_and_erased(
    server: ServerInThread, http: httpx2.Client, there: FakeOpenWebUI
) -> None:
    ok(http.put(f"/users/{USER}/blocks/human", json={"body": "Ada."}))
    assert ok(http.get(SYNC))["status"] == "waiting"
    ok(http.put(f"/users/{USER}/workspace/files/draft.md", content="Draft."))
    done = ok(http.post(SYNC))
    assert (done["status"], done["files"], done["notes"], done["problem"]) == ("synced", 1, 1, None)
    assert (there.user_files(), there.user_notes()) == ({"draft.md": "Draft."}, {"human": "Ada."})
    assert ok(http.get(SYNC)) == done
    there.user_edits("draft.md", "Mine.")
    there.user_writes("human", "Ada Lovelace.")
    assert ok(http.post(SYNC))["last_at"] > done["last_at"]
    assert http.get(f"/users/{USER}/workspace/files/draft.md").text == "Mine."
    assert ok(http.get(f"/users/{USER}/blocks/human"))["body"] == "Ada Lovelace."
    there.is_down = True
    assert "answered 502" in ok(http.post(SYNC))["problem"]
    there.is_down = False
    receipt = wait_for(lambda: http.delete(f"/users/{USER}").json().get("elsewhere"))
    assert f"The memory's openwebui remote at {there.url} keeps a copy." in receipt
    assert server.read(lambda tx: tx.all(openwebui_items.select())) == []


def test_a_sync_needs_an_open_webui_user_and_its_address(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(http.put("/users/bob/blocks/human", json={"body": "Bob."}))
    assert "does not come from Open WebUI" in refused(http.post("/users/bob/workspace/sync"), 400)
    assert ok(http.get("/users/bob/remotes")) == []
    monkeypatch.delenv("RICORDO_OPENWEBUI_URL")
    assert "Set RICORDO_OPENWEBUI_URL" in refused(http.post("/users/bob/workspace/sync"), 400)


def test_open_webui_users_are_synced_automatically(
    server: ServerInThread, http: httpx2.Client, there: FakeOpenWebUI
) -> None:
    for user in (USER, "open-webui:eve@example.org", "bob"):
        ok(http.put(f"/users/{user}/blocks/human", json={"body": f"I am {user}."}))

    async def look() -> None:
        await ALL_USERS.run(
            server.runtime, Job(ALL_USERS.kind, LOCAL_ORGANIZATION, {}), lambda *_: None
        )

    server.run(look())
    assert wait_for(lambda: there.notes and there.user_notes()) == {"human": f"I am {USER}."}
    ok(http.put(f"/users/{USER}/blocks/human", json={"body": "Changed."}))
    wait_for(lambda: there.user_notes() == {"human": "Changed."})
    assert [one["kind"] for one in ok(http.get(f"/users/{USER}/remotes"))] == ["openwebui"]
    assert len(there.bases) == 1


def test_chats_deleted_in_open_webui_are_listed_or_deleted(
    server: ServerInThread,
    http: httpx2.Client,
    there: FakeOpenWebUI,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = ok(http.post("/v1/agents/", json={"name": "Nina", "model": MODEL}))["id"]
    ids = [str(UUID(int=number)) for number in range(130)]

    def say(chat_id: str) -> str:
        said = [{"role": "user", "content": f"Hello from {chat_id}."}]
        body = {"user_id": USER, "chat_id": chat_id, "model": agent, "messages": said}
        assert http.post("/chat/stream", json=body).status_code == 200
        return chat_id

    kept, gone, other = say(ids[100]), say(ids[101]), say("of another program")
    there.chats = [*ids[:101], *ids[102:]]

    def listed() -> dict[str, str | None]:
        found = ok(http.get("/v1/conversations/", headers={"x-ricordo-user": USER}))
        return {one["summary"].removeprefix("chat_"): one["description"] for one in found}

    there.may_see_chats = False
    assert ok(http.post(SYNC))["problem"] is None
    assert listed() == {kept: None, gone: None, other: None}
    there.may_see_chats = True
    ok(http.post(SYNC))
    assert listed() == {kept: None, gone: GONE_THERE, other: None}
    key = bearer(server.key(USER))
    page = http.get("/ui/chat?new=yes", headers=key).text
    assert page.index(kept) < page.index("Chats that are gone there") < page.index(gone)
    there.chats.append(gone)
    ok(http.post(SYNC))
    assert listed()[gone] is None
    there.chats.remove(gone)
    monkeypatch.setenv("RICORDO_OPENWEBUI_DELETED_CHATS", "delete")
    ok(http.post(SYNC))
    wait_for(lambda: listed().keys() == {kept, other})
