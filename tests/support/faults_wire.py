"""Faults for which a provider would refuse a request.

They follow OpenAI's chat completions and Anthropic's messages, and are written from the providers'
documents, without any code of the server. `faults_of(body)` returns all faults of a request.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_ID = 40


def faults_of(body: dict[str, Any]) -> list[str]:
    """Return all errors of a request, whose format is recognized from its content."""
    is_claude = "system" in body or not any(
        message["role"] == "system" for message in body["messages"]
    )
    return list(_claude(body) if is_claude else _chat(body))


def _chat(body: dict[str, Any]) -> Iterator[str]:
    messages = body["messages"]
    if (
        messages[0]["role"] != "system"
        or sum(message["role"] == "system" for message in messages) != 1
    ):
        yield "there is not one system message, at the beginning"
    if len(messages) < 2 or messages[-1]["role"] not in ("user", "tool"):
        yield f"the last message is of the role {messages[-1]['role']}"
    open_calls: list[str] = []
    known: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            yield from _answer(open_calls, message["tool_call_id"], message["content"])
            continue
        yield from (f"a call without its result: {call_id}" for call_id in open_calls)
        open_calls = []
        match message["role"]:
            case "system" | "user":
                yield from _texts(message)
            case "assistant":
                calls = message.get("tool_calls") or []
                if not calls and not _is_said(message.get("content")):
                    yield "an assistant's message with nothing in it"
                if message.get("content") == "":
                    yield "an empty text of the assistant"
                for call in calls:
                    if len(call["id"]) > _LONGEST_ID:
                        yield f"the id of a call has {len(call['id'])} characters"
                    yield from _call(known, call["id"], call["function"]["name"])
                    yield from _arguments(call["function"]["arguments"])
                open_calls = [call["id"] for call in calls]
            case role:
                yield f"the role {role} is unknown"
    yield from (f"a call without its result at the end: {call_id}" for call_id in open_calls)
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    yield from _tools(names, body.get("tool_choice"))


def _claude(body: dict[str, Any]) -> Iterator[str]:
    messages = body["messages"]
    if not body.get("system"):
        yield "there is no system prompt"
    roles = [message["role"] for message in messages]
    if not roles or roles[0] != "user" or roles[-1] != "user":
        yield f"the conversation does not begin and end with the user: {roles[:1]}, {roles[-1:]}"
    if any(first == second for first, second in pairwise(roles)):
        yield "two neighbours have the same role"
    open_calls: list[str] = []
    known: set[str] = set()
    for message in messages:
        blocks = _blocks(message["content"])
        yield from _texts(message)
        if message["role"] == "user":
            kinds = [block["type"] == "tool_result" for block in blocks]
            if kinds != sorted(kinds, reverse=True):
                yield "a result stands behind other content"
            for block in blocks:
                if block["type"] == "tool_result":
                    yield from _answer(open_calls, block["tool_use_id"], block.get("content"))
        yield from (f"a call without its result: {call_id}" for call_id in open_calls)
        calls = [block for block in blocks if block["type"] == "tool_use"]
        for call in calls:
            yield from _call(known, call["id"], call["name"])
            if not isinstance(call["input"], dict):
                yield "the input of a call is no object"
        open_calls = [call["id"] for call in calls]
    yield from (f"a call without its result at the end: {call_id}" for call_id in open_calls)
    choice = body.get("tool_choice", {}).get("type")
    yield from _tools(
        [tool["name"] for tool in body.get("tools", ())], "required" if choice == "any" else choice
    )


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _texts(message: dict[str, Any]) -> Iterator[str]:
    blocks = _blocks(message["content"])
    if not blocks:
        yield f"a message of the role {message['role']} with nothing in it"
    if any(block["type"] == "text" and not _is_said(block["text"]) for block in blocks):
        yield f"an empty text of the role {message['role']}"


def _answer(open_calls: list[str], call_id: str, content: Any) -> Iterator[str]:
    if call_id in open_calls:
        open_calls.remove(call_id)
    else:
        yield f"a result without its call: {call_id}"
    if content is None or content in ("", []):
        yield f"an empty result: {call_id}"


def _call(known: set[str], call_id: str, name: str) -> Iterator[str]:
    if not call_id or call_id in known:
        yield f"a call's id is empty or used twice: {call_id!r}"
    known.add(call_id)
    if not _NAME.fullmatch(name):
        yield f"the name of a called tool is refused: {name!r}"


def _arguments(text: str) -> Iterator[str]:
    try:
        is_object = isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        is_object = False
    if not is_object:
        yield f"arguments are no JSON object: {text[:80]!r}"


def _tools(names: Sequence[str], choice: Any) -> Iterator[str]:
    if len(set(names)) != len(names) or not all(map(_NAME.fullmatch, names)):
        yield f"the tools' names are refused: {names}"
    if choice in ("required", "any") and not names:
        yield "a call is wanted where no tool is offered"


def _is_said(text: Any) -> bool:
    return isinstance(text, list) or (isinstance(text, str) and bool(text.strip()))


def size_of(body: dict[str, Any]) -> int:
    """Return the tokens that the provider counts in a request: four characters each."""
    tools = json.dumps(body.get("tools", []))
    characters = len(tools) + len(json.dumps(body.get("system", ""), ensure_ascii=False))
    return (
        characters
        + sum(len(json.dumps(message, ensure_ascii=False)) for message in body["messages"])
    ) // 4
