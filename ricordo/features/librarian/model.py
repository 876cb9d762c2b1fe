"""The librarian: the model that answers without a key or a model server.

It is no language model, and says so. It files, corrects, finds, lists and forgets statements. It
uses the same tools as other models, in the same loop. It reads only the request and keeps no state,
so equal requests get equal answers.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

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
    rows_of,
    stored_words,
    view_of,
)
from ricordo.llm.chat import chunks_of
from ricordo.llm.tokens import estimated_usage

_FILED = ("I have put this in my notes about you:", "I have filed this in the archive:")
# Openings of answers that quote a filed or corrected statement. A correction such as "No, green."
# refers to that statement.
_WAS_FILED = ('- "', "I have put", "I have filed", "I have corrected")
# Words of the introduction, by which the librarian sees that it has already introduced itself.
_MARK = "not a language model"
_TEXTS: dict[str, str] = grammar.read_toml("texts")
_FIXED = ("help", "talk", "task", "secret", "fragment", "code")
# Words that appear in the result of an edit if it waits for the block's owner.
_PROPOSED = " was proposed"
# Names of the collections that were searched, by tool.
_PLACES = {"conversation_search": "our conversations", "archival_memory_search": "the archive"}
FINISH = "memory_finish_edits"
# Tools of the agent that keeps a voice agent's memory.
STORE = "store_memories"
RETHINK = "rethink_user_memory"
FINISH_CALL = "finish_rethinking_memory"
_MOST_QUOTED = 3
_MOST_NOTES = 20
_LONGEST_QUOTE = 280


class Librarian:
    """A ChatModel that files and finds: `ricordo/librarian`."""

    info = ModelInfo(LIBRARIAN, "ricordo", "librarian", "openai")

    async def answer(self, request: ModelRequest) -> AsyncIterator[Chunk | ModelReply]:
        """Yield the whole reply; with `request.stream`, first yield its words one by one.

        Args:
            request: The request, which is all that the librarian reads.
        """
        view = view_of(request)
        answer = _answer(request, view)
        if isinstance(answer, str):
            reply = ModelReply((TextPart(answer),), finish="stop", model="librarian")
        else:
            reply = ModelReply(_call_parts(view, answer), finish="tool_calls", model="librarian")
        reply = replace(reply, usage=estimated_usage(request, reply))
        if request.stream:
            for chunk in chunks_of(reply, by_word=True):
                yield chunk
        yield reply


def _answer(request: ModelRequest, view: LibrarianView) -> str | Sequence[LibrarianCall]:
    intents = grammar.corrected(grammar.read(view.person_text), _last_filed(view))
    name = newer_name(request.forced_tool or "")
    forced = name if name in view.tools else None
    planned: Sequence[LibrarianCall] = []
    if request.tool_choice != "none" and not view.calls_of(SEND):
        planned = plan.planned_calls(view, intents)
    if view.numbered and view.is_alone:
        return _next_voice_call(view, intents)
    if view.is_alone:
        return _edits_or_finish(view, planned)
    if calls := [call for call in planned if forced in (None, call.tool)]:
        return calls if forced is None else calls[:1]
    is_forced = forced is not None
    if request.tool_choice == "required" and view.tools and not view.calls_of(SEND):
        # If a tool rule requires a call, call a tool that speaks, or else one that only searches,
        # or else any tool.
        forced = forced or next(
            (name for name in (SEND, *plan.SEARCHES) if name in view.tools), next(iter(view.tools))
        )
    if forced is None:
        if view.calls_of(SEND):
            return "That is all."
        return _spoken_answer(view, intents)
    if forced == SEND:
        text = _spoken_answer(view, intents)
    else:
        text = view.person_text
    texts = dict.fromkeys(("query", "content", "new_string", "message"), text)
    call = LibrarianCall(forced, {**texts, "request_heartbeat": is_forced})
    return [plan.complete(call, view.tools[forced])]


def _last_filed(view: LibrarianView) -> str:
    """Return the filed statement that the last answer quotes, or ""."""
    if plan.FORGET_WHICH in view.last_answer:
        return ""
    for line in reversed(view.last_answer.split("\n")):
        if line.startswith(_WAS_FILED) and '"' in line:
            quoted = line.partition('"')[2]
            return quoted.partition('" (before: ')[0].removesuffix('"')
    return ""


def _edits_or_finish(
    view: LibrarianView, planned: Sequence[LibrarianCall]
) -> str | Sequence[LibrarianCall]:
    """Return the edits for a transcript, and after them the call that ends the work.

    A transcript needs no answer in words.
    """
    if edits := [call for call in planned if call.tool not in plan.SEARCHES]:
        return edits
    is_open = FINISH in view.tools and not view.calls_of(FINISH)
    if is_open:
        return [LibrarianCall(FINISH, {})]
    return "That is all."


def _next_voice_call(
    view: LibrarianView, intents: Sequence[grammar.Intent]
) -> str | Sequence[LibrarianCall]:
    """Return the next call that works on a voice agent's memory.

    First it stores the lines that leave the voice agent's view, then it rewrites the block, then it
    ends the work.
    """
    if STORE in view.tools and not view.calls_of(STORE):
        stated = [
            number
            for number, text in view.leaving()
            if any(intent.kind == "tell" for intent in grammar.read(text))
        ]
        chunks = [
            {"start_index": number, "end_index": number, "context": "Said by the user."}
            for number in stated
        ]
        return [LibrarianCall(STORE, {"chunks": chunks})]
    if RETHINK in view.tools and not view.calls_of(RETHINK):
        if view.person_block:
            value = view.person_block.value
        else:
            value = ""
        lines = [line for line in plan.note_lines(view, intents) if line not in value]
        return [LibrarianCall(RETHINK, {"new_memory": "\n".join(filter(None, [value, *lines]))})]
    if FINISH_CALL in view.tools:
        return [LibrarianCall(FINISH_CALL, {})]
    return "That is all."


def _call_parts(view: LibrarianView, calls: Sequence[LibrarianCall]) -> tuple[Part, ...]:
    # The ids contain the last message's id. So they are new in every step, but equal if a step is
    # repeated.
    return tuple(
        ToolCallPart(
            f"call_{view.key}{index}",
            view.tools[call.tool].name,
            json.dumps(dict(call.arguments), ensure_ascii=False),
        )
        for index, call in enumerate(calls)
    )


def _spoken_answer(view: LibrarianView, intents: Sequence[grammar.Intent]) -> str:
    """Return the answer to all intents, in order.

    The introduction is added once for each conversation.
    """
    if not view.person_text.strip():
        return "I can only read text, and there is none in your message."
    removals = [
        call
        for call in view.calls_of(plan.REPLACE)
        if grammar.words_in(call.new_words) <= grammar.words_in(call.old_words)
    ]
    asks = bool(view.calls_of(plan.FORGET))
    lines: list[str] = [_describe_removal(call, asks=asks) for call in removals]
    for intent in intents:
        match intent.kind:
            case "tell":
                lines.append(_describe_filing(view, intent.text))
            case "forget":
                lines.append(_describe_wish(view, intent.text, removals))
            case "ask":
                lines.append(_answer_question(view, plan.question_of(intents)))
            case "list":
                lines.append(_overview(view))
            case kind if kind in _FIXED:
                lines.append(_TEXTS[kind])
            case "yes" if plan.is_confirmed(view, intents):
                lines.append(_describe_confirmed(view, removals))
            case _:
                pass
    lines = _join_filed([line for line in lines if line]) or [_TEXTS["talk"]]
    if all(_MARK not in text for text in (*view.own_words, *lines)):
        lines.append(_TEXTS["introduction"])
    return "\n\n".join(lines)


def _join_filed(lines: Sequence[str]) -> list[str]:
    """Merge lines with the same opening into one list."""
    by_opening: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        opening = next((text for text in _FILED if line.startswith(text)), line)
        by_opening.setdefault(opening, []).append(line.removeprefix(opening))
    joined = []
    for opening, quotes in by_opening.items():
        listed = "\n- ".join(["", *map(str.strip, quotes)])
        joined.append(opening + (listed if len(quotes) > 1 else quotes[0]))
    return joined


def _describe_filing(view: LibrarianView, text: str) -> str:
    # Calls contain redacted texts, so compare redacted words.
    phrase = " ".join(redact(text[: grammar.READ_LENGTH]).text.split())
    filed: LibrarianCall | None = None
    for call in view.calls_of(plan.INSERT, plan.REPLACE, plan.ARCHIVE):
        if phrase in " ".join(redact(call.new_words).text.split()):
            filed = call
            break
    if filed is None and (revision := _find_revision(view, text)):
        filed, phrase = revision
    if filed is None:
        note = plan.known_note(view, text)
        if note is None:
            return _TEXTS["nowhere"]
        return f'I have that in my notes already: "{_short(note.text)}"'
    phrase = _short(phrase)
    if filed.failed:
        return (
            f'I could not file "{phrase}": {_TEXTS["failed"]}. Your message stays in our history.'
        )
    if filed.tool == plan.ARCHIVE:
        return f'I have filed this in the archive: "{phrase}"'
    if _PROPOSED in filed.text:
        return f'I asked to have this put in my notes: "{phrase}"\n{_TEXTS["waits"]}'
    if filed.tool == plan.REPLACE:
        return f'I have corrected my notes about you: "{phrase}" (before: "{_replaced(filed)}")'
    return f'I have put this in my notes about you: "{phrase}"'


def _find_revision(view: LibrarianView, text: str) -> tuple[LibrarianCall, str] | None:
    """Return the call in which this statement changed a note, with the new text."""
    for call in view.calls_of(plan.REPLACE):
        phrase = plan.revised_words(note_of("", call.old_words.strip()).text, text)
        if phrase and phrase in call.new_words:
            return call, phrase
    return None


def _describe_removal(call: LibrarianCall, *, asks: bool) -> str:
    text = _replaced(call)
    if rest := note_of("", call.new_words).text:
        removed = [part for part in grammar.statements(text) if part not in rest]
        text = _short(removed[0] if removed else text)
    if call.failed:
        return f'I could not strike out "{text}": {_TEXTS["failed"]}.'
    if _PROPOSED in call.text:
        return f'I asked to have this struck out of my notes: "{text}"\n{_TEXTS["waits"]}'
    struck = f'I have struck this out of my notes: "{text}"'
    return struck if asks else f"{struck}\n{_TEXTS['stays']}"


def _describe_wish(view: LibrarianView, text: str, removals: Sequence[LibrarianCall]) -> str:
    """Return the outcome of a wish to forget; "" if the lines about removals say it."""
    if asked := view.calls_of(plan.FORGET):
        return _describe_asking(asked[-1])
    if any(grammar.is_about(text, _replaced(call)) for call in removals):
        return ""
    return _not_forgotten(view, text)


def _describe_confirmed(view: LibrarianView, removals: Sequence[LibrarianCall]) -> str:
    if asked := view.calls_of(plan.FORGET):
        return _describe_asking(asked[-1])
    return "" if removals else _TEXTS["cannot_forget"]


def _describe_asking(call: LibrarianCall) -> str:
    """Return the outcome of the wish, without repeating the words to forget."""
    if call.failed:
        return _TEXTS["not_asked"]
    return _TEXTS["asked" if call.text.startswith(plan.ASKED) else "forgotten"]


def _not_forgotten(view: LibrarianView, text: str) -> str:
    if not grammar.topic(text) and not grammar.facts_asked(text):
        return _TEXTS["forget_what"]
    fits = plan.matching(view, text)
    if not fits:
        answer = f'I have no note about "{_short(text, 80)}" to strike out.'
        return f"{answer} The archive and our messages I cannot delete; you can."
    if plan.REPLACE not in view.tools:
        return _TEXTS["cannot_forget"]
    return "\n".join([plan.FORGET_WHICH, *(f'- "{statement.text}"' for statement in fits)])


def _replaced(call: LibrarianCall) -> str:
    return _short(note_of("", call.old_words.strip()).text)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Words that may answer a question.

    `opening` introduces the quote of these words. `rank` orders the sources: 0 for notes, 1 for
    messages, 2 for the archive. `on` is the date of the words, and `points` say how well they
    match.
    """

    text: str
    opening: str
    rank: int
    on: str = ""
    points: int = 0


