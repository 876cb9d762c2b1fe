"""Read the meaning of sentences by patterns.

The patterns are for English, German, French and Spanish. A sentence is a statement, a question, a
wish to forget something, or a task that the librarian cannot do. A sentence of unknown meaning
counts as a statement, in any language. Words are compared as in the search index, which works in
every language.
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
from ricordo.memory.forget_wishes import GENERIC, wish_in
from ricordo.search.words import STOP_WORDS, query_terms, terms

# The number of characters that are read of one text. More would delay all other turns, and a text
# names its topic at its start.
READ_LENGTH = 4_000
NOTE_LENGTH = 300  # characters; a longer text is one note
_QUESTION_MARKS = ("?", "？")
_AFTER = "\"'”’) "
_MOST_WORDS_OF_FRAGMENT = 4
_LONGEST_SEARCH_WORD = 14  # characters

IntentKind = Literal[
    "tell", "ask", "list", "forget", "yes", "talk", "help", "task", "secret", "code", "fragment"
]


@dataclass(frozen=True, slots=True)
class Intent:
    """The meaning of one sentence.

    A note is stored whole in the archive. A correction may name the words that it replaces. If a
    wish to forget refers back, `about` contains the names in the sentence before it.
    """

    kind: IntentKind
    text: str = ""
    is_note: bool = False
    corrects: bool = False
    replaces: str = ""
    about: str = ""


def read_toml(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of the librarian.

    Args:
        name: The name of the file in this package, without its ending.
    """
    return tomllib.loads(
        files("ricordo.features.librarian").joinpath(f"{name}.toml").read_text("utf-8")
    )


def _read_patterns() -> dict[str, str]:
    raw = {name: "".join(pattern) for name, pattern in read_toml("patterns").items()}
    return {
        name: re.sub("%([a-z_]+)%", lambda reference: raw[reference[1]], pattern)
        for name, pattern in raw.items()
    }


PATTERNS = _read_patterns()


@cache
def _compiled(name: str) -> re.Pattern[str]:
    return re.compile(PATTERNS[name], re.IGNORECASE | re.DOTALL)


def found_in(name: str, text: str) -> re.Match[str] | None:
    """Search the start of the text for the pattern of this name.

    Args:
        name: The name of a pattern of the grammar.
        text: Any text, of which the first `READ_LENGTH` characters are searched.
    """
    return _compiled(name).search(text, 0, READ_LENGTH)


# A person has only one value of each of these at a time, and one of each favourite.
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
# Marks a wish that refers back, until the previous sentence is read.
_BEFORE = "before"
_IDIOMS = ("it", "that", "this", "", "es", "das", "ça", "eso", "esto")
# A program's words for the user in a question, each with the user's words for it.
_PERSONS = (
    (
        re.compile(
            r"\b(?:does|did|has|is|was) the user\b(?!['’])(?: (?:currently|now|still))?", re.I
        ),
        "do I",
    ),
    (re.compile(r"\bthe user['’]s\b(?: current)?", re.I), "my"),
)
# Words that only serve to ask, and do not belong to the topic of a question.
_ASKING = (
    "know knew remember recall tell told say said find search look show list give get ask talk "
    "mention forget notes memory me my i anything something everything nothing all you your am "
    "what who it is user currently"
)


def read(text: str) -> tuple[Intent, ...]:
    """Return the intents of the text, in order.

    A long text or a list is one note. A question that follows it is read too.

    Args:
        text: All that the person wrote in this turn.
    """
    text = text.strip()
    # Memory redacts longer texts, and a quote of such a text is redacted when it is made.
    if len(text) <= READ_LENGTH:
        text = redact(text).text
    prose = _without_code(text)
    intents = _read_prose(prose)
    if prose == text:
        return intents
    return (*intents, Intent("code"))


def _without_code(text: str) -> str:
    """Return the text without pasted code.

    If a very long text begins with code, only a question at its end is kept.
    """
    lines = _compiled("fence").sub("\n", text[:READ_LENGTH]).split("\n")
    prose: list[str] = []
    is_code = False
    for line in lines:
        is_code = bool(
            found_in("code_line", line.strip()) or (is_code and found_in("code_goes_on", line))
        )
        if not is_code:
            prose.append(line)
    if len(text) > READ_LENGTH:
        if len(prose) * 2 > len(lines):
            return text
        last_line = text[-READ_LENGTH:].rpartition("\n")[2]
        if last_line.endswith(_QUESTION_MARKS):
            return last_line
        return ""
    if len(prose) < len(lines) or "```" in text:
        return "\n".join(prose).strip()
    return text


