"""Read facts from a person's sentences by rules, without a model. Pure.

The librarian's grammar splits a sentence into statements. Then the patterns of `kinds.toml` and
`ricordo.memory.facts` read the kind, slot and value of each statement.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from ricordo.features.knowledge.facts.records import (
    USER,
    Evidence,
    FactDraft,
    FactKind,
)
from ricordo.features.knowledge.facts.times import with_time
from ricordo.features.librarian import grammar
from ricordo.memory import facts
from ricordo.memory.statements import sentences, stated
from ricordo.search.dates import MONTHS
from ricordo.search.words import STOP_WORDS, terms

LONGEST_SENTENCE = 300
# The most facts of one message.
MOST_FACTS = 12
_KINDS_OF_SLOTS: dict[str, FactKind] = {
    "favourite": "preference",
    "preference": "preference",
    "likes": "preference",
    "does": "skill",
    "answer_language": "instruction",
}
# Slots with one value for each thing, as in "likes:tea"; the value is yes or no.
_THINGS = ("likes", "has", "does", "is")
_SINGLE = ("answer_language", "marital", "diet")
_UNSLOTTED: tuple[FactKind, ...] = ("plan", "relation", "event")
_CONFIDENCE = {"slot": 0.9, "thing": 0.8, "kind": 0.6}
# Words that negate a sentence. They are removed to read the negated fact.
_DENIALS = re.compile(
    r"\b(?:nicht mehr|nicht|ne|plus|pas|più|do not|don['’]t|does not|doesn['’]t|no longer)\b|\bn['’]",
    re.IGNORECASE,
)
_STOP = frozenset().union(*STOP_WORDS.values())


def _read_patterns() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, Any]] = tomllib.loads(
        files("ricordo.features.knowledge.facts").joinpath("kinds.toml").read_text("utf-8")
    )
    pieces = tables.pop("pieces")
    return {
        kind: {
            name: re.sub("%([a-z_]+)%", lambda piece: pieces[piece[1]], pattern)
            for name, pattern in patterns.items()
        }
        for kind, patterns in tables.items()
    }


PATTERNS = _read_patterns()


@cache
def _compiled(kind: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in PATTERNS[kind].values())


def found_in(kind: str, text: str) -> re.Match[str] | None:
    """Search the start of the text for the patterns of this kind.

    Args:
        kind: A table of `kinds.toml`, such as "plan".
        text: A text, of which the first `LONGEST_SENTENCE` characters are searched.
    """
    matches = (pattern.search(text, 0, LONGEST_SENTENCE) for pattern in _compiled(kind))
    return next((match for match in matches if match), None)


def confirms(text: str) -> bool:
    """Return whether a message only confirms the message before it."""
    return len(text) <= LONGEST_SENTENCE and found_in("confirms", text) is not None


def drafts_in(message_id: str, text: str, said_at: int) -> list[FactDraft]:
    """Return the facts that a message of the user states, in order.

    Args:
        message_id: The message, for the evidence; "" if a person typed the fact.
        text: The message's text.
        said_at: The message's time in microseconds, to which words such as "tomorrow" refer.
    """
    drafts: list[FactDraft] = []
    for quote in _quotes(text):
        evidence = (Evidence(message_id, quote),)
        for clause in _clauses(quote):
            drafts += (
                with_time(replace(draft, evidence=evidence), said_at) for draft in _drafts(clause)
            )
    return drafts[:MOST_FACTS]


def _quotes(text: str) -> Iterator[str]:
    """Yield the sentences that state something, and lasting instructions."""
    statements = stated(text)
    for sentence in sentences(text):
        if len(sentence) > LONGEST_SENTENCE:
            continue
        if found_in("instruction", sentence) or found_in("answer_language", sentence):
            yield sentence
        else:
            yield from (statement for statement in statements if sentence.endswith(statement))


def _clauses(quote: str) -> list[str]:
    """Return the statements that the librarian's grammar finds in a sentence."""
    if found_in("instruction", quote) or found_in("answer_language", quote):
        return [quote]
    return [
        intent.text.strip()
        for intent in grammar.read(quote)
        if intent.kind == "tell" and intent.text.strip()
    ]


def _single_draft(clause: str, *, corrects: bool) -> FactDraft | None:
    """Return the fact of a slot with one value at a time, or None."""
    for slot in _SINGLE:
        if match := found_in(slot, clause):
            value = match["v"] or match.groupdict().get("v2") or ""
            kind = _KINDS_OF_SLOTS.get(slot, "who")
            return _draft(clause, kind, slot, value.casefold(), corrects=corrects)
    return None


