"""Summaries of messages that left a window, by a model where one answers, else an outline without one: this never fails.

The material is cut into pieces that the writer's window holds, each summarized together with the summary so far, so any length
works. A writer gets it as plain text between tags, as data; an agent that sums up for itself gets its own messages as they are,
behind the same system message and tools as ever, so that its provider's cache holds.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ricordo.domain.agent import CompactionMode, CompactionSettings
from ricordo.domain.clock import SECOND
from ricordo.domain.message import (
    ApprovalPart,
    ImagePart,
    Message,
    Role,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import (
    ModelReply,
    ModelRequest,
    ModelSettings,
    ToolSchema,
    settings_changes,
)
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.chat import ChatModel, whole_reply
from ricordo.llm.output_budget import usual_output_tokens
from ricordo.llm.tokens import message_tokens, text_tokens, tool_tokens
from ricordo.prompt.memory import disarm
from ricordo.prompt.texts import text
from ricordo.prompt.transcript import local_time
from ricordo.prompt.truncation import exchanges, fit, shorten

TIMEOUT = 120.0
# A model that was measured to be slow gets longer: so many times what it will take, within this bound.
_SLOWER, _LONGEST_TIMEOUT = 3, 1_200.0
# How long a writer that failed is left alone.
_REST = 300 * SECOND
log = logging.getLogger(__name__)

# Of a writer's window, what may be asked at once: were our estimate half of the truth, there would still be room to answer.
_WRITER_SHARE = 0.4
# The agent's own messages fitted its window a moment ago, so nearly all of it may be used.
_OWN_SHARE = 0.85
# Pieces are halved after a refusal down to this many tokens.
_LEAST_PIECE = 128
_SO_FAR_SHARE = 3
_RESULT_CHARACTERS = 4_000
_WORDS_PER_TOKEN = 0.6
# Longer than this, in characters, it would tell a reader nothing more.
_LONGEST_OUTLINE = 8_000
_OUTLINE_NOTE = "(No model wrote this summary. It lists what was said; the messages themselves can still be searched.)"
_EARLIER = "Earlier summary:"
_BEGINNINGS = "How the messages begin, oldest first:"
_LEFT_OUT = re.compile(r"^\((\d{1,9}) older ones are left out\)", re.MULTILINE)
_COUNTS = re.compile(r"^(\d{1,9}) messages from (.{1,60}?) to (.{1,60}?)\.(.*)$", re.MULTILINE)
_CALLS = re.compile(r"([\w-]{1,64}) \((\d{1,9})(?:, (\d{1,9}) failed)?\)")
_FIRST_WORDS = 160
_EARLIER_SHARE = 0.6
_MOST_TOOLS = 20
_PROMPTS: dict[CompactionMode, tuple[str, int]] = {
    "all": ("summary_all", 500),
    "sliding_window": ("summary_sliding", 300),
    "self_compact_all": ("summary_self_all", 500),
    "self_compact_sliding_window": ("summary_self_sliding", 300),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A model that sums up: `percent` is its tokens to ours; with `system` the agent's own, with its tools, and `render`."""

    model: ChatModel
    window: int
    settings: ModelSettings = field(default_factory=ModelSettings)
    percent: int = 100
    user_id: str | None = None
    system: Message | None = None
    tools: tuple[ToolSchema, ...] = ()
    render: Callable[[Sequence[Message]], Sequence[Message]] = tuple


@dataclass(frozen=True, slots=True)
class Summary:
    """What replaces messages: the `mode` it was made in, the writer's handle ("" for none), and the usage of all calls."""

    text: str
    mode: CompactionMode | Literal["deterministic"]
    model: str
    usage: Usage


class RestingWriters:
    """The writers that failed for an agent a moment ago. All of a call's retries at each compaction would hold up its turns."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], int] = {}

    def holds(self, agent_id: str, writer: Writer, now: int) -> bool:
        left = self._until.get((agent_id, writer.model.info.handle), 0) - now
        return 0 < left <= _REST  # more is left where the clock was set back meanwhile

    def note(self, agent_id: str, writer: Writer, summary: Summary, now: int) -> None:
        """Let the writer rest if the summary is not its own."""
        key = agent_id, writer.model.info.handle
        self._until.pop(key, None)
        if summary.mode == "deterministic":
            self._until = {one: until for one, until in self._until.items() if until > now} | {
                key: now + _REST
            }


@dataclass(slots=True)
class _SummaryDraft:
    """A summary while it is written: `text` covers the first `covered` of the messages."""

    text: str
    mode: CompactionMode
    settings: CompactionSettings
    room: int | None
    timezone: str
    covered: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def instructions(self) -> str:
        """What the model is asked for: the agent's own words, or those of the mode."""
        if self.settings.prompt:
            return self.settings.prompt
        name, words = _PROMPTS[self.mode]
        if self.room is not None:
            words = max(20, min(words, int(self.room * _WORDS_PER_TOKEN)))
        return text(name).replace("{words}", str(words))


