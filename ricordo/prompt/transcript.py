"""The transcript as a model gets it: results packaged and cut, and always valid, so that no history can brick an agent.

Results, events and a user's words look to a model like small JSON texts with a kind or status and a local time (blueprint §17).
What someone says is stored as it was said and packed for each request; an event is stored packed, as an `EventPart`, so that words
which only look like an event are packed as words.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ricordo.domain.clock import to_datetime, zone
from ricordo.domain.message import (
    CompactionPart,
    EventPart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.redaction import redact

FIRST_LOGIN = "Never (first login)"
_LONGEST_REASON = 1_000  # characters
_NOT_FROM_USER = "[This is an automated system message hidden from the user] "
_LEAST_CAP = 5_000
_CHARS_PER_TOKEN = 4
_SHARE_OF_WINDOW = 0.2
_NO_PICTURE = TextPart("(a picture that this model could not take)")
# Tools whose results repeat the whole block, with the arguments that hold what they write.
_WHOLE_BLOCK_RESULTS: Mapping[str, tuple[str, ...]] = {
    "memory_insert": ("new_string", "new_str"),
    "memory_replace": ("new_string", "new_str"),
    "memory_rethink": ("new_memory",),
    "core_memory_append": ("content",),
    "core_memory_replace": ("new_content",),
}
# Results of calls that have no other, by what ended their turn.
INTERRUPTED = (
    "interrupted: the server stopped before this call had a result. "
    "It may or may not have taken effect."
)
CANCELLED = (
    "cancelled: the user cancelled this turn before this call had a result. "
    "It may or may not have taken effect."
)
FAILED = (
    "interrupted: this turn failed before this call had a result. "
    "It may or may not have taken effect."
)


def transcript(
    messages: Iterable[Message],
    timezone: str,
    context_window: int,
    *,
    packs_user_messages: bool = False,
    has_plain_results: bool = False,
) -> tuple[Message, ...]:
    """The messages for one request, in the four roles models know: system, user, assistant, tool.

    `context_window` is in tokens and sets how much of a long result is shown. With `packs_user_messages` the model reads what users
    say as events with a time. With `has_plain_results` results are texts without an envelope, and edits of
    memory tell what changed.
    """
    cap = max(_LEAST_CAP, int(_SHARE_OF_WINDOW * context_window * _CHARS_PER_TOKEN))
    shown: list[Message] = []
    pictures: list[Message] = []
    calls: dict[str, ToolCallPart] = {}
    for message in paired(messages):
        calls |= {call.call_id: call for call in message.tool_calls}
        if message.role != "tool":
            shown += pictures
            pictures = []
        match message.role:
            case "tool":
                shown.append(
                    _plain_results(message, calls, cap)
                    if has_plain_results
                    else _packaged(message, timezone, cap)
                )
                if any(part.pictures for part in message.tool_returns):
                    pictures.append(_pictures(message, timezone))
            case "approval":
                shown.append(replace(message, role="assistant"))
            case "summary":
                shown.append(_summary(message, timezone))
            case "system" if message.group_id and message.name:
                shown.append(_said_in_group(message))
            case "user" if packs_user_messages:
                shown.append(packed(message, timezone))
            case _:
                shown.append(message)
    return (*shown, *pictures)


def _said_in_group(message: Message) -> Message:
    """The words of another agent in a group, with its name in front: few providers pass on the name of a message."""
    return message.with_text(f"[{' '.join((message.name or '').split())}] {message.text}")


def _pictures(message: Message, timezone: str) -> Message:
    """The pictures of these results as a message behind them, since few providers take pictures in results."""
    time = local_time(message.created_at, timezone)
    parts = list[Part]()
    for result in message.tool_returns:
        if result.pictures:
            words = f'{_NOT_FROM_USER}The result of the tool "{result.name}" holds these pictures.'
            parts += [
                EventPart(_dump({"type": "tool_pictures", "message": words, "time": time})),
                *result.pictures,
            ]
    return replace(message, role="user", parts=tuple(parts))


def _summary(message: Message, timezone: str) -> Message:
    part = next((part for part in message.parts if isinstance(part, CompactionPart)), None)
    count = len(part.evicted) if part and not part.is_whole else None
    event = summary_event(message.text, count, local_time(message.created_at, timezone))
    return replace(message, role="user", parts=(event,))


def without_pictures(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages with a word in the place of every picture, for a model that refused them."""
    return tuple(
        replace(
            message,
            parts=tuple(
                _NO_PICTURE if isinstance(part, ImagePart) else part for part in message.parts
            ),
        )
        for message in messages
    )


def has_pictures(messages: Iterable[Message]) -> bool:
    return any(isinstance(part, ImagePart) for message in messages for part in message.parts)


