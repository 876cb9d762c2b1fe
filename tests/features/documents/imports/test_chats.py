"""Exports of other chat services.

The shown branch is imported once, with its times, and no file does harm.
"""

import asyncio
import io
import json
import math
import random
import zipfile
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import Invalid
from ricordo.features.documents.imports import chat_files, service
from ricordo.features.documents.imports.chat_files import ExportedChat, read_chats
from ricordo.storage import messages, users
from ricordo.storage.engine.repository import Page
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.stores import killed_after

Sent = dict[str, Any]


def node(
    id: str, parent: str | None, role: str, *parts: Any, at: float | None = None, **more: Any
) -> Sent:
    content = {
        "content_type": more.pop("kind", "text"),
        "parts": list(parts),
        **more.pop("content", {}),
    }
    message = {
        "id": id,
        "author": {"role": role},
        "create_time": at,
        "content": content,
        "metadata": {},
        **more,
    }
    return {"id": id, "parent": parent, "children": [], "message": message}


def chatgpt(id: str = "c-1", *more: Sent) -> Sent:
    """Return a chat with an edited question, an answer by a tool, a thought and a picture."""
    thought = {
        "kind": "thoughts",
        "content": {"thoughts": [{"summary": "s", "content": "Hm."}], "parts": []},
    }
    nodes = [
        {"id": "root", "parent": None, "children": [], "message": None},
        node(
            "system",
            "root",
            "system",
            "Be good.",
            metadata={"is_visually_hidden_from_conversation": True},
        ),
        node("old", "system", "user", "The question before it was edited.", at=1_700_000_000.0),
        node("old answer", "old", "assistant", "Its answer.", at=1_700_000_001.0),
        node(
            "q",
            "system",
            "user",
            "What is tea?",
            {"asset_pointer": "file-service://x"},
            at=1_700_000_010.5,
        ),
        node("t", "q", "assistant", at=1_700_000_011.0, **thought),
        node("call", "t", "assistant", "search('tea')", recipient="browser", at=1_700_000_012.0),
        node("found", "call", "tool", "A leaf.", at=1_700_000_013.0),
        node(
            "a",
            "found",
            "assistant",
            "A leaf.",
            at=1_700_000_005.0,
            metadata={"model_slug": "gpt-4o"},
        ),
        *more,
    ]
    mapping = {one["id"]: one for one in nodes}
    return {
        "id": id,
        "title": "Tea",
        "create_time": 1_700_000_000.0,
        "mapping": mapping,
        "current_node": nodes[-1]["id"],
    }


CLAUDE: Sent = {
    "uuid": "claude-1",
    "name": "Coffee",
    "created_at": "2025-01-02T03:04:05.000000Z",
    "chat_messages": [
        {
            "uuid": "1",
            "sender": "human",
            "text": "Hi",
            "created_at": "2025-01-02T03:04:05Z",
            "content": [],
            "files": [{}],
        }
        | {
            "attachments": [{"file_name": "a.txt", "extracted_content": "Words."}],
            "parent_message_uuid": "root",
        },
        {
            "uuid": "2",
            "sender": "assistant",
            "text": "Old",
            "created_at": "2025-01-02T03:04:06Z",
            "parent_message_uuid": "1",
        },
        {
            "uuid": "3",
            "sender": "assistant",
            "text": "",
            "created_at": "2025-01-02T03:04:07Z",
            "parent_message_uuid": "1",
        }
        | {
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "Hello."},
                {"type": "tool_use"},
            ]
        },
    ],
}
OPENWEBUI: Sent = {
    "id": "owui-1",
    "title": "Cake",
    "created_at": 1_700_000_000,
    "chat": {
        "title": "Cake",
        "history": {
            "currentId": "c",
            "messages": {
                "a": {
                    "id": "a",
                    "parentId": None,
                    "role": "user",
                    "content": "Cake?",
                    "timestamp": 1_700_000_000,
                },
                "b": {
                    "id": "b",
                    "parentId": "a",
                    "role": "assistant",
                    "content": "No.",
                    "timestamp": 1_700_000_001,
                },
                "c": {
                    "id": "c",
                    "parentId": "a",
                    "role": "assistant",
                    "content": "Yes.",
                    "timestamp": 1_700_000_002,
                },
            },
        },
    },
}


