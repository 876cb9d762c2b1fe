"""Inputs on which a regular expression runs longest, made from its parts.

A pattern is slow if a repetition matches a long text, then fails, and is tried again at the next
position. So an input for a repetition has three parts. The first is text that must come before the
repetition. The second is text that it matches: once, twice or many times. The third is an end that
matches nothing.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_SIGNS = " a1\n\tA-_.,:;<>[]{}()|\"'`\\/*+#=@!é｜"
_LONG = 8  # Repetitions with at least this number of characters are tested.
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_ENDS = ("\0", "")


def worst_inputs(pattern: re.Pattern[Any], length: int) -> Iterator[str | bytes]:
    """Yield inputs of this length for the pattern, each once."""
    for before, fill in _seeds(pattern):
        unit = before + fill
        texts = [before + fill * (length // len(fill))]
        if before:
            texts.append(unit * (length // len(unit)))
        for text in texts:
            for end in _ENDS:
                yield (
                    (text + end).encode("utf-8", "replace")
                    if isinstance(pattern.pattern, bytes)
                    else text + end
                )


def repeats(pattern: re.Pattern[Any]) -> bool:
    """Return whether a part may be repeated often.

    Without such a part, the work at each position is bounded.
    """
    return any(True for _ in _fed(list(_tree(pattern)), ""))


@lru_cache(maxsize=4)  # inputs of several lengths are made from those of one pattern
def _seeds(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    fed = set(_fed(list(_tree(pattern)), ""))
    return sorted({("", sign) for sign in _SIGNS[:4]} | fed)


def _tree(pattern: re.Pattern[Any]) -> Any:
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    return _parser.parse(pattern.pattern, flags & ~re.DEBUG)


def _fed(nodes: Sequence[tuple[Any, Any]], before: str) -> Iterator[tuple[str, str]]:
    """Yield each repetition's fills, with the pattern's text before the repetition."""
    for kind, given in nodes:
        if kind in _REPEATS:
            _, most, inner = given
            if most > _LONG:
                yield from ((before, fill) for fill in _fills(list(inner)) if fill)
            yield from _fed(list(inner), before)
        for inner in _within(kind, given):
            yield from _fed(list(inner), before)
        before += _example([(kind, given)])


def _fills(inner: list[tuple[Any, Any]]) -> Iterator[str]:
    if len(inner) == 1 and (signs := [sign for sign in _SIGNS if _takes(*inner[0], sign)]):
        yield from signs[:6]
    yield _example(inner)
    for kind, given in inner:
        for branch in _within(kind, given):
            yield _example(list(branch))


def _within(kind: Any, given: Any) -> list[Any]:
    if kind is sre.BRANCH:
        return list(given[1])
    if kind is sre.SUBPATTERN:
        return [given[3]]
    if kind is sre.ATOMIC_GROUP:
        return [given]
    return [given[1]] if kind in (sre.ASSERT, sre.ASSERT_NOT) else []


def _example(nodes: list[tuple[Any, Any]]) -> str:
    """Return the shortest text that these parts match, or nearly; a lookahead matches nothing."""
    text = ""
    for kind, given in nodes:
        if kind in _REPEATS:
            text += _example(list(given[2])) * min(given[0], 50)
        elif kind in (sre.BRANCH, sre.SUBPATTERN, sre.ATOMIC_GROUP):
            text += _example(list(_within(kind, given)[0]))
        elif kind is sre.LITERAL:
            text += chr(given)
        elif kind in (sre.IN, sre.ANY, sre.NOT_LITERAL):
            text += next((sign for sign in _SIGNS if _takes(kind, given, sign)), "") or _first(
                given
            )
    return text


def _takes(kind: Any, given: Any, sign: str) -> bool:
    if kind is sre.ANY:
        return sign != "\n"
    if kind is sre.LITERAL:
        return ord(sign) == given
    if kind is sre.NOT_LITERAL:
        return ord(sign) != given
    return kind is sre.IN and _is_within(tuple(given), sign)


@cache  # Patterns repeat the same sets of characters.
def _is_within(ranges: tuple[tuple[Any, Any], ...], sign: str) -> bool:
    is_negated = ranges[0][0] is sre.NEGATE
    return is_negated != any(_is_one(one, value, sign) for one, value in ranges)


def _is_one(kind: Any, value: Any, sign: str) -> bool:
    if kind is sre.LITERAL:
        return ord(sign) == value
    if kind is sre.RANGE:
        return bool(value[0] <= ord(sign) <= value[1])
    return kind is sre.CATEGORY and re.match(_CATEGORIES[value], sign) is not None


def _first(given: Any) -> str:
    kind, value = given[0]
    return chr(value) if kind is sre.LITERAL else chr(value[0]) if kind is sre.RANGE else ""
