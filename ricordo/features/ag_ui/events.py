"""A turn as events of AG-UI. Source of the format: the types of `@ag-ui/core` 1.0.0."""

from collections.abc import Collection, Iterator, Mapping

from ricordo.api.models.messages import MessageFormat
from ricordo.api.turn_encoder import TurnEncoder
from ricordo.domain.clock import Clock
from ricordo.domain.event import ApprovalAsked, Event, Failed, RunEnded, StepSaved
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.text import Json

_SHOWN = MessageFormat(
    types=frozenset(
        (
            "assistant_message",
            "reasoning_message",
            "tool_call_message",
            "tool_return_message",
            "approval_request_message",
        )
    ),
    shows_summaries=False,
)
_ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


class EventEncoder:
    """Encodes the events of one turn.

    Args:
        clock: The server's clock.
        client_tools: Names of the tools that the client runs.
        answered: Ids of calls whose results the client sent; it gets no second result for them.
    """

    def __init__(
        self, clock: Clock, client_tools: Collection[str], answered: Collection[str] = ()
    ) -> None:
        self._encoder = TurnEncoder(_SHOWN, clock, has_tokens=True)
        self._client_tools = client_tools
        self._answered = answered
        self._text_id = ""
        self._reasoning_id = ""
        self._reasonings = 0
        self._open_calls: list[str] = []
        self._known_calls: set[str] = set()
        self._waiting: Message | None = None

    def encode(self, event: Event) -> Iterator[Json]:
        """Yield what the event adds; the end of the run is `end`."""
        if isinstance(event, ApprovalAsked):
            self._waiting = event.message
        if isinstance(event, StepSaved):
            waiting = (message for message in event.messages if message.is_waiting)
            self._waiting = next(waiting, self._waiting)
        if not isinstance(event, RunEnded | Failed):
            for wire in self._encoder.encode(event):
                yield from self._events_of(wire)
        if isinstance(event, StepSaved | ApprovalAsked | RunEnded | Failed):
            yield from self._close()

    def end(self, event: RunEnded | Failed, ids: Mapping[str, str]) -> Json:
        """Return the last event. `ids` are the client's ids of thread and run."""
        usage = [usage_json(event.run)]
        if isinstance(event, Failed):
            return {
                "type": "RUN_ERROR",
                "message": event.message,
                "code": event.kind,
                "usage": usage,
            }
        return {"type": "RUN_FINISHED", **ids, "outcome": self._outcome(event.run), "usage": usage}

    def _outcome(self, run: Run) -> Json:
        if run.status == "cancelled":
            return {"type": "cancelled"}
        calls = self._waiting.tool_calls if self._waiting else ()
        if run.stop_reason != "requires_approval":
            calls = ()
        gated = [call for call in calls if call.is_gated]
        asked = [call for call in gated if call.name not in self._client_tools]
        if not asked:
            outcome: Json = {"type": "success"}
            if gated:
                outcome["pendingToolCallIds"] = [call.call_id for call in gated]
            return outcome
        interrupts = [
            {
                "id": call.call_id,
                "reason": "tool_call",
                "message": f"The agent asks to call {call.name}.",
                "toolCallId": call.call_id,
                "responseSchema": _ANSWER_SCHEMA,
            }
            for call in asked
        ]
        return {"type": "interrupt", "interrupts": interrupts}

    def _events_of(self, wire: Json) -> Iterator[Json]:
        match wire.get("message_type"):
            case "assistant_message":
                yield from self._text(wire["id"], wire["content"])
            case "reasoning_message":
                yield from self._reasoning(wire["id"], wire["reasoning"])
            case "tool_call_message" | "approval_request_message":
                calls = wire["tool_calls"]
                for call in calls if isinstance(calls, list) else [calls]:
                    yield from self._call(wire["id"], call)
            case "tool_return_message":
                for result in wire["tool_returns"]:
                    yield from self._result(wire["id"], result)

    def _text(self, message_id: str, text: str) -> Iterator[Json]:
        if not text:
            return
        yield from self._close_reasoning()
        if self._text_id != message_id:
            yield from self._close_text()
            self._text_id = message_id
            yield {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"}
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text}

    def _reasoning(self, message_id: str, text: str) -> Iterator[Json]:
        if not text:
            return
        if not self._reasoning_id:
            self._reasonings += 1
            self._reasoning_id = f"{message_id}-reasoning-{self._reasonings}"
            yield {"type": "REASONING_START", "messageId": self._reasoning_id}
            yield {
                "type": "REASONING_MESSAGE_START",
                "messageId": self._reasoning_id,
                "role": "reasoning",
            }
        yield {
            "type": "REASONING_MESSAGE_CONTENT",
            "messageId": self._reasoning_id,
            "delta": text,
        }

    def _call(self, message_id: str, call: Json) -> Iterator[Json]:
        call_id = call["tool_call_id"]
        yield from self._close_reasoning()
        if call_id not in self._known_calls:
            self._known_calls.add(call_id)
            self._open_calls.append(call_id)
            yield {
                "type": "TOOL_CALL_START",
                "toolCallId": call_id,
                "toolCallName": call.get("name") or "",
                "parentMessageId": message_id,
            }
        if call.get("arguments") and call_id in self._open_calls:
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": call["arguments"]}

    def _result(self, message_id: str, result: Json) -> Iterator[Json]:
        call_id = result["tool_call_id"]
        if call_id in self._answered:
            return
        yield from self._close_calls()
        content = result["tool_return"]
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content if part.get("text"))
        event = {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{message_id}-{call_id}",
            "toolCallId": call_id,
            "content": content,
            "role": "tool",
        }
        if result["status"] == "error":
            event["metadata"] = {"ricordo": {"status": "error"}}
        yield event

    def _close(self) -> Iterator[Json]:
        yield from self._close_reasoning()
        yield from self._close_text()
        yield from self._close_calls()

    def _close_text(self) -> Iterator[Json]:
        if self._text_id:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._text_id}
        self._text_id = ""

    def _close_reasoning(self) -> Iterator[Json]:
        if self._reasoning_id:
            yield {"type": "REASONING_MESSAGE_END", "messageId": self._reasoning_id}
            yield {"type": "REASONING_END", "messageId": self._reasoning_id}
        self._reasoning_id = ""

    def _close_calls(self) -> Iterator[Json]:
        for call_id in self._open_calls:
            yield {"type": "TOOL_CALL_END", "toolCallId": call_id}
        self._open_calls.clear()


def usage_json(run: Run) -> Json:
    """Return the tokens of a run."""
    usage = run.usage
    return {
        "inputTokens": usage.prompt_tokens,
        "outputTokens": usage.completion_tokens,
        "totalTokens": usage.total_tokens,
        "cachedInputTokens": usage.cached_tokens or 0,
        "reasoningTokens": usage.reasoning_tokens or 0,
    }