def _read_prose(text: str) -> tuple[Intent, ...]:
    if len(text) > NOTE_LENGTH or found_in("list_line", text):
        return _read_note(text)
    intents: list[Intent] = []
    opening = ""
    for part in sentences(text):
        sentence = opening + part
        opening = ""
        if found_in("only_opens", part) and not text.endswith(part):
            opening = part + " "
            continue
        intent = _read_sentence(sentence)
        if (
            intents
            and intents[-1].kind == intent.kind == "tell"
            and found_in("continues", sentence)
        ):
            # "My sister is Emma. She is a doctor.": the second sentence means nothing without the
            # first.
            intents[-1] = replace(intents[-1], text=f"{intents[-1].text} {sentence}")
        else:
            intents.append(intent)
    intents = _with_wishes(intents)
    return tuple(dict.fromkeys(part for intent in intents for part in _parts(intent)))


def _with_wishes(intents: list[Intent]) -> list[Intent]:
    """Complete wishes to forget, and drop statements that only accompany such a wish."""
    if all(intent.kind != "forget" for intent in intents):
        return intents
    wishes = [
        replace(intent, about=_named_before(intents[index - 1 : index])) if intent.about else intent
        for index, intent in enumerate(intents)
        if intent.kind == "forget"
    ]
    remaining = [intent for intent in intents if not _is_beside(intent, wishes)]
    completed = iter(wishes)
    return [next(completed) if intent.kind == "forget" else intent for intent in remaining]


def _named_before(earlier: Sequence[Intent]) -> str:
    """Return the names in the previous sentence, for a wish that refers back to it."""
    names = [name for intent in earlier for name in _compiled("name_within").findall(intent.text)]
    return " ".join(dict.fromkeys(names))


def _points_back(sentence: str, wish: str) -> bool:
    """Return True for "Forget everything about that relationship.", but False for "Forget it."."""
    if topic(wish) - _GENERIC or wish.casefold() in _IDIOMS:
        return False
    return bool(found_in("points_back", sentence))


def _is_beside(intent: Intent, wishes: Sequence[Intent]) -> bool:
    """Return True for a sentence about something to be forgotten, which must not be filed."""
    if intent.kind != "tell":
        return False
    return bool(found_in("beside_wish", intent.text)) or any(
        is_wished(wish, intent.text) for wish in wishes
    )


def is_wished(wish: Intent, text: str) -> bool:
    """Return True if a text is about the subject that a wish to forget names.

    Args:
        wish: An intent of the kind "forget".
        text: A sentence or a note.
    """
    if wish.about:
        return bool(words_in(wish.about) & words_in(text))
    return is_about(wish.text, text)


def is_about(text: str, phrase: str) -> bool:
    """Return True if a phrase is about the subject of a wish or question.

    Args:
        text: The wish or question.
        phrase: A statement of memory.
    """
    subject = topic(text) - _GENERIC
    is_same_fact = bool((facts_asked(text) | facts_told(text)) & facts_told(phrase))
    return is_same_fact or (bool(subject) and shared(subject, phrase) * 2 > len(subject))


def _parts(intent: Intent) -> list[Intent]:
    """Return one intent for each statement that can stand alone."""
    if intent.kind != "tell":
        return [intent]
    texts = statements(intent.text)
    if any(found_in("continues", text) for text in texts[1:]):
        return [intent]
    clauses = [clause for text in texts for clause in _by_verb(_without_and(text))]
    if len(clauses) < 2:
        return [intent]
    return [replace(intent, text=clause) for clause in clauses]


def _without_and(part: str) -> str:
    return _compiled("and_at_end").sub("", part).rstrip(" ,;")


def _by_verb(clause: str) -> list[str]:
    """Split a clause with two verbs, such as "I live in Graz and work as a nurse".

    The subject is repeated in the second part.
    """
    person = found_in("person", clause)
    if not person or found_in("bound", clause):
        return [clause]
    first, *others = (part.strip(" ,;") for part in _compiled("same_person").split(clause))
    if not first:
        return [clause]
    subject = person[0].strip()
    return [first, *(_with_person(subject, part) for part in others if part)]


def _with_person(subject: str, clause: str) -> str:
    if subject.casefold() in ("je", "j'", "j’"):
        if clause[:1].casefold() in "aeéèhiou":
            return f"J'{clause}"
        return f"Je {clause}"
    return f"{subject} {clause}"


def corrected(intents: Sequence[Intent], filed: str) -> tuple[Intent, ...]:
    """Return the intents with "No, green." completed to a sentence.

    The sentence begins like the last filed statement, for example "My favourite colour is blue.".

    Args:
        intents: The intents of the person's last text.
        filed: The last filed statement; "" if there is none.
    """
    start = frame(filed)
    end = start.lower().rpartition(" ")[2] + " "
    return tuple(
        _complete(intent, start, end, filed) if intent.kind == "fragment" else intent
        for intent in intents
    )


