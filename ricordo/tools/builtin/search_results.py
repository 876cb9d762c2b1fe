"""The results of `conversation_search` as an agent reads them.

Each hit has its speaker, its time, its relevance and the turn before it. Hits that follow each
other become one result: the best hit, with the others before and after it. All results together fit
a part of the agent's context window, and cuts are reported.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import orjson

from ricordo.domain.agent import Agent
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.known_facts import KnownFact
from ricordo.domain.message import Message, ReasoningPart
from ricordo.domain.passage import Relevance
from ricordo.memory.recall import FoundMessage
from ricordo.prompt.truncation import shorten
from ricordo.search.words import query_terms, terms
from ricordo.storage.messages import searchable_text

# All results together take at most this number of bytes, and at most an eighth (`_SHARE`) of the
# context window, counted as four bytes a token (`_TOKEN`).
RESULT_BYTES = 24_000
# The number of nearest results that are shown if none matches well.
_NEAREST = 5
_SHARE = 8
_TOKEN = 4
# The room is divided by these numbers to limit one hit, the facts, and a turn before or after a
# hit.
_HIT_SHARE = 6
_FACTS_SHARE = 4
_CONTEXT_SHARE = 24


# The most marked lines of one hit, and the most characters of one.
_MARKED_LIMIT = 3
_MARKED_LENGTH = 200
# Only this many lines of a hit, and this many characters of each, are compared with the query.
_LINE_LIMIT = 500
_LINE_LENGTH = 2_000
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def results_of(
    all_hits: Sequence[FoundMessage],
    query: str,
    agent: Agent,
    timezone: tzinfo,
    now: int,
    limit: int,
    facts: Sequence[KnownFact] = (),
) -> tuple[dict[str, Any], list[Message]]:
    """Return the call's result and the messages that it quotes.

    Args:
        all_hits: The hits, the best first.
        query: The query, whose words mark lines of the hits.
        agent: The agent, which is named as the speaker of its messages. An eighth of its context
            window limits the result too.
        timezone: The time zone of times in the result.
        now: The time of the search in microseconds UTC.
        limit: About the most bytes of the result. One hit is shown in any case, with shortened
            texts.
        facts: Known facts about the user that fit the query. The result shows as many as a quarter
            of the room can hold, each with the user's sentence.
    """
    room = min(RESULT_BYTES, limit, agent.context_window * _TOKEN // _SHARE)
    headline = "Showing {} results:"
    if all_hits and not any(
        hit.relevance.matches_well or not hit.relevance.score for hit in all_hits
    ):
        all_hits = all_hits[:_NEAREST]
        headline = "Nothing found that matches well. Showing the {} nearest results:"
    if not all_hits:
        headline = "No message outside your view matches, but these facts do."
    results: list[dict[str, Any]] = []
    quoted: dict[str, Message] = {}
    known = _facts(facts, timezone, room // _FACTS_SHARE)
    room -= len(orjson.dumps(known))
    hits = {hit.message.id: hit for hit in all_hits}
    is_exact = shares_seconds(hit.message.created_at for hit in all_hits)
    following = {hit.before.id: hit for hit in reversed(all_hits) if hit.before}
    for number, hit in enumerate(all_hits):
        if hit.message.id in quoted:
            continue
        turns = _exchange(hit, hits, following, quoted)
        result = _ResultWriter(
            hits=hits,
            query_words={*query_terms(query)},
            agent=agent,
            timezone=timezone,
            now=now,
            room=room,
            is_exact=is_exact,
        ).result(turns, hit.message)
        size = len(orjson.dumps(result))
        if results and size > room:
            omitted = sum(other.message.id not in quoted for other in all_hits[number:])
            headline += (
                f" {omitted} more did not fit. To see them, narrow the search by dates or roles, "
                "or use other words."
            )
            break
        room -= size
        results.append(result)
        quoted |= {turn.id: turn for turn in turns}
    answer: dict[str, Any] = {"message": headline.format(len(results)), "results": results}
    if known:
        answer = {"message": answer["message"], "facts": known, "results": results}
    return answer, list(quoted.values())


def _facts(facts: Sequence[KnownFact], timezone: tzinfo, room: int) -> list[dict[str, Any]]:
    """Return the first facts that fit this number of bytes."""
    known: list[dict[str, Any]] = []
    for fact in facts:
        entry = _fact(fact, timezone)
        room -= len(orjson.dumps(entry))
        if room < 0:
            break
        known.append(entry)
    return known


def _fact(fact: KnownFact, timezone: tzinfo) -> dict[str, Any]:
    entry = {"fact": fact.text, "said": timestamp(fact.said_at, timezone)}
    if fact.quote and fact.quote != fact.text:
        entry["quote"] = shorten(fact.quote, _MARKED_LENGTH)
    return entry


def _exchange(
    hit: FoundMessage,
    hits: dict[str, FoundMessage],
    following: dict[str, FoundMessage],
    quoted: dict[str, Message],
) -> list[Message]:
    """Return the hit with the hits right before and after it, oldest first.

    The first item is the turn before these hits, if there is one.
    """
    after = [hit.message]
    while (later := following.get(after[-1].id)) and later.message.id not in quoted:
        after.append(later.message)
    before: list[Message] = []
    earlier = hit.before
    while earlier and earlier.id not in quoted:
        before.append(earlier)
        if earlier.id in hits:
            earlier = hits[earlier.id].before
        else:
            earlier = None
    return [*reversed(before), *after]


@dataclass(frozen=True, slots=True)
class _ResultWriter:
    """Writes turns that follow each other as one result.

    `query_words` are the words of the query.
    """

    hits: Mapping[str, FoundMessage]
    query_words: Set[str]
    agent: Agent
    timezone: tzinfo
    now: int
    room: int
    is_exact: bool

    def result(self, turns: Sequence[Message], best: Message) -> dict[str, Any]:
        index = turns.index(best)
        context = max(self.room // _CONTEXT_SHARE, 100)
        share = max(self.room // _HIT_SHARE // sum(turn.id in self.hits for turn in turns), 100)
        entries = [self._turn(turn, share if turn.id in self.hits else context) for turn in turns]
        thoughts = "\n".join(part.text for part in best.parts if isinstance(part, ReasoningPart))
        return {
            "timestamp": timestamp(best.created_at, self.timezone, is_exact=self.is_exact),
            "time_ago": time_ago(self.now - best.created_at),
            **({"before": entries[:index]} if index else {}),
            **({"thinking": shorten(thoughts, context)} if thoughts else {}),
            **entries[index],
            **({"after": entries[index + 1 :]} if entries[index + 1 :] else {}),
        }

    def _turn(self, message: Message, limit: int) -> dict[str, Any]:
        speaker = message.name or {"assistant": self.agent.name, "tool": "a tool"}.get(
            message.role, "the user"
        )
        text = searchable_text(message)
        hit = self.hits.get(message.id)
        if hit and hit.excerpt and len(text) > limit:
            # The matching part, if the whole does not fit.
            content = shorten(f"… {hit.excerpt} …", limit)
        else:
            content = shorten(text, limit)
        entry: dict[str, Any] = {"role": message.role, "speaker": speaker, "content": content}
        if hit:
            if marked := matching_lines(text, self.query_words):
                entry["matched_lines"] = marked
            if hit.in_picture:
                entry["found_in"] = "a picture"
            entry["relevance"] = _relevance(hit.relevance)
        return entry


def matching_lines(text: str, query_words: Set[str]) -> list[str]:
    """Return the lines of a longer text that have the most query words.

    They are in the order of the text. A text of one line has none.

    Args:
        text: The text of a hit.
        query_words: The words of the query in the form of the index, as `query_terms` returns them.
    """
    lines = [line.strip() for line in _lines(text) if line.strip()]
    if len(lines) < 2 or not query_words:
        return []
    counts = [len(query_words & {*terms(line[:_LINE_LENGTH])}) for line in lines[:_LINE_LIMIT]]
    best = sorted(
        (number for number, count in enumerate(counts) if count),
        key=lambda number: (-counts[number], number),
    )
    return [shorten(lines[number], _MARKED_LENGTH) for number in sorted(best[:_MARKED_LIMIT])]


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text; lines that are too long to mark are split into sentences."""
    for line in text.split("\n"):
        if len(line) > _MARKED_LENGTH:
            yield from _SENTENCE_END.split(line)
        else:
            yield line


