"""Facts that a person states, in four languages, and which line of memory a new one takes the place of. Pure.

Only facts of which there is one at a time are known here (`facts.toml`): a name, a home, an age, a favourite tea. All other
statements are lines beside each other.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

# The characters of one text that are read.
READ_LENGTH = 600
PERSON = ""  # the subject of what the person states about themselves
SOMEBODY = "*"  # "he", "she", "it": whoever was spoken of last
_FIRST = frozenset("i we je j' j’ nous ich wir yo nosotros".split())
# Words that begin a sentence with a capital and are nobody's name.
_NO_NAMES = frozenset(
    "now actually currently also then today and but so well yes no sorry since user person "
    "jetzt nun heute aber und also ja nein seit "
    "maintenant aujourd actuellement et mais donc oui non depuis ahora hoy actualmente y pero sí desde".split()
)
_SOMEBODY = frozenset("he she it they er sie es il elle él ella".split())
_OWN = re.compile(r"^(?:my|our|meine?r?|unsere?r?|mon|ma|notre|mi)\s+", re.IGNORECASE)
_FAVOURITE, _PREFERENCE, _CONTRAST = "favourite", "preference", "contrast"
_CORRECTS = re.compile(
    r"\b(?:actually|correction|no longer|any ?more|now|instead|in fact|i (?:got|had) (?:it|that) wrong|changed my mind"
    r"|jetzt|nun|eigentlich|nicht mehr|stattdessen|inzwischen|maintenant|désormais|en fait|ne \w+ plus|finalement"
    r"|ahora|ya no|en realidad|mejor dicho)\b"
    r"|^\W*(?:no|nope|sorry|wrong|nein|doch|falsch|entschuldigung|stimmt nicht|non|pardon|désolée?|perdón|perdona)\b[\s,:;.!–-]",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"[.!?;] +(?=[A-ZÀ-ÖØ-Þ¿¡])")
_CLAUSE = re.compile(r"[,;] ?[^\s,;]+ [^\s,;]|\b(?:and|but|und|aber|et|mais|y|pero)\b")


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact as a text states it: its value stands from `start` to `end`. `topic` is what a favourite is of."""

    subject: str
    kind: str
    topic: str
    value: str
    start: int
    end: int
    instead_of: str = ""

    def is_same_as(self, other: "Fact") -> bool:
        """Return whether both say something of which there is one at a time."""
        if self.kind != other.kind or not _is_one(self.subject, other.subject):
            return False
        return not (self.topic and other.topic) or self.topic == other.topic


@dataclass(frozen=True, slots=True)
class Contrast:
    """A value and the one that it replaces: "5, not 4"."""

    new: str
    old: str


@dataclass(frozen=True, slots=True)
class Revision:
    """What becomes of one of several lines; `is_whole` where nothing of the old one is left."""

    index: int
    line: str
    is_whole: bool


def _read_forms() -> dict[str, list[str]]:
    tables: dict[str, dict[str, Any]] = tomllib.loads(
        files("ricordo.memory").joinpath("facts.toml").read_text("utf-8")
    )
    pieces = {name: "".join(piece) for name, piece in tables.pop("pieces").items()}
    return {
        kind: [_filled(form, pieces) for form in forms.values()] for kind, forms in tables.items()
    }


def _filled(form: str | list[str], pieces: Mapping[str, str]) -> str:
    pattern = "".join(form)
    while found := re.search(r"%([a-z_]+)%", pattern):
        pattern = pattern.replace(found[0], pieces[found[1]])
    return pattern


FORMS = _read_forms()


@cache
def _patterns(kind: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(form, re.IGNORECASE | re.MULTILINE) for form in FORMS[kind])


@lru_cache(2048)
def facts_in(text: str) -> tuple[Fact, ...]:
    """Return the facts of which there is one at a time, in the order in which they stand."""
    text = text[:READ_LENGTH]
    kinds = [kind for kind in FORMS if kind != _CONTRAST]
    facts = [fact for kind in kinds for fact in _facts(text, kind)]
    facts.sort(key=lambda fact: fact.start)
    return tuple(_with_subjects(facts))


def _facts(text: str, kind: str) -> Iterator[Fact]:
    taken: set[int] = set()
    for pattern in _patterns(kind):
        for found in pattern.finditer(text):
            groups = found.groupdict()
            value = found["v"].strip()
            if not value or found.start("v") in taken:
                continue
            taken.add(found.start("v"))
            topic = _singular(groups.get("t") or "")
            subject = groups.get("s") or groups.get("s2") or ""
            instead_of = (groups.get("w") or "").strip().casefold()
            start = found.start("v")
            yield Fact(_subject(subject), kind, topic, value, start, start + len(value), instead_of)


