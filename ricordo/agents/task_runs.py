"""Tasks of other programs: a task is a run, and the runs that continue it after an approval.

The id of a task is the id of its first run. Later runs name it in their metadata.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ricordo.agents.conversations import waiting_message
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.runtime import Runtime
from ricordo.storage import conversations, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_KEY = "a2a"  # stored in runs, so it keeps the name of the protocol that was the first to use it
_RUNS = 100  # the newest runs of a conversation among which a task's last run is searched


class TaskNotFound(NotFound):
    """The agent has no such task that the caller may see."""


class WrongTaskState(Invalid):
    """The request does not fit the state of the task, for example since the task has ended."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its last run.

    `context_id` is the program's id of the conversation. `waiting` is the message whose calls wait
    for an approval. With `is_denied`, the calls were denied and no run followed.
    """

    id: str
    context_id: str
    run: Run
    waiting: Message | None = None
    is_denied: bool = False

    @property
    def is_open(self) -> bool:
        return self.run.ended_at is None or self.waiting is not None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of a run that continues the task."""
        return {_KEY: {"task": self.id, "context": self.context_id}}


def first_metadata(context_id: str) -> dict[str, Any]:
    """Return the metadata of the first run of a task."""
    return {_KEY: {"context": context_id}}


async def find_task(runtime: Runtime, scope: Scope, agent_id: str, task_id: str) -> Task:
    """Return the agent's task, with its last run.

    The last run is looked for among the newest 100 runs of the conversation.

    Args:
        runtime: The server's parts.
        scope: The caller.
        agent_id: The agent.
        task_id: The id of the task, which is the id of its first run.

    Raises:
        TaskNotFound: The agent has no such task that the caller may see.
    """

    def find(tx: Transaction) -> tuple[Run, list[Run]]:
        first = runs.get(tx, scope, task_id)
        page = Page(limit=_RUNS)
        return first, runs.page(tx, scope, page, conversation_id=first.conversation_id)

    try:
        first, newest = await runtime.store.read(find)
    except NotFound as error:
        raise TaskNotFound(f"There is no task {task_id[:100]}.") from error
    if first.agent_id != agent_id or _labels_of(first).get("task"):
        raise TaskNotFound(f"There is no task {task_id[:100]}.")
    later = (run for run in newest if _labels_of(run).get("task") == task_id)
    last = next(later, first)
    return await task_of(runtime, scope, last, is_last=newest[:1] == [last])


async def task_of(runtime: Runtime, scope: Scope, run: Run, *, is_last: bool = True) -> Task:
    """Return the run's task.

    Args:
        runtime: The server's parts.
        scope: The caller.
        run: The task's last run.
        is_last: The conversation has no later run. Then calls that no longer wait were denied.

    Raises:
        NotFound: The run asks for an approval, and its conversation does not exist.
    """
    labels = _labels_of(run)
    waiting = None
    asks = run.stop_reason == "requires_approval"
    if asks:
        conversation = await runtime.store.read(
            lambda tx: conversations.require(tx, scope, run.conversation_id)
        )
        message = await waiting_message(runtime, conversation)
        waiting = message if message and message.run_id == run.id else None
    return Task(
        id=labels.get("task") or run.id,
        context_id=labels.get("context") or run.conversation_id,
        run=run,
        waiting=waiting,
        is_denied=asks and waiting is None and is_last,
    )


def _labels_of(run: Run) -> Mapping[str, Any]:
    """Return the ids of the task and the context from a run's metadata."""
    labels: Mapping[str, Any] = run.metadata.get(_KEY, {})
    return labels