def _relevance(relevance: Relevance) -> dict[str, Any]:
    """Return a hit's relevance in short form.

    An index that did not find the hit is not mentioned.
    """
    ranks = {"fts_rank": relevance.fts_rank, "vector_rank": relevance.vector_rank}
    return {
        "rrf_score": round(relevance.score, 4),
        **{name: rank for name, rank in ranks.items() if rank is not None},
        "search_mode": relevance.mode,
    }


def time_ago(micros: int) -> str:
    """Return a duration in its largest unit: `42s ago`, `3h ago`, `2d ago`.

    Args:
        micros: The time since then in microseconds; a negative one counts as 0.
    """
    seconds = max(0, micros // SECOND)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def timestamp(micros: int, timezone: tzinfo, *, is_exact: bool = False) -> str:
    """Return a time in ISO 8601, in a time zone.

    Args:
        micros: The time in microseconds UTC.
        timezone: The time zone.
        is_exact: Show microseconds; otherwise whole seconds.
    """
    precision = "microseconds" if is_exact else "seconds"
    return to_datetime(micros).astimezone(timezone).isoformat(timespec=precision)


def shares_seconds(times: Iterable[int]) -> bool:
    """Return True if two different times fall in one second.

    Then only exact times show their order, and the later text may correct the earlier one.

    Args:
        times: Times in microseconds UTC.
    """
    seconds = [time // SECOND for time in set(times)]
    return len(set(seconds)) < len(seconds)
