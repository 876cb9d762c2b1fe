"""The tools that the librarian calls, in order to file, correct, forget and search."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ricordo.domain.model import ToolSchema
from ricordo.features.librarian.grammar import (
    READ_LENGTH,
    Intent,
    facts_asked,
    facts_told,
    found_in,
    is_personal,
    is_same_frame,
    is_single,
    is_wished,
    read,
    sentences,
    shared,
    statements,
    topic,
    words_in,
)
from ricordo.features.librarian.view import (
    LibrarianCall,
    LibrarianView,
    Note,
    ShownBlock,
    note_of,
    rows_of,
    stored_words,
)
from ricordo.memory.facts import READ_LENGTH as READ_LENGTH_OF_FACTS
from ricordo.memory.facts import revision_of
from ricordo.memory.line_likeness import says_sentence

INSERT = "memory_insert"
REPLACE = "memory_replace"
ARCHIVE = "archival_memory_insert"
FORGET = "forget"
# The beginning of the result of the tool `FORGET` if the owner must still decide.
ASKED = "Asked."
SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "conversation_search": {"roles": ["user"], "limit": 20},
    "archival_memory_search": {"top_k": 10},
}
# An empty query returns the newest passages.
LIST_ARCHIVE = LibrarianCall("archival_memory_search", {"query": "", "top_k": 20})
# Words for tastes. A question may name a favourite, and the statement a preference.
_OF_TASTES = "favourite favorite prefer lieber préfère prefiero"
# Words that occur in answers but not in the questions.
_ALSO_SEARCHED = {
    "home": "moved home settled wohne gezogen habite déménagé vivo mudado",
    "age": "old years turned Jahre ans años",
    "diet": "allergic vegetarian allergisch allergique alérgico",
    "job": "work arbeite travaille trabajo job position started joined",
    "name": "name call heiße appelle llamo",
    "birthday": "born birthday Geburtstag",
}
FORGET_WHICH = (
    'Several of my notes fit. Say "yes" and I forget all of these, or tell me more exactly which '
    "one to forget:"
)
# The most rounds if parallel calls are off, since each round then has one call.
_MAX_ROUNDS = 20
_LONGEST_CORRECTED = 120
_LONGEST_QUERY = 400
# The most sentences that one request to forget may name, and their most characters in total.
_MOST_SENTENCES = 15
_LONGEST_WISH = 1_500
_OLDER = (
    ("new_string", "content"),
    ("new_string", "new_content"),
    ("old_string", "old_content"),
)
# Words that only say that something has changed. A correction adds information if it has at least
# `_LEAST_ADDED` other words.
_OF_CORRECTIONS = (
    "sorry wrong got mistake actually correction now moved move live lives last week month year "
    "yesterday recently just changed mind jetzt nun gezogen umgezogen letzte woche entschuldigung "
    "falsch maintenant déménagé semaine dernière désolé pardon ahora mudado mudé semana pasada "
    "perdón he she it is not no longer prefer turned favourite years old"
)
_LEAST_ADDED = 2
# Words of a sentence that may be missing in a note.
_UNSAID = "i im ive i'm i've am we we're my our is are was were a an the that to"
_SMALLEST = {"boolean": False, "integer": 0, "number": 0, "array": [], "object": {}, "null": None}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a note: its whole text, or one of its sentences.

    `about` is the sentence that a fragment continues.
    """

    note: Note
    text: str
    about: str = ""

    @property
    def rest(self) -> str:
        """Return the note without this statement.

        Sentences that refer to it are left out too, since they mean nothing alone.
        """
        removed = [self.text]
        removed += [
            statement.text for statement in statements_of(self.note) if statement.about == self.text
        ]
        rest = self.note.text
        for text in removed:
            rest = rest.replace(text, " ", 1)
        return " ".join(rest.split()).removesuffix(" and").strip(" ;,")


