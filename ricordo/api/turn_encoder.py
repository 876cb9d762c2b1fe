"""A turn as JSON objects for one reader: messages or their deltas, and the end of the turn."""

import uuid
from collections.abc import Iterable

import orjson

from ricordo.api.models.base import date
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
    SpeakerFailed,
    StepSaved,
    TextDelta,
    ToolCallDelta,
    ToolProgress,
)
from ricordo.domain.ids import part_otid
from ricordo.domain.message import Message
from ricordo.domain.text import Json
from ricordo.llm.argument_stream import ArgumentStream

_TEXT_FIELDS = {"assistant_message": "content", "reasoning_message": "reasoning"}


class TurnEncoder:
    """Encodes one turn for one reader, as JSON objects in the format of Letta's messages.

    When tokens are streamed, text that was sent as deltas is not sent again as a whole. With
    `first`, events are numbered from this number on, in their field `seq_id`.
    """

    def __init__(
        self, view: MessageFormat, clock: Clock, *, has_tokens: bool, first: int | None = None
    ) -> None:
        self._view = view
        self._clock = clock
        self._has_tokens = has_tokens
        self._next = first
        # Text and arguments that were sent as deltas, by message id and field or call id.
        self._sent: dict[str, str] = {}
        # Signatures that were sent, each after its message id.
        self._proofs: set[str] = set()
        # Objects of other types that the reader already has.
        self._whole: set[tuple[str, ...]] = set()
        # Ids of messages that were sent after they were saved.
        self._saved: set[str] = set()
        # Calls of the tool by which the agent speaks: each message id with its call id.
        self._speeches: set[str] = set()
        # By message id: the first such call, and the reader of its text.
        self._speakers: dict[str, tuple[str, ArgumentStream]] = {}

    def encode(self, event: Event) -> list[Json]:
        """Return the objects for an event of the turn; often there are none."""
        match event:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._delta(event) if self._has_tokens else []
            case StepSaved():
                return self._messages(event.messages)
            case ApprovalAsked():
                return self._messages([event.message])
            case Compacted():
                return self._messages([event.summary])
            case ToolProgress() | SpeakerFailed():
                ping = ping_json(event.run_id, None, self._clock)
                return [self._numbered(ping | _notice_fields(event))]
            case RunEnded():
                ends = [StopReasonResponse.of(event.run)]
                if event.run.stop_reason != "cancelled":
                    ends.append(UsageResponse.of(event.run))
                return [self._numbered(end) for end in ends]
            case Failed():
                error: Json = {
                    "message_type": "error_message",
                    "run_id": event.run.id,
                    "error_type": event.kind,
                }
                error |= {"message": event.message, "detail": event.detail, "seq_id": None}
                return [self._numbered(StopReasonResponse.of(event.run)), self._numbered(error)]
        return []

    def note(self, wire: Json) -> None:
        """Note that the reader already has this object, so that its text is not sent again."""
        kind = wire["message_type"]
        if field := _TEXT_FIELDS.get(kind):
            self._add(wire["id"] + field, wire[field])
            if signature := wire.get("signature"):
                self._proofs.add(wire["id"] + signature)
        elif kind == "tool_call_message":
            calls = wire["tool_calls"]
            for call in calls if isinstance(calls, list) else [calls]:
                self._add(wire["id"] + call["tool_call_id"], call.get("arguments", ""))
        elif "otid" in wire:
            self._whole.add(_piece(wire))

    def _messages(self, messages: Iterable[Message]) -> list[Json]:
        # A message may come in a separate event and again in the event of its step.
        fresh = [message for message in messages if message.id not in self._saved]
        self._saved.update(message.id for message in fresh)
        wires = message_responses(fresh, self._view)
        return [self._numbered(unsent) for wire in wires for unsent in self._unsent(wire)]

    def _unsent(self, wire: Json) -> list[Json]:
        """Return the part of a saved message that was not sent yet; it may be empty."""
        if field := _TEXT_FIELDS.get(wire["message_type"]):
            return self._unsent_text(wire, field)
        if wire["message_type"] == "tool_call_message":
            return self._unsent_calls(wire)
        if _piece(wire) in self._whole:
            return []
        return [wire]

    def _unsent_text(self, wire: Json, field: str) -> list[Json]:
        key = wire["id"] + field
        if wire["id"] + (wire.get("signature") or "") in self._proofs:
            wire = {**wire, "signature": None}
        text = wire[field]
        sent_text = self._sent.pop(key, "")
        if not sent_text:
            return [wire]
        if sent_text.startswith(text):
            self._sent[key] = sent_text[len(text) :]
            # Some providers send the signature only with the whole message, so it is sent alone.
            if wire.get("signature"):
                return [{**wire, field: ""}]
            return []
        return [{**wire, field: _rest(text, sent_text)}]

    def _unsent_calls(self, wire: Json) -> list[Json]:
        whole_calls: list[Json] = []
        rests: list[Json] = []
        for call in wire["tool_calls"]:
            call_id = call["tool_call_id"]
            sent_arguments = self._sent.get(wire["id"] + call_id)
            if sent_arguments is None:
                whole_calls.append(call)
            elif rest := _rest_of_call(call["arguments"], sent_arguments):
                rests.append({"tool_call_id": call_id, "arguments": rest})
        wires = [{**wire, "tool_call": rest, "tool_calls": rest} for rest in rests]
        if whole_calls:
            wires.insert(0, {**wire, "tool_call": whole_calls[0], "tool_calls": whole_calls})
        return wires

    def _delta(self, event: Delta) -> list[Json]:
        if isinstance(event, ToolCallDelta) and (spoken := self._spoken(event)) is not None:
            event = TextDelta(
                event.run_id,
                event.step_id,
                event.message_id,
                event.part,
                spoken,
                speaker=event.speaker,
            )
            if not spoken:
                return []
        wire = {**self._base(event), **_delta_fields(event)}
        if not self._view.keeps(wire):
            return []
        self.note(wire)
        return [self._numbered(wire)]

    def _spoken(self, event: ToolCallDelta) -> str | None:
        """Return the new text for the user, if the delta calls the tool by which the agent speaks.

        Returns None for a call of any other tool.
        """
        key = event.message_id + event.call_id
        if event.name == self._view.tool_name and self._view.speaks_by_tool:
            self._speeches.add(key)
            self._speakers.setdefault(
                event.message_id, (event.call_id, ArgumentStream(self._view.tool_argument))
            )
        if key not in self._speeches:
            return None
        # If a message has several such calls, the first is sent as deltas and the others as wholes,
        # so that their pieces do not mix.
        call_id, arguments = self._speakers[event.message_id]
        if call_id == event.call_id:
            return arguments.feed(event.arguments)[0]
        return ""

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

    def _numbered(self, wire: Json) -> Json:
        if self._next is None:
            return wire
        self._next += 1
        return {**wire, "seq_id": self._next - 1}


