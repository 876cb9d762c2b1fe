"""Refusal of edits that only repeat: search results, instructions, or existing lines. Pure.

An agent that stores its last search results, or its own instructions, fills its memory with copies.
The user's messages of this turn may always be stored; earlier ones may become part of a block.
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

# An added text is a repetition if this share of it, in runs of words, stands elsewhere.
CONTAINED = 0.9
_RUN = 5
# Shorter texts occur anywhere: a name, a fact, a line of a list.
_FEWEST_CHECKED_WORDS = 12
_FEWEST_CHARACTERS = 40
# Shorter lines and changes are not checked.
SHORTEST_LINE = 24
# Two lines are nearly the same if this share of all their words is in both.
_ALIKE = 0.8
_FEWEST_WORDS = 7
_COMPARISON_LIMIT = 20_000
_EXCERPT_LENGTH = 80
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_BULLET = re.compile(r"^[\s>*+#•\-–—]+|^\s*\d{1,3}[.)]\s+")
_SEARCHES = frozenset({"conversation_search", "archival_memory_search"})

REPEATS_SEARCH = (
    "Nothing was saved: nearly all of this only repeats what a search of your memory just gave "
    "you, so it is kept already. "
    "Save what is new, in your own words."
)
REPEATS_INSTRUCTIONS = (
    "Nothing was saved: nearly all of this is in your own instructions, which you always see. "
    "Save only what you learned from others."
)


@dataclass(frozen=True, slots=True)
class GuardSources:
    """A prompt's texts outside the memory blocks.

    `system` are the instructions, `recalled` are search results. The user's texts are those of this
    turn, earlier ones in the window, and older ones that a search returned.
    """

    system: Sequence[str] = ()
    recalled: Sequence[str] = ()
    user_texts: Sequence[str] = ()
    earlier_user_texts: Sequence[str] = ()
    recalled_user_texts: Sequence[str] = ()


@dataclass(eq=False)
class EditGuard:
    """Refuses repetitions in one step.

    The sources are read only when a long text is written, which is seldom.
    """

    read: Callable[[], GuardSources]

    def require_new(self, added: str, block_text: str = "", *, is_archived: bool = False) -> None:
        """Raise Invalid where nearly all of the added text repeats the sources.

        The lines of `block_text`, the block's text so far, may be reordered. Earlier texts of the
        user may become part of a block; in the archive they would only copy what a search finds.
        """
        added_words = _words(added)
        if len(added_words) < _FEWEST_CHECKED_WORDS or len(added) < _FEWEST_CHARACTERS:
            return
        runs = _runs([added])
        source_runs = self._sources
        allowed = source_runs["user_texts"] | _runs([block_text])
        if not is_archived:
            allowed |= source_runs["earlier_user_texts"] | source_runs["recalled_user_texts"]
        if _share(runs, allowed) >= CONTAINED:
            return
        if _share(runs, source_runs["recalled"] | source_runs["recalled_user_texts"]) >= CONTAINED:
            raise Invalid(REPEATS_SEARCH)
        if _share(runs, source_runs["system"]) >= CONTAINED:
            raise Invalid(REPEATS_INSTRUCTIONS)

    def user_texts(self) -> list[str]:
        """Return the user's texts of this turn and earlier ones."""
        sources = self.read()
        return [
            *sources.user_texts,
            *sources.earlier_user_texts,
            *sources.recalled_user_texts,
        ]

    @cached_property
    def _sources(self) -> dict[str, set[tuple[str, ...]]]:
        sources = self.read()
        return {name: _runs(getattr(sources, name)) for name in GuardSources.__slots__}


NO_GUARD = EditGuard(GuardSources)


def search_results(window: Iterable[Message]) -> tuple[list[str], list[str]]:
    """Return the texts of search results in the window: others' texts, and the user's."""
    other_texts: list[str] = []
    user_texts: list[str] = []
    for tool_return in (tool_return for message in window for tool_return in message.tool_returns):
        hits = _hits(tool_return) if tool_return.said else None
        if hits:
            for source_id, hit in zip(tool_return.sources, hits, strict=True):
                by_user = source_id in tool_return.said
                (user_texts if by_user else other_texts).extend(_strings(hit))
        elif tool_return.sources or tool_return.name in _SEARCHES:
            other_texts.extend(_texts(tool_return.content, tool_return.is_json))
    return other_texts, user_texts


def _hits(tool_return: ToolReturnPart) -> list[Any] | None:
    """Return a result's parts, one for each of its sources, in their order.

    None where the parts cannot be matched with the sources, as in a result that was cut.
    """
    if tool_return.is_json:
        content = orjson.loads(tool_return.content)
    else:
        content = None
    if isinstance(content, dict):
        hits = content.get("results")
    else:
        hits = content
    if not isinstance(hits, list):
        return None
    turns = [turn for hit in hits for turn in _turns(hit)]
    if len(turns) == len(tool_return.sources):
        return turns
    return None


def _turns(hit: Any) -> list[Any]:
    """Return a hit with the turns before and after it, which are sources too."""
    if not isinstance(hit, dict):
        return [hit]
    before, after = (_list(hit.get(name)) for name in ("before", "after"))
    return [*before, {**hit, "before": None, "after": None}, *after]


