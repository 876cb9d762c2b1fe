"""What answers a question: lines of notes and search results that share its words, ranked, each told once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from typing import Literal

from ricordo.llm.librarian import sentences as say
from ricordo.llm.librarian.plan import SEARCHES
from ricordo.llm.librarian.reading import Forget, Intent, Tell, read, sentences
from ricordo.llm.librarian.view import Outcome, View, data_in, unpackaged
from ricordo.llm.librarian.words import is_single, kinds_asked, kinds_told, plain, score, shared, stems, tells

MOST_QUOTED = 3
LONGEST_QUOTE = 280

Source = Literal["note", "user", "archive", "assistant"]
# A person's words come before what was said to her; her present notes come before older words of hers.
_ORDER: dict[Source, int] = {"note": 0, "user": 1, "archive": 2, "assistant": 3}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Words that may answer, where they stand, and how many of the question's words they share."""

    source: Source
    words: str
    on: str = ""
    label: str = ""
    score: int = 0


def evidence(view: View, question: str) -> list[Evidence]:
    """The best evidence for the question, best first; nothing that shares no word or kind of fact with it."""
    wanted, kinds = stems(question), kinds_asked(question)
    scored = (replace(item, score=score(item.words, wanted, kinds)) for item in _candidates(view))
    ranked = [item for item in scored if item.score]
    if any(item.source != "assistant" for item in ranked):
        ranked = [item for item in ranked if item.source != "assistant"]
    # Stable sorts, the least telling first: newest, then by source, then by what is shared.
    ranked.sort(key=lambda item: item.on, reverse=True)
    ranked.sort(key=lambda item: (-item.score, _ORDER[item.source]))
    if ranked and len(kinds) == 1 and all(is_single(kind) for kind in kinds):
        # Someone has one name: the present one answers, older words about it do not.
        ranked = _present(ranked, kinds)
    best = _unique(item for item in ranked if item.score * 2 > ranked[0].score)
    return [replace(item, words=_cut(item.words, wanted)) for item in islice(best, MOST_QUOTED)]


def is_doubtful(found: Sequence[Evidence], question: str) -> bool:
    """Whether less than half of the question's words are met by what was found."""
    return bool(found) and found[0].score * 2 < len(stems(question))


def everything_told(view: View) -> list[Evidence]:
    """What a person told, from the results of a search for anything."""
    return [item for item in _unique(_found(view)) if item.source in {"user", "archive"}][: MOST_QUOTED * 2]


def quote(item: Evidence) -> str:
    """The evidence as a sentence that says where it stands."""
    day = _day(item.on)
    match item.source:
        case "note" if not item.on and item.label.rsplit("/", 1)[-1] == "human":
            return say.NOTED_ABOUT_YOU.format(words=item.words)
        case "note" if not item.on:
            return say.NOTED_IN.format(label=item.label, words=item.words)
        case "archive" if day:
            return say.ARCHIVED_ON.format(day=day, words=item.words)
        case "assistant" if day:
            return say.SAID_BY_ME.format(day=day, words=item.words)
        case _ if day:
            return say.SAID_BY_YOU.format(day=day, words=item.words)
        case _:
            return say.SAID_BY_YOU_ONCE.format(words=item.words)


def _candidates(view: View) -> Iterator[Evidence]:
    # The last line first: of two lines from one day, the later is the newer.
    for note in reversed(view.notes):
        yield Evidence("note", note.words, note.said_on or "", note.label)
    yield from _found(view)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A search result: who said it (empty for the archive), when, and what the words mean where a person said them."""

    role: str
    words: str
    on: str
    intents: tuple[Intent, ...]


def _found(view: View) -> Iterator[Evidence]:
    asked_now = plain(view.words)
    hits = [
        hit for outcome in view.outcomes if outcome.tool in SEARCHES and not outcome.failed for hit in _hits(outcome)
    ]
    struck_out = [(each.text, hit.on) for hit in hits for each in hit.intents if isinstance(each, Forget)]
    for hit in hits:
        item = None if plain(hit.words) == asked_now else _as_evidence(hit)
        # The history keeps what was struck out, but its owner did not want to hear it again.
        if item and not any(item.on < later and _is_about(text, item.words) for text, later in struck_out):
            yield item


def _hits(outcome: Outcome) -> Iterator[_Hit]:
    found = data_in(outcome.message)
    rows = data_in(found.get("results")) if isinstance(found, dict) else found
    for row in rows if isinstance(rows, list) else ():
        words = unpackaged(row["content"]) if isinstance(row, dict) and isinstance(row.get("content"), str) else None
        if words is not None:
            role = str(row.get("role") or "")
            yield _Hit(role, words, str(row.get("timestamp") or ""), read(words) if role == "user" else ())


def _as_evidence(hit: _Hit) -> Evidence | None:
    if not hit.role:
        return Evidence("archive", hit.words, hit.on)
    if hit.role == "assistant":
        is_own = any(line.lstrip("- ").startswith(say.OWN_OPENINGS) for line in hit.words.splitlines())
        return None if is_own else Evidence("assistant", hit.words, hit.on)
    # What was asked before is no answer; what was told beside it may be.
    told = " ".join(intent.text for intent in hit.intents if isinstance(intent, Tell))
    return Evidence("user", told, hit.on) if told else None


def _is_about(text: str, words: str) -> bool:
    wanted = stems(text)
    if tells(words, kinds_asked(text) | kinds_told(text)):
        return True
    return bool(wanted) and shared(wanted, stems(words)) * 2 > len(wanted)


def _unique(items: Iterator[Evidence]) -> Iterator[Evidence]:
    seen: list[str] = []
    for item in items:
        words = plain(item.words)
        if words and not any(f" {words} " in f" {other} " for other in seen):
            seen.append(words)
            yield item


def _present(ranked: list[Evidence], kinds: set[str]) -> list[Evidence]:
    alike = [item for item in ranked if tells(item.words, kinds)]
    if not alike:
        return ranked
    noted = [item for item in alike if item.source == "note"]
    newest = max(noted or alike, key=lambda item: (item.on, -_ORDER[item.source]))
    return [newest]


def _cut(words: str, wanted: set[str]) -> str:
    """The words, or from a long text the sentences that share something with the question."""
    if len(words) <= LONGEST_QUOTE:
        return " ".join(words.split())
    telling = [sentence for sentence in sentences(words) if shared(wanted, stems(sentence))]
    return say.shortened(" … ".join(telling) or words, LONGEST_QUOTE)


def _day(on: str) -> str:
    try:
        return say.day(date.fromisoformat(on[:10]))
    except ValueError:
        return on