def stream(*chats: Any) -> io.BytesIO:
    return io.BytesIO(json.dumps(list(chats)).encode())


def read(kind: str, data: bytes) -> list[ExportedChat | str]:
    return [*read_chats(kind, io.BytesIO(data))]


def texts(kind: str, sent: Sent) -> list[tuple[str, str, str]]:
    (chat,) = read(kind, json.dumps([sent]).encode())
    assert isinstance(chat, ExportedChat), chat
    return [(one.role, one.thoughts, one.text) for one in chat.messages]


def import_chats(
    api: Api, kind: str, file: io.BytesIO, *, user: str | None = None, agent: str | None = None
) -> Sent:
    async def work() -> Sent:
        runtime = api.server.runtime
        target = await service.target_of(
            runtime, await service.scope_for(runtime, user), kind, agent
        )
        report = await service.import_chats(runtime, target, file, lambda *_: None)
        return report | {"agent": target.agent_id}

    return api.server.run(work())


def test_the_visible_branch_of_a_chat_is_imported() -> None:
    assert texts("chatgpt", chatgpt()) == [
        ("user", "", "What is tea?"),
        ("assistant", "Hm.", ""),
        ("assistant", "", "A leaf."),
    ]
    assert texts("claude", CLAUDE) == [
        ("user", "", "Hi\na.txt:\nWords."),
        ("assistant", "Hm.", "Hello."),
    ]
    assert texts("openwebui", OPENWEBUI) == [("user", "", "Cake?"), ("assistant", "", "Yes.")]
    linear = [{**one, "parent_message_uuid": None} for one in CLAUDE["chat_messages"]]
    assert len(texts("claude", CLAUDE | {"chat_messages": linear})) == 3
    circle = chatgpt()
    circle["mapping"]["root"]["parent"] = "a"
    assert len(texts("chatgpt", circle)) == 3


def test_lone_surrogates_and_nan_lose_no_chat() -> None:
    """Exports cut titles and texts in the middle of a character, and programs write NaN."""
    chance = random.Random(11)  # noqa: S311 - the same halves in each run
    halves = "\ud83d\udc00\udfff\ud800"

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(member) for key, member in value.items()}
        if isinstance(value, list):
            return [cut(member) for member in value]
        if isinstance(value, str) and " " in value:
            return value.replace(" ", f" {chance.choice(halves)} ", 1)
        return chance.choice((value, math.nan, math.inf)) if isinstance(value, float) else value

    for whole in (True, False):
        exported = [cut(chatgpt(f"c-{number}")) for number in range(5)]
        text = json.dumps({"conversations": exported} if whole else exported)
        data = text.replace("Infinity", "1e999").encode()
        chats = list(read_chats("chatgpt", io.BytesIO(data)))
        (asked,) = {each.messages[0].text for each in chats if isinstance(each, ExportedChat)}
        assert (len(chats), asked) == (5, "What \ufffd is tea?")


def test_imported_chats_become_searchable_conversations(api: Api) -> None:
    report = import_chats(api, "chatgpt", stream(chatgpt()), user="mia")
    assert report["taken"] == {"chats": 1, "messages": 3}
    assert {one["what"]: one["count"] for one in report["left_out"]} == {
        "pictures and files": 1,
        "uses of tools": 2,
    }
    mia = api.server.read(lambda tx: users.require(tx, Scope(), "mia"))
    (thread,) = ok(
        api.http.get("/v1/conversations/", params={"agent_id": report["agent"], "user_id": "mia"})
    )
    assert thread["summary"] == "Tea"
    path = f"/v1/conversations/{thread['id']}/messages"
    said = ok(api.http.get(path, params={"order": "asc"}))
    assert [one["message_type"] for one in said] == [
        *("system_message", "user_message", "reasoning_message", "assistant_message")
    ]
    # In the export the last answer has an earlier time than its question; the order counts.
    assert [one["date"] for one in said] == sorted(one["date"] for one in said)
    assert said[1]["date"].startswith("2023-11-14T22:13:30")
    found = ok(
        api.http.post(
            "/v1/messages/search", json={"query": "what is tea", "agent_id": report["agent"]}
        )
    )
    assert "What is tea?" in json.dumps(found)
    # The conversation can continue, and belongs to this user only.
    ok(api.http.patch(f"/v1/agents/{report['agent']}", json={"model": "scripted/model"}))
    api.server.says("As I said.")
    ok(
        api.http.post(
            path, json={"messages": [{"role": "user", "content": "Again?"}], "streaming": False}
        )
    )
    asked = api.server.model.requests[-1].messages
    assert [one.text for one in asked if one.role == "user"] == ["What is tea?", "Again?"]
    api.server.write(lambda tx: users.find_or_make(tx, Scope(), "noa"))
    assert (
        ok(
            api.http.get(
                "/v1/conversations/", params={"agent_id": report["agent"], "user_id": "noa"}
            )
        )
        == []
    )
    assert mia.id in {one.user_id for one in _rows(api, thread["id"])}