def _thing_draft(clause: str, *, corrects: bool) -> FactDraft | None:
    """Return the fact that affirms or denies one thing, such as an allergy, or None."""
    for slot in _THINGS:
        if (match := found_in(slot, clause)) and (thing := _thing(match["v"])):
            is_denied = bool((match.groupdict().get("n") or "").strip()) or _denies(clause)
            return _draft(
                clause,
                _KINDS_OF_SLOTS.get(slot, "who"),
                f"{slot}:{thing}",
                "no" if is_denied else "yes",
                corrects=corrects,
                confidence=_CONFIDENCE["thing"],
            )
    return None


def _drafts(clause: str) -> list[FactDraft]:
    """Return the facts of one clause, without evidence."""
    corrects = facts.corrects(clause)
    is_passing = found_in("passing", clause) is not None
    if found_in("plan", clause):
        if is_passing:
            return []
        return [_draft(clause, "plan", confidence=_CONFIDENCE["kind"])]
    if single := _single_draft(clause, corrects=corrects):
        return [single]
    if found_in("instruction", clause):
        return [_draft(clause, "instruction", confidence=_CONFIDENCE["kind"])]
    if slotted := _with_values(clause, corrects=corrects):
        return slotted
    has_ended = found_in("was", clause) is not None
    if about_thing := _thing_draft(clause, corrects=corrects):
        return [about_thing]
    for kind in _UNSLOTTED:
        if found_in(kind, clause) and not (is_passing and kind != "relation"):
            draft = _draft(clause, kind, corrects=corrects, confidence=_CONFIDENCE["kind"])
            return [replace(draft, has_ended=has_ended)]
    return []


def _with_values(clause: str, *, corrects: bool) -> list[FactDraft]:
    """Return the facts that `ricordo.memory.facts` reads in the clause."""
    drafts: list[FactDraft] = []
    has_ended = found_in("was", clause) is not None
    denies = _denies(clause)
    text = " ".join(_DENIALS.sub(" ", clause).split()) if denies else clause
    for fact in facts.facts_in(text):
        if fact.subject == facts.MENTIONED or has_ended:
            continue
        slot = slot_of(fact)
        value = value_of(fact)
        if denies:
            value = f"not {value}"
        kind = _KINDS_OF_SLOTS.get(fact.kind, "who")
        if fact.subject != facts.PERSON:
            kind = "relation"
        draft = _draft(clause, kind, slot, value, corrects=corrects)
        drafts.append(replace(draft, subject=fact.subject.removesuffix(" is") or USER))
    return drafts


def _draft(
    clause: str,
    kind: FactKind,
    slot: str = "",
    value: str = "",
    *,
    corrects: bool = False,
    confidence: float = _CONFIDENCE["slot"],
) -> FactDraft:
    return FactDraft(
        clause, kind, (), slot=slot, value=value, corrects=corrects, confidence=confidence
    )


def slot_of(fact: facts.Fact) -> str:
    """Return the slot of a fact: its kind, with its topic or the things that it compares."""
    if fact.kind == "preference":
        pair = sorted({plain(fact.value), plain(fact.instead_of)})
        return f"preference:{'|'.join(pair)}"
    if fact.topic:
        return f"{fact.kind}:{plain(fact.topic)}"
    return fact.kind


def value_of(fact: facts.Fact) -> str:
    """Return the value of a fact in a form in which facts can be compared.

    "I moved to Vienna in May" has the home "vienna".
    """
    if fact.kind == "contact":
        return fact.value.casefold()
    value_words = plain(fact.value).split()
    if len(value_words) > 2 and value_words[-1] in MONTHS:
        value_words = value_words[:-2]
    return " ".join(value_words)


def _denies(clause: str) -> bool:
    return found_in("negated", clause) is not None


def _thing(text: str) -> str:
    """Return a thing in a form in which facts can be compared: the stems of its words."""
    words = list(dict.fromkeys(terms(text)))
    return " ".join([word for word in words if word not in _STOP] or words)


def plain(text: str) -> str:
    """Return the words of a text in small letters, without an article at its start."""
    words = re.findall(r"\w+", text.casefold())
    while len(words) > 1 and words[0] in _ARTICLES:
        words.pop(0)
    return " ".join(words)


_ARTICLES = frozenset(
    "a an the der die das den dem ein eine einen le la les l un une el los las una il lo i gli uno".split()
)


def content_words(text: str) -> frozenset[str]:
    """Return the terms of a text that carry meaning."""
    return frozenset(term for term in terms(text) if term not in _STOP)
