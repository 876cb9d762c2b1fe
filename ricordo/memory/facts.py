"""Facts that a person states, and the lines of memory that they replace. Pure.

Five languages are read. Only facts with one value at a time are recognized (`facts.toml`): a name,
a home, an age, a favourite tea. Any other statement is simply a line.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

# The characters of one text that are read.
READ_LENGTH = 600
PERSON = ""  # the subject of statements about oneself
MENTIONED = "*"  # "he", "she", "it": the person mentioned last
_FIRST = frozenset("i we je j' j’ nous ich wir yo nosotros io noi".split())
# Words that begin a sentence with a capital and are no name.
_NO_NAMES = frozenset(
    "now actually currently also then today and but so well yes no sorry since user person "
    "jetzt nun heute aber und also ja nein seit "
    "maintenant aujourd actuellement et mais donc oui non depuis ahora hoy actualmente y pero sí desde "
    "adesso ora oggi attualmente e ma però allora da".split()
)
_PRONOUNS = frozenset("he she it they er sie es il elle él ella lui lei".split())
_OWN = re.compile(
    r"^(?:my|our|meine?r?|unsere?r?|mon|ma|notre|mi|(?:il |la )?(?:mio|mia))\s+", re.IGNORECASE
)
_FAVOURITE = "favourite"
_PREFERENCE = "preference"
_CONTRAST = "contrast"
_CORRECTS = re.compile(
    r"\b(?:actually|correction|no longer|any ?more|now|instead|in fact|i (?:got|had) (?:it|that) wrong|changed my mind"
    r"|jetzt|nun|eigentlich|nicht mehr|stattdessen|inzwischen|maintenant|désormais|en fait|ne \w+ plus|finalement"
    r"|ahora|ya no|en realidad|mejor dicho|adesso|ora|non più|non \w+(?: \w+)? più|in realtà|anzi)\b"
    r"|^\W*(?:no|nope|sorry|wrong|nein|doch|falsch|entschuldigung|stimmt nicht"
    r"|non|pardon|désolée?|perdón|perdona|scusa|scusami)\b[\s,:;.!–-]",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"[.!?;] +(?=[A-ZÀ-ÖØ-Þ¿¡])")
_CLAUSE = re.compile(r"[,;] ?[^\s,;]+ [^\s,;]|\b(?:and|but|und|aber|et|mais|y|pero)\b")


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that a text states, with the position of its value.

    `topic` names the kind of favourite or contact, as in "tea" or "email". `instead_of` is the
    thing to which the value is preferred.
    """

    subject: str
    kind: str
    topic: str
    value: str
    start: int
    end: int
    instead_of: str = ""

    def is_same_as(self, other: "Fact") -> bool:
        """Return True if both facts are about the same property of the same subject."""
        if self.kind != other.kind or not _is_same_subject(self.subject, other.subject):
            return False
        return not (self.topic and other.topic) or self.topic == other.topic


@dataclass(frozen=True, slots=True)
class Contrast:
    """A value and the earlier value that it replaces, as in "5, not 4"."""

    new: str
    old: str


@dataclass(frozen=True, slots=True)
class Revision:
    """The new text for one of several lines.

    With `is_whole`, the new text keeps nothing of the old line.
    """

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
    while placeholder := re.search(r"%([a-z_]+)%", pattern):
        pattern = pattern.replace(placeholder[0], pieces[placeholder[1]])
    return pattern


FORMS = _read_forms()


@cache
def _patterns(kind: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(form, re.IGNORECASE | re.MULTILINE) for form in FORMS[kind])


def facts_in(text: str) -> tuple[Fact, ...]:
    """Return the text's facts that have one value at a time, in order."""
    # The caches keep only what is read, so that long texts do not fill the memory.
    return _facts_in(text[:READ_LENGTH])


@lru_cache(2048)
def _facts_in(text: str) -> tuple[Fact, ...]:
    kinds = [kind for kind in FORMS if kind != _CONTRAST]
    facts = [fact for kind in kinds for fact in _facts(text, kind)]
    facts.sort(key=lambda fact: fact.start)
    return tuple(_with_subjects(facts))


def _facts(text: str, kind: str) -> Iterator[Fact]:
    value_starts: set[int] = set()
    for pattern in _patterns(kind):
        for match in pattern.finditer(text):
            groups = match.groupdict()
            fact_value = match["v"].strip()
            if not fact_value or match.start("v") in value_starts:
                continue
            value_starts.add(match.start("v"))
            topic = _singular(groups.get("t") or "")
            subject = groups.get("s") or groups.get("s2") or ""
            instead_of = (groups.get("w") or "").strip().casefold()
            start = match.start("v")
            yield Fact(
                subject=_subject(subject),
                kind=kind,
                topic=topic,
                value=fact_value,
                start=start,
                end=start + len(fact_value),
                instead_of=instead_of,
            )


