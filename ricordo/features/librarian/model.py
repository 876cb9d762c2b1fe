"""The librarian: what answers where there is no key and no model server. It is no language model, and says so.

It files what it is told, corrects, finds, lists and forgets, by the same tools and loop as any model. It sees only the request,
keeps no state, and gives the same answer to the same request.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from ricordo.domain.message import Part, TextPart, ToolCallPart
from ricordo.domain.model import LIBRARIAN, Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.redaction import redact
from ricordo.features.librarian import grammar, plan
from ricordo.features.librarian.view import (
    SEND,
    LibrarianCall,
    LibrarianView,
    newer_name,
    note_of,
    stored_words,
    view_of,
)
from ricordo.llm.chat import chunks_of
from ricordo.llm.tokens import estimated_usage

_FILED = ("I have put this in my notes about you:", "I have filed this in the archive:")
# How lines of an answer begin that say what was filed or corrected, so that "No, green." can be understood.
_WAS_FILED = ('- "', "I have put", "I have filed", "I have corrected")
# What marks its own introduction, so that it introduces itself once in a conversation.
_MARK = "not a language model"
_TEXTS: dict[str, str] = grammar.read_toml("texts")
_FIXED = ("help", "talk", "task", "secret", "fragment", "code")
# What the result of an edit says that waits for the block's owner.
_PROPOSED = " was proposed"
# Results are for models and may hold anything: why an edit failed is not told in their words, but by `failed`.
_PLACES = {"conversation_search": "our conversations", "archival_memory_search": "the archive"}
FINISH = "memory_finish_edits"
# Tools of one that keeps a voice agent's memory.
STORE, RETHINK, FINISH_CALL = "store_memories", "rethink_user_memory", "finish_rethinking_memory"
_MOST_QUOTED = 3
_MOST_NOTES = 20
_LONGEST_QUOTE = 280


class Librarian:
    """A ChatModel that files and finds: `ricordo/librarian`."""

    info = ModelInfo(LIBRARIAN, "ricordo", "librarian", "openai")

    async def answer(self, request: ModelRequest) -> AsyncIterator[Chunk | ModelReply]:
        """Yield the words one by one where `request.stream` asks for them, and last of all the whole reply."""
        view = view_of(request)
        answer = _answer(request, view)
        parts: tuple[Part, ...] = (
            (TextPart(answer),) if isinstance(answer, str) else _called(view, answer)
        )
        reply = ModelReply(
            parts, finish="stop" if isinstance(answer, str) else "tool_calls", model="librarian"
        )
        reply = replace(reply, usage=estimated_usage(request, reply))
        if request.stream:
            for chunk in chunks_of(reply, by_word=True):
                yield chunk
        yield reply


def _answer(request: ModelRequest, view: LibrarianView) -> str | Sequence[LibrarianCall]:
    said = [] if plan.FORGET_WHICH in view.said_before else view.said_before.split("\n")
    filed = next(
        (
            line.partition('"')[2]
            for line in reversed(said)
            if line.startswith(_WAS_FILED) and '"' in line
        ),
        "",
    )
    intents = grammar.corrected(
        grammar.read(view.words), filed.partition('" (before: ')[0].removesuffix('"')
    )
    name = newer_name(request.forced_tool or "")
    forced = name if name in view.tools else None
    planned = (
        []
        if request.tool_choice == "none" or view.made(SEND)
        else plan.planned_calls(view, intents)
    )
    if view.numbered and view.is_alone:
        return _kept_of_a_call(view, intents)
    if view.is_alone:
        return _filed_alone(view, planned)
    if calls := [call for call in planned if forced in (None, call.tool)]:
        return calls if forced is None else calls[:1]
    is_asked = forced is not None
    if request.tool_choice == "required" and view.tools and not view.made(SEND):
        # A rule wants a call: one that speaks, else one that only looks.
        forced = forced or next(
            (name for name in (SEND, *plan.SEARCHES) if name in view.tools), next(iter(view.tools))
        )
    if forced is None:
        return "That is all." if view.made(SEND) else _spoken_answer(view, intents)
    words = _spoken_answer(view, intents) if forced == SEND else view.words
    texts = dict.fromkeys(("query", "content", "new_string", "message"), words)
    return [
        plan.complete(
            LibrarianCall(forced, {**texts, "request_heartbeat": is_asked}), view.tools[forced]
        )
    ]


def _filed_alone(
    view: LibrarianView, planned: Sequence[LibrarianCall]
) -> str | Sequence[LibrarianCall]:
    """Return the edits that a transcript asks for, and then the call that ends the work: nobody reads an answer."""
    if edits := [call for call in planned if call.tool not in plan.SEARCHES]:
        return edits
    is_open = FINISH in view.tools and not view.made(FINISH)
    return [LibrarianCall(FINISH, {})] if is_open else "That is all."


def _kept_of_a_call(
    view: LibrarianView, intents: Sequence[grammar.Intent]
) -> str | Sequence[LibrarianCall]:
    """Return the next call for a voice agent's memory: what leaves its view is kept, then the block, then the work ends."""
    if STORE in view.tools and not view.made(STORE):
        told = [
            number
            for number, words in view.leaving()
            if any(intent.kind == "tell" for intent in grammar.read(words))
        ]
        chunks = [
            {"start_index": number, "end_index": number, "context": "Said by the user."}
            for number in told
        ]
        return [LibrarianCall(STORE, {"chunks": chunks})]
    if RETHINK in view.tools and not view.made(RETHINK):
        value = view.person_block.value if view.person_block else ""
        lines = [line for line in plan.note_lines(view, intents) if line not in value]
        return [LibrarianCall(RETHINK, {"new_memory": "\n".join(filter(None, [value, *lines]))})]
    return [LibrarianCall(FINISH_CALL, {})] if FINISH_CALL in view.tools else "That is all."


