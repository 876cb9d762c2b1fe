"""What programs send to add to a user's memory and to search it, and what they get."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ricordo.api.models.archives import few
from ricordo.api.models.base import (
    Items,
    Json,
    RequestModel,
    RequestPart,
    ResponseModel,
    Tags,
    Timestamp,
)
from ricordo.api.models.turns import TextContent

Kind = Literal["fact", "passage", "message"]
Names = Annotated[list[str], Field(default=[])]
KINDS: tuple[Kind, ...] = ("fact", "passage", "message")


class SaidMessage(RequestPart):
    """A message of a conversation that another program had. What is no user's and no assistant's is left out."""

    role: Literal["user", "assistant", "system", "developer", "tool", "function"]
    content: str | Items[TextContent] | None = None
    name: str | None = Field(None, max_length=200)
    otid: str | None = Field(None, min_length=1, max_length=200)

    @property
    def text(self) -> str:
        said = self.content or ""
        return said if isinstance(said, str) else "\n".join(part.text for part in said)


class AddRequest(RequestModel):
    """Messages, oldest first, or a text, which counts as said by the user.

    With `infer` an agent files what is worth keeping in the user's memory blocks, as their policies say; without it each text is
    kept in the archive as it is, with `tags` and `metadata`. Messages of one `session` go on where its last ones ended.
    """

    messages: Annotated[Items[SaidMessage], few("messages")]
    infer: bool = True
    session: str | None = Field(None, min_length=1, max_length=200)
    tags: Tags | None = None
    metadata: Json | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ChangeResponse(ResponseModel):
    """What became of messages: lines of a block that were added, changed or deleted, or a passage.

    `id` is the version's, the proposal's or the passage's. What `waits` for the user's approval is in no memory yet.
    """

    id: str
    event: Literal["ADD", "UPDATE", "DELETE"]
    status: Literal["applied", "waits"]
    memory: str
    previous_memory: str | None = None
    block_label: str | None = None


class AddResponse(ResponseModel):
    """What was filed, and where the messages are kept: the agent's conversation, and the run that read them."""

    results: list[ChangeResponse]
    agent_id: str
    conversation_id: str | None
    run_id: str | None


class MemorySearchRequest(RequestModel):
    """What is looked for. Dates select messages and passages, `tags` passages; `threshold` is the least score."""

    query: str = Field(min_length=1, max_length=10_000)
    limit: int = Field(10, ge=1, le=100)
    kinds: list[Kind] = Field(list(KINDS), min_length=1, max_length=len(KINDS))
    agent_id: str | None = None
    tags: Tags | None = None
    start_date: str | None = None
    end_date: str | None = None
    threshold: float = Field(0.0, ge=0, le=1)


class CitationResponse(ResponseModel):
    """Where a memory comes from. Of a fact: who wrote the line, in which version, from what the user said."""

    block_label: str | None = None
    version: str | None = None
    author: str | None = None
    run_id: str | None = None
    message_ids: Names
    agent_id: str | None = None
    conversation_id: str | None = None
    archive_id: str | None = None


class MemoryResponse(ResponseModel):
    """One result: a line of a block, a passage, or a message, with how well it matches, from 0 to 1."""

    id: str
    kind: Kind
    memory: str
    score: float
    role: Literal["user", "assistant"] | None = None
    tags: Names
    created_at: Timestamp
    citation: CitationResponse


class MemorySearchResponse(ResponseModel):
    """What was found, best first."""

    results: list[MemoryResponse]
