"""Find the sentences of a text that mention a fact, and remove them. Pure.

A sentence mentions the fact if it contains the given words. Differences in case, quotes, dashes,
blanks and hidden characters are ignored, and so are different encodings of an accent. A sentence
perhaps mentions the fact if both share most of their words. The whole sentence, or the whole line
of a list, is removed. If only the words were removed, the rest might still reveal the fact.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import orjson

from ricordo.domain.hidden_text import UNSEEN_CLASS
from ricordo.domain.text import normal_text
from ricordo.features.memory_care.forgetting.meaning import Meaning
from ricordo.memory.unwanted import is_unreadable_rule, rule_of
from ricordo.search.words import SPACELESS, STOP_WORDS, terms

MARK = "[forgotten]"
Match = Literal["exact", "perhaps"]
Matches = frozenset[Match]
EXACT: Matches = frozenset(("exact",))
BOTH: Matches = frozenset(("exact", "perhaps"))
_MARKS = re.compile(rf"{re.escape(MARK)}(?:[ \t]*{re.escape(MARK)})+")
# The end of a sentence with the blanks after it, or the end of a line. A comma does not end a
# sentence.
_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]{0,3}[^\S\n]++(?=\S)|(?<=[。！？])|\n+")
# The point of an abbreviation or of a list's number does not end a sentence.
_NO_END = re.compile(r"(?:^|\W)(?:\d{1,2}|dr|mr|mrs|ms|prof|st|nr|vs|ca|sig)\.$", re.IGNORECASE)
_EDGE = " \t\n\r\"'“”„«»‘’.,;:!?…。！？"
_TWINS = (
    '"“”„‟«»″＂',
    "'‘’‚‛′ʼ＇`´",
    "-‐‑‒–—―−﹘﹣－",
)
_CLASSES = {sign: f"[{re.escape(twins)}]" for twins in _TWINS for sign in twins}
_UNSEEN = f"[{UNSEEN_CLASS}]*"
_BLANKS = rf"(?:[\s{UNSEEN_CLASS}]|\\[nrt])+"
# The mark of a redacted secret, which agents read instead of the secret. In
# a fact, it matches up to 300 characters of a line, whatever they are.
_REDACTED = re.compile(r"\[secret removed: [^\[\]\n]{0,80}\]")
_ANY_SIGNS = r"[^\n]{1,300}?"
_SPACELESS = re.compile(f"[{SPACELESS}]")
_STOP = frozenset().union(*STOP_WORDS.values())
# The share of the shorter text's words that must be in both for a "perhaps".
_ALIKE = 0.6
_LONGEST = 200_000  # characters; in longer texts nothing is "perhaps"
_MOST_WORDS = 60
# A line that contains only marks of lists, headings or quotes, or nothing.
_EMPTY_LINE = re.compile(r"^[\s>*+#•–—-]*+(?:\d{1,3}[.)]\s*+)?$")
# JSON in a string is read as text if its deepest value lies in more objects and lists than this,
# counting those around the string.
_DEEPEST = 100
# Names of columns and members whose JSON people and programs choose freely. Numbers in it, for
# example a phone number, are read like texts, and no name is opaque. All other JSON has a form that
# its readers need, so only its texts are changed.
FREE = frozenset(("metadata", "metadata_"))
# Names of members of stored JSON that contain no text of people.
OPAQUE = frozenset(
    "call_id data evicted id kind media_type name provider redacted request_id role said signature"
    " sources status type".split()
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence or line of a text: its position, and how it matches."""

    start: int
    end: int
    match: Match