def _rows(api: Api, conversation: str) -> Any:
    wanted = Page(limit=1000, order="asc")
    return api.server.read(
        lambda tx: messages.page(tx, Scope(), wanted, conversation_id=conversation)
    )


def test_a_repeated_import_adds_only_newer_messages(api: Api) -> None:
    first = import_chats(api, "chatgpt", stream(chatgpt("later")), user="ida")
    assert import_chats(api, "chatgpt", stream(chatgpt("later")), user="ida") == first
    more = node("q2", "a", "user", "And coffee?", at=1_700_000_100.0)
    second = import_chats(api, "chatgpt", stream(chatgpt("later", more)), user="ida")
    assert second["taken"] == {"chats": 1, "messages": 4}
    (thread,) = ok(
        api.http.get("/v1/conversations/", params={"agent_id": first["agent"], "user_id": "ida"})
    )
    assert [one.text for one in _rows(api, thread["id"])][-1] == "And coffee?"
    assert len(thread["in_context_message_ids"]) == 5


def test_messages_imported_later_get_the_policy_of_their_conversation(api: Api) -> None:
    first = import_chats(api, "chatgpt", stream(chatgpt("kept")), user="kim")
    found = {"agent_id": first["agent"], "user_id": "kim"}
    (thread,) = ok(api.http.get("/v1/conversations/", params=found))
    ok(api.http.put(f"/v1/conversations/{thread['id']}/egress", json={"allowed": ["local"]}))
    more = node("q2", "a", "user", "And coffee?", at=1_700_000_100.0)
    import_chats(api, "chatgpt", stream(chatgpt("kept", more)), user="kim")
    said = [row for row in _rows(api, thread["id"]) if row.role != "system"]
    assert (len(said), {row.egress for row in said}) == (4, {"local"})


def test_mem0_memories_are_imported_as_passages(api: Api) -> None:
    sent = {
        "results": [
            {
                "id": "m1",
                "memory": "Likes tea.",
                "user_id": "x",
                "categories": ["food"],
                "created_at": "2024-07-01T12:00:00Z",
            },
            {"id": "m2", "memory": None},
        ]
    }
    agent = str(
        ok(api.http.post("/v1/agents/", json={"model": "scripted/model", "name": "Mem"}))["id"]
    )
    for _ in range(2):
        report = import_chats(
            api, "mem0", io.BytesIO(json.dumps(sent).encode()), user="uma", agent=agent
        )
        assert (report["taken"], report["left_out"][0]["names"]) == ({"memories": 1}, ["no. 2"])
    (passage,) = ok(api.http.get(f"/v1/agents/{agent}/archival-memory", params={"user_id": "uma"}))
    assert (passage["text"], sorted(passage["tags"])) == ("Likes tea.", ["food", "mem0"])
    assert passage["created_at"].startswith("2024-07-01T12:00:00")
    api.server.write(lambda tx: users.find_or_make(tx, Scope(), "noa"))
    assert ok(api.http.get(f"/v1/agents/{agent}/archival-memory", params={"user_id": "noa"})) == []


