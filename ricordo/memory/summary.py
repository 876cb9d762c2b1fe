"""Summaries of evicted messages: by a model, or an outline without one. This never fails.

The messages are cut into pieces that fit the writer's window. Each piece is summarized together
with the summary so far, so any length works. A writer other than the agent's own model gets plain
text between tags, as data. If the agent's model summarizes, its request has the usual system
message, tools and messages, so the provider's cache is used.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ricordo.domain.agent import CompactionMode, CompactionSettings
from ricordo.domain.clock import SECOND
from ricordo.domain.egress import Clearance
from ricordo.domain.message import (
    ApprovalPart,
    ImagePart,
    Message,
    Part,
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
from ricordo.errors import ModelError
from ricordo.llm.answer_limits import usual_output_tokens
from ricordo.llm.chat import ChatModel
from ricordo.llm.egress import ReplyPayer, whole_reply
from ricordo.llm.tokens import message_tokens, text_tokens, tool_tokens
from ricordo.prompt.system_prompt import disarm
from ricordo.prompt.texts import text
from ricordo.prompt.transcript import local_time
from ricordo.prompt.truncation import exchanges, fit, shorten

TIMEOUT = 120.0
# A model may take this many times its measured time, up to this bound.
_SLOW_FACTOR = 3
_LONGEST_TIMEOUT = 1_200.0
# The pause for a writer that failed.
_PAUSE = 300 * SECOND
log = logging.getLogger(__name__)

# The share of a writer's window for one request. It leaves room for the answer even if our estimate
# is only half of the real number.
_WRITER_SHARE = 0.4
# The agent's messages have just fitted into the window, so nearly the whole window may be used.
_OWN_SHARE = 0.85
# After a refusal pieces are halved, down to this many tokens.
_SMALLEST_PIECE = 128
# The summary so far may take a third of a request's tokens.
_SO_FAR_SHARE = 3
_RESULT_CHARACTERS = 4_000
_WORDS_PER_TOKEN = 0.6
# The most characters of an outline; a longer one would not help more.
_OUTLINE_LENGTH = 8_000
_OUTLINE_NOTE = (
    "(No model wrote this summary. It lists what was said; "
    "the messages themselves can still be searched.)"
)
_EARLIER = "Earlier summary:"
_BEGINNINGS = "How the messages begin, oldest first:"
_LEFT_OUT = re.compile(r"^\((\d{1,9}) older ones are left out\)", re.MULTILINE)
_COUNTS = re.compile(r"^(\d{1,9}) messages from (.{1,60}?) to (.{1,60}?)\.(.*)$", re.MULTILINE)
_CALLS = re.compile(r"([\w-]{1,64}) \((\d{1,9})(?:, (\d{1,9}) failed)?\)")
_BEGINNING_LENGTH = 160
_EARLIER_SHARE = 0.6
_TOOL_LIMIT = 20
_PROMPTS: dict[CompactionMode, tuple[str, int]] = {
    "all": ("summary_all", 500),
    "sliding_window": ("summary_sliding", 300),
    "self_compact_all": ("summary_self_all", 500),
    "self_compact_sliding_window": ("summary_self_sliding", 300),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A model that writes summaries, and the account that pays for it.

    `percent` is its tokens for a hundred of our estimate. `system` is set for the agent's own
    model. Then `tools` are the agent's, and `render` makes a request's messages from stored ones.
    """

    model: ChatModel
    window: int
    payer: ReplyPayer | None
    settings: ModelSettings = field(default_factory=ModelSettings)
    percent: int = 100
    user_id: str | None = None
    system: Message | None = None
    tools: tuple[ToolSchema, ...] = ()
    render: Callable[[Sequence[Message]], Sequence[Message]] = tuple
    clearance: Clearance = field(default_factory=Clearance)

    def cleared(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages as the writer's provider may see them.

        Args:
            messages: The messages to summarize; they are not changed.
        """
        return self.clearance.messages(messages, self.clearance.networks.of_model(self.model.info))


@dataclass(frozen=True, slots=True)
class Summary:
    """The text in place of messages, with its mode and writer.

    `model` is the writer's handle, "" if no model wrote it.
    """

    text: str
    mode: CompactionMode | Literal["deterministic"]
    model: str


class RestingWriters:
    """The writers that recently failed for an agent, and are not asked for five minutes.

    Without this pause each compaction would repeat all retries and delay the agent's turns.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], int] = {}

    def holds(self, agent_id: str, writer: Writer, now: int) -> bool:
        """Return True if the writer must not be asked for this agent now.

        Args:
            agent_id: The agent whose messages are summarized.
            writer: The writer, named by its model.
            now: The time in microseconds UTC.
        """
        remaining = self._until.get((agent_id, writer.model.info.handle), 0) - now
        # If the clock was set back meanwhile, more than a full pause would remain.
        return 0 < remaining <= _PAUSE

    def note(self, agent_id: str, writer: Writer, summary: Summary, now: int) -> None:
        """Pause the writer if the summary was not written by it.

        Args:
            agent_id: The agent whose messages were summarized.
            writer: The writer that was asked.
            summary: The result. An outline without a model starts the pause, any other ends it.
            now: The time in microseconds.
        """
        key = agent_id, writer.model.info.handle
        self._until.pop(key, None)
        if summary.mode == "deterministic":
            self._until = {other: until for other, until in self._until.items() if until > now} | {
                key: now + _PAUSE
            }


@dataclass(slots=True)
class _SummaryDraft:
    """A summary while it is written; `text` covers the first `covered` messages."""

    text: str
    mode: CompactionMode
    settings: CompactionSettings
    room: int | None
    timezone: str
    covered: int = 0

    @property
    def instructions(self) -> str:
        """The instructions for the model: the agent's own, or those of the mode."""
        if self.settings.prompt:
            return self.settings.prompt
        name, word_count = _PROMPTS[self.mode]
        if self.room is not None:
            word_count = max(20, min(word_count, int(self.room * _WORDS_PER_TOKEN)))
        return text(name).replace("{words}", str(word_count))


async def summarize(
    evicted: Sequence[Message],
    settings: CompactionSettings,
    *,
    writer: Writer | None,
    room: int | None = None,
    timezone: str = "UTC",
    timeout: float = TIMEOUT,
) -> Summary:
    """Summarize the messages, an earlier summary among them. Raises nothing.

    Args:
        evicted: The messages.
        settings: The agent's compaction settings; `clip_chars` bounds the summary.
        writer: The model that writes; without one, an outline is made. Modes whose name begins with
            `self_` need the agent's own model; with another model they become `all`.
        room: The largest summary in tokens, by our estimate.
        timezone: The time zone of times in the text.
        timeout: Seconds for the writer. An outline covers the messages that it did not reach.
    """
    if writer:
        evicted = writer.cleared(evicted)
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
            return Summary(clipped(draft.text, settings.clip_chars, room), mode, handle)
        except Exception as error:  # the turn continues after any error of an adapter
            reason = error.kind if isinstance(error, ModelError) else type(error).__name__
            log_fields = {"mode": mode, "model": handle, "reason": reason}
            log.warning(
                "no summary",
                extra=log_fields,
                exc_info=not isinstance(error, ModelError | TimeoutError),
            )
    covered = draft.covered
    before = draft.text if covered else earlier
    if settings.clip_chars is None:
        length_limit = {}
    else:
        length_limit = {"longest": settings.clip_chars}
    outline_text = outline(evicted[covered:], earlier=before, timezone=timezone, **length_limit)
    return Summary(clipped(outline_text, settings.clip_chars, room), "deterministic", "")


def timeout_for(expected: float | None) -> float:
    """Return the seconds that a writer gets.

    Args:
        expected: The seconds that it usually needs; None if they were never measured.
    """
    if expected is None:
        return TIMEOUT
    return min(_LONGEST_TIMEOUT, max(TIMEOUT, _SLOW_FACTOR * expected))


async def _write_from_outside(
    draft: _SummaryDraft, evicted: Sequence[Message], writer: Writer
) -> None:
    """Let another model than the agent's write; it sees the messages as data."""
    entries = [
        (_entry(message, draft.timezone), index + 1) for index, message in enumerate(evicted)
    ]
    entries = [entry for entry in entries if entry[0]]
    system = text("summary_system_prompt")
    instructions = draft.instructions
    fixed = (
        text_tokens(system) + text_tokens(instructions) + text_tokens(text("summary_so_far")) + 100
    )

    async def ask(begin: int, end: int, tokens: int) -> ModelReply:
        material = "\n".join(_cut_entry(entry, tokens) for entry, _ in entries[begin:end])
        so_far = _tagged("summary_so_far", draft.text)
        data = f"{so_far}{_tagged('conversation', material)}{text('summary_reminder')}"
        if draft.text:
            data = f"{text('summary_so_far')}\n\n{data}"
        turns: list[tuple[Role, str]] = [("system", system), ("user", f"{instructions}\n\n{data}")]
        if draft.settings.prompt_acknowledgement:
            turns[1:] = [
                ("user", instructions),
                ("assistant", text("summary_acknowledgement")),
                ("user", data),
            ]
        messages = tuple(_message(evicted[0], role, content) for role, content in turns)
        return await _reply(draft, writer, ModelRequest(messages))

    budget = int(writer.window * _WRITER_SHARE * 100 / max(1, writer.percent)) - fixed
    await _summarize_pieces(
        draft, [(text_tokens(entry) + 1, end) for entry, end in entries], budget, ask
    )


async def _write_as_itself(
    draft: _SummaryDraft, evicted: Sequence[Message], writer: Writer, system: Message
) -> None:
    """Let the agent's own model write; the request begins like all its requests."""
    pieces = exchanges(evicted)
    draft.text = ""  # The messages include the earlier summary.
    fixed = (
        tool_tokens(writer.tools)
        + text_tokens(draft.instructions)
        + text_tokens(text("summary_so_far"))
        + 100
    )
    budget = int(writer.window * _OWN_SHARE * 100 / max(1, writer.percent)) - fixed

    async def ask(begin: int, end: int, tokens: int) -> ModelReply:
        messages = evicted[pieces[begin][0] : pieces[end - 1][1]]
        request_messages = list(
            fit(
                writer.render([system, *messages]),
                message_tokens(system) + tokens,
                count=message_tokens,
            )
        )
        if draft.text:
            before = f"{text('summary_so_far')}\n\n{_tagged('summary_so_far', draft.text)}".strip()
            request_messages.insert(1, _message(system, "user", before))
        if draft.settings.prompt_acknowledgement or request_messages[-1].role != "assistant":
            request_messages.append(_message(system, "assistant", text("summary_acknowledgement")))
        request_messages.append(_message(system, "user", draft.instructions))
        return await _reply(
            draft, writer, ModelRequest(tuple(request_messages), writer.tools, tool_choice="none")
        )

    sizes = [(sum(map(message_tokens, evicted[begin:end])), end) for begin, end in pieces]
    await _summarize_pieces(draft, sizes, budget - message_tokens(system), ask)


async def _summarize_pieces(
    draft: _SummaryDraft,
    pieces: Sequence[tuple[int, int]],
    budget: int,
    ask: Callable[[int, int, int], Awaitable[ModelReply]],
) -> None:
    """Summarize as many messages at a time as `budget` tokens hold.

    Each piece is summarized together with the summary of the earlier pieces.
    """
    begin = 0
    while begin < len(pieces):
        draft.text = clipped(draft.text, None, max(_SMALLEST_PIECE, budget // _SO_FAR_SHARE))
        tokens = max(_SMALLEST_PIECE, budget - text_tokens(draft.text))
        end = begin + 1
        piece_tokens = pieces[begin][0]
        while end < len(pieces) and piece_tokens + pieces[end][0] <= tokens:
            piece_tokens += pieces[end][0]
            end += 1
        try:
            reply = await ask(begin, end, tokens)
        except ModelError as error:
            if (
                error.kind != "context_window_exceeded"
                or min(budget, piece_tokens) // 2 < _SMALLEST_PIECE
            ):
                raise
            budget = min(budget, piece_tokens) // 2
            continue
        summary_text = "\n".join(
            part.text for part in reply.parts if isinstance(part, TextPart)
        ).strip()
        if not summary_text:
            raise ModelError("llm_empty_response", "The model's summary was empty.")
        draft.text = summary_text
        draft.covered = pieces[end - 1][1]
        begin = end
    if not draft.covered:
        raise ModelError("llm_empty_response", "These messages have no text to summarize.")


async def _reply(draft: _SummaryDraft, writer: Writer, request: ModelRequest) -> ModelReply:
    settings = _settings(writer.settings, draft.settings.model_settings)
    if settings.max_output_tokens is None and writer.system is None:
        budget = usual_output_tokens(writer.model.info, writer.window)
        settings = replace(settings, max_output_tokens=budget)
    return await whole_reply(
        writer.model,
        replace(request, settings=settings, user_id=writer.user_id),
        writer.clearance,
        writer.payer,
    )


def _settings(base: ModelSettings, wire: dict[str, Any]) -> ModelSettings:
    """Return the writer's settings for plain text, overridden by those of the compaction.

    `wire` has the names of the wire format.
    """
    overrides = {
        name: value for name, value in wire.items() if value is not None and name != "strict"
    }
    changes = settings_changes(overrides)
    plain = {
        "response_format": None,
        "thinks_in_arguments": None,
        "extra": base.extra | changes.get("extra", {}),
    }
    return replace(base, **changes | plain)


def _picture(picture: ImagePart) -> str:
    """Return the picture's text in one line, or a note that there is a picture."""
    text = " ".join(picture.shown_text.split())
    return shorten(text, _RESULT_CHARACTERS) or "(a picture)"


def _part_lines(part: Part, speaker: str) -> Iterator[str]:
    match part:
        case TextPart() if part.text.strip():
            yield f"{speaker}: {part.text}"
        case ImagePart():
            yield f"{speaker}: {_picture(part)}"
        case ToolCallPart():
            yield f"agent calls {part.name}: {shorten(part.arguments, _RESULT_CHARACTERS)}"
        case ToolReturnPart():
            outcome = "result" if part.status == "success" else "failure"
            yield f"{outcome} of {part.name}: {shorten(part.content, _RESULT_CHARACTERS)}"
            for picture in part.pictures:
                yield f"{outcome} of {part.name}: {_picture(picture)}"
        case ApprovalPart():
            decision = "allows" if part.approves else "refuses"
            yield f"user {decision} the call{f': {part.reason}' if part.reason else ''}"
        case _:
            pass


def _entry(message: Message, timezone: str) -> str:
    """Return the message as lines of plain text, "" if it says nothing.

    The lines after the first are indented, so that none looks like a new message.
    """
    if message.role == "summary" or message.is_event:
        return ""
    speaker = {"assistant": "agent", "approval": "agent"}.get(message.role, message.role)
    if message.role == "user" and message.name:
        speaker = f"user {message.name}"
    lines = [line for part in message.parts for line in _part_lines(part, speaker)]
    if not lines:
        return ""
    indented = "\n".join(line.replace("\n", "\n    ") for line in lines)
    return f"[{local_time(message.created_at, timezone)}] {indented}"


def _cut_entry(entry: str, tokens: int) -> str:
    """Return the entry, cut in its middle if it is larger than the piece."""
    while (size := text_tokens(entry)) > tokens and len(entry) > 1:
        entry = shorten(entry, max(1, min(len(entry) - 1, len(entry) * tokens // size)))
    return entry


def _tagged(tag: str, content: str) -> str:
    if content:
        return f"<{tag}>\n{disarm(content, 'conversation', 'summary_so_far')}\n</{tag}>\n\n"
    return ""


def _message(like: Message, role: Role, content: str) -> Message:
    return replace(
        like, id="", role=role, parts=(TextPart(content),), otid=None, name=None, model=None
    )


def _calls_by_tool(messages: Iterable[Message]) -> Counter[str]:
    return Counter(call.name for message in messages for call in message.tool_calls)


def _failures_by_tool(messages: Iterable[Message]) -> Counter[str]:
    return Counter(
        part.name for message in messages for part in message.tool_returns if part.status == "error"
    )


def outline(
    messages: Sequence[Message],
    *,
    earlier: str = "",
    timezone: str = "UTC",
    longest: int = _OUTLINE_LENGTH,
) -> str:
    """Outline the messages.

    An earlier outline is continued: counts are added up, and its lines come before the new lines.
    Outlines never nest.

    Args:
        messages: The messages, the oldest first.
        earlier: The summary or outline of earlier messages; empty for none.
        timezone: The name of the time zone of times in the text.
        longest: The most characters; at most 8,000.
    """
    longest = min(longest, _OUTLINE_LENGTH)
    before = _read_outline(earlier)
    new_messages = [
        message for message in messages if message.role != "summary" and not message.is_event
    ]
    if new_messages:
        times = [
            local_time(time, timezone)
            for time in (new_messages[0].created_at, new_messages[-1].created_at)
        ]
    else:
        times = []
    first = before.first or (times[0] if times else "")
    last = times[1] if times else before.last
    parts = [_OUTLINE_NOTE]
    if before.written:
        parts.append(f"{_EARLIER}\n{shorten(before.written, int(longest * _EARLIER_SHARE))}")
    if count := before.count + len(new_messages):
        calls = before.calls + _calls_by_tool(new_messages)
        failed = before.failed + _failures_by_tool(new_messages)
        parts.append(f"{count} messages from {first} to {last}.{_tools(calls, failed)}")
    head = "\n\n".join(parts)
    lines = [*before.lines, *_beginning_lines(new_messages, timezone)]
    if len(head) < longest:
        return head + _newest(lines, before.left_out, longest - len(head))
    return clipped(head, longest)


@dataclass(slots=True)
class _OutlineParts:
    """The parts of an outline: counts, times, and the beginnings of messages.

    `written` is a model's summary of earlier messages.
    """

    written: str = ""
    count: int = 0
    first: str = ""
    last: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    left_out: int = 0


def _read_outline(earlier: str) -> _OutlineParts:
    """Parse an earlier outline.

    If a model wrote the earlier summary, all of it goes into `written`.
    """
    if not earlier.startswith(_OUTLINE_NOTE):
        return _OutlineParts(earlier.strip())
    rest, _, listed = earlier.removeprefix(_OUTLINE_NOTE).partition(_BEGINNINGS)
    parts = _OutlineParts(lines=[line for line in listed.split("\n") if line.startswith("- ")])
    if match := _LEFT_OUT.search(listed):
        parts.left_out = int(match[1])
    counts = list(_COUNTS.finditer(rest))
    if counts:
        match = counts[-1]
        parts.count = int(match[1])
        parts.first = match[2]
        parts.last = match[3]
        for name, count, failures in _CALLS.findall(match[4]):
            parts.calls[name] = int(count)
            parts.failed[name] = int(failures or 0)
        rest = rest[: match.start()]
    parts.written = rest.strip().removeprefix(_EARLIER).strip()
    return parts


def clipped(text: str, clip_chars: int | None, room: int | None = None) -> str:
    """Return the text, cut to a number of characters and of tokens.

    A text that was cut ends with dots.

    Args:
        text: The text.
        clip_chars: The most characters; None for no limit.
        room: The most tokens by our estimate; None for no limit.
    """
    whole = text
    if clip_chars is not None and len(text) > clip_chars:
        text = _with_dots(whole, clip_chars)
    while room is not None and text and (tokens := text_tokens(text)) > room:
        text = _with_dots(whole, min(len(text) - 1, len(text) * room // tokens))
    return text


def _tools(calls: Counter[str], failed: Counter[str]) -> str:
    listed = [
        f"{name} ({count}{f', {failed[name]} failed' if failed[name] else ''})"
        for name, count in calls.most_common(_TOOL_LIMIT)
    ]
    if len(calls) > _TOOL_LIMIT:
        more = f" and {len(calls) - _TOOL_LIMIT} others"
    else:
        more = ""
    if listed:
        return f" Tools called: {', '.join(listed)}{more}."
    return ""


def _beginning_lines(new_messages: Sequence[Message], timezone: str) -> list[str]:
    """Return the beginnings of the messages of the user and the agent."""
    lines: list[str] = []
    for message in new_messages:
        if message.role in ("user", "assistant") and message.spoken:
            speaker = "user" if message.role == "user" else "agent"
            beginning = clipped(" ".join(message.spoken.split()), _BEGINNING_LENGTH)
            lines.append(f"- {local_time(message.created_at, timezone)}, {speaker}: {beginning}")
    return lines


def _newest(lines: Sequence[str], left_out: int, room: int) -> str:
    """Return the newest lines that fit, and the number of older lines that do not."""
    room -= len(_BEGINNINGS) + 2 + len("\n(1000000 older ones are left out)")
    newest_lines: list[str] = []
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0:
            break
        newest_lines.append(line)
    left_out += len(lines) - len(newest_lines)
    if left_out:
        older = [f"({left_out} older ones are left out)"]
    else:
        older = []
    if newest_lines:
        return "\n".join([f"\n\n{_BEGINNINGS}", *older, *reversed(newest_lines)])
    return ""


def _with_dots(text: str, length: int) -> str:
    return text[: max(0, length - 3)] + "..."[: max(0, length)]