def _list(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return []


def changed_piece(before: str, after: str) -> str:
    """Return the changed piece of the later text, in whole words."""
    head, tail = common_ends(before, after)
    while _splits_word(after, head):
        head -= 1  # a changed word is wholly new
    while _splits_word(after, len(after) - tail):
        tail -= 1
    return after[head : len(after) - tail]


def added_lines(before: str, after: str) -> list[str]:
    """Return the lines of the later text that the earlier one lacks.

    A line that occurs more often than before counts as added.
    """
    earlier_counts = Counter(map(_key, before.split("\n")))
    added: list[str] = []
    for line in after.split("\n"):
        if earlier_counts[_key(line)] > 0:
            earlier_counts[_key(line)] -= 1
        else:
            added.append(line)
    return added


def _splits_word(text: str, index: int) -> bool:
    return (
        0 < index < len(text)
        and text[index - 1].isalnum()
        and text[index].isalnum()
        and text[index] < "\u3000"
    )


@dataclass(frozen=True, slots=True)
class KnownLine:
    """A line of a block that repeats another line; lines count from 1.

    `is_same`: they differ in punctuation at most.
    """

    label: str
    line: int
    text: str
    is_same: bool

    def describe(self) -> str:
        if self.is_same:
            relation = "is already"
        else:
            relation = "is nearly the same as a line"
        if len(self.text) <= _EXCERPT_LENGTH:
            excerpt = self.text
        else:
            excerpt = self.text[: _EXCERPT_LENGTH - 1] + "…"
        return f'{relation} in memory block "{self.label}", line {self.line}: "{excerpt}"'


def repeated(label: str, before: str, after: str, others: Mapping[str, str]) -> list[KnownLine]:
    """Return existing lines, in this block or in others, that a write adds again.

    `others` are the texts of other blocks by label.
    """
    added = [line for line in added_lines(before, after) if _is_checked(line)]
    if not added:
        return []
    # A replaced line may be like its replacement, so only remaining lines of this block count.
    remaining_keys = {_key(line) for line in after.split("\n")}
    known_lines = [
        KnownLine(name, number, line, is_same=True)
        for name, text in (
            {label: before} | {name: text for name, text in others.items() if name != label}
        ).items()
        for number, line in enumerate(text.split("\n"), 1)
        if name != label or _key(line) in remaining_keys
    ]
    by_key: dict[str, KnownLine] = {}
    for known_line in known_lines:
        by_key.setdefault(_key(known_line.text), known_line)
    repeated_lines: list[KnownLine] = []
    word_sets: list[set[str]] = []
    compared = 0
    for line in added:
        if same := by_key.get(_key(line)):
            repeated_lines.append(same)
        elif compared + len(known_lines) <= _COMPARISON_LIMIT:
            compared += len(known_lines)
            word_sets = word_sets or [set(_words(known_line.text)) for known_line in known_lines]
            if alike := _most_alike(line, known_lines, word_sets):
                repeated_lines.append(alike)
    return repeated_lines


def only_repeats(label: str, before: str, after: str, repeated_lines: Sequence[KnownLine]) -> bool:
    """Return whether a write only adds lines that the block has already.

    `repeated_lines` is the result of `repeated`.
    """
    new = [line for line in added_lines(before, after) if line.strip()]
    if (
        not new
        or len(repeated_lines) < len(new)
        or any(not known_line.is_same or known_line.label != label for known_line in repeated_lines)
    ):
        return False
    return not Counter(map(_key, before.split("\n"))) - Counter(map(_key, after.split("\n")))


def _is_checked(line: str) -> bool:
    return len(_key(line)) >= SHORTEST_LINE and len(_words(line)) > 3


def _most_alike(
    line: str, known_lines: Sequence[KnownLine], words_of: Sequence[set[str]]
) -> KnownLine | None:
    own_words = set(_words(line))
    if len(own_words) < _FEWEST_WORDS:
        return None
    best: tuple[float, KnownLine | None] = (_ALIKE, None)
    for known_line, other_words in zip(known_lines, words_of, strict=True):
        # Sets of so different sizes cannot share enough words.
        if not _ALIKE * len(own_words) <= len(other_words) <= len(own_words) / _ALIKE:
            continue
        alike = len(own_words & other_words) / len(own_words | other_words)
        if alike >= best[0]:
            best = (
                alike,
                KnownLine(known_line.label, known_line.line, known_line.text, is_same=False),
            )
    return best[1]


def _key(line: str) -> str:
    return " ".join(_BULLET.sub("", line).casefold().split()).rstrip(".;,")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _runs(texts: Iterable[str]) -> set[tuple[str, ...]]:
    word_lists = map(_words, texts)
    return {
        run
        for words in word_lists
        for run in zip(*(words[start:] for start in range(_RUN)), strict=False)
    }


def _share(runs: set[tuple[str, ...]], source: set[tuple[str, ...]]) -> float:
    return len(runs & source) / len(runs)


def _texts(content: str, is_json: bool) -> list[str]:
    """Return the texts in a result.

    JSON that was cut is read as plain text, with its escapes undone.
    """
    if is_json:
        try:
            return _strings(orjson.loads(content))
        except orjson.JSONDecodeError:
            pass
    return [content.replace("\\n", "\n").replace('\\"', '"')]


def _strings(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts: Iterable[Any] = ()
    if isinstance(content, dict):
        parts = content.values()
    elif isinstance(content, list):
        parts = content
    return [text for part in parts for text in _strings(part)]