def _answer_question(view: LibrarianView, question: str) -> str:
    terms = grammar.topic(question)
    kinds = grammar.facts_asked(question)
    if not terms and not kinds:
        return (
            "I can look things up by their words. Ask again with a word or two that I can search "
            "for."
        )
    is_taste = bool(grammar.found_in("asks_taste", question))
    best = _best(view, terms, kinds, is_taste=is_taste)
    lines = [f'{evidence.opening}: "{_short(evidence.text, _LONGEST_QUOTE)}"' for evidence in best]
    if not lines:
        searched = dict.fromkeys(
            _PLACES[call.tool] for call in view.calls_of(*plan.SEARCHES) if not call.failed
        )
        *earlier_places, last_place = ["my notes", *searched]
        question_text = _short(question.strip(" ?.!？"), 80)
        places = last_place
        if earlier_places:
            places = f"{', '.join(earlier_places)} and {last_place}"
        lines = [_TEXTS["not_found"].format(places=places, topic=question_text)]
        if any(plan.is_asked_about(wish, question) for wish in plan.wishes_in_view(view)):
            lines = [_TEXTS["kept_quiet"]]
    elif len(lines) > 1:
        lines = ["Here is what I found:", *(f"- {line}" for line in lines)]
    failures = dict.fromkeys(
        f"I could not search {_PLACES[call.tool]}."
        for call in view.calls_of(*plan.SEARCHES)
        if call.failed
    )
    return "\n".join([*lines, *failures])


