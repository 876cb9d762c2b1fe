"""Tasks in the JSON of A2A, and the turns that messages begin."""

from collections.abc import Sequence

from ricordo.agents.conversations import open_named_conversation
from ricordo.agents.programs import decision_about, repeatable_otid
from ricordo.agents.request import Approval, NewMessage, TurnDelivery, TurnOverrides, TurnRequest
from ricordo.agents.task_runs import Task, WrongTaskState, find_task, first_metadata
from ricordo.api.call import RequestContext
from ricordo.domain.clock import to_datetime
from ricordo.domain.message import Message, TextPart
from ricordo.domain.run import Run
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.a2a.models import A2aMessage

_YES = ("yes", "approve", "approved")
_STATES = {
    "created": "TASK_STATE_SUBMITTED",
    "running": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
}


def state_of(task: Task) -> str:
    """Return the task's state in A2A."""
    if task.waiting:
        return "TASK_STATE_INPUT_REQUIRED"
    return _STATES["cancelled" if task.is_denied else task.run.status]


def ids_of(task: Task) -> Json:
    """Return the ids that each object about a task has."""
    return {"taskId": task.id, "contextId": task.context_id}


def update_of(task: Task) -> Json:
    """Return the task's status as an update of a stream."""
    return {"statusUpdate": {**ids_of(task), "status": _status(task)}}


def task_json(task: Task, messages: Sequence[Message] = ()) -> Json:
    """Return the task with its answers, one artifact for each message of the agent."""
    artifacts = [
        {"artifactId": message.id, "parts": [{"text": message.spoken}]}
        for message in messages
        if message.role in ("assistant", "approval") and message.spoken
    ]
    ids = {"id": task.id, "contextId": task.context_id}
    return {**ids, "status": _status(task), "artifacts": artifacts}


def _status(task: Task) -> Json:
    """Return the status of the task, with the question or failure as its message."""
    status: Json = {"state": state_of(task), "timestamp": _time(task.run)}
    if task.waiting:
        calls = [
            {"id": call.call_id, "name": call.name, "arguments": call.arguments}
            for call in task.waiting.waiting_calls
        ]
        names = ", ".join(call["name"] for call in calls)
        question = f"The agent asks to call {names}. Answer yes, or say why not."
        status["message"] = _message(task, task.waiting.id, question, {"tool_calls": calls})
    elif task.run.status == "failed":
        error = task.run.error or {}
        text = error.get("message", "The run failed.")
        status["message"] = _message(task, f"{task.run.id}-error", text, error)
    return status


def _message(task: Task, message_id: str, text: str, data: Json) -> Json:
    parts = [{"text": text}, {"data": data}]
    return {"messageId": message_id, **ids_of(task), "role": "ROLE_AGENT", "parts": parts}


def _time(run: Run) -> str:
    moment = to_datetime(run.ended_at or run.created_at)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def turn_of(
    context: RequestContext, agent_id: str, message: A2aMessage, *, streams: bool
) -> TurnRequest:
    """Return the turn for a message, which begins a task or answers a task's question.

    Args:
        context: The caller's context.
        agent_id: The agent.
        message: The message. With a task's id it answers that task. Otherwise its context's id
            names the conversation. Without both, a new conversation is opened for it.
        streams: The client reads a stream, so the provider is asked to stream tokens.

    Raises:
        NotFound: There is no such agent or conversation.
        TaskNotFound: There is no task with the id in the message.
        WrongTaskState: The task waits for no message, since it runs or has ended.
        Unsupported: A part of the message has a form that is not supported.
        Invalid: The message is empty.
    """
    if not message.content:
        raise Invalid("The message has no text, data or picture.")
    approval = None
    messages: tuple[NewMessage, ...] = ()
    if message.task_id:
        task = await find_task(context.runtime, context.scope, agent_id, message.task_id)
        if task.waiting is None:
            raise WrongTaskState(f"The task waits for no message: it is {state_of(task)}.")
        approval = _approval(message, task.waiting)
        conversation_id = task.run.conversation_id
        metadata = task.metadata
    else:
        messages = (NewMessage("user", message.content, otid=_otid(message)),)
        name = message.context_id or f"A2A message {message.message_id}"
        opened = await open_named_conversation(context.runtime, context.scope, agent_id, name)
        conversation_id = opened.id
        metadata = first_metadata(message.context_id or opened.id)
    return TurnRequest(
        scope=context.scope,
        agent_id=agent_id,
        messages=messages,
        approval=approval,
        conversation_id=conversation_id,
        overrides=TurnOverrides(streams_tokens=streams),
        delivery=TurnDelivery(metadata=metadata),
    )


def _otid(message: A2aMessage) -> str:
    """Return the `otid` of the message, which is the same when the message is sent again."""
    parts = [part.model_dump() for part in message.parts or ()]
    return repeatable_otid("a2a", [message.message_id, parts])


def _approval(message: A2aMessage, waiting: Message) -> Approval:
    """Return the decision about all waiting calls: the message's JSON data, or else its text.

    Any text but a clear yes denies the calls.
    """
    texts = [part.text.strip() for part in message.content if isinstance(part, TextPart)]
    data = [part.data for part in message.parts or () if isinstance(part.data, dict)]
    is_yes = len(texts) == 1 and texts[0].rstrip(".!").lower() in _YES
    in_text = {"approved": is_yes, "reason": None if is_yes else "\n".join(texts)}
    answer = data[0] if data else in_text
    return Approval(tuple(decision_about(call.call_id, answer) for call in waiting.waiting_calls))
