"""Tasks of A2A: a task is a run, and the runs that continue it after an approval.

The id of a task is the id of its first run. Later runs name it in their metadata.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from ricordo.agents.conversations import open_named_conversation, waiting_message
from ricordo.agents.request import Approval, NewMessage, TurnDelivery, TurnOverrides, TurnRequest
from ricordo.agents.turn import answer_of
from ricordo.api.call import RequestContext
from ricordo.domain.clock import to_datetime
from ricordo.domain.message import ApprovalPart, Message, TextPart
from ricordo.domain.run import Run
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound
from ricordo.features.a2a.models import A2aMessage
from ricordo.storage import conversations, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_KEY = "a2a"
_RUNS = 100  # the newest runs of a conversation among which a task's last run is searched
_YES = ("yes", "approve", "approved")
_STATES = {
    "created": "TASK_STATE_SUBMITTED",
    "running": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
}
INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"


class TaskNotFound(NotFound):
    """The agent has no such task that the caller may see."""


class TaskEnded(Invalid):
    """The task has ended, so it takes no message and cannot be cancelled."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task by its last run. `waiting` is the message whose calls wait for an approval."""

    id: str
    context_id: str
    run: Run
    waiting: Message | None = None
    is_denied: bool = False

    @property
    def state(self) -> str:
        if self.waiting:
            return INPUT_REQUIRED
        return _STATES["cancelled"] if self.is_denied else _STATES[self.run.status]

    @property
    def is_open(self) -> bool:
        return self.run.ended_at is None or self.waiting is not None

    def status(self) -> Json:
        """Return the status of the task, with the question or failure as its message."""
        status: Json = {"state": self.state, "timestamp": _time(self.run)}
        if self.waiting:
            calls = [
                {"id": call.call_id, "name": call.name, "arguments": call.arguments}
                for call in self.waiting.tool_calls
                if call.is_gated
            ]
            names = ", ".join(call["name"] for call in calls)
            question = f"The agent asks to call {names}. Answer yes, or say why not."
            data = {"tool_calls": calls}
            status["message"] = self._message(self.waiting.id, question, data)
        elif self.run.status == "failed":
            error = self.run.error or {}
            text = error.get("message", "The run failed.")
            status["message"] = self._message(f"{self.run.id}-error", text, error)
        return status

    def update(self) -> Json:
        return {
            "statusUpdate": {
                "taskId": self.id,
                "contextId": self.context_id,
                "status": self.status(),
            }
        }

    def json(self, messages: Sequence[Message] = ()) -> Json:
        """Return the task with its answers, one artifact for each message of the agent."""
        artifacts = [
            {"artifactId": message.id, "parts": [{"text": message.spoken}]}
            for message in messages
            if message.role in ("assistant", "approval") and message.spoken
        ]
        return {
            "id": self.id,
            "contextId": self.context_id,
            "status": self.status(),
            "artifacts": artifacts,
        }

    def _message(self, message_id: str, text: str, data: Json) -> Json:
        return {
            "messageId": message_id,
            "taskId": self.id,
            "contextId": self.context_id,
            "role": "ROLE_AGENT",
            "parts": [{"text": text}, {"data": data}],
        }


async def find_task(context: RequestContext, agent_id: str, task_id: str) -> Task:
    """Return the agent's task. Raises TaskNotFound."""

    def find(tx: Transaction) -> tuple[Run, list[Run]]:
        first = runs.get(tx, context.scope, task_id)
        page = Page(limit=_RUNS)
        return first, runs.page(tx, context.scope, page, conversation_id=first.conversation_id)

    try:
        first, newest = await context.store.read(find)
    except NotFound as error:
        raise TaskNotFound(f"There is no task {task_id[:100]}.") from error
    if first.agent_id != agent_id or _labels_of(first).get("task"):
        raise TaskNotFound(f"There is no task {task_id[:100]}.")
    later = (run for run in newest if _labels_of(run).get("task") == task_id)
    last = next(later, first)
    return await task_of(context, last, is_last=newest[:1] == [last])


async def task_of(context: RequestContext, run: Run, *, is_last: bool = True) -> Task:
    """Return the task that this run belongs to. `is_last`: no later run is in the conversation."""
    labels = _labels_of(run)
    waiting = None
    asks = run.stop_reason == "requires_approval"
    if asks:
        conversation = await context.store.read(
            lambda tx: conversations.require(tx, context.scope, run.conversation_id)
        )
        message = await waiting_message(context.runtime, conversation)
        waiting = message if message and message.run_id == run.id else None
    return Task(
        id=labels.get("task") or run.id,
        context_id=labels.get("context") or run.conversation_id,
        run=run,
        waiting=waiting,
        is_denied=asks and waiting is None and is_last,
    )


def _labels_of(run: Run) -> Json:
    """Return what a run's metadata say about its task and context."""
    labels: Json = run.metadata.get(_KEY, {})
    return labels


async def task_json(context: RequestContext, task: Task) -> Json:
    """Return the task with the messages of its last run."""
    return task.json(await answer_of(context.runtime, task.run))


async def turn_of(
    context: RequestContext, agent_id: str, message: A2aMessage, *, streams: bool
) -> TurnRequest:
    """Return the turn for a message: of a new task, or the answer to a task's question.

    Raises NotFound, TaskNotFound, TaskEnded, Unsupported, and Invalid for an empty message.
    """
    if not message.content:
        raise Invalid("The message has no text, data or picture.")
    overrides = TurnOverrides(streams_tokens=streams)
    if message.task_id:
        task = await find_task(context, agent_id, message.task_id)
        if task.waiting is None:
            raise TaskEnded(f"The task waits for no message: it is {task.state}.")
        return TurnRequest(
            scope=context.scope,
            agent_id=agent_id,
            approval=_approval(message, task.waiting),
            conversation_id=task.run.conversation_id,
            overrides=overrides,
            delivery=TurnDelivery(metadata={_KEY: {"task": task.id, "context": task.context_id}}),
        )
    name = message.context_id or f"A2A message {message.message_id}"
    conversation = await open_named_conversation(context.runtime, context.scope, agent_id, name)
    context_id = message.context_id or conversation.id
    return TurnRequest(
        scope=context.scope,
        agent_id=agent_id,
        messages=(NewMessage("user", message.content, otid=_otid(message)),),
        conversation_id=conversation.id,
        overrides=overrides,
        delivery=TurnDelivery(metadata={_KEY: {"context": context_id}}),
    )


def _otid(message: A2aMessage) -> str:
    """Return the key by which a message that is sent again is known."""
    key = orjson.dumps([message.message_id, [part.model_dump() for part in message.parts or ()]])
    return f"a2a-{blake2b(key, digest_size=16).hexdigest()}"


def _approval(message: A2aMessage, waiting: Message) -> Approval:
    """Return the decision about all waiting calls; what is not clearly a yes denies them."""
    texts = [part.text.strip() for part in message.content if isinstance(part, TextPart)]
    data = [part.data for part in message.parts or () if isinstance(part.data, dict)]
    if data:
        is_approved = data[0].get("approved") is True
        reason: Any = data[0].get("reason")
    else:
        is_approved = len(texts) == 1 and texts[0].rstrip(".!").lower() in _YES
        reason = None if is_approved else "\n".join(texts)
    reason_text = reason if isinstance(reason, str) else None
    calls = [call for call in waiting.tool_calls if call.is_gated]
    return Approval(tuple(ApprovalPart(call.call_id, is_approved, reason_text) for call in calls))


def _time(run: Run) -> str:
    moment = to_datetime(run.ended_at or run.created_at)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
