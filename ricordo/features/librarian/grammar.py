"""What a person means, as far as the librarian can tell from English, German, French and Spanish: to tell, ask, forget, or a
task beyond it.

What it cannot tell is a statement, in any language. Words are compared as the search index does, so in every language.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal

from ricordo.domain.redaction import redact
from ricordo.memory import facts

# The characters of one text that are read: more would hold up all other turns, and what a text is about is at its start.
READ_LENGTH = 4_000
NOTE_LENGTH = 300
_QUESTION_MARKS = ("?", "？")
_AFTER = "\"'”’) "

IntentKind = Literal[
    "tell", "ask", "list", "forget", "yes", "talk", "help", "task", "secret", "code", "fragment"
]


@dataclass(frozen=True, slots=True)
class Intent:
    """What one sentence asks for. A note is kept whole in the archive; what corrects may name the words that it replaces."""

    kind: IntentKind
    text: str = ""
    is_note: bool = False
    corrects: bool = False
    replaces: str = ""


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(
        files("ricordo.features.librarian").joinpath(f"{name}.toml").read_text("utf-8")
    )


def _read_patterns() -> dict[str, str]:
    whole = {name: "".join(pattern) for name, pattern in read_toml("patterns").items()}
    return {
        name: re.sub("%([a-z_]+)%", lambda other: whole[other[1]], pattern)
        for name, pattern in whole.items()
    }


PATTERNS = _read_patterns()


@cache
def _compiled(name: str) -> re.Pattern[str]:
    return re.compile(PATTERNS[name], re.IGNORECASE | re.DOTALL)


def found_in(name: str, text: str) -> re.Match[str] | None:
    """Search the start of the text for the pattern of this name."""
    return _compiled(name).search(text, 0, READ_LENGTH)


# A person has one of these at a time, and one of each favourite.
_SINGLE = {
    "name",
    "full name",
    "home",
    "address",
    "city",
    "birthday",
    "age",
    "email",
    "phone",
    "phone number",
}
_TOLD_KINDS = ("name", "home", "age", "diet")
_ASKED_KINDS = ("name", "home", "age", "job", "birthday", "diet")
_KINDS = {"workplace": "job"}
# What a question asks with, and is not about.
_ASKING = (
    "know knew remember recall tell told say said find search look show list give get ask talk mention forget notes memory me my i "
    "anything something everything nothing all you your am what who it is"
)


def read(text: str) -> tuple[Intent, ...]:
    """Return what the text asks for, in order. A long text or a list is one note; a question after it is answered too."""
    text = text.strip()
    # Memory itself redacts a longer one; what is repeated of it is redacted then.
    text = redact(text).text if len(text) <= READ_LENGTH else text
    prose = _without_code(text)
    return _read_prose(prose) if prose == text else (*_read_prose(prose), Intent("code"))


def _without_code(text: str) -> str:
    """Return the text without pasted code; of a very long one that begins with code, the question at its end alone."""
    kept, is_code, lines = [], False, _compiled("fence").sub("\n", text[:READ_LENGTH]).split("\n")
    for line in lines:
        is_code = bool(
            found_in("code_line", line.strip()) or (is_code and found_in("code_goes_on", line))
        )
        kept += [] if is_code else [line]
    if len(text) > READ_LENGTH:
        last = text[-READ_LENGTH:].rpartition("\n")[2]
        return (
            text if len(kept) * 2 > len(lines) else last if last.endswith(_QUESTION_MARKS) else ""
        )
    return "\n".join(kept).strip() if len(kept) < len(lines) or "```" in text else text


def _read_prose(text: str) -> tuple[Intent, ...]:
    if len(text) > NOTE_LENGTH or found_in("list_line", text):
        return _read_note(text)
    intents: list[Intent] = []
    opening = ""
    for each in sentences(text):
        sentence, opening = opening + each, ""
        if found_in("only_opens", each) and not text.endswith(each):
            opening = each + " "
            continue
        intent = _read_sentence(sentence)
        if (
            intents
            and intents[-1].kind == intent.kind == "tell"
            and found_in("continues", sentence)
        ):
            # "My sister is Emma. She is a doctor.": apart, the second would say nothing.
            intents[-1] = replace(intents[-1], text=f"{intents[-1].text} {sentence}")
        else:
            intents.append(intent)
    return tuple(dict.fromkeys(part for intent in intents for part in _parts(intent)))


def _parts(intent: Intent) -> list[Intent]:
    """Return one intent for each statement that can stand on a line of its own."""
    told = statements(intent.text) if intent.kind == "tell" else []
    if any(found_in("continues", part) for part in told[1:]):
        return [intent]
    told = [part for whole in told for part in _by_verb(_without_and(whole))]
    return [intent] if len(told) < 2 else [replace(intent, text=part) for part in told]


def _without_and(part: str) -> str:
    return _compiled("and_at_end").sub("", part).rstrip(" ,;")


def _by_verb(clause: str) -> list[str]:
    """Divide "I live in Graz and work as a nurse", with the person named again."""
    person = found_in("person", clause)
    if not person or found_in("bound", clause):
        return [clause]
    first, *others = (part.strip(" ,;") for part in _compiled("same_person").split(clause))
    who = person[0].strip()
    return [first, *(_with_person(who, part) for part in others if part)] if first else [clause]


def _with_person(who: str, clause: str) -> str:
    if who.casefold() in ("je", "j'", "j’"):
        return f"J'{clause}" if clause[:1].casefold() in "aeéèhiou" else f"Je {clause}"
    return f"{who} {clause}"


def corrected(intents: Sequence[Intent], filed: str) -> tuple[Intent, ...]:
    """Return the intents, with "No, green." made a sentence out of what was filed last: "My favourite colour is blue."."""
    start = frame(filed)
    end = start.lower().rpartition(" ")[2] + " "
    return tuple(
        _corrected(each, start, end, filed) if each.kind == "fragment" else each for each in intents
    )


def _corrected(fragment: Intent, start: str, end: str, filed: str) -> Intent:
    words = fragment.text
    if start:
        words = words[len(end) * words.lower().startswith(end) :]
        return Intent("tell", f"{start} {words}", corrects=True, replaces=filed)
    return Intent("tell", words, corrects=True) if len(words.split()) > 2 else fragment


def frame(text: str) -> str:
    """Return how the statement begins, up to what it says of it; nothing where it cannot be told."""
    found = found_in("frame", text) if len(text) <= NOTE_LENGTH else None
    return found[1] if found else ""


def is_denied(one: str, other: str) -> bool:
    """Whether the other says that this does not hold: "I like tea.", "I don't like tea any more."."""
    is_same = bool(topic(one)) and words_in(one) <= words_in(other)
    return is_same and bool(found_in("negated", one)) != bool(found_in("negated", other))


def is_same_frame(one: str, other: str) -> bool:
    """Whether both say something of the same, and each only one thing: "I work at Fiat.", "I work at Ferrari."."""
    start = frame(one).casefold()
    return (
        len(start.split()) > 2 and start == frame(other).casefold() and not found_in("adds", other)
    )


def _read_note(text: str) -> tuple[Intent, ...]:
    if found_in("secret", text):
        return (Intent("secret"),)
    # Of a very long text the end is looked at, for the question that may be there.
    parts = sentences(text[-READ_LENGTH:])
    kept = found_in("keep", text)
    note = Intent("tell", text[kept.start("rest") :].strip() if kept else text, is_note=True)
    last = _read_sentence(parts[-1]) if parts else note
    if last.kind != "ask" or not parts[-1].rstrip(_AFTER).endswith(_QUESTION_MARKS):
        return (note,)
    return (last,) if len(parts) == 1 else (note, last)


def _read_sentence(sentence: str) -> Intent:
    bare = _compiled("filler").sub("", sentence)
    opened, bare = bare, _compiled("opens_correction").sub("", bare)
    corrects = bare != opened
    wish = _compiled("polite").sub("", bare)
    is_marked = sentence.rstrip(_AFTER).endswith(_QUESTION_MARKS)
    # "Remember my name?" asks, "Can you remember my name?" wishes.
    is_wish = wish != bare or not is_marked
    is_secret = found_in("secret", sentence) or (
        found_in("secret_asked", sentence) and (is_marked or found_in("question", bare))
    )
    if is_secret and not (is_wish and found_in("forget", wish)):
        return Intent("secret")
    plain: tuple[IntentKind, ...] = ("yes", "talk", "help", "list")
    for kind in plain:
        if found_in(kind, bare):
            return Intent(kind)
    if is_wish and (kept := found_in("keep", wish)):
        return Intent("tell", kept["rest"].rstrip("?？ ") if is_marked else kept["rest"])
    if is_wish and (forgotten := found_in("forget", wish)):
        return Intent("forget", forgotten["rest"].strip(" .!?。！？"))
    if found_in("task", wish) and not facts_told(wish):
        return Intent("task")
    if (
        is_marked
        or found_in("look", wish)
        or (found_in("question", bare) and not found_in("when_i", bare) and bare[-1:] != "!")
    ):
        return Intent("ask", sentence)
    if (
        corrects
        and len(bare.split()) <= 4
        and not found_in("first_person", bare)
        and not found_in("has_verb", bare)
    ):
        return Intent("fragment", bare)
    # A word alone is something to look for rather than something told.
    is_word = len(bare.split()) == 1 and len(bare) < 15 and bare.isascii()
    return Intent("ask", bare) if is_word else Intent("tell", bare, corrects=corrects)


def sentences(text: str, end: str = "sentence_end") -> list[str]:
    text = text[:READ_LENGTH]
    found, start = [], 0
    for match in _compiled(end).finditer(text):
        before = text[max(start, match.start() - 9) : match.start()]
        if not (text[match.start()] == "." and found_in("no_end", before)):
            found.append(text[start : match.end()].strip())
            start = match.end()
    return [part for part in (*found, text[start:].strip()) if re.search(r"\w", part)]


def statements(text: str) -> list[str]:
    """Divide the text into what can be said, corrected and forgotten by itself."""
    return [part for sentence in sentences(text, "statement_end") for part in _clauses(sentence)]


def _clauses(sentence: str) -> list[str]:
    found = sentences(sentence, "clause_end")
    stand = all(found_in("clause", part) for part in found) and not found_in("bound", sentence)
    return (
        found if stand and not any(found_in("refers", part) for part in found[1:]) else [sentence]
    )


def is_personal(text: str) -> bool:
    return bool(found_in("first_person", text) or facts_told(text))


def facts_told(text: str) -> set[str]:
    return _facts(text, "tells")


def facts_asked(text: str) -> set[str]:
    return _facts(text, "asks")


def _facts(text: str, way: str) -> set[str]:
    kinds = _TOLD_KINDS if way == "tells" else _ASKED_KINDS
    found = {kind for kind in kinds if found_in(f"{way}_{kind}", text)}
    if way == "tells":
        known = facts.facts_in(text[: facts.READ_LENGTH])
        found |= {
            _KINDS.get(fact.kind, fact.kind) for fact in known if fact.subject == facts.PERSON
        } & set(_ASKED_KINDS)
    if not found and (own := found_in(f"{way}_own", text)):
        words = " ".join(next(filter(None, own.groups())).lower().split())
        found.add(words.replace("favorite", "favourite").replace("color", "colour"))
    return found


def is_single(kind: str) -> bool:
    return kind in _SINGLE or kind.startswith("favourite ")


@lru_cache(4096)
def words_in(text: str) -> frozenset[str]:
    from ricordo.search.words import terms

    return frozenset(terms(text[:READ_LENGTH]))


@lru_cache(512)
def topic(text: str) -> frozenset[str]:
    """Return the terms that a question or a wish is about; none where it only asks."""
    from ricordo.search.words import query_terms

    return frozenset(query_terms(text[:READ_LENGTH])) - words_in(_ASKING)


def shared(wanted: frozenset[str], text: str) -> int:
    offered = words_in(text)
    return sum(
        1
        for word in wanted
        if word in offered or any(_are_related(word, other) for other in offered)
    )


def _are_related(one: str, other: str) -> bool:
    """Whether two terms are forms of one word: alike but for a short ending."""
    if one[:4] != other[:4] or not (one + other).isalpha():
        return False
    common = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    # "Marco" is not a form of "March".
    is_stem = common > 4 or common == min(len(one), len(other)) == 4
    return is_stem and max(len(one), len(other)) - common <= (2 if common == 4 else 3)
