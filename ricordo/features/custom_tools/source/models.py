"""Request and response models of tools made from source code."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ricordo.api.models.base import RequestModel, RequestPart, ResponseModel
from ricordo.api.models.tools import ToolResponse
from ricordo.domain.text import Json
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT

LONGEST_SOURCE = 200_000  # characters
Source = Annotated[str, Field(max_length=LONGEST_SOURCE)]
ReturnLimit = Annotated[
    int,
    Field(
        ge=1,
        le=1_000_000,
        description="The most characters of a return value; longer ones are cut.",
    ),
]
ToolTags = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)]
Description = Annotated[str, Field(max_length=20_000)]
SourceType = Literal["python", "typescript", "javascript"]
JSON_SCHEMA = (
    "The whole tool as models see it: {name, description, parameters}. Left out, it is read from "
    "the source."
)
ARGS_SCHEMA = "The JSON schema of the arguments alone."
_VERSION = r"(===?|~=|!=|<=|>=|<|>)?[A-Za-z0-9][A-Za-z0-9.!+*_-]*"


class Requirement(RequestPart):
    """A package that a tool needs."""

    name: str = Field(
        max_length=200, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._,-]+\])?$"
    )
    version: str | None = Field(None, max_length=100, pattern=rf"^({_VERSION}(,{_VERSION})*)?$")


Requirements = Annotated[list[Requirement], Field(max_length=50)]
_IGNORED = {
    "npm_requirements": "Packages of npm are not installed; tools in JavaScript have the standard "
    "library."
}


class ToolCreateRequest(RequestModel):
    """A new tool: a function with its source."""

    ignored: ClassVar = _IGNORED

    source_code: Source
    source_type: SourceType = "python"
    json_schema: Json | None = Field(None, description=JSON_SCHEMA)
    args_json_schema: Json | None = Field(None, description=ARGS_SCHEMA)
    description: Description | None = None
    tags: ToolTags | None = None
    return_char_limit: ReturnLimit = DEFAULT_RETURN_LIMIT
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    pip_requirements: Requirements | None = None


class ToolUpdateRequest(RequestModel):
    """Changes of a tool; an omitted field keeps its value."""

    ignored: ClassVar = _IGNORED

    source_code: Source | None = None
    source_type: SourceType | None = None
    json_schema: Json | None = Field(None, description=JSON_SCHEMA)
    args_json_schema: Json | None = Field(None, description=ARGS_SCHEMA)
    description: Description | None = None
    tags: ToolTags | None = None
    return_char_limit: ReturnLimit | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    pip_requirements: Requirements | None = None
    metadata_: Json | None = None


for _request in (ToolCreateRequest, ToolUpdateRequest):
    _request.take_back(ToolResponse)


class ToolSearchRequest(RequestModel):
    """A search for tools."""

    query: str | None = Field(None, max_length=1000)
    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    tool_types: list[str] | None = Field(None, max_length=50)
    tags: ToolTags | None = Field(None, description="Only tools with at least one of these tags.")
    limit: int = Field(50, ge=1, le=100)


class ToolSearchResponse(ResponseModel):
    """A tool that matches, with its rank by words and by meaning."""

    tool: ToolResponse
    embedded_text: str | None
    fts_rank: int | None
    vector_rank: int | None
    combined_score: float


class ToolTrialRequest(RequestModel):
    """A call of a tool that need not be stored."""

    ignored: ClassVar = _IGNORED

    source_code: Source
    args: Json = Field(default_factory=dict)
    env_vars: dict[str, str] | None = Field(
        None, max_length=100, description="Environment variables of the call's process."
    )
    tags: ToolTags | None = Field(
        None,
        description="The tag `network` gives the tool network access, if the operator allows that.",
    )
    name: str | None = Field(
        None, max_length=200, description="The function to call, if the source has several."
    )
    source_type: SourceType = "python"
    json_schema: Json | None = Field(None, description=JSON_SCHEMA)
    args_json_schema: Json | None = Field(None, description=ARGS_SCHEMA)
    pip_requirements: Requirements | None = None