@dataclass(frozen=True)
class Needle:
    """A fact to forget, as text.

    With `by_meaning`, sentences that mean nearly the same are listed as "perhaps".
    """

    text: str
    by_meaning: bool = False

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The sentences of the fact, each without a list's mark and without its final sign."""
        lines = (normal_text(self.text)[:2_000]).split("\n")
        parts = (
            rule_of(line[start:end]).strip(_EDGE) for line in lines for start, end in _units(line)
        )
        # A sentence of only a redacted secret is left out, since it would match every text.
        return tuple(
            dict.fromkeys(part for part in parts if re.search(r"\w", _REDACTED.sub("", part)))
        )

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A pattern for the fact in all spellings; without words it matches nothing."""
        return re.compile("|".join(map(_pattern, self.parts)) or r"(?!)", re.IGNORECASE)

    @cached_property
    def _meaning(self) -> Meaning:
        return Meaning(self.parts)

    @cached_property
    def words(self) -> tuple[frozenset[str], ...]:
        return tuple(words for part in self.parts if (words := words_of(part)))

    def units(self, text: str, matches: Matches = BOTH) -> list[Unit]:
        """Return the sentences that mention the fact, or perhaps do, with their positions.

        Args:
            text: Any text. In texts above `_LONGEST`, only exact matches are found.
            matches: The kinds of matches to return.
        """
        hits = [match.span() for match in self.pattern.finditer(text)]
        if not hits and "perhaps" not in matches:
            return []
        spans = _units(text)
        exact = {
            index
            for index, (start, end) in enumerate(spans)
            if any(start < hit_end and hit_start < end for hit_start, hit_end in hits)
        }
        units = [Unit(*spans[index], "exact") for index in exact if "exact" in matches]
        if "perhaps" in matches and len(text) <= _LONGEST:
            units += [
                Unit(*span, "perhaps")
                for index, span in enumerate(spans)
                if index not in exact and self._is_near(text[slice(*span)])
            ]
        return sorted(units, key=lambda unit: unit.start)

    def is_in(self, text: str) -> bool:
        return self.pattern.search(text) is not None

    def _is_near(self, sentence: str) -> bool:
        if not self.words or is_unreadable_rule(sentence):
            return False
        words = words_of(sentence)
        if any(_are_near(part, words) for part in self.words):
            return True
        return self.by_meaning and self._meaning.is_near(sentence)


def words_of(sentence: str) -> frozenset[str]:
    """Return the terms of a sentence that carry its meaning."""
    return frozenset(terms(sentence)[:_MOST_WORDS]) - _STOP


def blank(text: str, needle: Needle, matches: Matches = EXACT) -> str:
    """Return the text with a mark in place of each sentence that mentions the fact.

    Args:
        text: Any text.
        needle: The fact.
        matches: The kinds of matches to replace; by default only exact ones.
    """
    for unit in reversed(needle.units(text, matches)):
        text = f"{text[: unit.start]}{MARK}{text[unit.end :]}"
    return _MARKS.sub(MARK, text)


def remove(text: str, needle: Needle, matches: Matches = EXACT) -> str:
    """Return the text without sentences that mention the fact, and without emptied lines.

    Args:
        text: Any text.
        needle: The fact.
        matches: The kinds of matches to remove; by default only exact ones.
    """
    units = needle.units(text, matches)
    if not units:
        return text
    lines: list[str] = []
    position = 0
    for line in text.split("\n"):
        end = position + len(line)
        kept = line
        for unit in reversed(units):
            start, stop = max(unit.start, position), min(unit.end, end)
            if start < stop:
                head, tail = kept[: start - position], kept[stop - position :]
                kept = (
                    head.rstrip() + (" " if head.strip() and tail.strip() else "") + tail.lstrip()
                )
                if not head.strip():
                    kept = head + tail.lstrip()
        if kept == line or not _EMPTY_LINE.match(kept):
            lines.append(kept if kept == line else kept.rstrip())
        position = end + 1
    return "\n".join(lines)


def change_strings(
    value: Any, change: Callable[[str], str], *, is_free: bool = False, depth: int = 0
) -> Any:
    """Return a JSON value with changed texts, including texts of JSON inside a string.

    Args:
        value: Any JSON value; it is not changed itself.
        change: Returns the new text for a text.
        is_free: The value is free JSON (see `FREE`), such as JSON inside a string or metadata.
        depth: The number of objects and lists around the value. Callers leave it out.
    """
    go_on = partial(change_strings, change=change, is_free=is_free, depth=depth + 1)
    if isinstance(value, str):
        inner = _json_in(value, _DEEPEST - depth)
        if inner is None:
            return change(value)
        changed = change_strings(inner, change, is_free=True, depth=depth)
        return value if changed == inner else orjson.dumps(changed).decode()
    if is_free and _is_number(value):
        changed = change(str(value))
        return value if changed == str(value) else changed
    if isinstance(value, Mapping):
        return {
            name: member
            if _is_opaque(name, is_free)
            else go_on(member, is_free=_is_free(name, is_free))
            for name, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [go_on(member) for member in value]
    return value


def strings_in(
    value: Any, *, is_all: bool = False, is_free: bool = False, depth: int = 0
) -> Iterator[str]:
    """Yield the texts of a JSON value, with the numbers of free JSON.

    Args:
        value: Any JSON value.
        is_all: Yield names and ids too.
        is_free: The value is free JSON (see `FREE`), such as JSON inside a string or metadata.
        depth: The number of objects and lists around the value. Callers leave it out.
    """
    go_on = partial(strings_in, is_all=is_all, is_free=is_free, depth=depth + 1)
    if isinstance(value, str):
        inner = _json_in(value, _DEEPEST - depth)
        if inner is None:
            yield value
        else:
            yield from strings_in(inner, is_all=is_all, is_free=True, depth=depth)
    elif is_free and _is_number(value):
        yield str(value)
    elif isinstance(value, Mapping):
        for name, member in value.items():
            if is_all:
                yield str(name)
            if is_all or not _is_opaque(name, is_free):
                yield from go_on(member, is_free=_is_free(name, is_free))
    elif isinstance(value, list | tuple):
        for member in value:
            yield from go_on(member)


def _is_free(name: str, is_free: bool) -> bool:
    """Return True if the member with this name is free JSON."""
    return is_free or name in FREE


def _is_opaque(name: str, is_free: bool) -> bool:
    return not is_free and name in OPAQUE


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _json_in(text: str, levels: int) -> Any:
    """Return the object or list that a string holds as JSON, or None.

    One with more than `levels` nested objects and lists gives None too.
    """
    if text[:1] in ("{", "[") and text.rstrip()[-1:] in ("}", "]"):
        try:
            value = orjson.loads(text)
        except ValueError:
            return None
        if isinstance(value, dict | list) and not _is_deeper(value, levels):
            return value
    return None


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether members of a JSON value lie in more than this number of objects and lists."""
    members = [value]
    for _ in range(max(0, levels) + 1):
        containers = [member for member in members if isinstance(member, dict | list)]
        members = [
            member
            for container in containers
            for member in (container.values() if isinstance(container, dict) else container)
        ]
        if not members:
            return False
    return True


