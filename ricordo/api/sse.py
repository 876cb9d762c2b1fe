"""A turn as server-sent events for one reader: whole messages or deltas, then how it ended, and `[DONE]`."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any

import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse

from ricordo.api.models.base import Json, date
from ricordo.api.models.messages import MessageFormat, message_responses
from ricordo.api.models.runs import StopReasonResponse, UsageResponse
from ricordo.domain.clock import Clock
from ricordo.domain.event import (
    ApprovalAsked,
    Compacted,
    Delta,
    Event,
    Failed,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    StepSaved,
    TextDelta,
    ToolCallDelta,
    ToolProgress,
)
from ricordo.domain.ids import part_otid
from ricordo.domain.message import Message
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED
from ricordo.errors import DatabaseFailed
from ricordo.llm.argument_stream import ArgumentStream

log = logging.getLogger(__name__)
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
DONE = b"data: [DONE]\n\n"
_PREFIX = b"data: "
_PING = 'data: {"message_type":"ping"'
_TEXT_FIELDS = {"assistant_message": "content", "reasoning_message": "reasoning"}


class SseEncoder:
    """Encodes one turn for one reader. With tokens, what was sent in deltas is not sent again as a whole.

    With `first` the events are numbered from there: their `seq_id`.
    """

    def __init__(
        self, view: MessageFormat, clock: Clock, *, has_tokens: bool, first: int | None = None
    ) -> None:
        self._view = view
        self._clock = clock
        self._has_tokens = has_tokens
        self._next = first
        self._sent: dict[str, str] = {}
        self._proofs: set[str] = set()
        self._whole: set[tuple[str, ...]] = set()
        self._saved: set[str] = set()
        self._speeches: set[str] = set()
        self._speakers: dict[str, tuple[str, ArgumentStream]] = {}

    def encode(self, event: Event) -> list[bytes]:
        """The events on the wire for this one of the turn; often none."""
        match event:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._delta(event) if self._has_tokens else []
            case StepSaved():
                return self._messages(event.messages)
            case ApprovalAsked():
                return self._messages([event.message])
            case Compacted():
                return self._messages([event.summary])
            case ToolProgress():
                told: Json = {"tool_call_id": event.call_id, "progress": event.text}
                return [self._data({**_ping(event.run_id, None, self._clock), **told})]
            case RunEnded():
                reason = self._data(StopReasonResponse.of(event.run))
                is_cancelled = event.run.stop_reason == "cancelled"
                return [
                    reason,
                    *([] if is_cancelled else [self._data(UsageResponse.of(event.run))]),
                    DONE,
                ]
            case Failed():
                error: Json = {
                    "message_type": "error_message",
                    "run_id": event.run.id,
                    "error_type": event.kind,
                }
                error |= {"message": event.message, "detail": event.detail, "seq_id": None}
                reason = self._data(StopReasonResponse.of(event.run))
                return [reason, b"event: error\n" + self._data(error), DONE]
        return []

    def resume(self, sent: Iterable[bytes]) -> None:
        for chunk in sent:
            if chunk.startswith(_PREFIX) and chunk != DONE:
                self._note(orjson.loads(chunk.removeprefix(_PREFIX)))

    def _note(self, wire: Json) -> None:
        kind = wire["message_type"]
        if field := _TEXT_FIELDS.get(kind):
            self._add(wire["id"] + field, wire[field])
            self._proofs.update([wire["id"] + wire["signature"]] if wire.get("signature") else ())
        elif kind == "tool_call_message":
            calls = (
                wire["tool_calls"] if isinstance(wire["tool_calls"], list) else [wire["tool_calls"]]
            )
            for call in calls:
                self._add(wire["id"] + call["tool_call_id"], call.get("arguments", ""))
        elif "otid" in wire:
            self._whole.add(_piece(wire))

    def _messages(self, messages: Iterable[Message]) -> list[bytes]:
        # An event of its own may bring a message that its step brings too.
        fresh = [message for message in messages if message.id not in self._saved]
        self._saved.update(message.id for message in fresh)
        wires = (wire for message in fresh for wire in message_responses(message, self._view))
        return [self._data(unsent) for wire in wires for unsent in self._unsent(wire)]

    def _unsent(self, wire: Json) -> list[Json]:
        """What of a saved message was not sent yet: all of it, the rest of it, or nothing."""
        if field := _TEXT_FIELDS.get(wire["message_type"]):
            return self._unsent_text(wire, field)
        if wire["message_type"] == "tool_call_message":
            return self._unsent_calls(wire)
        return [] if _piece(wire) in self._whole else [wire]

    def _unsent_text(self, wire: Json, field: str) -> list[Json]:
        key = wire["id"] + field
        if wire["id"] + (wire.get("signature") or "") in self._proofs:
            wire = {**wire, "signature": None}
        sent, whole = self._sent.pop(key, ""), wire[field]
        if not sent:
            return [wire]
        if sent.startswith(whole):
            self._sent[key] = sent[len(whole) :]
            # Of some providers the signature comes with the whole message only, so it is sent by itself.
            return [{**wire, field: ""}] if wire.get("signature") else []
        return [{**wire, field: _rest(whole, sent)}]

    def _unsent_calls(self, wire: Json) -> list[Json]:
        sent = {
            call["tool_call_id"]: self._sent.get(wire["id"] + call["tool_call_id"])
            for call in wire["tool_calls"]
        }
        whole_calls = [call for call in wire["tool_calls"] if sent[call["tool_call_id"]] is None]
        rests = [
            {"tool_call_id": call["tool_call_id"], "arguments": rest}
            for call in wire["tool_calls"]
            if (known := sent[call["tool_call_id"]]) is not None
            and (rest := _rest_of_call(call["arguments"], known))
        ]
        whole = (
            [{**wire, "tool_call": whole_calls[0], "tool_calls": whole_calls}]
            if whole_calls
            else []
        )
        return whole + [{**wire, "tool_call": rest, "tool_calls": rest} for rest in rests]

    def _delta(self, event: Delta) -> list[bytes]:
        if isinstance(event, ToolCallDelta) and (words := self._words(event)) is not None:
            event = TextDelta(
                event.run_id,
                event.step_id,
                event.message_id,
                event.part,
                words,
                speaker=event.speaker,
            )
            if not words:
                return []
        wire = {**self._base(event), **_delta_fields(event)}
        if not self._view.keeps(wire):
            return []
        self._note(wire)
        return [self._data(wire)]

    def _words(self, event: ToolCallDelta) -> str | None:
        """What this piece of a call of the speaking tool says; None for any other call."""
        key = event.message_id + event.call_id
        if event.name == self._view.tool_name and self._view.speaks_by_tool:
            self._speeches.add(key)
            self._speakers.setdefault(
                event.message_id, (event.call_id, ArgumentStream(self._view.tool_argument))
            )
        if key not in self._speeches:
            return None
        # Of several speeches in one message the first is sent in deltas, and the others whole: so each stays in one piece.
        call_id, arguments = self._speakers[event.message_id]
        return arguments.feed(event.arguments)[0] if call_id == event.call_id else ""

    def _add(self, key: str, text: str) -> None:
        self._sent[key] = self._sent.get(key, "") + text

    def _base(self, event: Delta) -> Json:
        return {
            "id": event.message_id,
            "date": date(self._clock.now()),
            "name": event.speaker,
            "otid": part_otid(event.message_id, event.part),
            "sender_id": None,
            "step_id": event.step_id,
            "is_err": None,
            "seq_id": None,
            "run_id": event.run_id,
        }

    def _data(self, wire: Json) -> bytes:
        if self._next is None:
            return encoded(wire)
        self._next += 1
        return encoded({**wire, "seq_id": self._next - 1})


def sse_response(chunks: AsyncIterator[bytes], cut_off: Sequence[bytes] | None = None) -> Response:
    """Return a stream of these chunks; `cut_off` ends one in which the database fails, by default as Letta's clients read it."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    chunks = _to_their_end(chunks, _CUT_OFF if cut_off is None else cut_off)
    return StreamingResponse(chunks, media_type="text/event-stream", headers=headers)