def _called(view: LibrarianView, calls: Sequence[LibrarianCall]) -> tuple[Part, ...]:
    # The last message's id makes these ids new in every step, and the same when a step is tried again.
    return tuple(
        ToolCallPart(
            f"call_{view.key}{index}",
            view.tools[call.tool].name,
            json.dumps(dict(call.arguments), ensure_ascii=False),
        )
        for index, call in enumerate(calls)
    )


def _spoken_answer(view: LibrarianView, intents: Sequence[grammar.Intent]) -> str:
    """Return the answer to all that was meant, in the order it was said; the introduction once in a conversation."""
    if not view.words.strip():
        return "I can only read words, and I found none in your message."
    forgotten = [
        each
        for each in view.made(plan.REPLACE)
        if grammar.words_in(each.new_words) <= grammar.words_in(each.old_words)
    ]
    lines: list[str] = [*map(_forgotten, forgotten)]
    for intent in intents:
        match intent.kind:
            case "tell":
                lines.append(_told(view, intent.text))
            case "forget" if not any(_is_about(intent.text, _replaced(each)) for each in forgotten):
                lines.append(_not_forgotten(view, intent.text))
            case "ask":
                lines.append(_found(view, plan.question_of(intents)))
            case "list":
                lines.append(_overview(view))
            case kind if kind in _FIXED:
                lines.append(_TEXTS[kind])
            case "yes" if plan.is_confirmed(view, intents) and not forgotten:
                lines.append(_TEXTS["cannot_forget"])
            case _:
                pass
    lines = _joined(lines) or [_TEXTS["talk"]]
    if all(_MARK not in text for text in (*view.own_words, *lines)):
        lines.append(_TEXTS["introduction"])
    return "\n\n".join(lines)


def _joined(lines: Sequence[str]) -> list[str]:
    """Put what was filed the same way into one list."""
    joined: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        opening = next((each for each in _FILED if line.startswith(each)), line)
        joined.setdefault(opening, []).append(line.removeprefix(opening))
    return [
        key + ("\n- ".join(["", *map(str.strip, told)]) if len(told) > 1 else told[0])
        for key, told in joined.items()
    ]


def _told(view: LibrarianView, text: str) -> str:
    # As memory keeps them: the calls say no more than that afterwards.
    words = " ".join(redact(text[: grammar.READ_LENGTH]).text.split())
    filed = view.made(plan.INSERT, plan.REPLACE, plan.ARCHIVE)
    done = next(
        (each for each in filed if words in " ".join(redact(each.new_words).text.split())), None
    )
    if done is None and (revised := _revising(view, text)):
        done, words = revised
    if done is None:
        note = plan.known_note(view, text)
        return (
            f'I have that in my notes already: "{_short(note.words)}"'
            if note
            else _TEXTS["nowhere"]
        )
    words = _short(words)
    if done.failed:
        return f'I could not file "{words}": {_TEXTS["failed"]}. Your message stays in our history.'
    if done.tool == plan.ARCHIVE:
        return f'I have filed this in the archive: "{words}"'
    if _PROPOSED in done.text:
        return f'I asked to have this put in my notes: "{words}"\n{_TEXTS["waits"]}'
    if done.tool == plan.REPLACE:
        return f'I have corrected my notes about you: "{words}" (before: "{_replaced(done)}")'
    return f'I have put this in my notes about you: "{words}"'


def _revising(view: LibrarianView, text: str) -> tuple[LibrarianCall, str] | None:
    """Return the call that changed a value in a note by this statement, and what the note says then."""
    for each in view.made(plan.REPLACE):
        words = plan.revised_words(note_of("", each.old_words.strip()).words, text)
        if words and words in each.new_words:
            return each, words
    return None