def ping_json(run_id: str, number: int | None, clock: Clock) -> Json:
    """Return a ping.

    Args:
        run_id: The run; "" if it is not known yet.
        number: In a numbered stream, the number of the last event, which the ping repeats; None in
            other streams.
        clock: Gives the date.
    """
    return {
        "message_type": "ping",
        "id": f"ping-{uuid.uuid4()}",
        "date": date(clock.now()),
        "run_id": run_id,
        "seq_id": number,
    }


def _notice_fields(event: ToolProgress | SpeakerFailed) -> Json:
    if isinstance(event, ToolProgress):
        return {"tool_call_id": event.call_id, "progress": event.text}
    return {"speaker": event.speaker, "error_type": event.kind, "message": event.message}


def _piece(wire: Json) -> tuple[str, ...]:
    return wire["id"], wire["message_type"], str(wire["otid"])


def _rest(text: str, sent_text: str) -> str:
    if text.startswith(sent_text):
        return text[len(sent_text) :]
    return text


def _rest_of_call(text: str, sent_text: str) -> str:
    if text.startswith(sent_text):
        return text[len(sent_text) :]
    # If reasoning was removed from the arguments, the JSON that was sent is compact, unlike the
    # stored one.
    try:
        arguments = orjson.loads(text)
        compact = orjson.dumps(arguments).decode()
        if compact.startswith(sent_text):
            return compact[len(sent_text) :]
        return "" if orjson.loads(sent_text) == arguments else text
    except orjson.JSONDecodeError:
        return text


def _delta_fields(event: Delta) -> Json:
    if isinstance(event, TextDelta):
        return {"message_type": "assistant_message", "content": event.text}
    if isinstance(event, ReasoningDelta):
        fields = {"reasoning": event.text, "source": "reasoner_model", "signature": event.signature}
        return {"message_type": "reasoning_message", **fields}
    # wire fact: empty keys are left out, since clients add deltas up
    call = {"tool_call_id": event.call_id}
    if event.name:
        call["name"] = event.name
    if event.arguments:
        call["arguments"] = event.arguments
    return {"message_type": "tool_call_message", "tool_call": call, "tool_calls": call}
