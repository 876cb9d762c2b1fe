"""Requests and responses for adding to a user's memory and searching it."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ricordo.api.models.archives import within_item_limit
from ricordo.api.models.base import Items, RequestModel, RequestPart, ResponseModel, Tags, Timestamp
from ricordo.api.models.turns import TextContent
from ricordo.domain.text import Json

Kind = Literal["fact", "passage", "message"]
Names = Annotated[list[str], Field(default=[])]
KINDS: tuple[Kind, ...] = ("fact", "passage", "message")


class SaidMessage(RequestPart):
    """A message of a conversation in another program.

    Only messages with the roles user and assistant are read.
    """

    role: Literal["user", "assistant", "system", "developer", "tool", "function"]
    content: str | Items[TextContent] | None = None
    name: str | None = Field(None, max_length=200)
    otid: str | None = Field(None, min_length=1, max_length=200)

    @property
    def text(self) -> str:
        content = self.content or ""
        if isinstance(content, str):
            return content
        return "\n".join(part.text for part in content)


class AddRequest(RequestModel):
    """Messages, oldest first, or a text, which counts as a message of the user.

    With `infer`, an agent files important facts in the user's memory blocks, under the blocks'
    policies. Without it, each text is archived with `tags` and `metadata`, and secrets in it are
    removed. Messages with the same `session` belong to one conversation.
    """

    messages: Annotated[Items[SaidMessage], within_item_limit("messages")]
    infer: bool = True
    session: str | None = Field(None, min_length=1, max_length=200)
    tags: Tags | None = None
    metadata: Json | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        return value


class ChangeResponse(ResponseModel):
    """A change of lines of a block, or a new passage.

    `id` names the version, the proposal or the passage. A change with the status `waits` is not in
    memory until the user approves it.
    """

    id: str
    event: Literal["ADD", "UPDATE", "DELETE"]
    status: Literal["applied", "waits"]
    memory: str
    previous_memory: str | None = None
    block_label: str | None = None


class AddResponse(ResponseModel):
    """The changes of memory, the agent's conversation, and its run."""

    results: list[ChangeResponse]
    agent_id: str
    conversation_id: str | None
    run_id: str | None


class MemorySearchRequest(RequestModel):
    """A search of a user's memory.

    Dates select messages and passages; `tags` select passages. `threshold` is the least score of a
    result.
    """

    query: str = Field(min_length=1, max_length=10_000)
    limit: int = Field(10, ge=1, le=100)
    kinds: list[Kind] = Field(list(KINDS), min_length=1, max_length=len(KINDS))
    agent_id: str | None = None
    tags: Tags | None = None
    start_date: str | None = None
    end_date: str | None = None
    threshold: float = Field(0.0, ge=0, le=1)


class CitationResponse(ResponseModel):
    """The origin of a memory.

    For a line of a block, it is the author and version of the line, and the user's messages behind
    it. For a stored fact, it is these messages.
    """

    block_label: str | None = None
    version: str | None = None
    author: str | None = None
    run_id: str | None = None
    message_ids: Names
    agent_id: str | None = None
    conversation_id: str | None = None
    archive_id: str | None = None


class MemoryResponse(ResponseModel):
    """A line of a block or a stored fact (both have the kind `fact`), a passage or a message.

    Scores are from 0 to 1, and scores of different searches can be compared. `shared` is true for
    memory about no user, which everybody sees. `excerpt` is the best matching part of a long
    passage or message; null for short ones and facts.
    """

    id: str
    kind: Kind
    memory: str
    excerpt: str | None = None
    score: float
    role: Literal["user", "assistant"] | None = None
    shared: bool = False
    tags: Names
    created_at: Timestamp
    citation: CitationResponse


class MemorySearchResponse(ResponseModel):
    """The matching memories, best first."""

    results: list[MemoryResponse]