def _complete(fragment: Intent, start: str, end: str, filed: str) -> Intent:
    text = fragment.text
    if start:
        text = text[len(end) * text.lower().startswith(end) :]
        return Intent("tell", f"{start} {text}", corrects=True, replaces=filed)
    if len(text.split()) > 2:
        return Intent("tell", text, corrects=True)
    return fragment


def frame(text: str) -> str:
    """Return the beginning of the statement up to its value, or "".

    Args:
        text: One statement. A long one has no frame.
    """
    if len(text) <= NOTE_LENGTH:
        match = found_in("frame", text)
    else:
        match = None
    return match[1] if match else ""


def is_denied(statement: str, other: str) -> bool:
    """Return True if one statement denies the other.

    For example "I don't like tea any more." denies "I like tea.".

    Args:
        statement: The statement whose terms the other one must have, such as "I like tea.".
        other: The other statement.
    """
    is_same = bool(topic(statement)) and words_in(statement) <= words_in(other)
    return is_same and bool(found_in("negated", statement)) != bool(found_in("negated", other))


def is_same_frame(statement: str, other: str) -> bool:
    """Return True if both statements give a value to the same property.

    A property has only one value. An example is "I work at Fiat." and "I work at Ferrari.".

    Args:
        statement: A statement.
        other: The other statement. If it only adds a value ("I also like …"), the result is False.
    """
    start = frame(statement).casefold()
    return (
        len(start.split()) > 2 and start == frame(other).casefold() and not found_in("adds", other)
    )


def _read_note(text: str) -> tuple[Intent, ...]:
    if found_in("secret", text):
        return (Intent("secret"),)
    # The end of a very long text is read too, since it may be a question.
    parts = sentences(text[-READ_LENGTH:])
    if wish := found_in("keep", text):
        text = text[wish.start("rest") :].strip()
    note = Intent("tell", text, is_note=True)
    last = _read_sentence(parts[-1]) if parts else note
    if last.kind != "ask" or not parts[-1].rstrip(_AFTER).endswith(_QUESTION_MARKS):
        return (note,)
    if len(parts) == 1:
        return (last,)
    return (note, last)


def _read_sentence(sentence: str) -> Intent:
    bare = _compiled("filler").sub("", sentence)
    corrected_part = _compiled("opens_correction").sub("", bare)
    corrects = corrected_part != bare
    bare = corrected_part
    wish = _compiled("polite").sub("", bare)
    is_marked = sentence.rstrip(_AFTER).endswith(_QUESTION_MARKS)
    # "Remember my name?" is a question, "Can you remember my name?" is a wish.
    is_wish = wish != bare or not is_marked
    to_forget = wish_in(sentence)
    if to_forget is None and _is_about_a_secret(sentence, bare, is_marked=is_marked):
        return Intent("secret")
    plain: tuple[IntentKind, ...] = ("yes", "talk", "help", "list")
    for kind in plain:
        if found_in(kind, bare):
            return Intent(kind)
    if is_wish and (to_keep := found_in("keep", wish)):
        return Intent("tell", to_keep["rest"].rstrip("?？ ") if is_marked else to_keep["rest"])
    if to_forget is not None:
        is_open = _points_back(sentence, to_forget)
        return Intent("forget", to_forget, about=_BEFORE if is_open else "")
    if found_in("task", wish) and not facts_told(wish):
        return Intent("task")
    if is_marked or found_in("look", wish) or _is_question(bare):
        return Intent("ask", sentence)
    return _read_statement(bare, corrects=corrects)


def _read_statement(bare: str, *, corrects: bool) -> Intent:
    """Return the intent of a sentence that is no question. A single word is a search."""
    if corrects and _is_fragment(bare):
        return Intent("fragment", bare)
    if _is_search_word(bare):
        return Intent("ask", bare)
    return Intent("tell", bare, corrects=corrects)


def _is_about_a_secret(sentence: str, bare: str, *, is_marked: bool) -> bool:
    """Return whether the sentence tells a secret or asks for one."""
    if found_in("secret", sentence):
        return True
    is_question = is_marked or bool(found_in("question", bare))
    return is_question and bool(found_in("secret_asked", sentence))


def _is_question(bare: str) -> bool:
    """Return whether a sentence without a question mark is a question."""
    if bare.endswith("!"):
        return False
    return bool(found_in("question", bare)) and not found_in("when_i", bare)


def _is_fragment(bare: str) -> bool:
    """Return whether a correction has only the corrected words, such as "Graz, not Linz"."""
    if len(bare.split()) > _MOST_WORDS_OF_FRAGMENT:
        return False
    return not found_in("first_person", bare) and not found_in("has_verb", bare)


def _is_search_word(bare: str) -> bool:
    """Return whether the sentence is a single word, which is a search rather than a statement."""
    is_short = len(bare) <= _LONGEST_SEARCH_WORD and bare.isascii()
    return is_short and len(bare.split()) == 1