async def summarize(
    evicted: Sequence[Message],
    settings: CompactionSettings,
    *,
    writer: Writer | None,
    room: int | None = None,
    timezone: str = "UTC",
    timeout: float = TIMEOUT,
) -> Summary:
    """Sum up the messages, an earlier summary among them, in at most `room` tokens by our estimate and `clip_chars`.

    The writer gets `timeout` seconds. What it did not do, or all where there is none, is left to an outline. The modes that begin
    with `self_` need the agent's own; with another one they become `all`. Raises nothing.
    """
    earlier = "\n\n".join(
        message.text for message in evicted if message.role == "summary" and message.text
    )
    mode = settings.mode
    if mode.startswith("self_") and not (writer and writer.system):
        mode = "all"
    draft = _SummaryDraft(earlier, mode, settings, room, timezone)
    if writer:
        handle = writer.model.info.handle
        try:
            async with asyncio.timeout(timeout):
                if writer.system:
                    await _write_as_itself(draft, evicted, writer, writer.system)
                else:
                    await _write_from_outside(draft, evicted, writer)
            return Summary(
                clipped(draft.text, settings.clip_chars, room), mode, handle, draft.usage
            )
        except Exception as error:  # whatever an adapter raises, the agent goes on
            reason = error.kind if isinstance(error, ModelError) else type(error).__name__
            what = {"mode": mode, "model": handle, "reason": reason}
            log.warning(
                "no summary", extra=what, exc_info=not isinstance(error, ModelError | TimeoutError)
            )
    done, before = (draft.covered, draft.text) if draft.covered else (0, earlier)
    longest = {} if settings.clip_chars is None else {"longest": settings.clip_chars}
    plain = outline(evicted[done:], earlier=before, timezone=timezone, **longest)
    return Summary(clipped(plain, settings.clip_chars, room), "deterministic", "", draft.usage)


def timeout_for(expected: float | None) -> float:
    """Return the seconds that a writer gets, by how long the summary will take it; None: it was never measured."""
    return TIMEOUT if expected is None else min(_LONGEST_TIMEOUT, max(TIMEOUT, _SLOWER * expected))


async def _write_from_outside(
    draft: _SummaryDraft, evicted: Sequence[Message], writer: Writer
) -> None:
    """Ask a writer who sees the messages as data."""
    entries = [
        (_entry(message, draft.timezone), index + 1) for index, message in enumerate(evicted)
    ]
    entries = [entry for entry in entries if entry[0]]
    system, instructions = text("summary_system_prompt"), draft.instructions
    fixed = (
        text_tokens(system) + text_tokens(instructions) + text_tokens(text("summary_so_far")) + 100
    )

    async def ask(begin: int, end: int, tokens: int) -> ModelReply:
        material = "\n".join(_within(entry, tokens) for entry, _ in entries[begin:end])
        data = f"{_tagged('summary_so_far', draft.text)}{_tagged('conversation', material)}{text('summary_reminder')}"
        if draft.text:
            data = f"{text('summary_so_far')}\n\n{data}"
        said: list[tuple[Role, str]] = [("system", system), ("user", f"{instructions}\n\n{data}")]
        if draft.settings.prompt_acknowledgement:
            said[1:] = [
                ("user", instructions),
                ("assistant", text("summary_acknowledgement")),
                ("user", data),
            ]
        messages = tuple(_message(evicted[0], role, words) for role, words in said)
        return await _reply(draft, writer, ModelRequest(messages))

    budget = int(writer.window * _WRITER_SHARE * 100 / max(1, writer.percent)) - fixed
    await _fold(draft, [(text_tokens(entry) + 1, end) for entry, end in entries], budget, ask)


async def _write_as_itself(
    draft: _SummaryDraft, evicted: Sequence[Message], own: Writer, system: Message
) -> None:
    """Ask the agent, whose request begins as all of its requests do."""
    pieces = exchanges(evicted)
    draft.text = ""  # An earlier summary is among the messages.
    fixed = (
        tool_tokens(own.tools)
        + text_tokens(draft.instructions)
        + text_tokens(text("summary_so_far"))
        + 100
    )
    budget = int(own.window * _OWN_SHARE * 100 / max(1, own.percent)) - fixed

    async def ask(begin: int, end: int, tokens: int) -> ModelReply:
        seen = evicted[pieces[begin][0] : pieces[end - 1][1]]
        shown = list(
            fit(own.render([system, *seen]), message_tokens(system) + tokens, count=message_tokens)
        )
        if draft.text:
            before = f"{text('summary_so_far')}\n\n{_tagged('summary_so_far', draft.text)}".strip()
            shown.insert(1, _message(system, "user", before))
        if draft.settings.prompt_acknowledgement or shown[-1].role != "assistant":
            shown.append(_message(system, "assistant", text("summary_acknowledgement")))
        shown.append(_message(system, "user", draft.instructions))
        return await _reply(draft, own, ModelRequest(tuple(shown), own.tools, tool_choice="none"))

    sizes = [(sum(map(message_tokens, evicted[begin:end])), end) for begin, end in pieces]
    await _fold(draft, sizes, budget - message_tokens(system), ask)