def planned_calls(view: LibrarianView, intents: Sequence[Intent]) -> list[LibrarianCall]:
    """Return the calls to make now; an empty list means that it is time to answer.

    Args:
        view: The notes, the tools, and the calls that were made in this turn.
        intents: The intents of the person's message.
    """
    if view.rounds and (view.may_call_in_parallel or view.rounds >= _MAX_ROUNDS):
        return _asking(view, intents)
    planned = (*_forgetting(view, intents), *_filing(view, intents), *_searching(view, intents))
    past_calls = [(outcome.tool, outcome.arguments) for outcome in view.outcomes]
    calls = [complete(call, view.tools[call.tool]) for call in planned]
    calls = [call for call in calls if (call.tool, call.arguments) not in past_calls]
    calls = calls or _asking(view, intents)
    if view.may_call_in_parallel:
        return calls
    return calls[:1]


def complete(call: LibrarianCall, schema: ToolSchema) -> LibrarianCall:
    """Return the call with arguments that match its schema.

    Missing required arguments are added, and unknown ones are dropped.

    Args:
        call: The planned call, with the newest names of arguments.
        schema: The schema of the agent's tool, which may be an older one.
    """
    properties: dict[str, Any] = schema.parameters.get("properties") or {}
    arguments = {name: value for name, value in call.arguments.items() if name in properties}
    for name, older in _OLDER:
        if name in call.arguments and older in properties:
            arguments[older] = call.arguments[name]
    for name in schema.parameters.get("required") or ():
        arguments.setdefault(name, _smallest_value(name, properties.get(name) or {}))
    return LibrarianCall(call.tool, arguments)


def _smallest_value(name: str, schema: Mapping[str, Any]) -> object:
    """Return the simplest value that is valid for a required parameter."""
    choices = schema.get("enum")
    if choices:
        return choices[0]
    return name == "request_heartbeat" or _SMALLEST.get(str(schema.get("type")), "")


def known_note(view: LibrarianView, statement: str) -> Note | None:
    """Return the note that says the same thing as the statement, if there is one.

    Args:
        view: The notes to search.
        statement: One statement of the person; for a very long one, None is returned.
    """
    # The start of a longer text does not show whether all of it is known.
    if len(statement) > READ_LENGTH or not (text := _plain(statement)):
        return None
    kinds = {kind for kind in facts_told(statement) if is_single(kind)}
    value = topic(statement) - words_in(" ".join(kinds))
    for note in view.notes:
        # "My name is Ada." says the same as the line "Name: Ada".
        says_it = (
            kinds
            and kinds <= facts_told(note.text)
            and value
            and shared(value, note.text) == len(value)
        )
        line = " ".join(note.text.strip('"“”').split())
        if says_it or _plain(line) == text or says_sentence(line, " ".join(statement.split())):
            return note
    return None


def _plain(text: str) -> str:
    return re.sub(r"\W+", " ", text[:READ_LENGTH].casefold()).strip()


def matching(view: LibrarianView, phrase: str) -> list[Statement]:
    """Return the statements of notes that match the words best.

    If several match equally well, all are returned.

    Args:
        view: The notes; those in read-only blocks are left out.
        phrase: A wish or question in a person's words.
    """
    terms = topic(phrase)
    kinds = facts_asked(phrase) | facts_told(phrase)
    scored = []
    for statement in _statements(view):
        if _is_said_in(phrase, statement.text):
            if statement.about:
                text = f"{statement.about} {statement.text}"
            else:
                text = statement.text
            scored.append((points_of(text, terms, kinds), statement))
    best = max((points for points, _ in scored), default=0)
    if not best or best * 2 <= len(terms):
        return []
    fits = [statement for points, statement in scored if points == best]
    # "Forget Mia": a sentence that continues a sentence about her is forgotten with it.
    fit_words = {statement.text for statement in fits}
    return [statement for statement in fits if statement.about not in fit_words]


def _is_said_in(wish: str, text: str) -> bool:
    """Return True if the text contains the statement that a wish names.

    If a wish names no whole sentence, any text is accepted. "I do not like tea" does not contain "I
    like tea".
    """
    if not found_in("is_clause", wish):
        return True
    is_same_kind = facts_told(wish) & facts_told(text)
    if is_same_kind:
        named = topic(wish) - words_in("live name call move")
    else:
        named = words_in(wish) - words_in(_UNSAID)
    if shared(named, text) != len(named):
        return False
    return bool(found_in("negated", wish)) == bool(found_in("negated", text))


