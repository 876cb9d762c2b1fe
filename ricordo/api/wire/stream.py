"""A turn's events as server-sent events: whole messages or deltas, then the stop reason, the usage, and `[DONE]`."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import orjson

from ricordo.api.wire.messages import MessageView, Wire, message_to_wire
from ricordo.api.wire.runs import stop_reason_to_wire, usage_to_wire
from ricordo.api.wire.times import date
from ricordo.domain.clock import Clock
from ricordo.domain.event import (
    Delta,
    Event,
    Failed,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    StepSaved,
    TextDelta,
    ToolCallDelta,
)
from ricordo.domain.ids import part_otid

DONE = b"data: [DONE]\n\n"
_TEXT_FIELDS = {"assistant_message": "content", "reasoning_message": "reasoning"}


class EventStream:
    """Translates one turn for one reader. With tokens, what was told in deltas is not told again as a whole."""

    def __init__(self, view: MessageView, clock: Clock, *, has_tokens: bool, has_pings: bool, keepalive: float) -> None:
        self._view = view
        self._clock = clock
        self._has_tokens = has_tokens
        self._has_pings = has_pings
        self._keepalive = keepalive
        self._run_id = ""
        self._told: dict[str, str] = {}
        self._speaking: set[str] = set()

    async def read(self, events: AsyncGenerator[Event]) -> AsyncIterator[bytes]:
        """The stream; a ping whenever nothing happened for a while."""
        upcoming: asyncio.Task[Event] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait({upcoming}, timeout=self._keepalive)
                if not done:
                    if self._has_pings:
                        yield self._ping()
                    continue
                event, upcoming = upcoming.result(), None
                for chunk in self._translate(event):
                    yield chunk
                if isinstance(event, RunEnded | Failed):
                    return
        finally:
            if upcoming:
                upcoming.cancel()
                await asyncio.wait({upcoming})  # a generator that is being read cannot be closed
            await events.aclose()

    def _translate(self, event: Event) -> list[bytes]:
        match event:
            case RunStarted():
                self._run_id = event.run.id
                return [self._ping()] if self._has_pings else []
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._delta(event) if self._has_tokens else []
            case StepSaved():
                return self._saved(event)
            case RunEnded():
                run = event.run
                usage = usage_to_wire(run.usage, run.step_count, [run.id])
                return [_data(stop_reason_to_wire(run.stop_reason)), _data(usage), DONE]
            case Failed():
                return [_data(stop_reason_to_wire(event.run.stop_reason)), self._error(event), DONE]
        return []

    def _saved(self, event: StepSaved) -> list[bytes]:
        wires = (wire for message in event.messages for wire in message_to_wire(message, self._view))
        return [_data(untold) for wire in wires for untold in self._untold(wire)]

    def _untold(self, wire: Wire) -> list[Wire]:
        """What of a saved message the deltas have not told yet: all of it, the rest of it, or nothing."""
        if field := _TEXT_FIELDS.get(wire["message_type"]):
            key = wire["id"] + field
            told, whole = self._told.pop(key, ""), wire[field]
            if not told:
                return [wire]
            if told.startswith(whole):
                self._told[key] = told[len(whole) :]
                # A signature comes with the whole message only, so it is told by itself.
                return [{**wire, field: ""}] if wire.get("signature") else []
            return [{**wire, field: _rest(whole, told)}]
        if wire["message_type"] != "tool_call_message":
            return [wire]
        whole_calls = [call for call in wire["tool_calls"] if call["tool_call_id"] not in self._told]
        rests = [
            {"tool_call_id": call["tool_call_id"], "arguments": rest}
            for call in wire["tool_calls"]
            if (rest := _rest(call["arguments"], self._told.get(call["tool_call_id"], call["arguments"])))
        ]
        whole = [{**wire, "tool_call": whole_calls[0], "tool_calls": whole_calls}] if whole_calls else []
        return whole + [{**wire, "tool_call": rest, "tool_calls": rest} for rest in rests]

    def _delta(self, event: Delta) -> list[bytes]:
        if isinstance(event, ToolCallDelta) and self._is_speech(event):
            # What a speaking tool says is known only once its arguments are whole: it comes with the saved message.
            return []
        fields = _delta_fields(event)
        if not self._view.keeps(fields):
            return []
        key, text = _told_text(event)
        self._told[key] = self._told.get(key, "") + text
        return [_data({**self._base(event), **fields})]

    def _is_speech(self, event: ToolCallDelta) -> bool:
        if event.name == self._view.tool_name and self._view.speaks_by_tool:
            self._speaking.add(event.call_id)
        return event.call_id in self._speaking

    def _base(self, event: Delta) -> Wire:
        return {
            "id": event.message_id,
            "date": date(self._clock.now()),
            "name": None,
            "otid": part_otid(event.message_id, event.part),
            "sender_id": None,
            "step_id": event.step_id,
            "is_err": None,
            "seq_id": None,
            "run_id": event.run_id,
        }

    def _ping(self) -> bytes:
        moment = date(self._clock.now())
        return _data(
            {
                "message_type": "ping",
                "id": f"ping-{uuid.uuid4()}",
                "date": moment,
                "run_id": self._run_id,
                "seq_id": None,
            }
        )

    def _error(self, event: Failed) -> bytes:
        error = {
            "message_type": "error_message",
            "run_id": event.run.id,
            "error_type": event.kind,
            "message": event.message,
            "detail": event.detail,
            "seq_id": None,
        }
        return b"event: error\n" + _data(error)


async def _next(events: AsyncGenerator[Event]) -> Event:
    return await anext(events)


def _rest(whole: str, told: str) -> str:
    return whole[len(told) :] if whole.startswith(told) else whole


def _told_text(event: Delta) -> tuple[str, str]:
    if isinstance(event, ToolCallDelta):
        return event.call_id, event.arguments
    return event.message_id + ("content" if isinstance(event, TextDelta) else "reasoning"), event.text


def _delta_fields(event: Delta) -> Wire:
    if isinstance(event, TextDelta):
        return {"message_type": "assistant_message", "content": event.text}
    if isinstance(event, ReasoningDelta):
        return {
            "message_type": "reasoning_message",
            "reasoning": event.text,
            "source": "reasoner_model",
            "signature": None,
        }
    # Keys without a value are left out here: a wire fact that clients build on when they add deltas up.
    call: dict[str, Any] = {"tool_call_id": event.call_id}
    if event.name:
        call["name"] = event.name
    if event.arguments:
        call["arguments"] = event.arguments
    return {"message_type": "tool_call_message", "tool_call": call, "tool_calls": call}


def _data(value: Wire) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