async def _fold(
    draft: _SummaryDraft,
    pieces: Sequence[tuple[int, int]],
    budget: int,
    ask: Callable[[int, int, int], Awaitable[ModelReply]],
) -> None:
    """Sum up as many messages at a time as `budget` tokens hold, together with the summary of those before."""
    begin = 0
    while begin < len(pieces):
        draft.text = clipped(draft.text, None, max(_LEAST_PIECE, budget // _SO_FAR_SHARE))
        tokens = max(_LEAST_PIECE, budget - text_tokens(draft.text))
        end, used = begin + 1, pieces[begin][0]
        while end < len(pieces) and used + pieces[end][0] <= tokens:
            used += pieces[end][0]
            end += 1
        try:
            reply = await ask(begin, end, tokens)
        except ModelError as error:
            if error.kind != "context_window_exceeded" or min(budget, used) // 2 < _LEAST_PIECE:
                raise
            budget = min(budget, used) // 2
            continue
        draft.usage += reply.usage
        written = "\n".join(part.text for part in reply.parts if isinstance(part, TextPart)).strip()
        if not written:
            raise ModelError("llm_empty_response", "The model gave no text for a summary.")
        draft.text, draft.covered = written, pieces[end - 1][1]
        begin = end
    if not draft.covered:
        raise ModelError(
            "llm_empty_response", "There is nothing among these messages that a model could sum up."
        )


async def _reply(draft: _SummaryDraft, writer: Writer, request: ModelRequest) -> ModelReply:
    settings = _settings(writer.settings, draft.settings.model_settings)
    if settings.max_output_tokens is None and writer.system is None:
        budget = usual_output_tokens(writer.model.info, writer.window)
        settings = replace(settings, max_output_tokens=budget)
    return await whole_reply(
        writer.model, replace(request, settings=settings, user_id=writer.user_id)
    )


def _settings(base: ModelSettings, wire: dict[str, Any]) -> ModelSettings:
    """How to ask: the writer's own settings with those of the compaction, given as on the wire, over them. It writes plain text."""
    given = {name: value for name, value in wire.items() if value is not None and name != "strict"}
    changes = settings_changes(given)
    plain = {
        "response_format": None,
        "thinks_in_arguments": None,
        "extra": base.extra | changes.get("extra", {}),
    }
    return replace(base, **changes | plain)


def _entry(message: Message, timezone: str) -> str:
    """The message as lines of plain text, "" where it says nothing; the lines after the first are indented, so none looks new."""
    if message.role == "summary" or message.is_event:
        return ""
    speaker = {"assistant": "agent", "approval": "agent"}.get(message.role, message.role)
    if message.role == "user" and message.name:
        speaker = f"user {message.name}"
    lines: list[str] = []
    for part in message.parts:
        match part:
            case TextPart() if part.text.strip():
                lines.append(f"{speaker}: {part.text}")
            case ImagePart():
                lines.append(f"{speaker}: (a picture)")
            case ToolCallPart():
                lines.append(
                    f"agent calls {part.name}: {shorten(part.arguments, _RESULT_CHARACTERS)}"
                )
            case ToolReturnPart():
                outcome = "result" if part.status == "success" else "failure"
                lines.append(
                    f"{outcome} of {part.name}: {shorten(part.content, _RESULT_CHARACTERS)}"
                )
                lines += [f"{outcome} of {part.name}: (a picture)" for _ in part.pictures]
            case ApprovalPart():
                decision = "allows" if part.approves else "refuses"
                lines.append(f"user {decision} the call{f': {part.reason}' if part.reason else ''}")
            case _:
                pass
    if not lines:
        return ""
    indented = "\n".join(line.replace("\n", "\n    ") for line in lines)
    return f"[{local_time(message.created_at, timezone)}] {indented}"


def _within(entry: str, tokens: int) -> str:
    """The entry, cut in its middle where it alone is larger than the piece."""
    while (size := text_tokens(entry)) > tokens and len(entry) > 1:
        entry = shorten(entry, max(1, min(len(entry) - 1, len(entry) * tokens // size)))
    return entry


def _tagged(tag: str, words: str) -> str:
    return (
        f"<{tag}>\n{disarm(words, 'conversation', 'summary_so_far')}\n</{tag}>\n\n" if words else ""
    )


def _message(like: Message, role: Role, words: str) -> Message:
    return replace(
        like, id="", role=role, parts=(TextPart(words),), otid=None, name=None, model=None
    )


def outline(
    messages: Sequence[Message],
    *,
    earlier: str = "",
    timezone: str = "UTC",
    longest: int = _LONGEST_OUTLINE,
) -> str:
    """Outline the messages in at most `longest` characters; `earlier` was said of those before.

    An earlier outline is continued: its counts are added, and its lines stand before the new ones. Outlines never nest.
    """
    longest = min(longest, _LONGEST_OUTLINE)
    before = _read_outline(earlier)
    said = [message for message in messages if message.role != "summary" and not message.is_event]
    times = (
        [local_time(time, timezone) for time in (said[0].created_at, said[-1].created_at)]
        if said
        else []
    )
    first, last = before.first or (times[0] if times else ""), times[1] if times else before.last
    parts = [_OUTLINE_NOTE]
    if before.written:
        parts.append(f"{_EARLIER}\n{shorten(before.written, int(longest * _EARLIER_SHARE))}")
    if count := before.count + len(said):
        calls = before.calls + Counter(call.name for message in said for call in message.tool_calls)
        failed = before.failed + Counter(
            part.name for message in said for part in message.tool_returns if part.status == "error"
        )
        parts.append(f"{count} messages from {first} to {last}.{_tools(calls, failed)}")
    head = "\n\n".join(parts)
    lines = [*before.lines, *_said(said, timezone)]
    return (
        head + _newest(lines, before.left_out, longest - len(head))
        if len(head) < longest
        else clipped(head, longest)
    )


@dataclass(slots=True)
class _OutlineParts:
    """What an outline says: `written` by a model of what came before it, counts, times, and how the messages begin."""

    written: str = ""
    count: int = 0
    first: str = ""
    last: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    left_out: int = 0


def _read_outline(earlier: str) -> _OutlineParts:
    """Take an earlier outline apart; a summary by a model is `written` as a whole."""
    if not earlier.startswith(_OUTLINE_NOTE):
        return _OutlineParts(earlier.strip())
    rest, _, listed = earlier.removeprefix(_OUTLINE_NOTE).partition(_BEGINNINGS)
    parts = _OutlineParts(lines=[line for line in listed.split("\n") if line.startswith("- ")])
    if found := _LEFT_OUT.search(listed):
        parts.left_out = int(found[1])
    counts = list(_COUNTS.finditer(rest))
    if counts:
        found = counts[-1]
        parts.count, parts.first, parts.last = int(found[1]), found[2], found[3]
        for name, count, failures in _CALLS.findall(found[4]):
            parts.calls[name], parts.failed[name] = int(count), int(failures or 0)
        rest = rest[: found.start()]
    parts.written = rest.strip().removeprefix(_EARLIER).strip()
    return parts


def clipped(text: str, clip_chars: int | None, room: int | None = None) -> str:
    """The summary, cut to `clip_chars` characters and `room` tokens, with dots at its end where it was longer."""
    whole = text
    if clip_chars is not None and len(text) > clip_chars:
        text = _with_dots(whole, clip_chars)
    while room is not None and text and (tokens := text_tokens(text)) > room:
        text = _with_dots(whole, min(len(text) - 1, len(text) * room // tokens))
    return text


def _tools(calls: Counter[str], failed: Counter[str]) -> str:
    listed = [
        f"{name} ({count}{f', {failed[name]} failed' if failed[name] else ''})"
        for name, count in calls.most_common(_MOST_TOOLS)
    ]
    more = f" and {len(calls) - _MOST_TOOLS} others" if len(calls) > _MOST_TOOLS else ""
    return f" Tools called: {', '.join(listed)}{more}." if listed else ""


def _said(said: Sequence[Message], timezone: str) -> list[str]:
    """Return how the messages of the user and the agent begin."""
    lines: list[str] = []
    for message in said:
        if message.role in ("user", "assistant") and message.spoken:
            speaker = "user" if message.role == "user" else "agent"
            words = clipped(" ".join(message.spoken.split()), _FIRST_WORDS)
            lines.append(f"- {local_time(message.created_at, timezone)}, {speaker}: {words}")
    return lines


def _newest(lines: Sequence[str], left_out: int, room: int) -> str:
    """Return the newest lines that there is room for, with how many older ones are left out."""
    room -= len(_BEGINNINGS) + 2 + len("\n(1000000 older ones are left out)")
    kept: list[str] = []
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    left_out += len(lines) - len(kept)
    older = [f"({left_out} older ones are left out)"] if left_out else []
    return "\n".join([f"\n\n{_BEGINNINGS}", *older, *reversed(kept)]) if kept else ""


def _with_dots(text: str, length: int) -> str:
    return text[: max(0, length - 3)] + "..."[: max(0, length)]