def points_of(text: str, terms: frozenset[str], kinds: set[str]) -> int:
    """Return one point for each shared term, and two for a shared kind of fact.

    Args:
        text: The statement to rate.
        terms: The terms of a question or wish, from `topic`.
        kinds: The kinds of facts that it asks for or states, such as "home".
    """
    return shared(terms, text) + 2 * bool(kinds & facts_told(text))


def _statements(view: LibrarianView) -> list[Statement]:
    writable = {block.label for block in view.blocks if not block.is_read_only}
    notes = [note for note in view.notes if note.label in writable]
    return [statement for note in notes for statement in statements_of(note)]


def statements_of(note: Note) -> list[Statement]:
    """Return the statements of a note, in order."""
    parts: list[Statement] = []
    for text in statements(note.text):
        about = ""
        if parts and found_in("continues", text):
            about = parts[-1].about or parts[-1].text
        parts.append(Statement(note, text, about))
    return parts


def is_confirmed(view: LibrarianView, intents: Sequence[Intent]) -> bool:
    """Return True if the person confirmed that all listed notes are to be forgotten."""
    return FORGET_WHICH in view.last_answer and [intent.kind for intent in intents] == ["yes"]


def _to_forget(view: LibrarianView, intents: Sequence[Intent]) -> list[Statement]:
    """Return the statements to forget.

    They are the listed statements if the person confirmed the list. Otherwise they are the
    statements that a wish names unambiguously.
    """
    if is_confirmed(view, intents):
        lines = view.last_answer.partition(FORGET_WHICH)[2].splitlines()
        return [statement for statement in _statements(view) if f'- "{statement.text}"' in lines]
    # After a statement is removed, other statements may match the wish best. The person did not
    # mean those, so nothing more is removed.
    wishes = [
        intent.text for intent in intents if intent.kind == "forget" and not view.calls_of(REPLACE)
    ]
    named = [fits[0] for text in wishes if len(fits := matching(view, text)) == 1]
    return list(dict.fromkeys(named))


def _forgetting(view: LibrarianView, intents: Sequence[Intent]) -> Iterator[LibrarianCall]:
    if REPLACE not in view.tools:
        return
    for statement in _to_forget(view, intents):
        note = statement.note
        value = next(block.value for block in view.blocks if block.label == note.label)
        old_texts = [note.line]
        new_text = note.line.replace(note.text, statement.rest)
        if not statement.rest:
            # The line break is removed too, since otherwise an empty line would remain.
            old_texts = [note.line + "\n", "\n" + note.line, note.line]
            new_text = ""
        old_text = next((text for text in old_texts if value.count(text) == 1), None)
        if old_text:
            yield _replacement(note.label, old_text, new_text, quote=view.person_text)


def _asking(view: LibrarianView, intents: Sequence[Intent]) -> list[LibrarianCall]:
    """Return the call that asks to forget statements in all places where they were said."""
    if FORGET not in view.tools or view.calls_of(FORGET):
        return []
    struck = [note_of("", call.old_words.strip()).text for call in view.calls_of(REPLACE)]
    sentences_to_forget: list[str] = []
    for wish in intents:
        # If several notes match equally well, they are first listed, so that the person can
        # confirm.
        if wish.kind == "forget" and (struck or len(matching(view, wish.text)) < 2):
            sentences_to_forget += _said_about(view, wish) or _subject(wish)
    if is_confirmed(view, intents):
        sentences_to_forget += struck
    lines = list(dict.fromkeys(_without_secret(text) for text in sentences_to_forget))[
        :_MOST_SENTENCES
    ]
    if not lines:
        return []
    arguments = {"text": "\n".join(lines)[:_LONGEST_WISH], "reason": "They asked for it."}
    return [complete(LibrarianCall(FORGET, arguments), view.tools[FORGET])]