def _best(
    view: LibrarianView, terms: frozenset[str], kinds: set[str], *, is_taste: bool = False
) -> list[Evidence]:
    """Return the best evidence for a question, best first.

    Evidence shares a term or a kind of fact with the question.
    """
    ranked = _ranked(view, terms, kinds, is_taste=is_taste)
    facts = [evidence for evidence in ranked if kinds & grammar.facts_told(evidence.text)]
    if facts and len(kinds) == 1 and all(map(grammar.is_single, kinds)):
        # A person has one name, so only the present one answers the question.
        from_notes = [evidence for evidence in facts if evidence.rank == 0]
        present = max(from_notes or facts, key=lambda evidence: (evidence.on, -evidence.rank))
        ranked = _corrections(present, ranked) or [present]
    best = [
        evidence
        for evidence in ranked
        if evidence.points * 2 > ranked[0].points and not _is_past(evidence, ranked)
    ]
    unique = {
        " ".join(evidence.text.casefold().rstrip(".! ").split()): evidence
        for evidence in reversed(best)
    }
    return [evidence for evidence in best if evidence in unique.values()][:_MOST_QUOTED]


def _ranked(
    view: LibrarianView, terms: frozenset[str], kinds: set[str], *, is_taste: bool
) -> list[Evidence]:
    """Return the notes and hits that share a term or a kind of fact, the best first.

    If two are equally good, the newer one is first.
    """
    # Begin with the last line, since the later of two lines of one day is newer.
    notes = [
        Evidence(note.text, _opening(note.said_on, note.label), 0, note.said_on)
        for note in reversed(view.notes)
    ]
    hits = list(_hits(view))
    ranked = []
    for evidence in (*notes, *hits):
        points = plan.points_of(evidence.text, terms, kinds)
        if is_taste and grammar.found_in("tells_taste", evidence.text):
            # A favourite may be stated as a preference over something else.
            points += 2
        # A statement is old if a note has replaced it by another value.
        is_old = evidence.rank and (
            _is_replaced(view, evidence.text) or _is_outdated(view, evidence, hits)
        )
        if points and not is_old:
            ranked.append(replace(evidence, points=points))
    ranked.sort(key=lambda evidence: evidence.on, reverse=True)
    ranked.sort(key=lambda evidence: (-evidence.points, evidence.rank))
    return ranked


