"""Which tools the librarian calls: filing what was told, correcting what changed, striking out, and searching."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ricordo.domain.model import ToolSchema
from ricordo.llm.librarian.reading import Ask, Forget, Intent, Tell, is_correction, is_decision, is_personal, sentences
from ricordo.llm.librarian.sentences import shortened
from ricordo.llm.librarian.view import Note, ShownBlock, View
from ricordo.llm.librarian.words import (
    READ_LENGTH,
    is_single,
    kinds_asked,
    kinds_told,
    plain,
    query_words,
    score,
    search_words,
    shared,
    stems,
)

MAX_ROUNDS = 2
# An archive entry for each thing told is handy to find; a flood of them is not.
MAX_ARCHIVED_APART = 5
INSERT = ("memory_insert", "core_memory_append")
REPLACE = ("memory_replace", "core_memory_replace")
SEARCHES = ("conversation_search", "archival_memory_search")
_LONGEST_CORRECTED = 120


@dataclass(frozen=True, slots=True)
class Call:
    """A call to make."""

    tool: str
    arguments: Mapping[str, Any]


def next_calls(view: View, intents: Sequence[Intent]) -> list[Call]:
    """The calls to make now; none when it is time to speak. At most two rounds a turn, whatever happens."""
    if view.rounds >= MAX_ROUNDS:
        return []
    if view.rounds:
        calls = list(_archive_instead(view))
        if not calls and not view.may_call_in_parallel:
            made = {outcome.tool for outcome in view.outcomes}
            calls = [call for call in _planned(view, intents) if call.tool not in made]
    else:
        calls = _planned(view, intents)
    return calls if view.may_call_in_parallel else calls[:1]


def asked_words(intents: Sequence[Intent]) -> str:
    """All that is asked, as one text."""
    return " ".join(intent.text for intent in intents if isinstance(intent, Ask))


def complete(call: Call, schema: ToolSchema) -> Call:
    """The call with what its schema demands besides, and without what it does not know."""
    properties: dict[str, Any] = schema.parameters.get("properties") or {}
    arguments = {name: value for name, value in call.arguments.items() if name in properties}
    for name in schema.parameters.get("required") or ():
        if name not in arguments:
            arguments[name] = _least(name, properties.get(name) or {})
    return Call(call.tool, arguments)


def forced(view: View, tool: str, words: str) -> Call:
    """A call of the tool that must be called now, with what was said in the places where words go."""
    label = view.person_block.label if view.person_block else "human"
    known = {"query": words, "content": words, "new_string": words, "message": words, "label": label}
    wanted = view.tools[tool].parameters.get("properties") or {}
    return Call(tool, {name: value for name, value in known.items() if name in wanted})


def known_note(view: View, told: Tell) -> Note | None:
    """The note that says this already."""
    if len(told.text) > READ_LENGTH:
        return None  # its start alone does not tell whether it is known
    words, kinds = plain(told.text), {kind for kind in kinds_told(told.text) if is_single(kind)}
    if not words:
        return None
    value = stems(told.text) - stems(" ".join(search_words(kinds)))
    for note in view.notes:
        if f" {words} " in f" {plain(note.words)} ":
            return note
        # "My name is Ada." says what the line "Name: Ada" says.
        if kinds and kinds <= kinds_told(note.words) and value and shared(value, stems(note.words)) == len(value):
            return note
    return None


def matching_notes(view: View, words: str) -> list[Note]:
    """The notes that fit the words best: one, several where it is undecided, none."""
    wanted, kinds = stems(words), kinds_asked(words) | kinds_told(words)
    writable = {block.label for block in view.blocks if not block.is_read_only}
    scored = [(score(note.words, wanted, kinds), note) for note in view.notes if note.label in writable]
    best = max((points for points, _ in scored), default=0)
    if best == 0 or best * 2 <= len(wanted):
        return []
    return [note for points, note in scored if points == best]


def _planned(view: View, intents: Sequence[Intent]) -> list[Call]:
    told = [intent for intent in intents if isinstance(intent, Tell)]
    calls = [*_filing(view, told)]
    for intent in intents:
        if isinstance(intent, Forget):
            calls += _forgetting(view, intent)
    return [*calls, *_searching(view, intents)]


def _filing(view: View, told: Sequence[Tell]) -> Iterator[Call]:
    block, insert, replace = view.person_block, view.offers(*INSERT), view.offers(*REPLACE)
    has_archive = view.offers("archival_memory_insert") is not None
    room = block.limit - len(block.value) - 1 if block else 0
    lines: list[str] = []
    archived: list[Tell] = []
    replaced: set[str] = set()
    for tell in told:
        if known_note(view, tell):
            continue
        if has_archive and tell.is_note:
            archived.append(tell)
            continue
        line = f'{view.today.isoformat()}: "{" ".join(tell.text.split())}"'
        belongs_here = is_personal(tell.text) and not tell.is_note
        if block is None or (has_archive and not belongs_here) or len(line) > room:
            archived.append(tell)
        elif replace and (old := _outdated(block, tell)) and old.line not in replaced:
            replaced.add(old.line)
            yield _replacement(replace, block.label, old.line, line, quote=tell.text)
            room -= len(line) - len(old.line)
        elif insert:
            lines.append(line)
            room -= len(line) + 1
        else:
            archived.append(tell)
    if block and insert and lines:
        yield _insertion(insert, block.label, "\n".join(lines), quote=told[0].text)
    if has_archive:
        yield from _archiving(archived)


def _archiving(told: Sequence[Tell]) -> Iterator[Call]:
    if len(told) > MAX_ARCHIVED_APART:
        told = (Tell("\n".join(tell.text for tell in told), is_note=True),)
    for tell in told:
        tags = ["decision" if is_decision(tell.text) else "note"]
        tags += [
            word[1:].strip(".,;:!?").lower()
            for word in tell.text[:READ_LENGTH].split()
            if word[:1] == "#" and word[1:2].isalpha()
        ]
        yield Call("archival_memory_insert", {"content": tell.text, "tags": list(dict.fromkeys(tags))[:5]})


def _archive_instead(view: View) -> Iterator[Call]:
    """What a block refused goes to the archive, word for word."""
    if not view.offers("archival_memory_insert") or view.first("archival_memory_insert"):
        return
    for outcome in view.outcomes:
        words = (
            outcome.arguments.get("new_string")
            or outcome.arguments.get("content")
            or outcome.arguments.get("new_content")
        )
        if outcome.failed and outcome.tool in INSERT + REPLACE and isinstance(words, str):
            yield Call("archival_memory_insert", {"content": words, "tags": ["note"]})


def _outdated(block: ShownBlock, tell: Tell) -> Note | None:
    """The line whose place the new fact takes: the last of its kind, if it says nothing else."""
    told = kinds_told(tell.text)
    if not told:
        return None
    corrects = is_correction(tell.text)
    alike = [
        note
        for note in block.notes
        if kinds_told(note.words) == told
        and (corrects or all(is_single(kind) for kind in told))
        and _says_one_thing(note)
        and block.value.count(note.line) == 1
    ]
    if not alike:
        return None
    wanted = stems(tell.text)
    best = max(shared(wanted, stems(note.words)) for note in alike)
    return [note for note in alike if shared(wanted, stems(note.words)) == best][-1]


def _says_one_thing(note: Note) -> bool:
    return (
        len(note.words) <= _LONGEST_CORRECTED
        and len(sentences(note.words)) == 1
        and ";" not in note.words
        and (
            # "I live in Turin and I'm a nurse." would lose its second half.
            " and i" not in note.words.lower()
            and ", " not in note.words.removeprefix("Actually, ").removeprefix("No, ")
        )
    )


def _forgetting(view: View, forget: Forget) -> Iterator[Call]:
    replace = view.offers(*REPLACE)
    found = matching_notes(view, forget.text)
    if not replace or len(found) != 1:
        return
    note = found[0]
    value = next(block.value for block in view.blocks if block.label == note.label)
    # With its line break where it has one, so that no empty line stays behind.
    for old in (note.line + "\n", "\n" + note.line, note.line):
        if value.count(old) == 1:
            yield _replacement(replace, note.label, old, "", quote=forget.text)
            return


def _searching(view: View, intents: Sequence[Intent]) -> Iterator[Call] | list[Call]:
    words = asked_words(intents)
    if not words:
        return []
    query = list(dict.fromkeys(query_words(words) + search_words(kinds_asked(words))))
    if not query and not view.notes:
        query = ["I", "my"]
    if not query:
        return []
    text = shortened(" ".join(query), 400)
    limits = {"conversation_search": {"limit": 10}, "archival_memory_search": {"top_k": 5}}
    return [Call(tool, {"query": text, **limits[tool]}) for tool in SEARCHES if view.offers(tool)]


def _insertion(tool: str, label: str, words: str, *, quote: str) -> Call:
    if tool == "memory_insert":
        return Call(tool, {"label": label, "new_string": words, "insert_line": -1, "quote": quote})
    return Call(tool, {"label": label, "content": words, "quote": quote})


def _replacement(tool: str, label: str, old: str, new: str, *, quote: str) -> Call:
    if tool == "memory_replace":
        return Call(tool, {"label": label, "old_string": old, "new_string": new, "quote": quote})
    return Call(tool, {"label": label, "old_content": old, "new_content": new, "quote": quote})


def _least(name: str, schema: Mapping[str, Any]) -> object:
    """The least value that satisfies a parameter nobody told us about."""
    if choices := schema.get("enum"):
        return choices[0]
    if name == "request_heartbeat":
        return True
    kinds: dict[object, object] = {"boolean": False, "integer": 0, "number": 0, "array": [], "object": {}, "null": None}
    return kinds.get(schema.get("type"), "")
