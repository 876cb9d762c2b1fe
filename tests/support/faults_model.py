"""The model server of the fault campaign.

It follows the plan in each message, checks every request, and fails when it is told to. An example
of a message is `say-12 insert+search/archive`. It means: in the first step call two tools, in the
second step one tool, then say "Done say-12.". It speaks OpenAI's chat completions and Anthropic's
messages, and counts the tokens of requests.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.prompt.texts import text as prompt_text
from tests.support.faults_wire import faults_of, size_of
from tests.support.model_server import (
    Answer,
    Seen,
    claude,
    claude_stream,
    completion,
    event,
    stream,
    tool_call,
)

Trouble = str
FAILING = tuple(
    "time_out 429 500 503 529 400 401 402 cut half empty garbage too_long huge huge_error unzips "
    "drips whitespace".split()
)
MALFORMED = tuple(
    "broken_arguments list_arguments unknown_tool no_id same_ids old_id long_ids many_calls "
    "as_text length filter".split()
)
# Some refusals do not name their cause. After such a refusal the adapter guesses, and repeats the
# call in a simpler form. Only this repetition may have that form; later calls must not.
_WORDLESS = frozenset({"400", "500", "huge_error"})
_GUESSED = frozenset({"an empty text of the assistant", "there is no system prompt"})
_SPOKEN = re.compile(r"(say-[a-z0-9]+-\d+)(?: ([a-z_+/]+))?")
_STILL = re.compile(r"must still call: ([a-z_]+)")
_ONE_BEGINNING = 60
TIME_OUT = 0.3  # seconds that the campaign's servers wait for a provider
_SAYS = {
    "429": "Rate limit reached for requests",
    "500": "The server had an error",
    "503": "Service unavailable",
    "529": "Overloaded",
    "400": "Invalid value for something",
    "401": "Incorrect API key provided",
    "402": "Insufficient credits",
}
# The meaning of a plan's words: the tool, its arguments, and the argument that gets the call's
# mark. Other words are names of tools.
_CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "insert": ("memory_insert", {"label": "notes"}, "new_string"),
    "append": ("core_memory_append", {"label": "notes"}, "content"),
    "share": ("memory_insert", {"label": "shared"}, "new_string"),
    "archive": ("archival_memory_insert", {}, "content"),
    "tagged": ("archival_memory_insert", {"tags": ["campaign"]}, "content"),
    "search": ("conversation_search", {}, "query"),
    "conversation_search": ("conversation_search", {}, "query"),
    "lookup": ("archival_memory_search", {}, "query"),
    "archival_memory_search": ("archival_memory_search", {}, "query"),
}
Call = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in either of the two formats."""

    is_claude: bool
    streams: bool
    heard: str
    offered: tuple[dict[str, Any], ...]
    must_call: bool
    is_for_summary: bool
    last: str


