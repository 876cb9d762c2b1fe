"""Request and response models of background tasks."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from ricordo.api.models.base import RequestModel, RequestPart, ResponseModel, Timestamp
from ricordo.domain.cron import read_stored
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.tutor.tasks.queries import BackgroundTask, TaskRun

_NAME = "[a-z0-9](?:[a-z0-9.-]{0,126}[a-z0-9])?"
_YEAR_MINUTES = 525_600


class CronTrigger(RequestPart):
    """A trigger at the times of a cron expression."""

    type: Literal["cron"]
    schedule: str = Field(min_length=1, max_length=200)
    timezone: str | None = Field(
        None,
        max_length=100,
        description="The IANA time zone of these times. By default the agent's.",
    )


class IdleTrigger(RequestPart):
    """A trigger after a user was silent for `idle_minutes`.

    It does not fire again within the cooldown.
    """

    type: Literal["idle"]
    idle_minutes: int = Field(ge=1, le=_YEAR_MINUTES)
    cooldown_minutes: int | None = Field(None, ge=1, le=_YEAR_MINUTES)


class TaskRequest(RequestModel):
    """An agent's task for each user who talked with the agent in the last `active_days` days."""

    name: str = Field(pattern=f"^{_NAME}$", description="Small letters, digits, dots and dashes.")
    agent_id: str = Field(max_length=300)
    instructions: str = Field(min_length=1, max_length=20_000)
    trigger: Annotated[CronTrigger | IdleTrigger, Discriminator("type")]
    active_days: int = Field(30, ge=1, le=3650)
    max_steps: int | None = Field(None, ge=1, le=200)
    enabled: bool = True


class TaskStartRequest(RequestModel):
    """The user to run a task for; without one, all of its users."""

    user_id: str | None = Field(None, max_length=255)


class TaskStartResponse(ResponseModel):
    """The number of started runs, and the runs that the caller may see."""

    started: int
    runs: list[Json]


class TaskResponse(ResponseModel):
    """A task.

    `next_at` is the next time of its cron expression; `course` names the course that defines it.
    """

    id: str
    name: str
    agent_id: str
    course: str | None
    instructions: str
    trigger: Json
    active_days: int
    max_steps: int | None
    enabled: bool
    next_at: Timestamp | None
    created_at: Timestamp
    updated_at: Timestamp

    @classmethod
    def from_task(cls, task: BackgroundTask) -> Json:
        """Return the task as JSON.

        Args:
            task: The stored task.
        """
        idle = {"idle_minutes": task.idle_minutes, "cooldown_minutes": task.cooldown_minutes}
        trigger: Json = _cron_json(task.cron) if task.cron else {"type": "idle", **idle}
        return cls.of(task, trigger=trigger)


TaskRequest.take_back(TaskResponse)


def _cron_json(text: str) -> Json:
    """Return a stored expression as a trigger.

    An expression that can no longer be parsed is shown unchanged.
    """
    try:
        cron = read_stored(text)
    except Invalid:
        return {"type": "cron", "schedule": text, "timezone": None}
    return {
        "type": "cron",
        "schedule": text.removeprefix(f"CRON_TZ={cron.timezone} "),
        "timezone": cron.timezone,
    }


class TaskRunResponse(ResponseModel):
    """One run of a task for one user.

    `changes` are versions and proposals by id, with the label of their block but without texts.
    """

    id: str
    task_id: str
    user_id: str
    trigger: str
    window: Timestamp
    status: str
    run_id: str | None
    problem: str | None
    changes: list[Json]
    usage: Json
    step_count: int
    created_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None

    @classmethod
    def from_run(cls, run: TaskRun) -> Json:
        """Return the run as JSON.

        Args:
            run: The stored run.
        """
        usage: dict[str, Any] = {
            "prompt_tokens": run.usage.prompt_tokens,
            "completion_tokens": run.usage.completion_tokens,
        }
        return cls.of(run, changes=list(run.changes), usage=usage)
