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
    is_correction,
    is_decision,
    is_personal,
    is_single,
    shared,
    statements,
    topic,
    words_in,
)
from ricordo.features.librarian.view import LibrarianView, Note, ShownBlock

INSERT = ("memory_insert", "core_memory_append")
REPLACE = ("memory_replace", "core_memory_replace")
ARCHIVE = "archival_memory_insert"
SEARCHES = ("conversation_search", "archival_memory_search")
FORGET_WHICH = 'Several of my notes fit. Say "yes" and I forget all of these, or name one of them:'
_MAX_ROUNDS = 2
# An archive entry for each thing told is handy to find; a flood of them is not.
_MAX_ARCHIVED_APART = 5
_LONGEST_CORRECTED = 120
_LONGEST_QUERY = 400


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call to make."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that a note says: all of it, or one of its sentences."""

    note: Note
    words: str

    @property
    def rest(self) -> str:
        return " ".join(self.note.words.replace(self.words, " ", 1).split()).removesuffix(" and").strip(" ;")


def planned_calls(view: LibrarianView, intents: Sequence[Intent]) -> list[PlannedCall]:
    """Return the calls to make now; none when it is time to speak. At most two rounds a turn, but for a list to forget."""
    forgetting = list(_forgetting(view, intents))
    if view.rounds == 0:
        calls = [*forgetting, *_filing(view, intents), *_searching(view, intents)]
    elif view.rounds >= _MAX_ROUNDS and not is_confirmed(view, intents):
        return []
    else:
        calls = list(_archive_instead(view))
        if not view.may_call_in_parallel:
            made = {outcome.tool for outcome in view.outcomes}
            rest = [*_filing(view, intents), *_searching(view, intents)]
            calls += [call for call in rest if call.tool not in made]
            calls += forgetting if is_confirmed(view, intents) and not view.outcomes[-1].failed else []
    return calls if view.may_call_in_parallel else calls[:1]


def complete(call: PlannedCall, schema: ToolSchema) -> PlannedCall:
    """Return the call with what its schema demands besides, and without what it does not know."""
    properties: dict[str, Any] = schema.parameters.get("properties") or {}
    arguments = {name: value for name, value in call.arguments.items() if name in properties}
    for name in schema.parameters.get("required") or ():
        if name not in arguments:
            arguments[name] = _least(name, properties.get(name) or {})
    return PlannedCall(call.tool, arguments)


def forced(view: LibrarianView, tool: str) -> PlannedCall:
    """Return a call of the tool that must be called now, with what was said in the arguments that take words."""
    label = view.person_block.label if view.person_block else "human"
    known = dict.fromkeys(("query", "content", "new_string", "message"), view.words) | {"label": label}
    wanted = view.tools[tool].parameters.get("properties") or {}
    return PlannedCall(tool, {name: value for name, value in known.items() if name in wanted})


def known_note(view: LibrarianView, told: str) -> Note | None:
    """Return the note that says this already."""
    if len(told) > READ_LENGTH or not (words := _plain(told)):
        return None  # its start alone does not tell whether it is known
    kinds = {kind for kind in facts_told(told) if is_single(kind)}
    value = topic(told) - words_in(" ".join(kinds))
    for note in view.notes:
        # "My name is Ada." says what the line "Name: Ada" says.
        says_it = kinds and kinds <= facts_told(note.words) and value and shared(value, note.words) == len(value)
        if says_it or f" {words} " in f" {_plain(note.words)} ":
            return note
    return None


def _plain(text: str) -> str:
    return re.sub(r"\W+", " ", text[:READ_LENGTH].casefold()).strip()


def matching(view: LibrarianView, words: str) -> list[Statement]:
    """Return the statements of notes that fit the words best: one, several where it is undecided, none."""
    wanted, kinds = topic(words), facts_asked(words) | facts_told(words)
    found = [(_points(each.words, wanted, kinds), each) for each in _statements(view)]
    best = max((points for points, _ in found), default=0)
    return [each for points, each in found if points == best] if best * 2 > len(wanted) and best else []


def _points(text: str, wanted: frozenset[str], kinds: set[str]) -> int:
    return shared(wanted, text) + 2 * bool(kinds & facts_told(text))


def _statements(view: LibrarianView) -> list[Statement]:
    writable = {block.label for block in view.blocks if not block.is_read_only}
    notes = [note for note in view.notes if note.label in writable]
    return [Statement(note, words) for note in notes for words in statements(note.words)]


def to_forget(view: LibrarianView, intents: Sequence[Intent]) -> list[Statement]:
    """Return the statements that are to be forgotten now: the one that was named, or those of a list that was confirmed."""
    listed = _listed(view)
    if listed and is_confirmed(view, intents):
        return listed
    found: list[Statement] = []
    for intent in intents:
        if intent.kind == "forget" and len(named := matching(view, intent.text)) == 1:
            found += named
        elif listed and len(intents) == 1 and intent.kind in ("ask", "tell") and not is_personal(intent.text):
            fitting = matching(view, intent.text)
            found += fitting if len(fitting) == 1 and fitting[0] in listed else []
    return found


def is_confirmed(view: LibrarianView, intents: Sequence[Intent]) -> bool:
    return FORGET_WHICH in view.said_before and [intent.kind for intent in intents] == ["yes"]


def _listed(view: LibrarianView) -> list[Statement]:
    lines = view.said_before.partition(FORGET_WHICH)[2].splitlines()
    return [each for each in _statements(view) if f'- "{each.words}"' in lines]