def _subject(wish: Intent) -> list[str]:
    """Return the subject of a wish, as a list; an empty list if the wish names none."""
    if wish.about:
        return [wish.about]
    return [wish.text] if topic(wish.text) or facts_asked(wish.text) else []


def _said_about(view: LibrarianView, wish: Intent) -> list[str]:
    """Return the sentences about the subject of a wish, from notes, messages and search results."""
    hits = [
        stored_words(str(row["content"]))
        for call in view.calls_of(*SEARCHES)
        for row in rows_of(call)
    ]
    told_sentences = [
        sentence for text in (*view.earlier_texts, *hits) for sentence in _told_sentences(text)
    ]
    notes = [statement.text for statement in matching(view, wish.text)]
    wished = [sentence for sentence in told_sentences if is_wished(wish, sentence)]
    return [*notes, *(part for sentence in wished for part in _wished_parts(wish, sentence))]


def _wished_parts(wish: Intent, sentence: str) -> list[str]:
    """Return the statements of a sentence that are about a wish, or else the whole sentence."""
    stated = [intent.text for intent in read(sentence) if intent.kind == "tell"]
    return [text for text in stated if is_wished(wish, text)] or [sentence]


def _told_sentences(text: str) -> list[str]:
    """Return the sentences of a message, each joined with the sentences that continue it.

    The list is empty if the message contains a wish to forget.
    """
    if wishes_in(text):
        return []
    told_sentences: list[str] = []
    for sentence in sentences(text):
        if told_sentences and found_in("continues", sentence):
            told_sentences[-1] = f"{told_sentences[-1]} {sentence}"
        else:
            told_sentences.append(sentence)
    return told_sentences


def wishes_in(text: str) -> list[Intent]:
    return [intent for intent in read(text) if intent.kind == "forget"]


def wishes_in_view(view: LibrarianView) -> list[Intent]:
    """Return the wishes to forget in the person's earlier messages in view."""
    return [wish for text in view.earlier_texts for wish in wishes_in(text)]


def is_asked_about(wish: Intent, question: str) -> bool:
    """Return True if a question asks about the subject of a wish."""
    return is_wished(wish, question) or bool(topic(wish.text) & topic(question))


def _without_secret(text: str) -> str:
    """Return a sentence up to a password in it. The password need not be repeated."""
    match = found_in("secret", text)
    return text[: match.end() - 1].rstrip(" :=") if match else text


def _filing(view: LibrarianView, intents: Sequence[Intent]) -> Iterator[LibrarianCall]:
    block = view.person_block
    archives = ARCHIVE in view.tools
    room = block.limit - len(block.value) - 1 if block else 0
    lines: list[str] = []
    archived: list[str] = []
    new_statements = _new_statements(view, intents)
    for intent in new_statements:
        line = _note_line(view, intent)
        is_for_block = not archives or (is_personal(intent.text) and not intent.is_note)
        changed = None
        if block and REPLACE in view.tools:
            changed = _changed_line(view, block, intent, line)
        if block and changed and len(changed[1]) - len(changed[0]) <= room:
            yield _replacement(block.label, *changed, quote=intent.text)
            room -= len(changed[1]) - len(changed[0])
        elif is_for_block and len(line) <= room and INSERT in view.tools:
            lines.append(line)
            room -= len(line) + 1
        else:
            archived.append(intent.text)
    if block and lines:
        arguments = {
            "label": block.label,
            "new_string": "\n".join(lines),
            "insert_line": -1,
            "quote": new_statements[0].text,
        }
        yield LibrarianCall(INSERT, arguments)
    if archives:
        for text in archived:
            yield LibrarianCall(ARCHIVE, {"content": text, "tags": ["note"]})


def note_lines(view: LibrarianView, intents: Sequence[Intent]) -> list[str]:
    """Return a note's line for each new statement."""
    return [_note_line(view, intent) for intent in _new_statements(view, intents)]


def _new_statements(view: LibrarianView, intents: Sequence[Intent]) -> list[Intent]:
    return [
        intent for intent in intents if intent.kind == "tell" and not known_note(view, intent.text)
    ]


