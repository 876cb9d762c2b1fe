"""A turn as events of AG-UI. Source of the format: the types of `@ag-ui/core` 1.0.0."""

from collections.abc import Collection, Iterator, Mapping

from ricordo.agents.programs import DECISION_SCHEMA
from ricordo.api.turn_parts import Begun, Ended, PartEvent, Piece, Result, TurnParts
from ricordo.domain.clock import Clock
from ricordo.domain.event import Event, Failed, RunEnded
from ricordo.domain.run import Run
from ricordo.domain.text import Json

_PIECES = {
    "text": "TEXT_MESSAGE_CONTENT",
    "reasoning": "REASONING_MESSAGE_CONTENT",
    "call": "TOOL_CALL_ARGS",
}
_ENDS = {
    "text": ("TEXT_MESSAGE_END",),
    "reasoning": ("REASONING_MESSAGE_END", "REASONING_END"),
    "call": ("TOOL_CALL_END",),
}


class EventEncoder:
    """Encodes the events of one turn.

    Args:
        clock: The server's clock.
        client_tools: Names of the tools that the client runs.
        answered: Ids of calls whose results the client sent. The client does not get these results
            back.
    """

    def __init__(
        self, clock: Clock, client_tools: Collection[str], answered: Collection[str] = ()
    ) -> None:
        self._parts = TurnParts(clock)
        self._client_tools = client_tools
        self._answered = answered

    def encode(self, event: Event) -> Iterator[Json]:
        """Yield the events of AG-UI for an event of the turn.

        The last event of the run comes from `end`.

        Args:
            event: The next event of the turn.
        """
        for part in self._parts.read(event):
            yield from self._events_of(part)

    def end(self, event: RunEnded | Failed, ids: Mapping[str, str]) -> Json:
        """Return the last event of the run.

        Args:
            event: The end of the turn, with its stored run.
            ids: The client's ids, as `threadId` and `runId`; an error does not have them.
        """
        usage = {"usage": [usage_json(event.run)]}
        if isinstance(event, Failed):
            return {"type": "RUN_ERROR", "message": event.message, "code": event.kind, **usage}
        return {"type": "RUN_FINISHED", **ids, "outcome": self._outcome(event.run), **usage}

    def _outcome(self, run: Run) -> Json:
        if run.status == "cancelled":
            return {"type": "cancelled"}
        calls = self._parts.waiting_calls if run.stop_reason == "requires_approval" else ()
        asked = [call for call in calls if call.name not in self._client_tools]
        if asked:
            interrupts = [_interrupt(call.call_id, call.name) for call in asked]
            return {"type": "interrupt", "interrupts": interrupts}
        if calls:
            return {"type": "success", "pendingToolCallIds": [call.call_id for call in calls]}
        return {"type": "success"}

    def _events_of(self, part: PartEvent) -> Iterator[Json]:
        match part:
            case Begun():
                yield from _beginning(part)
            case Piece():
                yield {"type": _PIECES[part.kind], **_id_of(part), "delta": part.text}
            case Ended():
                for name in _ENDS[part.kind]:
                    yield {"type": name, **_id_of(part)}
            case Result() if part.call_id not in self._answered:
                yield _result(part)


def _id_of(part: Begun | Piece | Ended) -> Json:
    return {"toolCallId" if part.kind == "call" else "messageId": part.id}


def _beginning(part: Begun) -> Iterator[Json]:
    id = _id_of(part)
    match part.kind:
        case "text":
            yield {"type": "TEXT_MESSAGE_START", **id, "role": "assistant"}
        case "reasoning":
            yield {"type": "REASONING_START", **id}
            yield {"type": "REASONING_MESSAGE_START", **id, "role": "reasoning"}
        case "call":
            names = {"toolCallName": part.name, "parentMessageId": part.message_id}
            yield {"type": "TOOL_CALL_START", **id, **names}


def _result(part: Result) -> Json:
    event: Json = {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{part.message_id}-{part.call_id}",
        "toolCallId": part.call_id,
        "content": part.text,
        "role": "tool",
    }
    if part.is_error:
        event["metadata"] = {"ricordo": {"status": "error"}}
    return event


def _interrupt(call_id: str, name: str) -> Json:
    return {
        "id": call_id,
        "reason": "tool_call",
        "message": f"The agent asks to call {name}.",
        "toolCallId": call_id,
        "responseSchema": DECISION_SCHEMA,
    }


def usage_json(run: Run) -> Json:
    """Return the tokens of a run, as AG-UI's `usage` entry.

    Args:
        run: The run. Counts that its provider did not report become 0.
    """
    usage = run.usage
    return {
        "inputTokens": usage.prompt_tokens,
        "outputTokens": usage.completion_tokens,
        "totalTokens": usage.total_tokens,
        "cachedInputTokens": usage.cached_tokens or 0,
        "reasoningTokens": usage.reasoning_tokens or 0,
    }
