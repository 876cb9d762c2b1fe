"""What may not be written into memory again: search results, the system's own words, and lines a block already has. Pure.

An agent that files what it has just looked up, or its own instructions, fills its memory with copies of it. What the
user said in this turn may always be kept; what the user said earlier may become part of a block.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from ricordo.domain.message import Message, ToolReturnPart
from ricordo.errors import Invalid
from ricordo.memory.merge import common_ends

# So much of what is added may stand elsewhere before it counts as a repetition, in runs of words.
CONTAINED = 0.9
_RUN = 5
# What is shorter is found in any text: a name, a fact, a line of a list.
_LEAST_WORDS, _LEAST_CHARACTERS = 12, 40
# A line, or a change, as short as this is not looked at.
LEAST_LINE = 24
# Of all words of two lines, as many are in both.
_ALIKE = 0.8
_LEAST_ALIKE_WORDS = 7
_MOST_COMPARED = 20_000
_SHOWN = 80
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_BULLET = re.compile(r"^[\s>*+#•\-–—]+|^\s*\d{1,3}[.)]\s+")
_SEARCHES = frozenset({"conversation_search", "archival_memory_search"})

RECALLED = (
    "Nothing was saved: nearly all of this only repeats what a search of your memory just gave you, so it is kept already. "
    "Save what is new, in your own words."
)
INSTRUCTIONS = (
    "Nothing was saved: nearly all of this is in your own instructions, which you always see. "
    "Save only what you learned from others."
)


@dataclass(frozen=True, slots=True)
class GuardSources:
    """What a prompt held beside memory: the system's words, search results, and what the user said now, earlier, or long ago."""

    system: Sequence[str] = ()
    recalled: Sequence[str] = ()
    said: Sequence[str] = ()
    said_earlier: Sequence[str] = ()
    found_again: Sequence[str] = ()


class EditGuard:
    """Refuses repetitions in one step. The sources are read when something long is written, which is seldom."""

    def __init__(self, read: Callable[[], GuardSources]) -> None:
        self._read = read

    def require_new(self, added: str, own: str = "", *, is_archived: bool = False) -> None:
        """Raise Invalid where nearly all of the added text is recalled, or the system's own.

        The lines of `own`, the block's text so far, may be put in another order. What the user said earlier may become
        part of a block; for the archive it is a copy of what a search finds already.
        """
        words = _words(added)
        if len(words) < _LEAST_WORDS or len(added) < _LEAST_CHARACTERS:
            return
        runs, source = _runs([added]), self._sources
        allowed = source["said"] | _runs([own])
        if not is_archived:
            allowed |= source["said_earlier"] | source["found_again"]
        if _share(runs, allowed) >= CONTAINED:
            return
        if _share(runs, source["recalled"] | source["found_again"]) >= CONTAINED:
            raise Invalid(RECALLED)
        if _share(runs, source["system"]) >= CONTAINED:
            raise Invalid(INSTRUCTIONS)

    def said(self) -> list[str]:
        """Return what the user said, now and earlier."""
        sources = self._read()
        return [*sources.said, *sources.said_earlier, *sources.found_again]

    @cached_property
    def _sources(self) -> dict[str, set[tuple[str, ...]]]:
        sources = self._read()
        return {name: _runs(getattr(sources, name)) for name in GuardSources.__slots__}


NO_GUARD = EditGuard(GuardSources)


def search_results(window: Iterable[Message]) -> tuple[list[str], list[str]]:
    """The texts that searches in the window gave: what others said or wrote, and what the user said."""
    found: tuple[list[str], list[str]] = ([], [])
    for result in (result for message in window for result in message.tool_returns):
        if hits := _hits(result) if result.said else None:
            for id, hit in zip(result.sources, hits, strict=True):
                found[id in result.said].extend(_strings(hit))
        elif result.sources or result.name in _SEARCHES:
            found[False].extend(_texts(result.content, result.is_json))
    return found


def _hits(result: ToolReturnPart) -> list[Any] | None:
    """What a result tells of each of its sources, in their order; None where that cannot be told apart, as in one that was cut."""
    content = orjson.loads(result.content) if result.is_json else None
    hits = content.get("results") if isinstance(content, dict) else content
    if not isinstance(hits, list):
        return None
    told = [turn for hit in hits for turn in _turns(hit)]
    return told if len(told) == len(result.sources) else None