def paired(messages: Iterable[Message]) -> list[Message]:
    """The messages with every tool call answered exactly once, right after it: missing results added, stray ones left out.

    Answers to calls that waited are no part of it: what became of the calls stands in their results. A call that has the id of an
    earlier one, as some models' calls do, gets another, and so does its result.
    """
    sound: list[Message] = []
    open_calls: dict[str, ToolCallPart] = {}
    used: set[str] = set()
    other_ids: dict[str, str] = {}
    for given in messages:
        message = given
        calls = given.tool_calls
        if calls:
            ids = [call.call_id for call in calls]
            is_clear = all(ids) and len(set(ids)) == len(ids) and used.isdisjoint(ids)
            message, other_ids = (given, {}) if is_clear else _with_fresh_ids(given, used)
        elif other_ids:
            message = replace(given, parts=tuple(_renamed(part, other_ids) for part in given.parts))
        if message.role == "tool":
            answered = [
                open_calls.pop(part.call_id, None) is not None for part in message.tool_returns
            ]
            if all(answered):
                sound.append(message)
            elif any(answered):
                kept = [
                    part
                    for part, wanted in zip(message.tool_returns, answered, strict=True)
                    if wanted
                ]
                sound.append(replace(message, parts=tuple(kept)))
            continue
        if message.role == "approval" and not calls:
            continue
        if open_calls:
            sound.append(interrupted(sound[-1], list(open_calls.values())))
        open_calls = {call.call_id: call for call in message.tool_calls} if calls else {}
        used.update(open_calls)
        sound.append(message)
    if open_calls:
        sound.append(interrupted(sound[-1], list(open_calls.values())))
    return sound


def _with_fresh_ids(message: Message, used: set[str]) -> tuple[Message, dict[str, str]]:
    """The message with an id of its own for each call, and the new ids of those calls that results name by a used one."""
    parts: list[Part] = []
    other_ids: dict[str, str] = {}
    here: set[str] = set()
    for number, part in enumerate(message.parts):
        if isinstance(part, ToolCallPart) and (
            not (id := part.call_id) or id in used or id in here
        ):
            part = replace(part, call_id=f"{id or 'call'}_{len(used)}_{number}")  # noqa: PLW2901
            if id not in here:
                other_ids.setdefault(id, part.call_id)
        here |= {part.call_id} if isinstance(part, ToolCallPart) else set()
        parts.append(part)
    return replace(message, parts=tuple(parts)), other_ids


def _renamed(part: Part, other_ids: Mapping[str, str]) -> Part:
    if isinstance(part, ToolReturnPart):
        return replace(part, call_id=other_ids.get(part.call_id, part.call_id))
    return part


def interrupted(after: Message, calls: Sequence[ToolCallPart], why: str = INTERRUPTED) -> Message:
    """Return the message that gives each of these calls the result `why`."""
    results = tuple(ToolReturnPart(call.call_id, call.name, "error", why) for call in calls)
    return replace(after, role="tool", parts=results, otid=None, model=None)


def _packaged(message: Message, timezone: str, cap: int) -> Message:
    time = local_time(message.created_at, timezone)
    return replace(
        message, parts=tuple(_packaged_result(part, time, cap) for part in message.tool_returns)
    )


def _plain_results(message: Message, calls: Mapping[str, ToolCallPart], cap: int) -> Message:
    """The results as small models read them best: plain text, of a list its rows, of an edit of memory what changed."""
    results = (_plain_result(part, calls.get(part.call_id), cap) for part in message.tool_returns)
    return replace(message, parts=tuple(results))


def _plain_result(part: ToolReturnPart, call: ToolCallPart | None, cap: int) -> ToolReturnPart:
    content = plain_value(orjson.loads(part.content)) if part.is_json else part.content
    if part.status == "error":
        content = f"Failed: {content}"
    elif call and part.name in _WHOLE_BLOCK_RESULTS:
        content = _changed_lines(content, call)
    if len(content) > cap:
        content = f"{content[:cap]}... [truncated {len(content) - cap} chars]"
    return replace(part, content=content or "Done.", is_json=False, pictures=())


def _changed_lines(block_text: str, call: ToolCallPart) -> str:
    """What an edit wrote, for a result that repeats the whole block; the result itself where it says something else."""
    try:
        arguments = orjson.loads(call.arguments or b"{}")
    except orjson.JSONDecodeError:
        return block_text
    if isinstance(arguments, dict):
        written = [arguments.get(name) for name in _WHOLE_BLOCK_RESULTS[call.name]]
    else:
        written = []
    text = next((one for one in written if isinstance(one, str)), None)
    if text is None or text not in block_text:
        return block_text  # a proposal, or words that were redacted
    notes = block_text.rpartition("\n\n[")[1:] if block_text.endswith("]") else ()
    return (f"Saved: {text}" if text.strip() else "Saved: the text was deleted.") + "".join(notes)