@dataclass
class FaultyModel:
    """The answers of the model server.

    `trouble` hits the next requests of a turn, `summary_trouble` those for a summary. `faults`
    holds errors in requests, `played` counts the troubles, `refused` counts requests that were too
    long.
    """

    windows: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    count: int = 0
    refused: int = 0
    summaries: int = 0
    trouble: list[Trouble | None] = field(default_factory=list)
    summary_trouble: Trouble | None = None
    played: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    _number: int = 0
    _last_trouble: Trouble | None = None

    def answer(self, seen: Seen) -> Answer:
        """Return the next step of the plan in the last message, or a failure."""
        if seen.method == "GET":
            return Answer(
                {
                    "object": "list",
                    "data": [{"id": name, "object": "model"} for name in self.windows],
                }
            )
        self.count += 1
        body = seen.body
        asked = _read(body)
        allowed = _GUESSED if self._last_trouble in _WORDLESS else frozenset()
        wrong = [one for one in faults_of(body) if one not in allowed]
        self.faults += [f"{asked.heard or asked.last[:40]}: {one}" for one in wrong]
        self._last_trouble = None
        if size_of(body) > self.windows.get(body["model"], 10**9):
            self.refused += 1
            return _refusal("too_long", asked)
        if asked.is_for_summary:
            self.summaries += 1
            trouble = self.summary_trouble
        else:
            trouble = self.trouble.pop(0) if self.trouble else None
        self._last_trouble = trouble
        if trouble:
            self.played[trouble if not asked.is_for_summary else f"summary_{trouble}"] += 1
        if trouble in FAILING:
            return _refusal(trouble, asked, size_of(body))
        if asked.is_for_summary:
            return _said(asked, "They spoke of this and that.", [], size_of(body))
        return self._next(asked, body, trouble)

    def _next(self, asked: Asked, body: dict[str, Any], trouble: Trouble | None) -> Answer:
        # There may be no plan, since a summary may have replaced the user's message.
        found = _SPOKEN.fullmatch(asked.heard)
        token, plan = (found.group(1), found.group(2) or "") if found else ("", "")
        steps = plan.split("/") if plan else []
        done = self.steps[token]
        size = size_of(body)
        if not token:
            return self._end(asked, "what there was", size)
        if trouble in MALFORMED:
            return self._malformed(asked, trouble, body, size)
        self.steps[token] += 1
        if done < len(steps):
            marks = [
                (kind, f"{token}_{done}_{place}")
                for place, kind in enumerate(steps[done].split("+"))
            ]
            return _said(
                asked,
                None,
                [self._call(kind, mark, asked, f"call_{mark}") for kind, mark in marks],
                size,
            )
        return self._end(asked, token, size)

    def _end(self, asked: Asked, token: str, size: int) -> Answer:
        names = [tool["name"] for tool in asked.offered]
        if still := _STILL.search(asked.last):
            return _said(asked, None, [self._call(still.group(1), f"{token}_still", asked)], size)
        if "send_message" in names:
            call = (self._id("send"), "send_message", {"message": f"Done {token}."})
            return _said(asked, None, [call], size)
        if asked.must_call and names:
            return _said(asked, None, [self._call(names[0], f"{token}_must", asked)], size)
        return _said(asked, f"Done {token}.", [], size)

    def _malformed(self, asked: Asked, trouble: Trouble, body: dict[str, Any], size: int) -> Answer:
        call = call_id, name, given = self._call("search", f"odd{self._number}", asked)
        written = json.dumps({"name": name, "arguments": given})
        words = {
            "as_text": f"<tool_call>{written}</tool_call>",
            "length": "This goes on and",
            "filter": None,
        }
        if trouble in words:
            finish = {"length": "length", "filter": "content_filter"}.get(trouble)
            return _said(asked, words[trouble], [], size, finish=finish)
        calls: dict[str, list[Any]] = {
            "unknown_tool": [(call_id, "no such tool!", given)],
            "same_ids": [call, call],
            "old_id": [((_ids_in(body) or [call_id])[-1], name, given)],
            "no_id": [("", name, given)],
            "long_ids": [(f"{kind}{'-' * 3_000}{self._number}", name, given) for kind in "ab"],
            "many_calls": [(f"{call_id}_{number}", name, given) for number in range(300)],
            "broken_arguments": [(call_id, name, '{"query": "odd')],
            "list_arguments": [(call_id, name, '["odd"]')],
        }
        return _said(asked, None, calls[trouble], size)

    def _call(self, kind: str, mark: str, asked: Asked, id: str = "") -> Call:
        name, fixed, marked = _CALLS.get(kind, (kind, {}, "mark"))
        given: dict[str, Any] = {**fixed, marked: mark}
        for tool in asked.offered:
            if tool["name"] == name and "request_heartbeat" in tool["parameters"].get(
                "properties", {}
            ):
                given = given | {"request_heartbeat": True}
        return id or self._id(kind), name, given

    def _id(self, kind: str) -> str:
        self._number += 1
        return f"call_{kind}_{self._number}"


def _read(body: dict[str, Any]) -> Asked:
    is_claude = "system" in body
    messages = body["messages"]
    texts = [_text_of(message) for message in messages if message["role"] == "user"]
    heard = next((words for said in reversed(texts) if (words := _words(said))), "")
    if is_claude:
        tools = [
            {"name": tool["name"], "parameters": tool["input_schema"]}
            for tool in body.get("tools", ())
        ]
        must_call = body.get("tool_choice", {}).get("type") in ("any", "tool")
        system = json.dumps(body["system"], ensure_ascii=False)
    else:
        tools = [tool["function"] for tool in body.get("tools", ())]
        must_call = body.get("tool_choice") == "required" or isinstance(
            body.get("tool_choice"), dict
        )
        system = messages[0]["content"]
    last = _text_of(messages[-1])
    openings = (
        prompt_text(name)[:_ONE_BEGINNING] for name in ("summary_self_all", "summary_self_sliding")
    )
    is_for_summary = prompt_text("summary_system_prompt")[:_ONE_BEGINNING] in system or any(
        opening in last for opening in openings
    )
    return Asked(
        is_claude, bool(body.get("stream")), heard, tuple(tools), must_call, is_for_summary, last
    )


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"] or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _words(said: str) -> str:
    """Return the token and plan in a user's message, packed or not; empty if there is none."""
    for line in reversed(said.split("\n")):
        try:
            packed = json.loads(line)
        except json.JSONDecodeError:
            packed = line
        if isinstance(packed, dict):
            packed = packed.get("message", "") if packed.get("type") == "user_message" else ""
        if isinstance(packed, str) and (found := _SPOKEN.search(packed)):
            return found.group()
    return ""


