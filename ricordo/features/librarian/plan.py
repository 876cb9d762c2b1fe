"""Which tools the librarian calls: filing what was told, correcting what changed, forgetting, and searching."""

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
    shared,
    statements,
    topic,
    words_in,
)
from ricordo.features.librarian.view import LibrarianCall, LibrarianView, Note, ShownBlock
from ricordo.memory.facts import READ_LENGTH as READ_LENGTH_OF_FACTS
from ricordo.memory.facts import revision_of

INSERT, REPLACE, ARCHIVE = "memory_insert", "memory_replace", "archival_memory_insert"
SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "conversation_search": {"roles": ["user"], "limit": 20},
    "archival_memory_search": {"top_k": 5},
}
# An empty query gives the newest.
LIST_ARCHIVE = LibrarianCall("archival_memory_search", {"query": "", "top_k": 20})
# Words that answers have and questions lack.
_ALSO_SEARCHED = {
    "home": "moved home wohne gezogen habite vivo",
    "diet": "allergic vegetarian allergisch allergique alérgico",
    "job": "work arbeite travaille trabajo",
    "name": "name heiße appelle llamo",
    "birthday": "born birthday Geburtstag",
}
FORGET_WHICH = 'Several of my notes fit. Say "yes" and I forget all of these, or tell me more exactly which one to forget:'
# With parallel calls off, one call a round.
_MAX_ROUNDS = 20
_LONGEST_CORRECTED = 120
_LONGEST_QUERY = 400
_OLDER = (("new_string", "content"), ("new_string", "new_content"), ("old_string", "old_content"))
# Words that only say that something has changed, and so many others that say more.
_OF_CORRECTIONS = (
    "sorry wrong got mistake actually correction now moved move live lives last week month year yesterday recently just changed "
    "mind jetzt nun gezogen umgezogen letzte woche entschuldigung falsch maintenant déménagé semaine dernière désolé pardon "
    "ahora mudado mudé semana pasada perdón he she it is not no longer prefer turned favourite years old"
)
_LEAST_ADDED = 2
# Words of a sentence that a note need not have.
_UNSAID = "i im ive i'm i've am we we're my our is are was were a an the that to"
_LEAST = {"boolean": False, "integer": 0, "number": 0, "array": [], "object": {}, "null": None}


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that a note says: all of it, or one of its sentences. `about` is the sentence that this one goes on from."""

    note: Note
    words: str
    about: str = ""

    @property
    def rest(self) -> str:
        """The note without this, and without the sentences that go on from it and say nothing alone."""
        left = self.note.words
        for words in (
            self.words,
            *(each.words for each in statements_of(self.note) if each.about == self.words),
        ):
            left = left.replace(words, " ", 1)
        return " ".join(left.split()).removesuffix(" and").strip(" ;,")


def planned_calls(view: LibrarianView, intents: Sequence[Intent]) -> list[LibrarianCall]:
    """Return the calls to make now; none when it is time to speak."""
    if view.rounds and (view.may_call_in_parallel or view.rounds >= _MAX_ROUNDS):
        return []
    planned = (*_forgetting(view, intents), *_filing(view, intents), *_searching(view, intents))
    made = [(outcome.tool, outcome.arguments) for outcome in view.outcomes]
    calls = [complete(call, view.tools[call.tool]) for call in planned]
    calls = [call for call in calls if (call.tool, call.arguments) not in made]
    return calls if view.may_call_in_parallel else calls[:1]


def complete(call: LibrarianCall, schema: ToolSchema) -> LibrarianCall:
    """Return the call with what its schema demands besides, and without what it does not know."""
    properties: dict[str, Any] = schema.parameters.get("properties") or {}
    arguments = {name: value for name, value in call.arguments.items() if name in properties}
    for name, older in _OLDER:
        if name in call.arguments and older in properties:
            arguments[older] = call.arguments[name]
    for name in schema.parameters.get("required") or ():
        arguments.setdefault(name, _least(name, properties.get(name) or {}))
    return LibrarianCall(call.tool, arguments)


def _least(name: str, schema: Mapping[str, Any]) -> object:
    """Return the least value that satisfies a parameter nobody told us about."""
    choices = schema.get("enum")
    return (
        choices[0]
        if choices
        else name == "request_heartbeat" or _LEAST.get(str(schema.get("type")), "")
    )


def known_note(view: LibrarianView, told: str) -> Note | None:
    if len(told) > READ_LENGTH or not (words := _plain(told)):
        return None  # its start alone does not tell whether it is known
    kinds = {kind for kind in facts_told(told) if is_single(kind)}
    value = topic(told) - words_in(" ".join(kinds))
    for note in view.notes:
        # "My name is Ada." says what the line "Name: Ada" says.
        says_it = (
            kinds
            and kinds <= facts_told(note.words)
            and value
            and shared(value, note.words) == len(value)
        )
        if says_it or f" {words} " in f" {_plain(note.words)} ":
            return note
    return None


def _plain(text: str) -> str:
    return re.sub(r"\W+", " ", text[:READ_LENGTH].casefold()).strip()


def matching(view: LibrarianView, words: str) -> list[Statement]:
    """Return the statements of notes that fit the words best: one, several where it is undecided, none."""
    wanted, kinds = topic(words), facts_asked(words) | facts_told(words)
    found = [
        (points_of(f"{each.about} {each.words}" if each.about else each.words, wanted, kinds), each)
        for each in _statements(view)
        if _is_said_in(words, each.words)
    ]
    best = max((points for points, _ in found), default=0)
    fits = (
        [each for points, each in found if points == best]
        if best * 2 > len(wanted) and best
        else []
    )
    # "Forget Mia": what only goes on from a sentence about her goes with it.
    return [each for each in fits if not any(each.about == other.words for other in fits)]


def _is_said_in(wish: str, words: str) -> bool:
    """Whether the words say what a wish names by a whole sentence: who does not like tea has not said "I like tea"."""
    if not found_in("is_clause", wish):
        return True
    is_same_kind = facts_told(wish) & facts_told(words)
    named = (
        topic(wish) - words_in("live name call move")
        if is_same_kind
        else words_in(wish) - words_in(_UNSAID)
    )
    return shared(named, words) == len(named) and bool(found_in("negated", wish)) == bool(
        found_in("negated", words)
    )


def points_of(text: str, wanted: frozenset[str], kinds: set[str]) -> int:
    return shared(wanted, text) + 2 * bool(kinds & facts_told(text))


def _statements(view: LibrarianView) -> list[Statement]:
    writable = {block.label for block in view.blocks if not block.is_read_only}
    notes = [note for note in view.notes if note.label in writable]
    return [each for note in notes for each in statements_of(note)]


def statements_of(note: Note) -> list[Statement]:
    found: list[Statement] = []
    for words in statements(note.words):
        before = (
            (found[-1].about or found[-1].words) if found and found_in("continues", words) else ""
        )
        found.append(Statement(note, words, before))
    return found


def is_confirmed(view: LibrarianView, intents: Sequence[Intent]) -> bool:
    return FORGET_WHICH in view.said_before and [intent.kind for intent in intents] == ["yes"]


def _to_forget(view: LibrarianView, intents: Sequence[Intent]) -> list[Statement]:
    """Return the statements that were named, each by words that fit no other one as well, or those of a list that was confirmed."""
    if is_confirmed(view, intents):
        lines = view.said_before.partition(FORGET_WHICH)[2].splitlines()
        return [each for each in _statements(view) if f'- "{each.words}"' in lines]
    # Once a statement is forgotten, others may fit its name best: they were not meant.
    wishes = [
        intent.text for intent in intents if intent.kind == "forget" and not view.made(REPLACE)
    ]
    named = [found[0] for words in wishes if len(found := matching(view, words)) == 1]
    return list(dict.fromkeys(named))


def _forgetting(view: LibrarianView, intents: Sequence[Intent]) -> Iterator[LibrarianCall]:
    if REPLACE not in view.tools:
        return
    for each in _to_forget(view, intents):
        note = each.note
        value = next(block.value for block in view.blocks if block.label == note.label)
        old, new = [note.line], note.line.replace(note.words, each.rest)
        if not each.rest:
            # With its line break where it has one, so that no empty line stays behind.
            old, new = [note.line + "\n", "\n" + note.line, note.line], ""
        if found := next((text for text in old if value.count(text) == 1), None):
            yield _replacement(note.label, found, new, quote=view.words)


def _filing(view: LibrarianView, intents: Sequence[Intent]) -> Iterator[LibrarianCall]:
    block, archives = view.person_block, ARCHIVE in view.tools
    room = block.limit - len(block.value) - 1 if block else 0
    lines: list[str] = []
    archived: list[str] = []
    told = [
        intent for intent in intents if intent.kind == "tell" and not known_note(view, intent.text)
    ]
    for intent in told:
        line = _note_line(view, intent)
        fits = len(line) <= room and (
            not archives or (is_personal(intent.text) and not intent.is_note)
        )
        changed = (
            _changed_line(view, block, intent, line) if block and REPLACE in view.tools else None
        )
        if block and changed and len(changed[1]) - len(changed[0]) <= room:
            yield _replacement(block.label, *changed, quote=intent.text)
            room -= len(changed[1]) - len(changed[0])
        elif fits and INSERT in view.tools:
            lines.append(line)
            room -= len(line) + 1
        else:
            archived.append(intent.text)
    if block and lines:
        words = {
            "label": block.label,
            "new_string": "\n".join(lines),
            "insert_line": -1,
            "quote": told[0].text,
        }
        yield LibrarianCall(INSERT, words)
    if archives:
        yield from (
            LibrarianCall(ARCHIVE, {"content": text, "tags": ["note"]}) for text in archived
        )


def note_lines(view: LibrarianView, intents: Sequence[Intent]) -> list[str]:
    """Return the lines of a note for all that was told and is not known."""
    told = [
        intent for intent in intents if intent.kind == "tell" and not known_note(view, intent.text)
    ]
    return [_note_line(view, intent) for intent in told]


def _note_line(view: LibrarianView, intent: Intent) -> str:
    return f'{view.today.isoformat()}: "{" ".join(intent.text.split())}"'


def _changed_line(
    view: LibrarianView, block: ShownBlock, intent: Intent, line: str
) -> tuple[str, str] | None:
    """Return the line that the new fact changes, and what stands in its place; None where it stands beside all lines."""
    if old := _outdated(block, intent):
        return old.line, line
    if intent.is_note or len(intent.text) > READ_LENGTH_OF_FACTS:
        return None
    notes = [note for note in block.notes if note.is_told and block.value.count(note.line) == 1]
    revised = revision_of([note.words for note in notes], intent.text)
    if revised is None:
        return None
    note = notes[revised.index]
    if revised.is_whole:
        return note.line, line
    dated = f'{view.today.isoformat()}: "{revised.line}"'
    updated = dated if note.said_on else note.line.replace(note.words, revised.line, 1)
    return note.line, f"{updated}\n{line}" if _adds_to(revised.line, intent.text) else updated


def revised_words(old_words: str, told: str) -> str:
    """Return what a note says after this correction; "" where it was not one."""
    revised = revision_of([old_words], told)
    return revised.line if revised else ""


def _adds_to(revised: str, told: str) -> bool:
    """Return whether a correction says more than the value that it changes."""
    return len(topic(told) - words_in(revised) - words_in(_OF_CORRECTIONS)) >= _LEAST_ADDED


def _outdated(block: ShownBlock, intent: Intent) -> Note | None:
    """Return the line whose place the new fact takes: the last one of its kind, if it says nothing else."""
    told = intent.text
    kinds, corrects = facts_told(told), intent.corrects or found_in("correction", told) is not None
    for note in reversed(block.notes):
        words = note.words
        is_same = (
            bool(kinds) and facts_told(words) == kinds and (corrects or all(map(is_single, kinds)))
        )
        is_same = is_same or (corrects and bool(topic(words)) and topic(words) <= words_in(told))
        is_same = (
            is_same or words == intent.replaces or (intent.corrects and is_same_frame(words, told))
        )
        bare = words.lower().removeprefix("actually, ").removeprefix("no, ")
        says_one_thing = (
            len(words) <= _LONGEST_CORRECTED and len(statements(words)) == 1 and ", " not in bare
        )
        if is_same and says_one_thing and block.value.count(note.line) == 1:
            return note
    return None


def _searching(view: LibrarianView, intents: Sequence[Intent]) -> list[LibrarianCall]:
    words = question_of(intents)
    query = words if topic(words) else " ".join(facts_asked(words))
    kinds = facts_asked(words)
    query += "".join(f" {more}" for kind, more in _ALSO_SEARCHED.items() if kind in kinds)
    found = {tool: limits for tool, limits in SEARCHES.items() if query and tool in view.tools}
    calls = [
        LibrarianCall(tool, {"query": query[:_LONGEST_QUERY], **limits})
        for tool, limits in found.items()
    ]
    is_list = any(intent.kind == "list" for intent in intents) and LIST_ARCHIVE.tool in view.tools
    return [*calls, LIST_ARCHIVE] if is_list else calls


def question_of(intents: Sequence[Intent]) -> str:
    return " ".join(intent.text for intent in intents if intent.kind == "ask")


def _replacement(label: str, old: str, new: str, *, quote: str) -> LibrarianCall:
    return LibrarianCall(
        REPLACE, {"label": label, "old_string": old, "new_string": new, "quote": quote}
    )
