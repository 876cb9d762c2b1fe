"""The transcript as a model gets it: results packaged and cut, and always valid, so that no history can brick an agent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import orjson

from ricordo.domain.message import CompactionPart, ImagePart, Message, Part, TextPart, ToolCallPart, ToolReturnPart
from ricordo.prompt.packaging import local_time, package_result, packed, summary_event

_LEAST_CAP = 5_000
_CHARS_PER_TOKEN = 4
_SHARE_OF_WINDOW = 0.2
_NO_PICTURE = TextPart("(a picture that this model could not take)")
INTERRUPTED = "interrupted: the server stopped before this call had a result. It may or may not have taken effect."


def transcript(
    messages: Iterable[Message], timezone: str, context_window: int, *, packs_user_messages: bool = False
) -> tuple[Message, ...]:
    """The messages for one request, in the four roles models know: system, user, assistant, tool.

    `context_window` is in tokens and sets how much of a long result is shown. With `packs_user_messages` the model reads what users
    say as events with a time.
    """
    cap = max(_LEAST_CAP, int(_SHARE_OF_WINDOW * context_window * _CHARS_PER_TOKEN))
    shown: list[Message] = []
    for message in paired(messages):
        match message.role:
            case "tool":
                shown.append(_packaged(message, timezone, cap))
            case "approval":
                shown.append(replace(message, role="assistant"))
            case "summary":
                shown.append(_summary(message, timezone))
            case "user" if packs_user_messages:
                shown.append(packed(message, timezone))
            case _:
                shown.append(message)
    return tuple(shown)


def _summary(message: Message, timezone: str) -> Message:
    part = next((part for part in message.parts if isinstance(part, CompactionPart)), None)
    count = len(part.evicted) if part else None
    event = summary_event(message.text, count, local_time(message.created_at, timezone))
    return replace(message, role="user", parts=(event,))


def without_pictures(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages with a word in the place of every picture, for a model that refused them."""
    return tuple(
        replace(message, parts=tuple(_NO_PICTURE if isinstance(part, ImagePart) else part for part in message.parts))
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
        message, calls = given, given.tool_calls
        if calls:
            ids = [call.call_id for call in calls]
            is_clear = all(ids) and len(set(ids)) == len(ids) and used.isdisjoint(ids)
            message, other_ids = (given, {}) if is_clear else _with_fresh_ids(given, used)
        elif other_ids:
            message = replace(given, parts=tuple(_renamed(part, other_ids) for part in given.parts))
        if message.role == "tool":
            answered = [open_calls.pop(part.call_id, None) is not None for part in message.tool_returns]
            if all(answered):
                sound.append(message)
            elif any(answered):
                kept = [part for part, wanted in zip(message.tool_returns, answered, strict=True) if wanted]
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
        if isinstance(part, ToolCallPart) and (not (id := part.call_id) or id in used or id in here):
            part = replace(part, call_id=f"{id or 'call'}_{len(used)}_{number}")  # noqa: PLW2901
            if id not in here:
                other_ids.setdefault(id, part.call_id)
        here |= {part.call_id} if isinstance(part, ToolCallPart) else set()
        parts.append(part)
    return replace(message, parts=tuple(parts)), other_ids


def _renamed(part: Part, other_ids: Mapping[str, str]) -> Part:
    return (
        replace(part, call_id=other_ids.get(part.call_id, part.call_id)) if isinstance(part, ToolReturnPart) else part
    )


def interrupted(after: Message, calls: Sequence[ToolCallPart]) -> Message:
    results = tuple(ToolReturnPart(call.call_id, call.name, "error", INTERRUPTED) for call in calls)
    return replace(after, role="tool", parts=results, otid=None, model=None)


def _packaged(message: Message, timezone: str, cap: int) -> Message:
    time = local_time(message.created_at, timezone)
    return replace(message, parts=tuple(_packaged_result(part, time, cap) for part in message.tool_returns))


def _packaged_result(part: ToolReturnPart, time: str, cap: int) -> ToolReturnPart:
    content = part.content
    if len(content) > cap:
        content = f"{content[:cap]}... [truncated {len(content) - cap} chars]"
    elif part.is_json:
        content = orjson.loads(content)
    return replace(part, content=package_result(content, is_success=part.status == "success", time=time))