def plain_value(value: Any, indent: str = "") -> str:
    """The JSON value as lines of text: `name: value`, a row of a list behind a dash."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        rows = [
            _named_row(str(name), one, indent)
            for name, one in value.items()
            if one not in (None, "", [], {})
        ]
        return "\n".join(rows)
    if isinstance(value, list):
        return "\n".join(f"{indent}- {plain_value(one, indent + '  ').lstrip()}" for one in value)
    return orjson.dumps(value).decode()


def _named_row(name: str, value: Any, indent: str) -> str:
    if isinstance(value, dict | list):
        return f"{indent}{name}:\n{plain_value(value, indent + '  ')}"
    return f"{indent}{name}: {plain_value(value)}"


def _packaged_result(part: ToolReturnPart, time: str, cap: int) -> ToolReturnPart:
    content = part.content
    if len(content) > cap:
        content = f"{content[:cap]}... [truncated {len(content) - cap} chars]"
    elif part.is_json:
        content = orjson.loads(content)
    content = package_result(content, is_success=part.status == "success", time=time)
    return replace(part, content=content, pictures=())


def local_time(now: int, timezone: str) -> str:
    return to_datetime(now).astimezone(zone(timezone)).strftime("%Y-%m-%d %I:%M:%S %p %Z%z")


def package_result(content: Any, *, is_success: bool, time: str) -> str:
    return _dump(
        {"status": "OK" if is_success else "Failed", "message": content, "time": time}, indent=True
    )


def package_user_message(
    message: str, time: str, *, location: str | None = None, name: str | None = None
) -> str:
    """What a user said, with when, and with where and who where that is known."""
    optional = {"location": location, "name": name}
    known = {key: value for key, value in optional.items() if value is not None}
    return _dump({"type": "user_message", "message": message, "time": time, **known})


def heartbeat_event(reason: str, time: str) -> EventPart:
    return EventPart(
        _dump({"type": "heartbeat", "reason": _NOT_FROM_USER + reason, "time": time}),
        event="heartbeat",
    )


def rejection_event(label: str, proposal_id: str, reason: str, time: str) -> EventPart:
    """The event of a proposal that the user rejected, with the user's reason; what was proposed is not in it."""
    reason = redact(reason).text
    told = {
        "type": "proposal_rejected",
        "message": f'{_NOT_FROM_USER}The owner rejected your change of memory block "{label}". The block stays as it is.',
        "proposal_id": proposal_id,
        "reason": reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…",
        "time": time,
    }
    return EventPart(_dump(told), event="rejection")


def task_event(name: str, instructions: str, time: str) -> EventPart:
    """The event that asks an agent to carry out a background task."""
    message = f"{_NOT_FROM_USER}Carry out this task now. Nobody reads your answer.\n{instructions}"
    return EventPart(
        _dump({"type": "background_task", "task": name, "message": message, "time": time}),
        event="task",
    )


def login_event(time: str) -> EventPart:
    """The event of a user who comes in for the first time."""
    return EventPart(
        _dump({"type": "login", "last_login": FIRST_LOGIN, "time": time}), event="login"
    )


def summary_event(summary: str, count: int | None, time: str) -> EventPart:
    """The alert in place of messages that left the window: the first `count` of them, or (None) all there were."""
    # Wire facts of the retired Letta V1 server, the blank before the summary too.
    if count is None:
        hidden = (
            "Note: prior messages have been hidden from view due to conversation memory "
            "constraints."
        )
    else:
        hidden = (
            f"Note: {count} messages from the beginning of the conversation have been hidden from "
            "view due to memory "
            "constraints."
        )
    text = f"{hidden}\nThe following is a summary of the previous messages:\n {summary}"
    return EventPart(_dump({"type": "system_alert", "message": text, "time": time}))


def packed(message: Message, timezone: str) -> Message:
    """A user message for a type of agent that gets them as JSON: texts packed one by one, pictures and events as they are."""
    if not message.is_said:
        return message
    time = local_time(message.created_at, timezone)

    def shown(part: Part) -> Part:
        if not isinstance(part, TextPart):
            return part
        return replace(part, text=package_user_message(part.text, time, name=message.name))

    return replace(message, parts=tuple(map(shown, message.parts)))


def truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters with a note that says so."""
    if len(text) <= limit:
        return text
    note = (
        "... [NOTE: function output was truncated since it exceeded the character limit: "
        f"{len(text)} > {limit}]"
    )
    return text[:limit] + note


def _dump(value: dict[str, Any], *, indent: bool = False) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