def _corrections(fact: Evidence, ranked: Sequence[Evidence]) -> list[Evidence]:
    """Return later evidence that corrects a fact in other words, the newest first.

    "Rust is now my favourite language" comes after "My favourite programming language is Java".
    """
    later = [
        evidence
        for evidence in ranked
        if evidence.on > fact.on
        and evidence.text != fact.text
        and grammar.found_in("correction", evidence.text)
    ]
    return sorted(later, key=lambda evidence: evidence.on, reverse=True)


def _is_replaced(view: LibrarianView, text: str) -> bool:
    alike = [
        note.text
        for note in view.notes
        if grammar.is_same_frame(text, note.text) or grammar.is_denied(text, note.text)
    ]
    return bool(alike) and text not in alike


def _is_outdated(view: LibrarianView, hit: Evidence, hits: Sequence[Evidence]) -> bool:
    """Return True if a newer note or a later hit has another value.

    For example "I moved to Vienna." replaces "I live in Graz.". If an agent has no block for notes,
    corrections are only among the hits.
    """
    later = [note.text for note in view.notes if not note.said_on or note.said_on >= hit.on[:10]]
    later += [other.text for other in hits if other.on > hit.on]
    return any(plan.revised_words(hit.text, text) for text in later if text != hit.text)


def _is_past(evidence: Evidence, ranked: Sequence[Evidence]) -> bool:
    """Return True if later evidence replaces this evidence.

    For example "The exam is on 14 May." replaces "The exam is on 12 May.".
    """
    later = [
        other.text
        for other in ranked
        if other.on > evidence.on and grammar.is_same_frame(evidence.text, other.text)
    ]
    return bool(later) and evidence.text.casefold().startswith(("the ", "my ", "our "))


