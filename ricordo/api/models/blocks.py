"""Request and response models of memory blocks."""

from typing import Annotated, Any

from pydantic import Field

from ricordo.agents.lifecycle import BlockSpec
from ricordo.api.models.base import MAX_COUNT, AuthorFields, From, HostedFields, Json, RequestModel
from ricordo.domain.block import DEFAULT_LIMIT, Policy


class BlockRequest(RequestModel):
    """A block to create."""

    label: str
    value: str
    description: str | None = None
    limit: int = Field(DEFAULT_LIMIT, ge=0, le=MAX_COUNT)
    read_only: bool = False
    hidden: bool | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    policy: Policy | None = Field(None, description="What becomes of an agent's edit; `direct` where it is left out.")

    def spec(self) -> BlockSpec:
        """Return the block to create."""
        given = self.model_dump(exclude={"hidden", "metadata", "tags", "policy"})
        return BlockSpec(
            **given,
            hidden=bool(self.hidden),
            metadata=self.metadata or {},
            tags=tuple(self.tags or ()),
            policy=self.policy or "direct",
        )


class BlockUpdate(RequestModel):
    """What changes of a block. A field that is left out stays."""

    label: str | None = None
    value: str | None = None
    description: str | None = None
    limit: int | None = Field(None, ge=0, le=MAX_COUNT)
    read_only: bool | None = None
    hidden: bool | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    policy: Policy | None = Field(None, description="What becomes of an agent's edit.")


class BlockResponse(HostedFields, AuthorFields):
    """A memory block."""

    id: str
    label: str
    value: str
    limit: int
    description: str | None
    metadata: Json
    read_only: Annotated[bool, From("is_read_only")]
    policy: Annotated[Policy, From("rule")]
    hidden: bool
    tags: list[str]
    is_template: bool = False
    template_name: str | None = None
    preserve_on_migration: bool | None = None
