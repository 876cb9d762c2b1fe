"""What is sent and answered of courses."""

from typing import Annotated

from pydantic import Field

from ricordo.api.models.base import From, RequestModel, ResponseModel, Timestamp


class CourseRequest(RequestModel):
    """The text of a course's file."""

    source: str = Field(max_length=262_144, description="The TOML of agents.toml.")


class CourseResponse(ResponseModel):
    """A course. `fault` says why its file is not in use as it is now; `agents` are the ids of its agents by their names."""

    name: str
    title: str | None
    description: str | None
    fault: str | None
    agents: dict[str, str]
    created_at: Timestamp
    updated_at: Timestamp


class CourseTextResponse(CourseResponse):
    """A course with its file, as it was applied last."""

    source: str | None


class CourseAgentResponse(ResponseModel):
    """An agent of a course that was checked."""

    name: str
    title: str | None
    tools: list[str] | None


class CourseBlockResponse(ResponseModel):
    """A block of a course that was checked, with the names of its fields."""

    label: str
    policy: str
    shared: bool
    fields: list[str]


class CourseTaskResponse(ResponseModel):
    """A task of a course that was checked."""

    name: str
    agent: str
    cron: str | None
    timezone: str | None
    idle_minutes: int | None


class CourseCheckResponse(ResponseModel):
    """What a text would make, without making it."""

    name: str
    title: str
    agents: Annotated[list[CourseAgentResponse], From("agents")]
    blocks: list[CourseBlockResponse]
    tasks: list[CourseTaskResponse]
