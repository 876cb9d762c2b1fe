"""Kinds of exports.

Exports may contain chats, memories, files of another kind, and the reasoning and outputs of Open
WebUI's answers.
"""

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ricordo.errors import Invalid
from ricordo.features.documents.imports.chat_files import ExportedChat, read_chats
from ricordo.features.documents.imports.webui_answers import split_answer
from tests.api.conftest import Api
from tests.features.documents.imports.test_chats import (
    CLAUDE,
    OPENWEBUI,
    chatgpt,
    import_chats,
    stream,
)
from tests.features.documents.imports.test_uploads import upload, wait_for_import
from tests.seams.growth import repeated, require_linear
from tests.seams.http import ok

CASES = Path(__file__).parent / "cases"
MEM0 = {"id": "m-1", "memory": "Likes tea.", "user_id": "ada"}
SAMPLES: dict[str, Any] = {
    "chatgpt": chatgpt(),
    "claude": CLAUDE,
    "openwebui": OPENWEBUI,
    "mem0": MEM0,
}
NAMES = {"chatgpt": "ChatGPT", "claude": "Claude", "openwebui": "Open WebUI", "mem0": "mem0"}


def test_claude_memory_is_imported_with_its_chats(api: Api) -> None:
    export = (CASES / "16-claude-memories.zip").read_bytes()
    made = import_chats(api, "claude", io.BytesIO(export))
    assert made["taken"] == {"chats": 1, "memories": 1, "messages": 2}
    (left,) = made["left_out"]
    assert (left["what"], left["names"]) == ("files of the export", ["users.json"])
    (passage,) = ok(api.http.get(f"/v1/agents/{made['agent']}/archival-memory"))
    assert passage["text"] == "**Work** She is a nurse in the north."
    assert passage["tags"] == ["claude", "memory"]
    # If a user is named, the memory becomes a proposal, and is not shown before the user approves
    # it.
    made = import_chats(api, "claude", io.BytesIO(export), user="nurse")
    assert made["taken"] == {"chats": 1, "memories proposed": 1, "messages": 2}
    headers = {"x-ricordo-user": "nurse"}
    assert ok(api.http.get(f"/v1/agents/{made['agent']}/archival-memory", headers=headers)) == []
    (waiting,) = ok(api.http.get("/users/nurse/diffs"))
    assert (waiting["body"], waiting["is_untrusted"], waiting["author"]) == (
        "**Work** She is a nurse in the north.",
        True,
        "Claude",
    )


def test_each_project_memory_is_imported_once(api: Api) -> None:
    chance = random.Random(3)  # noqa: S311
    for number in range(10):
        projects = {
            f"p-{number}-{one}": f"Project {one} of {number}." for one in range(chance.randrange(4))
        }
        whole = chance.choice([None, "", "  ", f"She is no. {number}."])
        sent = {
            "conversations_memory": whole,
            "project_memories": projects,
            "account_uuid": f"a-{number}",
            "new": 1,
        }
        if not projects and not (whole or "").strip():
            (reason,) = read_chats("claude", stream(sent))
            assert "no memory" in str(reason)
            continue
        count = len(projects) + bool((whole or "").strip())
        memories = [
            one for one in read_chats("claude", stream(sent)) if isinstance(one, ExportedChat)
        ]
        assert len({one.id for one in memories}) == count
        agent = api.client.agents.create(model="scripted/model").id
        for _ in range(2):
            assert import_chats(api, "claude", stream(sent), agent=agent)["taken"] == {
                "memories": count
            }


@pytest.mark.parametrize("kind", SAMPLES)
def test_an_export_of_another_kind_is_refused_and_its_kind_named(api: Api, kind: str) -> None:
    for other, sample in SAMPLES.items():
        if other == kind:
            continue
        for count in (1, 3):
            with pytest.raises(
                Invalid, match=f"export of {NAMES[kind]}.*looks like an export of {NAMES[other]}"
            ):
                import_chats(api, kind, stream(*[sample] * count))


def test_an_upload_with_nothing_readable_fails(api: Api) -> None:
    answer = ok(upload(api.http, (CASES / "18-chatgpt.json").read_bytes(), kind="openwebui"))
    job = wait_for_import(lambda path: ok(api.http.get(path)), answer["id"])
    assert job["status"] == "failed"
    assert "looks like an export of ChatGPT: import it as chatgpt" in job["error"]
    for data in (b"[1, 2]", b'[{"a": 1}]', b'{"what": "else"}', b'[{"id": "x", "mapping": 5}]'):
        job = wait_for_import(lambda path: ok(api.http.get(path)), ok(upload(api.http, data))["id"])
        assert job["status"] == "failed", data
        assert "Nothing in this file is an export" in job["error"]
    job = wait_for_import(lambda path: ok(api.http.get(path)), ok(upload(api.http, b"[]"))["id"])
    assert job["status"] == "completed"