def _ids_in(body: dict[str, Any]) -> list[str]:
    ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or ()]
    for message in body["messages"]:
        if isinstance(message["content"], list):
            ids += [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    return ids


def _said(
    asked: Asked, words: str | None, calls: Sequence[Call], size: int, finish: str | None = None
) -> Answer:
    say = _said_by_claude if asked.is_claude else _said_in_chat
    return say(asked, words, calls, size, finish)


def _said_in_chat(
    asked: Asked, words: str | None, calls: Sequence[Call], size: int, finish: str | None
) -> Answer:
    usage = {"prompt_tokens": size, "completion_tokens": 5, "total_tokens": size + 5}
    finish = finish or ("tool_calls" if calls else "stop")
    rows = [
        tool_call(name, given if isinstance(given, str) else json.dumps(given), id)
        for id, name, given in calls
    ]
    if not asked.streams:
        return completion(words, rows, usage=usage, finish=finish)
    pieces: list[dict[str, Any]] = [
        {"content": word} for word in re.findall(r"\S+\s*", words or "")
    ]
    for index, row in enumerate(rows):
        whole = row["function"]["arguments"]
        pieces.append(
            {
                "tool_calls": [
                    {"index": index, **row, "function": row["function"] | {"arguments": whole[:7]}}
                ]
            }
        )
        pieces.append({"tool_calls": [{"index": index, "function": {"arguments": whole[7:]}}]})
    return stream(*pieces, finish=finish, usage=usage)


def _said_by_claude(
    asked: Asked, words: str | None, calls: Sequence[Call], size: int, finish: str | None
) -> Answer:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": words}] if words else []
    for id, name, given in calls:
        # Claude's arguments are always an object. So instead of broken JSON it leaves an argument
        # out.
        blocks.append(
            {
                "type": "tool_use",
                "id": id,
                "name": name,
                "input": given if isinstance(given, dict) else {},
            }
        )
    reasons = {"length": "max_tokens", "content_filter": "refusal"}
    stop = reasons.get(finish or "", "tool_use" if calls else "end_turn")
    if asked.streams:
        return claude_stream(*blocks, stop=stop)
    return claude(*blocks, stop=stop, input_tokens=size)


def _refusal(trouble: Trouble, asked: Asked, size: int = 1) -> Answer:
    match trouble:
        case "time_out":
            return Answer({}, delay=TIME_OUT * 2)
        case "garbage":
            return Answer(
                b"<html><body>Bad gateway</body></html>", headers={"content-type": "text/html"}
            )
        case "empty" | "huge" | "whitespace":
            words = {"huge": "x" * 1_500_000, "whitespace": "\n \t" * 30_000}.get(trouble)
            return _said(asked, words, [], size)
        case "huge_error" | "unzips" | "drips":
            return _without_end(trouble)
        case "too_long":
            code = "invalid_request_error" if asked.is_claude else "context_length_exceeded"
            words = "prompt is too long: 210000 tokens > 200000 maximum"
            return _error(
                400,
                words if asked.is_claude else "This model's maximum context length is 8192 tokens.",
                code,
            )
        case "cut" | "half":
            return _cut_off(
                _said(asked, "This will be cut off", [], size), is_early=trouble == "cut"
            )
        case "503" if asked.streams and not asked.is_claude:
            # Some servers begin to stream before they notice the error.
            pieces = (event({"error": {"message": "Overloaded", "code": 503}}),)
            return Answer(pieces=pieces, headers={"content-type": "text/event-stream"})
    return _error(int(trouble), _SAYS[trouble], "error")


def _without_end(trouble: Trouble) -> Answer:
    headers = {"content-type": "application/json"}
    if trouble == "huge_error":
        return Answer(b"x" * 5_000_000, status=500, headers={"content-type": "text/plain"})
    if trouble == "drips":
        return Answer(pieces=(b" ",) * 60, pause=TIME_OUT / 3, headers=headers)
    return Answer(
        gzip.compress(b'{"id": "' + bytes(20_000_000)),
        headers=headers | {"content-encoding": "gzip"},
    )


def _cut_off(whole: Answer, *, is_early: bool) -> Answer:
    if whole.pieces is not None:
        return replace(whole, pieces=whole.pieces[: 1 if is_early else 4], breaks_off=True)
    text = json.dumps(whole.body).encode()
    kept = text[: 1 if is_early else len(text) // 2]
    return Answer(pieces=(kept,), headers={"content-type": "application/json"}, breaks_off=True)


def _error(status: int, message: str, code: str) -> Answer:
    return Answer(
        {"type": "error", "error": {"type": code, "message": message, "code": code}}, status=status
    )
