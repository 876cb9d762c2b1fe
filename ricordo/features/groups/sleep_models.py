"""Request and response models of sleeptime agents."""

from typing import Annotated

from pydantic import Field

from ricordo.api.models.base import From, RequestModel, ResponseModel, Timestamp
from ricordo.domain.text import Json
from ricordo.features.groups.records import ManagerType
from ricordo.features.groups.sleep_view import Pair, SleepWork


class SleeptimeRequest(RequestModel):
    """A change that concerns only the caller."""

    paused: bool = Field(
        description="If true, sleeptime agents stop reading the messages of the caller."
    )


class SleeptimeResponse(ResponseModel):
    """The agents that work on an agent's memory.

    `paused` is the caller's choice.
    """

    agent_id: str
    group_id: str
    manager_type: ManagerType
    sleeping_agent_ids: list[str]
    enabled: bool
    sleeptime_agent_frequency: int | None
    paused: bool

    @classmethod
    def from_pair(cls, pair: Pair) -> Json:
        """Return the pair as JSON."""
        return cls.of(
            pair.group,
            agent_id=pair.agent.id,
            group_id=pair.group.id,
            sleeping_agent_ids=list(pair.group.agent_ids),
            enabled=pair.agent.has_sleeptime,
            paused=pair.is_paused,
        )


class MemoryChangeResponse(ResponseModel):
    """A stored version (`applied`) or a waiting proposal (`waits`), without texts."""

    id: str
    status: str
    label: str


class SleepWorkResponse(ResponseModel):
    """A transcript of `message_count` messages, and a sleeptime agent's work on it.

    `status` is `begun`, `done` or `failed`. Tokens and changes belong to `run_id`, the last run
    that worked on the transcript.
    """

    id: Annotated[str, From("transcript.id")]
    agent_id: Annotated[str, From("transcript.agent_id")]
    user_id: Annotated[str | None, From("transcript.user_id")]
    status: Annotated[str, From("transcript.status")]
    message_count: Annotated[int, From("transcript.message_count")]
    failures: Annotated[int, From("transcript.attempts")]
    run_id: Annotated[str | None, From("transcript.run_id")]
    prompt_tokens: int
    completion_tokens: int
    step_count: int
    changes: list[MemoryChangeResponse]
    created_at: Annotated[Timestamp, From("transcript.created_at")]
    ended_at: Annotated[Timestamp | None, From("transcript.ended_at")]

    @classmethod
    def from_work(cls, work: SleepWork) -> Json:
        """Return the work as JSON."""
        run = work.run
        return cls.of(
            work,
            prompt_tokens=run.usage.prompt_tokens if run else 0,
            completion_tokens=run.usage.completion_tokens if run else 0,
            step_count=run.step_count if run else 0,
        )