def _forgotten(done: LibrarianCall) -> str:
    old, new = _replaced(done), note_of("", done.new_words).words
    words = (
        _short(next((each for each in grammar.statements(old) if each not in new), old))
        if new
        else old
    )
    if done.failed:
        return f'I could not strike out "{words}": {_TEXTS["failed"]}.'
    if _PROPOSED in done.text:
        return f'I asked to have this struck out of my notes: "{words}"\n{_TEXTS["waits"]}'
    return f'I have struck this out of my notes: "{words}"\n{_TEXTS["stays"]}'


def _not_forgotten(view: LibrarianView, text: str) -> str:
    if not grammar.topic(text) and not grammar.facts_asked(text):
        return _TEXTS["forget_what"]
    found = plan.matching(view, text)
    if not found:
        about = f'I have no note about "{_short(text, 80)}" to strike out.'
        return f"{about} The archive and our messages I cannot delete; you can."
    if plan.REPLACE not in view.tools:
        return _TEXTS["cannot_forget"]
    return "\n".join([plan.FORGET_WHICH, *(f'- "{each.words}"' for each in found)])


def _replaced(outcome: LibrarianCall) -> str:
    return _short(note_of("", outcome.old_words.strip()).words)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Words that may answer, how they are quoted, their rank among sources, and how many of the question's words they share."""

    words: str
    opening: str
    rank: int
    on: str = ""
    points: int = 0


def _found(view: LibrarianView, question: str) -> str:
    wanted, kinds = grammar.topic(question), grammar.facts_asked(question)
    if not wanted and not kinds:
        return "I can look things up by their words. Ask again with a word or two that I can search for."
    is_taste = bool(grammar.found_in("asks_taste", question))
    found = _best(view, wanted, kinds, is_taste=is_taste)
    lines = [f'{each.opening}: "{_short(each.words, _LONGEST_QUOTE)}"' for each in found]
    if not lines:
        searched = dict.fromkeys(
            _PLACES[each.tool] for each in view.made(*plan.SEARCHES) if not each.failed
        )
        *places, last = "my notes", *searched
        about = _short(question.strip(" ?.!？"), 80)
        lines = [
            _TEXTS["not_found"].format(
                places=f"{', '.join(places)} and {last}" if places else last, topic=about
            )
        ]
    elif len(lines) > 1:
        lines = ["Here is what I found:", *(f"- {line}" for line in lines)]
    broken = dict.fromkeys(
        f"I could not search {_PLACES[each.tool]}."
        for each in view.made(*plan.SEARCHES)
        if each.failed
    )
    return "\n".join([*lines, *broken])


def _best(
    view: LibrarianView, wanted: frozenset[str], kinds: set[str], *, is_taste: bool = False
) -> list[Evidence]:
    """Return the best evidence, best first; nothing that shares no word or kind of fact with the question."""
    # The last line first: of two lines from one day, the later is the newer.
    notes = [
        Evidence(note.words, _opening(note.said_on, note.label), 0, note.said_on)
        for note in reversed(view.notes)
    ]
    ranked = [
        replace(each, points=plan.points_of(each.words, wanted, kinds))
        for each in (*notes, *_hits(view))
    ]
    if is_taste:
        # A favourite may be told as what is preferred to something else.
        ranked = [
            replace(
                each, points=each.points + 2 * bool(grammar.found_in("tells_taste", each.words))
            )
            for each in ranked
        ]
    # A note that says something else of the same has taken the place of what was told before.
    ranked = [
        each
        for each in ranked
        if each.points and not (each.rank and _is_replaced(view, each.words))
    ]
    ranked = [each for each in ranked if not (each.rank and _is_outdated(view, each))]
    ranked.sort(key=lambda each: each.on, reverse=True)
    ranked.sort(key=lambda each: (-each.points, each.rank))
    facts = [each for each in ranked if kinds & grammar.facts_told(each.words)]
    if facts and len(kinds) == 1 and all(map(grammar.is_single, kinds)):
        # Someone has one name: the present one answers, older words about it do not.
        noted = [each for each in facts if each.rank == 0]
        ranked = [max(noted or facts, key=lambda each: (each.on, -each.rank))]
    best = [
        each for each in ranked if each.points * 2 > ranked[0].points and not _is_past(each, ranked)
    ]
    unique = {
        " ".join(each.words.casefold().rstrip(".! ").split()): each for each in reversed(best)
    }
    return [each for each in best if each in unique.values()][:_MOST_QUOTED]


def _is_replaced(view: LibrarianView, words: str) -> bool:
    alike = [
        each.words
        for each in view.notes
        if grammar.is_same_frame(words, each.words) or grammar.is_denied(words, each.words)
    ]
    return bool(alike) and words not in alike


