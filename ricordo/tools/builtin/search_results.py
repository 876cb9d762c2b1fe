"""What `conversation_search` found, as an agent reads it: each hit with who spoke, when, and the turn before it.

Turns that follow each other are one result. All together stay within a part of the agent's context window, and what had to be
cut is said.
"""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

import orjson

from ricordo.domain.agent import Agent
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.message import Message, ReasoningPart
from ricordo.memory.recall import FoundMessage
from ricordo.prompt.truncation import shorten
from ricordo.storage.messages import searchable_text

# Bytes of all results: four a token, an eighth of the context window at most.
MOST_ROOM = 24_000
# Where none matches well, so many of the nearest are shown.
_NEAREST = 5
_SHARE, _TOKEN = 8, 4
# Of the room, the most that one hit has, in characters, and a turn that only stands before one.
_HIT_SHARE, _CONTEXT_SHARE = 6, 24


def results_of(
    found: Sequence[FoundMessage], agent: Agent, where: tzinfo, now: int, limit: int
) -> tuple[dict[str, Any], list[Message]]:
    """Return the result of the call, of at most `limit` bytes, and the messages that it quotes."""
    room = min(MOST_ROOM, limit, agent.context_window * _TOKEN // _SHARE)
    told = "Showing {} results:"
    if found and not any(hit.relevance.matches_well or not hit.relevance.score for hit in found):
        found, told = found[:_NEAREST], "Nothing found that matches well. Showing the {} nearest results:"
    results: list[dict[str, Any]] = []
    quoted: dict[str, Message] = {}
    hits = {hit.message.id: hit for hit in found}
    following = {hit.before.id: hit for hit in reversed(found) if hit.before}
    for number, hit in enumerate(found):
        if hit.message.id in quoted:
            continue
        turns = _exchange(hit, hits, following, quoted)
        result = _result(turns, hits, agent, where, now, room)
        size = len(orjson.dumps(result))
        if results and size > room:
            left = sum(other.message.id not in quoted for other in found[number:])
            told += f" {left} more did not fit. To see them, narrow the search by dates or roles, or use other words."
            break
        room -= size
        results.append(result)
        quoted |= {turn.id: turn for turn in turns}
    return {"message": told.format(len(results)), "results": results}, list(quoted.values())


def _exchange(
    hit: FoundMessage, hits: dict[str, FoundMessage], following: dict[str, FoundMessage], quoted: dict[str, Message]
) -> list[Message]:
    """The hit with the hits right after and before it, and the turn before all of them, oldest first."""
    after = [hit.message]
    while (later := following.get(after[-1].id)) and later.message.id not in quoted:
        after.append(later.message)
    before: list[Message] = []
    earlier = hit.before
    while earlier and earlier.id not in quoted:
        before.append(earlier)
        earlier = hits[earlier.id].before if earlier.id in hits else None
    return [*reversed(before), *after]


def _result(
    turns: Sequence[Message], hits: dict[str, FoundMessage], agent: Agent, where: tzinfo, now: int, room: int
) -> dict[str, Any]:
    last, context = turns[-1], max(room // _CONTEXT_SHARE, 100)
    share = max(room // _HIT_SHARE // sum(turn.id in hits for turn in turns), 100)
    before = [_words(turn, agent, share if turn.id in hits else context) for turn in turns[:-1]]
    thoughts = "\n".join(part.text for part in last.parts if isinstance(part, ReasoningPart))
    return {
        "timestamp": timestamp(last.created_at, where),
        "time_ago": time_ago(now - last.created_at),
        **({"before": before} if before else {}),
        **({"thinking": shorten(thoughts, context)} if thoughts else {}),
        **_words(last, agent, share),
    }


def _words(message: Message, agent: Agent, limit: int) -> dict[str, str]:
    speaker = message.name or {"assistant": agent.name, "tool": "a tool"}.get(message.role, "the user")
    return {"role": message.role, "speaker": speaker, "content": shorten(searchable_text(message), limit)}


def time_ago(micros: int) -> str:
    """A span in the largest unit that fits: `42s ago`, `3h ago`, `2d ago`."""
    seconds = max(0, micros // SECOND)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def timestamp(micros: int, where: tzinfo) -> str:
    return to_datetime(micros).astimezone(where).isoformat(timespec="seconds")
