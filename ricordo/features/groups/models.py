"""Request and response models of groups, with the fields of the retired Letta V1 server."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from ricordo.api.models.base import (
    IN_ONE_PROJECT,
    MAX_COUNT,
    Items,
    RequestModel,
    ResponseModel,
    TolerantPart,
)
from ricordo.domain.text import Json
from ricordo.features.groups.records import MANAGED, Group, ManagerType

AgentId = Annotated[str, Field(pattern="^agent-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
BlockId = Annotated[str, Field(pattern="^block-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class ManagerConfigRequest(TolerantPart):
    """The leader of a group and its settings.

    The kind decides which fields are used.
    """

    shown_as: ClassVar[str] = "manager_config"

    manager_type: ManagerType
    manager_agent_id: AgentId | None = Field(
        None, description="All kinds but round_robin: the manager, which leads the group."
    )
    termination_token: str | None = Field(
        None,
        max_length=200,
        description="dynamic: a member that says this text ends the talk; by default `DONE!`.",
    )
    max_turns: int | None = Field(
        None,
        ge=0,
        le=MAX_COUNT,
        description="round_robin and dynamic: the most turns of members for one message.",
    )
    sleeptime_agent_frequency: int | None = Field(
        None,
        ge=0,
        le=MAX_COUNT,
        description="sleeptime: run after every N turns; null: after each turn, 0: never.",
    )
    max_message_buffer_length: int | None = Field(
        None, le=MAX_COUNT, description="Of voice_sleeptime."
    )
    min_message_buffer_length: int | None = Field(
        None, le=MAX_COUNT, description="Of voice_sleeptime."
    )


class GroupRequest(RequestModel):
    """A group to create; without `manager_config` its members speak in turn."""

    ignored: ClassVar = IN_ONE_PROJECT

    agent_ids: Items[AgentId]
    description: str = Field(max_length=20_000)
    manager_config: ManagerConfigRequest = Field(
        default_factory=lambda: ManagerConfigRequest(manager_type="round_robin")
    )
    shared_block_ids: Items[BlockId] = Field(default_factory=list)
    hidden: bool | None = None

    @model_validator(mode="after")
    def _require_manager(self) -> "GroupRequest":
        kind = self.manager_config.manager_type
        if kind in MANAGED and self.manager_config.manager_agent_id is None:
            raise ValueError(f"A group of the kind {kind} needs manager_config.manager_agent_id.")
        return self


class GroupUpdate(RequestModel):
    """Changes to a group.

    An omitted field keeps its value. So does null, except that `hidden` becomes false. An empty
    list removes all members or blocks. In `manager_config`, null is a value of a setting.
    """

    ignored: ClassVar = IN_ONE_PROJECT

    agent_ids: Items[AgentId] | None = None
    description: str | None = Field(None, max_length=20_000)
    manager_config: ManagerConfigRequest | None = None
    shared_block_ids: Items[BlockId] | None = None
    hidden: bool | None = None


class GroupResponse(ResponseModel):
    """A group.

    `turns_counter` and `last_processed_message_id` say how far sleeptime agents have followed the
    caller's conversations.
    """

    id: str
    manager_type: ManagerType
    agent_ids: list[str]
    description: str
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    shared_block_ids: list[str]
    manager_agent_id: str | None
    termination_token: str | None
    max_turns: int | None
    sleeptime_agent_frequency: int | None
    turns_counter: int | None
    last_processed_message_id: str | None
    max_message_buffer_length: int | None
    min_message_buffer_length: int | None
    hidden: bool | None

    @classmethod
    def from_group(
        cls, group: Group, turns: int | None = None, last_message: str | None = None
    ) -> Json:
        """Return the group as JSON.

        Args:
            group: The group.
            turns: The caller's turns since its sleeptime agents last ran; None if none was counted.
            last_message: The id of the caller's last message that they read, or None.
        """
        counter = None
        if group.sleeptime_agent_frequency is not None:
            counter = -1 if turns is None else turns
        return cls.of(
            group,
            shared_block_ids=list(group.block_ids),
            turns_counter=counter,
            last_processed_message_id=last_message,
        )


GroupRequest.take_back(GroupResponse)
GroupUpdate.take_back(GroupResponse)