def _hits(view: LibrarianView) -> Iterator[Evidence]:
    """Yield the evidence of the searches.

    Only the statements of a message count, since an earlier question is no answer.
    """
    rows = [
        row
        for outcome in view.calls_of(*plan.SEARCHES)
        if not outcome.failed
        for row in rows_of(outcome)
    ]
    rows = [{**row, "content": stored_words(str(row["content"]))} for row in rows]
    read_rows = [(row, grammar.read(row["content"])) for row in rows]
    forgotten = [
        (intent, str(row.get("timestamp")))
        for row, intents in read_rows
        if row.get("role")
        for intent in intents
        if intent.kind == "forget"
    ]
    # Wishes in the conversation in view are newer than all hits.
    forgotten += [(wish, "9999") for wish in plan.wishes_in_view(view)]
    for row, intents in read_rows:
        on = str(row.get("timestamp") or "")
        hits = [Evidence(row["content"], f"The archive says, filed on {_day(on)}", 2, on)]
        if row.get("role"):
            hits = [
                Evidence(intent.text, _opening(on), 1, on)
                for intent in intents
                if intent.kind == "tell" and row["content"] != view.person_text
            ]
        for hit in hits:
            if hit.text and not _is_forgotten(hit, forgotten):
                yield hit


def _is_forgotten(hit: Evidence, forgotten: Sequence[tuple[grammar.Intent, str]]) -> bool:
    """Return whether a later message asks to forget the statement.

    The history still contains such statements, but they must not be quoted.
    """
    return any(hit.on < time and grammar.is_wished(wish, hit.text) for wish, time in forgotten)


def _overview(view: LibrarianView) -> str:
    """Return all notes, and the newest entries of the archive."""
    listed = [
        row
        for call in view.calls_of(plan.LIST_ARCHIVE.tool)
        if not call.arguments.get("query")
        for row in rows_of(call)
    ]
    archived = [
        (stored_words(str(row["content"])), str(row.get("timestamp") or "")[:10]) for row in listed
    ]
    parts = []
    for opening, dated_words in (
        ("my notes say", [(note.text, note.said_on) for note in view.notes]),
        ("the archive says", archived),
    ):
        lines = []
        for text, on in dated_words:
            if text:
                lines.append(f'- "{_short(text)}"' + (f" ({on})" if on else ""))
        if len(lines) > _MOST_NOTES:
            lines[_MOST_NOTES:] = [f"… and {len(lines) - _MOST_NOTES} more lines."]
        if lines:
            parts.append("\n".join([f"This is what {opening}:", *lines]))
    return "\n\n".join(parts) or "I know nothing about you yet. Tell me something, and I file it."


def _opening(on: str, label: str = "") -> str:
    if on:
        return f"You told me on {_day(on)}"
    if label.rsplit("/", 1)[-1] == "human":
        return "My notes about you say"
    return f'My notes "{label}" say'


def _short(text: str, length: int = 160) -> str:
    # Only the start is redacted. It is long enough to tell if the text must be cut.
    text = " ".join(redact(text[: 20 * length]).text.split())
    if len(text) <= length:
        return text
    cut = text[:length].rsplit(" ", 1)[0]
    return (cut if len(cut) > length // 2 else text[:length]) + " …"


def _day(on: str) -> str:
    """Return the date as in `21 November 2026`."""
    try:
        day = date.fromisoformat(on[:10])
    except ValueError:
        return "an unknown day"
    return f"{day.day} {day:%B %Y}"


LIBRARIAN_MODEL = Librarian()