def _with_subjects(facts: Sequence[Fact]) -> Iterator[Fact]:
    """Replace pronouns as subjects by the last other subject in the same text."""
    last_subject = ""
    for fact in facts:
        if fact.subject == MENTIONED and last_subject:
            yield replace(fact, subject=last_subject)
            continue
        if fact.kind == "name" and fact.subject != PERSON:
            last_subject = fact.value.casefold()
        elif fact.subject not in (PERSON, MENTIONED):
            last_subject = fact.subject
        yield fact


def _subject(text: str) -> str:
    text = text.strip().casefold()
    if text in _FIRST or text in _NO_NAMES:
        return PERSON
    if text in _PRONOUNS:
        return MENTIONED
    return _OWN.sub("", text)


def _singular(topic: str) -> str:
    topic = " ".join(topic.casefold().split()).replace("color", "colour")
    if len(topic) > 3 and topic.endswith("s") and not topic.endswith("ss"):
        return topic[:-1]
    return topic


def _is_same_subject(subject: str, other: str) -> bool:
    if subject == other:
        return True
    # "He is 5 now" may be about anybody except the speaker. "My dog is 5" may be about Bruno, whom
    # another line names.
    return PERSON not in (subject, other) and MENTIONED in (subject, other)


def corrects(text: str) -> bool:
    """Return whether the text says that something has changed or was wrong."""
    return _CORRECTS.search(text[:READ_LENGTH]) is not None


def contrasts_in(text: str) -> tuple[Contrast, ...]:
    """Return the pairs of a new and an old value that the text contrasts."""
    return _contrasts_in(text[:READ_LENGTH])


@lru_cache(512)
def _contrasts_in(text: str) -> tuple[Contrast, ...]:
    pairs = [
        (match["v"], match["w"])
        for pattern in _patterns(_CONTRAST)
        for match in pattern.finditer(text)
    ]
    return tuple(Contrast(new, old) for new, old in pairs if new.casefold() != old.casefold())


def revision_of(lines: Sequence[str], statement: str) -> Revision | None:
    """Return the revision of the last line that a new statement makes untrue.

    The line's other content is kept. Returns None if the statement contradicts no line.
    """
    new_facts = facts_in(statement)
    if revised := _contrasted(lines, statement, new_facts):
        return revised
    for index in range(len(lines) - 1, -1, -1):
        for old in facts_in(lines[index]):
            new = next((fact for fact in new_facts if _replaces(fact, old, statement)), None)
            if new is None or _plain(new.value) == _plain(old.value):
                continue
            return _revised(lines[index], index, statement, old, new)
    return None


def _replaces(new: Fact, old: Fact, statement: str) -> bool:
    if new.is_same_as(old) or (_is_narrower(new, old) and corrects(statement)):
        # A person may have two jobs, so a second one replaces the first only if the text says so.
        return new.kind not in ("job", "workplace") or corrects(statement)
    if new.kind == _PREFERENCE and old.kind == _FAVOURITE:
        return bool(new.instead_of) and _plain(old.value) in _plain(new.instead_of)
    return (
        new.kind == _FAVOURITE and old.kind == _PREFERENCE and _plain(new.value) == old.instead_of
    )


def _is_narrower(new: Fact, old: Fact) -> bool:
    """Return True if one favourite is narrower, as in "language" and "programming language"."""
    if new.kind != _FAVOURITE or old.kind != _FAVOURITE or new.subject != old.subject:
        return False
    longer, shorter = sorted((new.topic, old.topic), key=len, reverse=True)
    return bool(shorter) and longer.endswith(f" {shorter}")


def _revised(line: str, index: int, statement: str, old: Fact, new: Fact) -> Revision:
    """Return the line with one value changed.

    If the line says nothing else, the statement replaces it.
    """
    if len(facts_in(line)) == 1 and not _says_more(line, old):
        return Revision(index, statement, is_whole=True)
    return Revision(index, line[: old.start] + new.value + line[old.end :], is_whole=False)


def _says_more(line: str, fact: Fact) -> bool:
    """Return whether the line says something besides its one fact."""
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
        line_indexes = [index for index, line in enumerate(lines) if old.search(line)]
        context_words = _words(statement) - _words(contrast.old) - _words(contrast.new)
        indexes_with_context = [
            index for index in line_indexes if context_words & _words(lines[index])
        ]
        chosen = indexes_with_context or [
            index for index in line_indexes if _states_same(lines[index], new_facts)
        ]
        chosen = chosen or (line_indexes if len(line_indexes) == 1 and corrects(statement) else [])
        if chosen and (match := old.search(lines[chosen[-1]])):
            line = lines[chosen[-1]]
            line = line[: match.start()] + contrast.new + line[match.end() :]
            return Revision(chosen[-1], line, is_whole=False)
    return None


def _states_same(line: str, new_facts: Sequence[Fact]) -> bool:
    return any(new.is_same_as(old) for new in new_facts for old in facts_in(line))


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text[:READ_LENGTH]) if len(word) > 2}


def _plain(text: str) -> str:
    return " ".join(word.casefold() for word in _WORD.findall(text))
