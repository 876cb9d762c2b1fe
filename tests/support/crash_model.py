"""The model of the crash campaign: a server on loopback that follows the plan in each message and checks every transcript.

A message reads `say-12 insert+archive/search`: in the first step call two tools, in the second one, then say "Done say-12.". Every
call carries a mark of its own, so that its effect can be found afterwards.
"""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.support.model_server import Answer, Seen, completion, say_ok, stream, tool_call

PLANS = (
    "",
    "insert",
    "append",
    "search",
    "archive",
    "tagged",
    "search+lookup",
    "insert+archive+insert",
    "bell",
    "insert+bell",
    "insert/append/archive/lookup",
    "search/insert+tagged",
    "share",
    "share+insert/bell",
)
BELLS = "CAMPAIGN_BELLS"


class CrashPlugin:
    """A tool that acts outside: what it did stays done when the server dies."""

    def tools(self) -> Sequence[ServerTool]:
        """The bell."""
        return (ServerTool(ring_bell, "custom", acts_outside=True),)


def ring_bell(context: ToolContext, mark: str) -> str:
    """Ring a bell that all the world can hear.

    Args:
        mark: How the ring is written down.
    """
    with Path(os.environ[BELLS]).open("a") as bells:
        bells.write(mark + "\n")
    return f"Rang {mark}."


plugin = CrashPlugin()


class CrashModel:
    """What the model server answers; `faults` holds what was wrong with transcripts, `count` how many came."""

    def __init__(self, seed: int) -> None:
        self.faults: list[str] = []
        self.count = 0
        self._random = random.Random(seed)  # noqa: S311

    def answer(self, seen: Seen) -> Answer:
        """The next step of the plan in the last message."""
        if seen.method == "GET":
            return say_ok(seen)
        self.count += 1
        body = seen.body
        self.faults += transcript_faults(body["messages"])
        calls, text = next_step(body["messages"])
        delay = self._random.choice((0, 0, 0.002, 0.01))
        if not body.get("stream"):
            whole = completion(text, [tool_call(name, json.dumps(given), id) for id, name, given in calls])
            return Answer(whole.body, delay=delay)
        words = [{"content": word + " "} for word in (text or "").split()]
        if words:
            words[-1]["content"] = words[-1]["content"].rstrip()
        pieces: list[dict[str, Any]] = [*words]
        for index, (id, name, given) in enumerate(calls):
            pieces.append({"tool_calls": [{"index": index, **tool_call(name, "", id)}]})
            pieces.append({"tool_calls": [{"index": index, "function": {"arguments": json.dumps(given)}}]})
        streamed = stream(*pieces, finish="tool_calls" if calls else "stop")
        return Answer(pieces=streamed.pieces, headers=streamed.headers, delay=delay)


Call = tuple[str, str, dict[str, Any]]


def next_step(messages: Sequence[dict[str, Any]]) -> tuple[list[Call], str | None]:
    """The calls that come next, or the text that ends the turn."""
    heard = max(place for place, message in enumerate(messages) if message["role"] == "user")
    token, _, plan = messages[heard]["content"].partition(" ")
    done = sum(message["role"] == "assistant" for message in messages[heard + 1 :])
    steps = plan.split("/") if plan else []
    if done >= len(steps):
        return [], f"Done {token}."
    marks = [(kind, f"{token}-{done}-{place}") for place, kind in enumerate(steps[done].split("+"))]
    return [(f"call_{mark}", *_call(kind, mark)) for kind, mark in marks], None


def _call(kind: str, mark: str) -> tuple[str, dict[str, Any]]:
    match kind:
        case "insert":
            return "memory_insert", {"label": "notes", "new_string": mark}
        case "append":
            return "core_memory_append", {"label": "notes", "content": mark}
        case "share":
            return "memory_insert", {"label": "shared", "new_string": mark}
        case "archive":
            return "archival_memory_insert", {"content": mark}
        case "tagged":
            return "archival_memory_insert", {"content": mark, "tags": ["campaign"]}
        case "search":
            return "conversation_search", {"query": mark}
        case "lookup":
            return "archival_memory_search", {"query": mark}
    return "ring_bell", {"mark": mark}


def transcript_faults(messages: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with a transcript as it came over the wire: nothing, ever."""
    faults = [] if [m["role"] for m in messages if m["role"] == "system"] == ["system"] else ["not one system message"]
    if messages[0]["role"] != "system":
        faults.append("the system message is not the first")
    open_calls: list[str] = []
    known: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in open_calls:
                open_calls.remove(message["tool_call_id"])
            else:
                faults.append(f"a result without its call: {message['tool_call_id']}")
            continue
        faults += [f"a call without its result: {call_id}" for call_id in open_calls]
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        faults += [f"a call id used twice: {call_id}" for call_id in open_calls if call_id in known]
        known.update(open_calls)
    return faults + [f"a call without its result at the end: {call_id}" for call_id in open_calls]