def _with_subjects(facts: Sequence[Fact]) -> Iterator[Fact]:
    """Resolve "he" and "she" by the name that stands before them in the same text."""
    named = ""
    for fact in facts:
        if fact.subject == SOMEBODY and named:
            yield Fact(
                named, fact.kind, fact.topic, fact.value, fact.start, fact.end, fact.instead_of
            )
            continue
        if fact.kind == "name" and fact.subject != PERSON:
            named = fact.value.casefold()
        elif fact.subject not in (PERSON, SOMEBODY):
            named = fact.subject
        yield fact


def _subject(words: str) -> str:
    words = words.strip().casefold()
    if words in _FIRST or words in _NO_NAMES:
        return PERSON
    if words in _SOMEBODY:
        return SOMEBODY
    return _OWN.sub("", words)


def _singular(topic: str) -> str:
    topic = " ".join(topic.casefold().split()).replace("color", "colour")
    return (
        topic[:-1] if len(topic) > 3 and topic.endswith("s") and not topic.endswith("ss") else topic
    )


def _is_one(subject: str, other: str) -> bool:
    if subject == other:
        return True
    # "He is 5 now" may be said of anybody but the person; "my dog is 5" of Bruno, who has a name elsewhere.
    return PERSON not in (subject, other) and SOMEBODY in (subject, other)


def corrects(text: str) -> bool:
    """Return whether the text says that something has changed or was wrong."""
    return _CORRECTS.search(text[:READ_LENGTH]) is not None


@lru_cache(512)
def contrasts_in(text: str) -> tuple[Contrast, ...]:
    """Return the values that the text puts in the place of others."""
    text = text[:READ_LENGTH]
    pairs = [
        (found["v"], found["w"])
        for pattern in _patterns(_CONTRAST)
        for found in pattern.finditer(text)
    ]
    return tuple(Contrast(new, old) for new, old in pairs if new.casefold() != old.casefold())


def revision_of(lines: Sequence[str], statement: str) -> Revision | None:
    """Return the line whose place a new statement takes, the last one that fits, with what else it says kept in it.

    None where the statement stands beside all lines.
    """
    new_facts = facts_in(statement)
    if revised := _contrasted(lines, statement, new_facts):
        return revised
    for index in range(len(lines) - 1, -1, -1):
        for old in facts_in(lines[index]):
            new = next((fact for fact in new_facts if _takes_place(fact, old, statement)), None)
            if new is None or _plain(new.value) == _plain(old.value):
                continue
            return _revised(lines[index], index, statement, old, new)
    return None


def _takes_place(new: Fact, old: Fact, statement: str) -> bool:
    if new.is_same_as(old):
        # There may be two jobs at a time, so a second one only follows the first where it is said to.
        return new.kind not in ("job", "workplace") or corrects(statement)
    if new.kind == _PREFERENCE and old.kind == _FAVOURITE:
        return bool(new.instead_of) and _plain(old.value) in _plain(new.instead_of)
    return (
        new.kind == _FAVOURITE and old.kind == _PREFERENCE and _plain(new.value) == old.instead_of
    )


def _revised(line: str, index: int, statement: str, old: Fact, new: Fact) -> Revision:
    """Return the line with one value changed; the statement in its place where it says nothing else."""
    if len(facts_in(line)) == 1 and not _says_more(line, old):
        return Revision(index, statement, is_whole=True)
    return Revision(index, line[: old.start] + new.value + line[old.end :], is_whole=False)


def _says_more(line: str, fact: Fact) -> bool:
    """Return whether the line says something behind or before the one fact in it."""
    line = line[:READ_LENGTH]
    if len(_SENTENCE.split(line.strip())) > 1 or _CLAUSE.search(
        f"{line[: fact.start]} | {line[fact.end :]}"
    ):
        return True
    behind = len(_WORD.findall(line[fact.end :]))
    return behind > (2 if fact.kind == "age" else 3)


def _contrasted(lines: Sequence[str], statement: str, new_facts: Sequence[Fact]) -> Revision | None:
    for contrast in contrasts_in(statement):
        old = re.compile(rf"(?<!\w){re.escape(contrast.old)}(?!\w)", re.IGNORECASE)
        places = [index for index, line in enumerate(lines) if old.search(line)]
        about = _words(statement) - _words(contrast.old) - _words(contrast.new)
        close = [index for index in places if about & _words(lines[index])]
        chosen = close or [index for index in places if _states_same(lines[index], new_facts)]
        chosen = chosen or (places if len(places) == 1 and corrects(statement) else [])
        if chosen:
            line = lines[chosen[-1]]
            return Revision(
                chosen[-1], old.sub(lambda _, new=contrast.new: new, line, count=1), is_whole=False
            )  # type: ignore[misc]
    return None


def _states_same(line: str, new_facts: Sequence[Fact]) -> bool:
    return any(new.is_same_as(old) for new in new_facts for old in facts_in(line))


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text[:READ_LENGTH]) if len(word) > 2}


def _plain(text: str) -> str:
    return " ".join(word.casefold() for word in _WORD.findall(text))
