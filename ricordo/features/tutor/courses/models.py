"""Request and response models of courses."""

from typing import Annotated

from pydantic import Field

from ricordo.api.models.base import From, RequestModel, ResponseModel, Timestamp


class CourseRequest(RequestModel):
    """The text of a course's file."""

    source: str = Field(max_length=262_144, description="The TOML of agents.toml.")


class CourseResponse(ResponseModel):
    """A course with the ids of its agents by their names.

    `fault` is the reason why the present file is not in use.
    """

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
    """The course that a text describes; nothing is stored."""

    name: str
    title: str
    agents: Annotated[list[CourseAgentResponse], From("agents")]
    blocks: list[CourseBlockResponse]
    tasks: list[CourseTaskResponse]
    skills: list[str]


class CourseFaultResponse(ResponseModel):
    """A course's file that was checked: the sizes of its parts, or its faults.

    `warning` has a line for each tool that the course's texts name but its agent lacks.
    """

    name: str
    fault: str | None
    warning: str | None
    agents: int
    blocks: int
    tasks: int
    skills: int