def sentences(text: str, end: str = "sentence_end") -> list[str]:
    """Split the start of the text at the pattern `end`.

    Args:
        text: A text, of which the first `READ_LENGTH` characters are split.
        end: The name of the pattern of an end.
    """
    text = text[:READ_LENGTH]
    parts = []
    start = 0
    for match in _compiled(end).finditer(text):
        before = text[max(start, match.start() - 9) : match.start()]
        if not (text[match.start()] == "." and found_in("no_end", before)):
            parts.append(text[start : match.end()].strip())
            start = match.end()
    return [part for part in (*parts, text[start:].strip()) if re.search(r"\w", part)]


def statements(text: str) -> list[str]:
    """Split the text into statements, each of which can be corrected and forgotten separately.

    Args:
        text: A text, of which the first `READ_LENGTH` characters are split.
    """
    return [part for sentence in sentences(text, "statement_end") for part in _clauses(sentence)]


def _clauses(sentence: str) -> list[str]:
    clauses = sentences(sentence, "clause_end")
    if found_in("bound", sentence) or not all(found_in("clause", clause) for clause in clauses):
        return [sentence]
    if any(found_in("refers", clause) for clause in clauses[1:]):
        return [sentence]
    return clauses


def is_personal(text: str) -> bool:
    """Return True if the text is in the first person, or tells a known kind of fact.

    Args:
        text: One statement.
    """
    return bool(found_in("first_person", text) or facts_told(text))


def facts_told(text: str) -> set[str]:
    """Return the kinds of facts that the text tells, such as a name or an address.

    Args:
        text: One statement.
    """
    return _facts(text, "tells")


def facts_asked(text: str) -> set[str]:
    """Return the kinds of facts for which the text asks.

    Args:
        text: One question or wish.
    """
    return _facts(_in_first_person(text), "asks")


def _in_first_person(question: str) -> str:
    """Return a program's question about "the user" in the person's words."""
    text = question[:READ_LENGTH]
    for pattern, person in _PERSONS:
        text = pattern.sub(person, text)
    return text


def _facts(text: str, mode: str) -> set[str]:
    kinds = _TOLD_KINDS if mode == "tells" else _ASKED_KINDS
    matched = {kind for kind in kinds if found_in(f"{mode}_{kind}", text)}
    if mode == "tells":
        for fact in facts.facts_in(text[: facts.READ_LENGTH]):
            kind = _KINDS.get(fact.kind, fact.kind)
            if fact.subject == facts.PERSON and kind in _ASKED_KINDS:
                matched.add(kind)
    if not matched and (custom := found_in(f"{mode}_own", text)):
        phrase = " ".join(next(filter(None, custom.groups())).lower().split())
        matched.add(phrase.replace("favorite", "favourite").replace("color", "colour"))
    return matched


def is_single(kind: str) -> bool:
    """Return True if a person has one fact of this kind at a time.

    Args:
        kind: A kind of fact, as `facts_told` returns it.
    """
    return kind in _SINGLE or kind.startswith("favourite ")


@lru_cache(4096)
def words_in(text: str) -> frozenset[str]:
    """Return the terms in the first `READ_LENGTH` characters of the text.

    Args:
        text: Any text.
    """
    return frozenset(terms(text[:READ_LENGTH]))


# Words of any language that do not name a subject.
_GENERIC = words_in(" ".join(GENERIC)).union(
    *STOP_WORDS.values(), words_in("mein meine meinen meiner mia mio miei mie")
)


@lru_cache(512)
def topic(text: str) -> frozenset[str]:
    """Return the terms of a question or wish, without words that only serve to ask.

    Args:
        text: The question or wish.
    """
    return frozenset(query_terms(text[:READ_LENGTH])) - words_in(_ASKING)


def shared(terms: frozenset[str], text: str) -> int:
    """Return the number of terms that the text contains, in any inflection.

    Args:
        terms: The terms of a subject, as `topic` returns them.
        text: Any text, of which the first `READ_LENGTH` characters are read.
    """
    text_terms = words_in(text)
    return sum(
        1
        for term in terms
        if term in text_terms or any(_are_related(term, word) for word in text_terms)
    )


def _are_related(term: str, other: str) -> bool:
    """Return True if two terms differ only in a short ending."""
    if term[:4] != other[:4] or not (term + other).isalpha():
        return False
    shorter = min(len(term), len(other))
    longer = max(len(term), len(other))
    common = shorter
    for position, (letter, other_letter) in enumerate(zip(term, other, strict=False)):
        if letter != other_letter:
            common = position
            break
    # "Marco" is no inflection of "March".
    is_stem = common > 4 or common == shorter == 4
    return is_stem and longer - common <= (2 if common == 4 else 3)