def _forgetting(view: LibrarianView, intents: Sequence[Intent]) -> Iterator[PlannedCall]:
    if not (tool := view.offers(*REPLACE)):
        return
    for each in to_forget(view, intents):
        note = each.note
        value = next(block.value for block in view.blocks if block.label == note.label)
        old, new = [note.line], note.line.replace(note.words, each.rest)
        if not each.rest:
            # With its line break where it has one, so that no empty line stays behind.
            old, new = [note.line + "\n", "\n" + note.line, note.line], ""
        if found := next((text for text in old if value.count(text) == 1), None):
            yield _replacement(tool, note.label, found, new, quote=view.words)


def _filing(view: LibrarianView, intents: Sequence[Intent]) -> Iterator[PlannedCall]:
    block, insert, replace = view.person_block, view.offers(*INSERT), view.offers(*REPLACE)
    archives = view.offers(ARCHIVE) is not None
    room = block.limit - len(block.value) - 1 if block else 0
    lines: list[str] = []
    archived: list[str] = []
    # Words alone that name one of the listed notes are no fact.
    names_listed = len(intents) == 1 and bool(to_forget(view, intents))
    told = [] if names_listed else [intent for intent in intents if intent.kind == "tell"]
    for intent in told:
        line = f'{view.today.isoformat()}: "{" ".join(intent.text.split())}"'
        if known_note(view, intent.text):
            continue
        if block is None or len(line) > room or (archives and (intent.is_note or not is_personal(intent.text))):
            archived.append(intent.text)
        elif replace and (old := _outdated(block, intent.text)):
            yield _replacement(replace, block.label, old.line, line, quote=intent.text)
            room -= len(line) - len(old.line)
        elif insert:
            lines.append(line)
            room -= len(line) + 1
        else:
            archived.append(intent.text)
    if block and insert and lines:
        words = (
            {"new_string": "\n".join(lines), "insert_line": -1}
            if insert == INSERT[0]
            else {"content": "\n".join(lines)}
        )
        yield PlannedCall(insert, {"label": block.label, **words, "quote": told[0].text})
    if archives:
        texts = ["\n".join(archived)] if len(archived) > _MAX_ARCHIVED_APART else archived
        yield from map(_archiving, texts)


def _archiving(text: str) -> PlannedCall:
    tags = ["decision" if is_decision(text) else "note"]
    hashed = (word[1:].strip(".,;:!?").lower() for word in text[:READ_LENGTH].split() if word[:1] == "#")
    tags += [tag for tag in hashed if tag[:1].isalpha()]
    return PlannedCall(ARCHIVE, {"content": text, "tags": list(dict.fromkeys(tags))[:5]})


def _archive_instead(view: LibrarianView) -> Iterator[PlannedCall]:
    """What a block refused goes to the archive, word for word."""
    if view.offers(ARCHIVE) and not view.made(ARCHIVE):
        for outcome in view.made(*INSERT, *REPLACE):
            if outcome.failed and (words := outcome.argument("new_string", "content", "new_content")):
                yield PlannedCall(ARCHIVE, {"content": words, "tags": ["note"]})


def _outdated(block: ShownBlock, told: str) -> Note | None:
    """Return the line whose place the new fact takes: the last one of its kind, if it says nothing else."""
    kinds, corrects = facts_told(told), is_correction(told)
    for note in reversed(block.notes):
        words = note.words
        is_same = bool(kinds) and facts_told(words) == kinds and (corrects or all(map(is_single, kinds)))
        is_same = is_same or (corrects and bool(topic(words)) and topic(words) <= words_in(told))
        bare = words.lower().removeprefix("actually, ").removeprefix("no, ")
        says_one_thing = len(words) <= _LONGEST_CORRECTED and len(statements(words)) == 1 and ", " not in bare
        if is_same and says_one_thing and block.value.count(note.line) == 1:
            return note
    return None


def _searching(view: LibrarianView, intents: Sequence[Intent]) -> list[PlannedCall]:
    words = question_of(intents)
    if not words and (view.notes or not any(intent.kind == "list" for intent in intents)):
        return []
    query = words if topic(words) else " ".join(facts_asked(words)) or ("I my" if not words else "")
    if facts_asked(words) & {"home"}:
        query += " moved home"
    limits = {"conversation_search": {"limit": 10}, "archival_memory_search": {"top_k": 5}}
    return [
        PlannedCall(tool, {"query": query[:_LONGEST_QUERY], **limits[tool]})
        for tool in SEARCHES
        if query and view.offers(tool)
    ]


def question_of(intents: Sequence[Intent]) -> str:
    return " ".join(intent.text for intent in intents if intent.kind == "ask")


def _replacement(tool: str, label: str, old: str, new: str, *, quote: str) -> PlannedCall:
    names = ("old_string", "new_string") if tool == REPLACE[0] else ("old_content", "new_content")
    return PlannedCall(tool, {"label": label, names[0]: old, names[1]: new, "quote": quote})


def _least(name: str, schema: Mapping[str, Any]) -> object:
    """Return the least value that satisfies a parameter nobody told us about."""
    if choices := schema.get("enum"):
        return choices[0]
    kinds: dict[object, object] = {"boolean": False, "integer": 0, "number": 0, "array": [], "object": {}, "null": None}
    return name == "request_heartbeat" or kinds.get(schema.get("type"), "")