async def _to_their_end(
    chunks: AsyncIterator[bytes], cut_off: Sequence[bytes]
) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            yield chunk
    except DatabaseFailed as error:
        log.warning("a stream was cut off", extra={"error": error})
        for chunk in cut_off:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


async def sse_stream(
    events: AsyncGenerator[Event],
    view: MessageFormat,
    clock: Clock,
    *,
    has_tokens: bool,
    has_pings: bool,
    keepalive: float,
) -> AsyncIterator[bytes]:
    """One turn as it happens, with pings (where wanted) at its start, and whenever nothing happened for a while."""
    encoder, run_id = SseEncoder(view, clock, has_tokens=has_tokens), ""
    upcoming: asyncio.Future[Event] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({upcoming}, timeout=keepalive)
            event = upcoming.result() if done else None
            if isinstance(event, RunStarted):
                run_id = event.run.id
            if has_pings and (event is None or isinstance(event, RunStarted)):
                yield ping(run_id, None, clock)
            if event is None:
                continue
            upcoming = None
            for chunk in (
                encoder.encode(event) if has_pings or not isinstance(event, ToolProgress) else ()
            ):
                yield chunk
            if isinstance(event, RunEnded | Failed):
                return
    finally:
        if upcoming:
            upcoming.cancel()
            await asyncio.wait({upcoming})  # a generator that is being read cannot be closed
        await events.aclose()