def _is_outdated(view: LibrarianView, hit: Evidence) -> bool:
    """Return whether a note says something else of what was said before it: "I live in Graz.", "I moved to Vienna."."""
    later = (note for note in view.notes if not note.said_on or note.said_on >= hit.on[:10])
    return any(
        plan.revised_words(hit.words, note.words) for note in later if note.words != hit.words
    )


def _is_past(item: Evidence, found: Sequence[Evidence]) -> bool:
    """Whether something told later has the place of this: "The exam is on 12 May.", "The exam is on 14 May."."""
    later = [
        each.words
        for each in found
        if each.on > item.on and grammar.is_same_frame(item.words, each.words)
    ]
    return bool(later) and item.words.casefold().startswith(("the ", "my ", "our "))


def _hits(view: LibrarianView) -> Iterator[Evidence]:
    """Yield what the searches found; of a message only what was told in it: what was asked before is no answer."""
    rows = [
        row for outcome in view.made(*plan.SEARCHES) if not outcome.failed for row in _rows(outcome)
    ]
    rows = [{**row, "content": stored_words(str(row["content"]))} for row in rows]
    said = [(row, grammar.read(row["content"])) for row in rows]
    forgotten = [
        (intent.text, str(row.get("timestamp")))
        for row, intents in said
        if row.get("role")
        for intent in intents
        if intent.kind == "forget"
    ]
    for row, intents in said:
        on = str(row.get("timestamp") or "")
        items = [Evidence(row["content"], f"The archive says, filed on {_day(on)}", 2, on)]
        if row.get("role"):
            told = [
                intent.text
                for intent in intents
                if intent.kind == "tell" and row["content"] != view.words
            ]
            items = [Evidence(text, _opening(on), 1, on) for text in told]
        # The history keeps what was struck out, but its owner did not want to hear it again.
        for item in items:
            if item.words and not any(
                on < later and _is_about(text, item.words) for text, later in forgotten
            ):
                yield item


def _rows(outcome: LibrarianCall) -> list[dict[str, Any]]:
    found = outcome.message.get("results") if isinstance(outcome.message, dict) else outcome.message
    rows = (
        [row for row in found if isinstance(row, dict) and row.get("content")]
        if isinstance(found, list)
        else []
    )
    # Turns that follow each other are one result.
    rows += [
        {**row, **turn}
        for row in rows
        for turn in (*_turns(row.get("before")), *_turns(row.get("after")))
    ]
    return [row for row in rows if row.get("role", "user") == "user"]


def _turns(before: object) -> list[dict[str, Any]]:
    found = before if isinstance(before, list) else []
    return [turn for turn in found if isinstance(turn, dict) and turn.get("content")]


def _is_about(text: str, words: str) -> bool:
    wanted = grammar.topic(text)
    is_same_fact = bool(
        (grammar.facts_asked(text) | grammar.facts_told(text)) & grammar.facts_told(words)
    )
    return is_same_fact or (bool(wanted) and grammar.shared(wanted, words) * 2 > len(wanted))


def _overview(view: LibrarianView) -> str:
    """Return all that the notes say, and the newest that the archive does."""
    listed = [
        row
        for each in view.made(plan.LIST_ARCHIVE.tool)
        if not each.arguments.get("query")
        for row in _rows(each)
    ]
    archived = [
        (stored_words(str(row["content"])), str(row.get("timestamp") or "")[:10]) for row in listed
    ]
    parts = []
    for opening, told in (
        ("my notes say", [(note.words, note.said_on) for note in view.notes]),
        ("the archive says", archived),
    ):
        lines = [f'- "{_short(words)}"' + (f" ({on})" if on else "") for words, on in told if words]
        if len(lines) > _MOST_NOTES:
            lines[_MOST_NOTES:] = [f"… and {len(lines) - _MOST_NOTES} more lines."]
        parts += ["\n".join([f"This is what {opening}:", *lines])] if lines else []
    return "\n\n".join(parts) or "I know nothing about you yet. Tell me something, and I file it."


def _opening(on: str, label: str = "") -> str:
    if on:
        return f"You told me on {_day(on)}"
    return (
        "My notes about you say"
        if label.rsplit("/", 1)[-1] == "human"
        else f'My notes "{label}" say'
    )


def _short(words: str, length: int = 160) -> str:
    # A little more than fits is enough to see that it does not.
    words = " ".join(redact(words[: 20 * length]).text.split())
    if len(words) <= length:
        return words
    cut = words[:length].rsplit(" ", 1)[0]
    return (cut if len(cut) > length // 2 else words[:length]) + " …"


def _day(on: str) -> str:
    """Return the date as people say it: `21 November 2026`."""
    try:
        day = date.fromisoformat(on[:10])
    except ValueError:
        return "an unknown day"
    return f"{day.day} {day:%B %Y}"