def _are_near(part: frozenset[str], sentence: frozenset[str]) -> bool:
    shared = len(part & sentence)
    if not shared:
        return False
    # A sentence of one word is near only if this word makes up most of the fact.
    return shared >= _ALIKE * len(part) or (len(sentence) > 1 and shared >= _ALIKE * len(sentence))


def _units(text: str) -> list[tuple[int, int]]:
    """Return the positions of a text's sentences and lines, without surrounding blanks."""
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _END.finditer(text):
        is_line = "\n" in match[0]
        if not is_line and _NO_END.search(text, max(start, match.start() - 8), match.start()):
            continue
        closing = len(match[0]) - len(match[0].lstrip("\"'”’»)]"))
        spans.append((start, match.start() + closing))
        start = match.end()
    spans.append((start, len(text)))
    return [
        (first, last)
        for first, last in (_without_blanks(text, *span) for span in spans)
        if first < last
    ]


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def _pattern(part: str) -> str:
    """Return a pattern for a sentence in all its spellings."""
    pattern = _ANY_SIGNS.join(map(_words_pattern, _REDACTED.split(part)))
    # In scripts without spaces, words have no visible ends.
    head = "" if _SPACELESS.match(part[0]) else r"(?<!\w)"
    tail = "" if _SPACELESS.match(part[-1]) else r"(?!\w)"
    return f"{head}{pattern}{tail}"


def _words_pattern(text: str) -> str:
    pattern = _BLANKS.join(map(_word_pattern, text.split()))
    before = _BLANKS if pattern and text[0].isspace() else ""
    after = _BLANKS if pattern and text[-1].isspace() else ""
    return f"{before}{pattern}{after}"


def _word_pattern(word: str) -> str:
    return _UNSEEN.join(map(_sign_pattern, word))


def _sign_pattern(sign: str) -> str:
    if sign in _CLASSES:
        return _CLASSES[sign]
    if sign == "ß":
        return "(?:ß|ss)"
    decomposed = unicodedata.normalize("NFD", sign)
    if decomposed != sign:
        return f"(?:{re.escape(sign)}|{re.escape(decomposed)})"
    if sign == "…":
        return r"(?:…|\.\.\.)"
    return re.escape(sign)
