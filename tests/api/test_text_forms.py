"""Text is normalized wherever it enters.

It may come by a body, a path, a query, a form, a file, a tool, or git.
"""

import unicodedata
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.api.conftest import Api
from tests.seams.server import MODEL, call

NAMES = [
    "Grüße",
    "Zoë",
    "Ångström",
    "señor",
    "Čeština",
    "Tiếng Việt",
    "한국어",
    "Ёлка",
    "ガイド",
    "naïve",
]


def decomposed(text: str) -> str:
    """Return the text decomposed, as a Mac writes it."""
    return unicodedata.normalize("NFD", text)


def ok(answer: httpx2.Response) -> Any:
    assert answer.status_code < 300, answer.text
    return answer.json()


def new_agent(api: Api, **fields: Any) -> str:
    return str(
        ok(api.http.post("/v1/agents/", json={"name": "Nina", "model": MODEL, **fields}))["id"]
    )


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_in_another_unicode_form_is_the_same_name(api: Api, name: str) -> None:
    block = {"label": decomposed(name), "value": f"{decomposed(name)}\r\nb"}
    agent = new_agent(
        api, name=f"{decomposed(name)}\u200b", tags=[decomposed(name)], memory_blocks=[block]
    )
    core = f"/v1/agents/{agent}/core-memory/blocks"
    for asked in (name, decomposed(name), f"\ufeff{decomposed(name)}"):
        shown = ok(api.http.get(f"{core}/{quote(asked)}"))
        assert (shown["label"], shown["value"]) == (name, f"{name}\nb")
        assert [
            one["name"]
            for one in ok(api.http.get("/v1/agents/", params={"name": asked, "tags": [asked]}))
        ] == [name]
    # Two blocks whose labels differ only in form are refused. In a path both forms name one block.
    twice = api.http.post(
        "/v1/agents/",
        json={"name": "x", "model": MODEL, "memory_blocks": [block, {**block, "label": name}]},
    )
    assert twice.status_code == 400, twice.text
    ok(
        api.http.put(
            f"/users/ada/blocks/{quote(decomposed(name))}", json={"body": f"{decomposed(name)}\rx"}
        )
    )
    assert ok(api.http.get(f"/users/ada/blocks/{quote(name)}"))["body"] == f"{name}\nx"
    sent = "\ufeff" + decomposed(f"---\r\nblock: {name}\r\n---\r\nNew\r\nlines\r\n")
    ok(
        api.http.put(
            f"/users/ada/blocks/{quote(name)}",
            content=sent.encode(),
            headers={"content-type": "text/markdown"},
        )
    )
    assert ok(api.http.get(f"/users/ada/blocks/{quote(name)}"))["body"] == "New\nlines"
    assert [
        one["label"] for one in ok(api.http.get("/users/ada/blocks")) if one["label"] == name
    ] == [name]


def test_texts_with_any_line_ends_can_be_edited_line_by_line(api: Api) -> None:
    ends = ("\r\n", "\r", "\n")
    for end in ends:
        value = end.join(["line one", "line two", "line three", ""])
        agent = new_agent(api, memory_blocks=[{"label": "human", "value": value}])
        arguments = {
            "label": "human",
            "old_string": f"line one{end}line two",
            "new_string": f"line 1{end}line two",
        }
        api.server.says(call("memory_replace", **arguments), "Done.")
        ok(
            api.http.post(
                f"/v1/agents/{agent}/messages",
                json={"messages": [{"role": "user", "content": f"a{end}b"}]},
            )
        )
        block = ok(api.http.get(f"/v1/agents/{agent}/core-memory/blocks/human"))
        assert block["value"] == "line 1\nline two\nline three\n"
        messages = ok(api.http.get(f"/v1/agents/{agent}/messages"))
        assert [one["content"] for one in messages if one["message_type"] == "user_message"] == [
            "a\nb"
        ]


VARIANTS = [
    "one\nGrüße\nthree\n",
    "one\r\nGrüße\r\nthree\r\n",
    "one\rGrüße\rthree\r",
    "one\r\nGrüße\nthree\r",
    "\ufeffone\nGrüße\nthree\n",
    "\ufeffone\r\nGrüße\r\nthree\r\n",
    "one\nGru\u0308ße\nthree\n",
    "one\r\nGru\u0308ße\r\nthree\r\n",
    "\ufeffone\r\n\ufeffGru\u0308ße\r\nthree\r\n",
    "\ufeffone\rGru\u0308ße\nthree\r\n\ufeff",
    "one\n\ufeffGrüße\nthree\n",
]