def answer_of(**message: Any) -> tuple[str, str]:
    said = {"id": "a", "parentId": None, "role": "assistant", **message}
    sent = {
        "id": "c",
        "chat": {"title": "T", "history": {"currentId": "a", "messages": {"a": said}}},
    }
    (chat,) = read_chats("openwebui", stream(sent))
    assert isinstance(chat, ExportedChat), chat
    return (chat.messages[0].thoughts, chat.messages[0].text) if chat.messages else ("", "")


THOUGHT = (
    '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 '
    "seconds</summary>\n{}\n</details>\n"
)
ANSWERS: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"content": THOUGHT.format("> Hm.\n> So.") + "Yes."}, ("Hm.\nSo.", "Yes.")),
    ({"content": THOUGHT.format("&gt; 1 &lt; 2") + "\n\nYes."}, ("1 < 2", "Yes.")),
    (
        {"content": THOUGHT.format("> A.") + "One.\n" + THOUGHT.format("> B.") + "Two."},
        ("A.\n\nB.", "One.\nTwo."),
    ),
    (
        {"content": "<details done='true' type='reasoning'><summary>x</summary>Hm.</details>Yes."},
        ("Hm.", "Yes."),
    ),
    ({"content": "<think>\nHm.\n</think>\n\nYes."}, ("Hm.", "Yes.")),
    ({"content": "<thinking>Hm.</thinking>Yes."}, ("Hm.", "Yes.")),
    (
        {
            "content": '<details type="tool_calls" done="true"><summary>x</summary>{"a": 1}</details>Yes.'
        },
        ("", "Yes."),
    ),
    (
        {"content": '<details type="code_interpreter"><summary>x</summary>1</details>\nYes.'},
        ("", "Yes."),
    ),
    (
        {"content": "<details><summary>More</summary>Words.</details>"},
        ("", "<details><summary>More</summary>Words.</details>"),
    ),
    ({"content": "Write <think> tags </think> so."}, ("", "Write <think> tags </think> so.")),
    (
        {
            "content": "",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}],
        },
        ("", "Yes."),
    ),
    ({"output": [{"type": "message", "content": "Yes."}]}, ("", "Yes.")),
    (
        {
            "content": "",
            "output": [
                {
                    "type": "reasoning",
                    "content": [{"type": "reasoning_text", "text": "Hm."}],
                    "summary": [],
                },
                {"type": "function_call", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "output": "1"},
                {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]},
            ],
        },
        ("Hm.", "Yes."),
    ),
    (
        {
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
                {"type": "hologram"},
                5,
            ]
        },
        ("Hm.", ""),
    ),
    (
        {"content": "Yes.", "output": [{"type": "reasoning", "summary": [{"text": "Hm."}]}]},
        ("Hm.", "Yes."),
    ),
    ({"content": None, "output": "words"}, ("", "")),
    (
        {"content": THOUGHT.format("> Hm.") + "Yes.", "role": "user"},
        ("", THOUGHT.format("> Hm.") + "Yes."),
    ),
]


@pytest.mark.parametrize(("message", "parts"), ANSWERS, ids=range(len(ANSWERS)))
def test_open_webui_reasoning_and_answers_are_told_apart(
    message: dict[str, Any], parts: tuple[str, str]
) -> None:
    assert answer_of(**message) == parts


def test_zip_members_without_chats_are_counted_as_skipped() -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        packed.writestr("a/conversations.json", json.dumps([chatgpt()]))
        for name in (
            "a/user.json",
            "a/shared.json",
            "a/chat.html",
            "a/pictures/x.png",
            "feedback.json",
        ):
            packed.writestr(name, "[]")
    made.seek(0)
    chats, skipped = [], []
    for one in read_chats("chatgpt", made):
        (chats if isinstance(one, ExportedChat) else skipped).append(one)
    assert (len(chats), len(skipped)) == (1, 5)


def test_the_time_for_an_answer_grows_with_its_length() -> None:
    def work(size: int) -> object:
        return split_answer(repeated("<think>Hm.</think>\n", size) + "Yes.")

    require_linear(work, 100_000)
    answer = split_answer("<think>A.</think> <think>B.</think> Yes. <think>C.</think>")
    assert (answer.thoughts, answer.text) == (["A.", "B."], "Yes. <think>C.</think>")
