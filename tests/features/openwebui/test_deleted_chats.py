"""The function for deleted chats, called with events as Open WebUI 0.12.4 publishes them."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest

from ricordo.features.openwebui.mirror.deleted_chats import Event
from tests.seams.http import OPERATOR, bearer, ok
from tests.seams.server import MODEL, ServerInThread, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("chats"), api_key=OPERATOR) as opened:
        yield opened


@pytest.fixture(scope="module")
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


@pytest.fixture(scope="module")
def agent(http: httpx2.Client) -> str:
    return str(ok(http.post("/v1/agents/", json={"name": "coach", "model": MODEL}))["id"])


@pytest.fixture
def function(server: ServerInThread) -> Event:
    made = Event()
    made.valves = made.Valves(SERVER_URL=server.url, API_KEY=server.key(role="service"))
    return made


def talk(http: httpx2.Client, agent: str, user: str, chat: str, *texts: str) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"model": agent, "user_id": f"open-webui:{user}", "chat_id": chat, "messages": messages}
    assert http.post("/chat/stream", json=body).status_code == 200


def chats(http: httpx2.Client, user: str) -> list[str]:
    listed = ok(http.get("/v1/conversations/", params={"user_id": f"open-webui:{user}"}))
    return sorted(row["summary"].removeprefix("chat_") for row in listed)


def publish(function: Event, name: str, subject: dict[str, Any], **data: Any) -> None:
    """Send an event with the members that Open WebUI's `Event` has."""
    event = {"event": name, "subject": subject, "data": data, "actor": {"id": "x"}}
    asyncio.run(function.event(event))


def test_a_chat_deleted_in_open_webui_is_deleted_for_its_user_only(
    http: httpx2.Client, agent: str, function: Event
) -> None:
    kept, gone = str(uuid.uuid4()), str(uuid.uuid4())
    for user in ("ada", "bea"):
        for chat in (kept, gone):
            talk(http, agent, user, chat, "Hello.")
    talk(http, agent, "ada", gone, "Hello?")  # an edited message makes another version of the chat
    for _ in range(2):  # an event may come twice
        publish(function, "chat.deleted", {"type": "chat", "id": gone}, owner_id="ada")
    assert chats(http, "ada") == [kept]
    assert chats(http, "bea") == sorted((kept, gone))
    for name in ("chat.updated", "chat.archived", "system.startup.completed"):
        publish(function, name, {"type": "chat", "id": kept}, owner_id="ada")
    assert chats(http, "ada") == [kept]


def test_deleting_all_chats_keeps_chats_named_by_programs(
    http: httpx2.Client, agent: str, function: Event
) -> None:
    for chat in (*(str(uuid.uuid4()) for _ in range(3)), "of-a-program"):
        talk(http, agent, "cleo", chat, "Hello.")
    talk(http, agent, "dan", str(uuid.uuid4()), "Hello.")
    publish(function, "chat.deleted_all", {"type": "user", "id": "cleo"})
    assert chats(http, "cleo") == ["of-a-program"]
    assert len(chats(http, "dan")) == 1


def test_chat_deletions_create_no_users_and_raise_errors(
    http: httpx2.Client, function: Event
) -> None:
    publish(function, "chat.deleted", {"type": "chat", "id": str(uuid.uuid4())}, owner_id="new")
    assert http.get("/v1/users/open-webui:new").status_code == 404
    function.valves = function.Valves(SERVER_URL=function.valves.SERVER_URL, API_KEY="wrong")
    with pytest.raises(httpx.HTTPStatusError):
        publish(function, "chat.deleted_all", {"type": "user", "id": "cleo"})