def _turns(hit: Any) -> list[Any]:
    """A hit with the turns before and after it, which are sources too."""
    if not isinstance(hit, dict):
        return [hit]
    before, after = (_list(hit.get(name)) for name in ("before", "after"))
    return [*before, {**hit, "before": None, "after": None}, *after]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def changed_piece(before: str, after: str) -> str:
    """The piece of the later text between what both begin with and what both end with, in whole words."""
    head, tail = common_ends(before, after)
    while _splits_word(after, head):
        head -= 1  # a changed word is a new word
    while _splits_word(after, len(after) - tail):
        tail -= 1
    return after[head : len(after) - tail]


def added_lines(before: str, after: str) -> list[str]:
    """The lines of the later text without as many of each as the earlier one has."""
    known = Counter(map(_key, before.split("\n")))
    added: list[str] = []
    for line in after.split("\n"):
        if known[_key(line)] > 0:
            known[_key(line)] -= 1
        else:
            added.append(line)
    return added


def _splits_word(text: str, place: int) -> bool:
    return (
        0 < place < len(text)
        and text[place - 1].isalnum()
        and text[place].isalnum()
        and text[place] < "\u3000"
    )


@dataclass(frozen=True, slots=True)
class KnownLine:
    """A line of a block that says what another says: `line` counts from 1; `is_same` where they differ in signs at most."""

    label: str
    line: int
    text: str
    is_same: bool

    def told(self) -> str:
        how = "is already" if self.is_same else "is nearly the same as a line"
        shown = self.text if len(self.text) <= _SHOWN else self.text[: _SHOWN - 1] + "…"
        return f'{how} in memory block "{self.label}", line {self.line}: "{shown}"'


def repeated(label: str, before: str, after: str, others: Mapping[str, str]) -> list[KnownLine]:
    """The lines of this block or of the others (texts by their labels) that a write adds again."""
    added = [line for line in added_lines(before, after) if _tells(line)]
    if not added:
        return []
    stays = {
        _key(line) for line in after.split("\n")
    }  # a line that is replaced may be like the one that replaces it
    known = [
        KnownLine(name, number, line, is_same=True)
        for name, text in (
            {label: before} | {name: text for name, text in others.items() if name != label}
        ).items()
        for number, line in enumerate(text.split("\n"), 1)
        if name != label or _key(line) in stays
    ]
    by_key: dict[str, KnownLine] = {}
    for one in known:
        by_key.setdefault(_key(one.text), one)
    found: list[KnownLine] = []
    words: list[set[str]] = []
    compared = 0
    for line in added:
        if same := by_key.get(_key(line)):
            found.append(same)
        elif compared + len(known) <= _MOST_COMPARED:
            compared += len(known)
            words = words or [set(_words(one.text)) for one in known]
            if alike := _most_alike(line, known, words):
                found.append(alike)
    return found


def only_repeats(label: str, before: str, after: str, found: Sequence[KnownLine]) -> bool:
    """Whether a write only adds lines again that the block has; `found` are those that were `repeated`."""
    new = [line for line in added_lines(before, after) if line.strip()]
    if (
        not new
        or len(found) < len(new)
        or any(not one.is_same or one.label != label for one in found)
    ):
        return False
    return not Counter(map(_key, before.split("\n"))) - Counter(map(_key, after.split("\n")))


def _tells(line: str) -> bool:
    return len(_key(line)) >= LEAST_LINE and len(_words(line)) > 3


def _most_alike(
    line: str, known: Sequence[KnownLine], words_of: Sequence[set[str]]
) -> KnownLine | None:
    words = set(_words(line))
    if len(words) < _LEAST_ALIKE_WORDS:
        return None
    best: tuple[float, KnownLine | None] = (_ALIKE, None)
    for one, theirs in zip(known, words_of, strict=True):
        # Of sets of such different sizes too little is in both.
        if not _ALIKE * len(words) <= len(theirs) <= len(words) / _ALIKE:
            continue
        alike = len(words & theirs) / len(words | theirs)
        if alike >= best[0]:
            best = (alike, KnownLine(one.label, one.line, one.text, is_same=False))
    return best[1]


def _key(line: str) -> str:
    return " ".join(_BULLET.sub("", line).casefold().split()).rstrip(".;,")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _runs(texts: Iterable[str]) -> set[tuple[str, ...]]:
    words = map(_words, texts)
    return {
        run for some in words for run in zip(*(some[start:] for start in range(_RUN)), strict=False)
    }


def _share(runs: set[tuple[str, ...]], source: set[tuple[str, ...]]) -> float:
    return len(runs & source) / len(runs)


def _texts(content: str, is_json: bool) -> list[str]:
    """The texts in a result; JSON that was cut is read as it is, but for its escapes."""
    if is_json:
        try:
            return _strings(orjson.loads(content))
        except orjson.JSONDecodeError:
            pass
    return [content.replace("\\n", "\n").replace('\\"', '"')]


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _strings(item)]