def ping(run_id: str, number: int | None, clock: Clock) -> bytes:
    """A sign of life; it has no number of its own, and says which event of a numbered stream was the last before it."""
    return encoded(_ping(run_id, number, clock))


def is_ping(chunk: str) -> bool:
    """Whether it is a ping that tells of a tool's progress: those alone are kept with a stream."""
    return chunk.startswith(_PING)


def _ping(run_id: str, number: int | None, clock: Clock) -> Json:
    now, id = date(clock.now()), f"ping-{uuid.uuid4()}"
    return {"message_type": "ping", "id": id, "date": now, "run_id": run_id, "seq_id": number}


def encoded(wire: Json) -> bytes:
    return _PREFIX + orjson.dumps(wire) + b"\n\n"


_CUT_OFF = (
    b"event: error\n"
    + encoded(
        {
            "message_type": "error_message",
            "run_id": None,
            "error_type": INTERRUPTED,
            "message": DATABASE_FAILED,
            "detail": None,
            "seq_id": None,
        }
    ),
    DONE,
)


def _piece(wire: Json) -> tuple[str, ...]:
    return wire["id"], wire["message_type"], str(wire["otid"])


def _rest(whole: str, sent: str) -> str:
    return whole[len(sent) :] if whole.startswith(sent) else whole


def _rest_of_call(whole: str, sent: str) -> str:
    if whole.startswith(sent):
        return whole[len(sent) :]
    # Where thoughts are taken out, what is sent has no space between its parts, and what is stored may have.
    try:
        values = orjson.loads(whole)
        compact = orjson.dumps(values).decode()
        if compact.startswith(sent):
            return compact[len(sent) :]
        return "" if orjson.loads(sent) == values else whole
    except orjson.JSONDecodeError:
        return whole


def _delta_fields(event: Delta) -> Json:
    if isinstance(event, TextDelta):
        return {"message_type": "assistant_message", "content": event.text}
    if isinstance(event, ReasoningDelta):
        fields = {"reasoning": event.text, "source": "reasoner_model", "signature": event.signature}
        return {"message_type": "reasoning_message", **fields}
    # Keys without a value are left out here: a wire fact that clients build on when they add deltas up.
    given = {"name": event.name, "arguments": event.arguments}
    call = {"tool_call_id": event.call_id} | {key: value for key, value in given.items() if value}
    return {"message_type": "tool_call_message", "tool_call": call, "tool_calls": call}