def _note_line(view: LibrarianView, intent: Intent) -> str:
    return f'{view.today.isoformat()}: "{" ".join(intent.text.split())}"'


def _changed_line(
    view: LibrarianView, block: ShownBlock, intent: Intent, line: str
) -> tuple[str, str] | None:
    """Return the line that a new fact changes, and its new text.

    Returns None if the fact changes no line.
    """
    if old := _outdated(block, intent):
        return old.line, line
    if intent.is_note or len(intent.text) > READ_LENGTH_OF_FACTS:
        return None
    notes = [
        note for note in block.notes if note.is_statement and block.value.count(note.line) == 1
    ]
    revised = revision_of([note.text for note in notes], intent.text)
    if revised is None:
        return None
    note = notes[revised.index]
    if revised.is_whole:
        return note.line, line
    if note.said_on:
        updated = f'{view.today.isoformat()}: "{revised.line}"'
    else:
        updated = note.line.replace(note.text, revised.line, 1)
    if _adds_to(revised.line, intent.text):
        updated = f"{updated}\n{line}"
    return note.line, updated


def revised_words(old_words: str, statement: str) -> str:
    """Return the note's text after this correction; "" if the statement corrects nothing in it.

    Args:
        old_words: The note's text, without its date and quotes.
        statement: The person's new statement.
    """
    revised = revision_of([old_words], statement)
    return revised.line if revised else ""


def _adds_to(revised: str, statement: str) -> bool:
    """Return True if a correction contains more than the corrected value."""
    added = topic(statement) - words_in(revised) - words_in(_OF_CORRECTIONS)
    return len(added) >= _LEAST_ADDED


def _outdated(block: ShownBlock, intent: Intent) -> Note | None:
    """Return the line that a new fact replaces; None if there is none.

    It is the last line about this kind of fact, if that line says nothing else.
    """
    statement = intent.text
    kinds = facts_told(statement)
    corrects = intent.corrects or found_in("correction", statement) is not None
    for note in reversed(block.notes):
        text = note.text
        has_kind = bool(kinds) and facts_told(text) == kinds
        is_same = (
            (has_kind and (corrects or all(map(is_single, kinds))))
            or (corrects and bool(topic(text)) and topic(text) <= words_in(statement))
            or text == intent.replaces
            or (intent.corrects and is_same_frame(text, statement))
        )
        bare = text.lower().removeprefix("actually, ").removeprefix("no, ")
        says_one_thing = (
            len(text) <= _LONGEST_CORRECTED and len(statements(text)) == 1 and ", " not in bare
        )
        if is_same and says_one_thing and block.value.count(note.line) == 1:
            return note
    return None


def _searching(view: LibrarianView, intents: Sequence[Intent]) -> list[LibrarianCall]:
    text = question_of(intents)
    if FORGET in view.tools:
        wishes = [wish for wish in intents if wish.kind == "forget"]
        text = " ".join([text, *(f"{wish.text} {wish.about}" for wish in wishes)]).strip()
    if topic(text):
        query = text
    else:
        query = " ".join(facts_asked(text))
    kinds = facts_asked(text)
    query += "".join(f" {more}" for kind, more in _ALSO_SEARCHED.items() if kind in kinds)
    if any(kind.startswith("favourite ") for kind in kinds):
        query += f" {_OF_TASTES}"
    searches = {tool: limits for tool, limits in SEARCHES.items() if query and tool in view.tools}
    calls = [
        LibrarianCall(tool, {"query": query[:_LONGEST_QUERY], **limits})
        for tool, limits in searches.items()
    ]
    is_list = any(intent.kind == "list" for intent in intents) and LIST_ARCHIVE.tool in view.tools
    if is_list:
        return [*calls, LIST_ARCHIVE]
    return calls


def question_of(intents: Sequence[Intent]) -> str:
    return " ".join(intent.text for intent in intents if intent.kind == "ask")


def _replacement(label: str, old: str, new: str, *, quote: str) -> LibrarianCall:
    return LibrarianCall(
        REPLACE, {"label": label, "old_string": old, "new_string": new, "quote": quote}
    )