def test_another_unicode_form_is_no_change_and_an_edit_of_one_line_changes_one_line(
    api: Api,
) -> None:
    block = "/users/lena/blocks/forms"
    for variant in VARIANTS:
        assert ok(api.http.put(block, json={"body": variant}))["body"] == VARIANTS[0], ascii(
            variant
        )
    assert len(ok(api.http.get(f"{block}/history"))) == 1
    for number, variant in enumerate(VARIANTS):
        edited = variant.replace("three", f"three {number}")
        ok(api.http.put(block, json={"body": edited}))
        diff = ok(api.http.get(f"{block}/compare"))["unified"]
        changed = [
            line
            for line in diff.split("\n")
            if line[:1] in "+-" and line[:3] not in ("+++", "---") and line
        ]
        assert len(changed) == 2, diff
        # Texts of proposals, searches and comparisons are normalized too.
        proposed = {
            "old_string": f"Gru\u0308ße\r\nthree {number}",
            "new_string": "x",
            "reasoning": "So.",
        }
        ok(api.http.post(f"{block}/propose", json=proposed))


def test_null_for_an_optional_tool_argument_counts_as_omitted(api: Api) -> None:
    source = (
        'def note(text: str, times: int = 2, tag: str = "x") -> str:\n    """Note it."""\n    '
        'return f"{text}{times}{tag}"'
    )
    tool = ok(api.http.post("/v1/tools/", json={"source_code": source}))
    agent = new_agent(
        api, memory_blocks=[{"label": "human", "value": "Tea."}], tool_ids=[tool["id"]]
    )
    calls = [
        ("memory_insert", {"label": "human", "new_string": "Likes tea.", "insert_line": None}),
        ("conversation_search", {"query": "tea", "roles": None, "limit": None, "start_date": None}),
        ("memory_apply_patch", {"patch": "-Tea.\n+Milk.", "label": "human"}),
        ("note", {"text": "a", "times": None, "tag": None}),
    ]
    for name, arguments in calls:
        ok(api.http.patch(f"/v1/agents/{agent}/tools/attach/{tool_id(api, name)}"))
        api.server.says(call(name, **arguments), "Done.")
        sent = {"messages": [{"role": "user", "content": "Do it."}]}
        answer = ok(api.http.post(f"/v1/agents/{agent}/messages", json=sent))["messages"]
        (returned,) = [one for one in answer if one["message_type"] == "tool_return_message"]
        assert returned["status"] == "success", returned
        (called,) = [one for one in answer if one["message_type"] == "tool_call_message"]
        assert "null" not in called["tool_call"]["arguments"]
    assert returned["tool_return"] == "a2x"
    # A call of a client's tool is sent to the client without its nulls too.
    client_tool = {
        "name": "ask",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        },
    }
    api.server.says(call("ask", a="x", b=None))
    sent = {"messages": [{"role": "user", "content": "Ask."}], "client_tools": [client_tool]}
    answer = ok(api.http.post(f"/v1/agents/{agent}/messages", json=sent))["messages"]
    assert [one["tool_call"]["arguments"] for one in answer if "tool_call" in one] == ['{"a":"x"}']


def tool_id(api: Api, name: str) -> str:
    return str(ok(api.http.get("/v1/tools/", params={"name": name}))[0]["id"])


def test_persona_and_human_blocks_get_a_default_description(api: Api) -> None:
    labels = ("persona", "human", "plans")
    agent = new_agent(api, memory_blocks=[{"label": label, "value": "x"} for label in labels])
    described = {
        one["label"]: one["description"]
        for one in ok(api.http.get(f"/v1/agents/{agent}/core-memory/blocks"))
    }
    loose = ok(api.http.post("/v1/blocks/", json={"label": "human", "value": ""}))
    assert described["persona"].startswith("The persona block:")
    assert loose["description"] == described["human"]
    assert described["plans"] is None
    own = ok(
        api.http.post(
            "/v1/blocks/", json={"label": "human", "value": "", "description": "Whom I serve."}
        )
    )
    assert own["description"] == "Whom I serve."
