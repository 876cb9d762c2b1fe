"""The word lists in `data/`: stop words and endings by language, and how eight languages name times."""

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Final


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads(files("ricordo.search").joinpath("data", f"{name}.toml").read_text("utf-8"))


def _by_word(lines: Iterable[tuple[int, str]]) -> dict[str, int]:
    return {word: number for number, line in lines for word in line.split()}


def _numbered(table: dict[str, str]) -> dict[str, int]:
    return _by_word((int(number), line) for number, line in table.items())


_stop_words, _calendar = _load("stop_words"), _load("calendar")
STOP_WORDS: Final = {language: frozenset(words.split()) for language, words in _stop_words["words"].items()}
# The stemming algorithm of a language, and what may follow the root of a word.
ENDINGS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    language: (found["algorithm"], ("", *found["endings"].split()))
    for language, found in _stop_words["endings"].items()
}

MONTHS: Final = _by_word(enumerate(_calendar["months"], start=1))
WEEKDAYS: Final = _by_word(enumerate(_calendar["weekdays"]))
SEASONS: Final = _numbered(_calendar["seasons"])
NUMBERS: Final = _numbered(_calendar["numbers"])
AMBIGUOUS: Final = frozenset(_calendar["ambiguous"].split())
NEVER_ALONE: Final = frozenset(_calendar["never_alone"].split())
EVERY: Final = frozenset(_calendar["every"].split())
THINGS: Final = frozenset(_calendar["things"].split())
ALONE_ONLY_AFTER: Final[dict[str, list[str]]] = _calendar["alone_only_after"]
PREPOSITIONS: Final[list[str]] = _calendar["prepositions"]
# Kind and regular expression; kind, how many before this one, and regular expression.
COUNTED: Final[list[tuple[str, str]]] = list(_calendar["counted"].items())
RELATIVE: Final[list[tuple[str, int, str]]] = [
    (found["kind"], found["back"], "|".join(found["said"])) for found in _calendar["relative"]
]