def test_a_chat_import_killed_after_any_write_continues(api: Api) -> None:
    long = [
        node(f"n{at}", f"n{at - 1}" if at else "a", "user", f"Line {at}.", at=1.7e9 + 100 + at)
        for at in range(450)
    ]
    file = json.dumps([chatgpt("long", *long), chatgpt("short")]).encode()
    whole = import_chats(api, "chatgpt", io.BytesIO(file), user="whole")
    kills = 0
    for writes in (0, 1, 2, 2, 2, 2):
        with killed_after(api.server.runtime, writes):
            try:
                import_chats(api, "chatgpt", io.BytesIO(file), user="killed")
            except (asyncio.CancelledError, CancelledError):
                kills += 1
    assert kills >= 4
    again = import_chats(api, "chatgpt", io.BytesIO(file), user="killed")
    assert again["taken"] == whole["taken"] == {"chats": 2, "messages": 456}
    said = []
    for user, report in (("whole", whole), ("killed", again)):
        threads = ok(
            api.http.get(
                "/v1/conversations/", params={"agent_id": report["agent"], "user_id": user}
            )
        )
        rows = [_rows(api, thread["id"]) for thread in threads]
        said.append(
            sorted(
                [[(one.role, one.text, one.created_at) for one in some[1:]] for some in rows],
                key=len,
            )
        )
    assert said[0] == said[1]


def zipped(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, data)
    return made.getvalue()


def test_zip_files_and_invalid_elements_are_read() -> None:
    odd = [chatgpt(), 3, {}, {"id": 4, "mapping": {}}, {"id": "x", "mapping": 5}, chatgpt("c-2")]
    found = read("chatgpt", zipped("export/conversations-000.json", json.dumps(odd).encode()))
    assert [isinstance(one, ExportedChat) for one in found] == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    tricky = chatgpt("tr", node("z", "a", "user", 'a "quote" \\ [{]}, \\" and \u2028 more' * 5_000))
    (chat,) = read("chatgpt", json.dumps([tricky]).encode())
    assert isinstance(chat, ExportedChat)
    assert chat.messages[-1].text == 'a "quote" \\ [{]}, \\" and \u2028 more' * 5_000
    assert read("chatgpt", b" [ ] ") == []
    deep = b'[{"id":"d","mapping":' + b"[" * 100_000 + b"]" * 100_000 + b"}]"
    (reason,) = read("chatgpt", deep)
    assert isinstance(reason, str)
    message = {"author": {"role": "user"}, "content": {"parts": ["y"]}}
    bare = {
        "id": "n",
        "title": 5,
        "create_time": "x",
        "mapping": {"a": {"message": message}},
        "current_node": "a",
    }
    (chat,) = read("chatgpt", json.dumps([bare]).encode())
    assert isinstance(chat, ExportedChat)
    assert (chat.title, chat.created_at, chat.messages[0].created_at) == ("", None, None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'[{"id": "x"', "is cut off"),
        (b"PK\x03\x04 nothing", "damaged"),
        (zipped("other.json", b"[]"), r"no conversations\.json"),
        (zipped("conversations.json", b"[" + b" " * 100_000)[:-60], "damaged"),
    ],
)
def test_files_that_are_no_export_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read("chatgpt", data)


def test_zip_bombs_and_oversized_chats_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_files, "MOST_UNPACKED", 2**22)
    with pytest.raises(Invalid, match="holds more than"):
        read("chatgpt", zipped("conversations.json", b"[" + b" " * 2**24 + b"]"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(3):
            packed.writestr(f"conversations-{number}.json", b"[" + b" " * 2**21 + b"]")
    with pytest.raises(Invalid, match="holds more than"):
        read("chatgpt", made.getvalue())
    monkeypatch.setattr(chat_files, "LONGEST", 2**20)
    long = chatgpt("long", node("z", "a", "user", "x" * 2**21))
    found = read("chatgpt", json.dumps([long, chatgpt()]).encode())
    assert [isinstance(one, ExportedChat) for one in found] == [False, True]
    with pytest.raises(Invalid, match="one object"):
        read("chatgpt", json.dumps(long).encode())


def test_only_a_file_that_cannot_be_opened_is_reported_as_unreadable(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"), service.opened(tmp_path):
        pass
    file = tmp_path / "export.json"
    file.write_text("[]")

    def import_file() -> None:
        with service.opened(file) as stream:
            assert stream.read() == b"[]"
            raise OSError(28, "The disk is full.")

    with pytest.raises(OSError, match="disk is full"):
        import_file()
