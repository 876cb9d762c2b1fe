"""What `conversation_search` found, as an agent reads it: each hit with who spoke, when, why it was found, and the turn before it.

Turns that follow each other are one result, whose best hit stands as itself, with the others before and after it. All together
stay within a part of the agent's context window, and what had to be cut is said.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import orjson

from ricordo.domain.agent import Agent
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.message import Message, ReasoningPart
from ricordo.domain.passage import Relevance
from ricordo.memory.recall import FoundMessage
from ricordo.prompt.truncation import shorten
from ricordo.search.words import query_terms, terms
from ricordo.storage.messages import searchable_text

# Bytes of all results: four a token, an eighth of the context window at most.
MOST_ROOM = 24_000
# Where none matches well, so many of the nearest are shown.
_NEAREST = 5
_SHARE = 8
_TOKEN = 4
# Of the room, the most that one hit has, in characters, and a turn that only stands before one.
_HIT_SHARE = 6
_CONTEXT_SHARE = 24


# Of one hit so many lines are marked, each of so many characters.
_MOST_MARKED = 3
_LONGEST_MARKED = 200
# As much of a hit is looked through for them.
_MOST_LINES = 500
_LONGEST_LINE = 2_000


def results_of(
    found: Sequence[FoundMessage], query: str, agent: Agent, where: tzinfo, now: int, limit: int
) -> tuple[dict[str, Any], list[Message]]:
    """Return the result of the call, of at most `limit` bytes, and the messages that it quotes, in their order there."""
    room = min(MOST_ROOM, limit, agent.context_window * _TOKEN // _SHARE)
    told = "Showing {} results:"
    if found and not any(hit.relevance.matches_well or not hit.relevance.score for hit in found):
        found = found[:_NEAREST]
        told = "Nothing found that matches well. Showing the {} nearest results:"
    results: list[dict[str, Any]] = []
    quoted: dict[str, Message] = {}
    hits = {hit.message.id: hit for hit in found}
    following = {hit.before.id: hit for hit in reversed(found) if hit.before}
    for number, hit in enumerate(found):
        if hit.message.id in quoted:
            continue
        turns = _exchange(hit, hits, following, quoted)
        result = _Writer(hits, {*query_terms(query)}, agent, where, now, room).result(
            turns, hit.message
        )
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
    hit: FoundMessage,
    hits: dict[str, FoundMessage],
    following: dict[str, FoundMessage],
    quoted: dict[str, Message],
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


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes turns that follow each other as one result. `words` are those of the query."""

    hits: Mapping[str, FoundMessage]
    words: Set[str]
    agent: Agent
    where: tzinfo
    now: int
    room: int

    def result(self, turns: Sequence[Message], best: Message) -> dict[str, Any]:
        place = turns.index(best)
        context = max(self.room // _CONTEXT_SHARE, 100)
        share = max(self.room // _HIT_SHARE // sum(turn.id in self.hits for turn in turns), 100)
        told = [self._words(turn, share if turn.id in self.hits else context) for turn in turns]
        thoughts = "\n".join(part.text for part in best.parts if isinstance(part, ReasoningPart))
        return {
            "timestamp": timestamp(best.created_at, self.where),
            "time_ago": time_ago(self.now - best.created_at),
            **({"before": told[:place]} if place else {}),
            **({"thinking": shorten(thoughts, context)} if thoughts else {}),
            **told[place],
            **({"after": told[place + 1 :]} if told[place + 1 :] else {}),
        }

    def _words(self, message: Message, limit: int) -> dict[str, Any]:
        speaker = message.name or {"assistant": self.agent.name, "tool": "a tool"}.get(
            message.role, "the user"
        )
        text = searchable_text(message)
        told: dict[str, Any] = {
            "role": message.role,
            "speaker": speaker,
            "content": shorten(text, limit),
        }
        if hit := self.hits.get(message.id):
            if marked := self._marked(text):
                told["matched_lines"] = marked
            told["relevance"] = _relevance(hit.relevance)
        return told

    def _marked(self, text: str) -> list[str]:
        """The lines that hold most words of the query, in their order, where the text has several lines."""
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if len(lines) < 2 or not self.words:
            return []
        counts = [len(self.words & {*terms(line[:_LONGEST_LINE])}) for line in lines[:_MOST_LINES]]
        best = sorted(
            (number for number, count in enumerate(counts) if count),
            key=lambda one: (-counts[one], one),
        )
        return [shorten(lines[number], _LONGEST_MARKED) for number in sorted(best[:_MOST_MARKED])]


def _relevance(relevance: Relevance) -> dict[str, Any]:
    """Why a hit was found, in as few words as that takes: an index that did not find it is left out."""
    ranks = {"fts_rank": relevance.fts_rank, "vector_rank": relevance.vector_rank}
    return {
        "rrf_score": round(relevance.score, 4),
        **{name: rank for name, rank in ranks.items() if rank is not None},
        "search_mode": relevance.mode,
    }


def time_ago(micros: int) -> str:
    """A span in the largest unit that fits: `42s ago`, `3h ago`, `2d ago`."""
    seconds = max(0, micros // SECOND)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def timestamp(micros: int, where: tzinfo) -> str:
    return to_datetime(micros).astimezone(where).isoformat(timespec="seconds")
