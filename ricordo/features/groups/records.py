"""A group: its members, its leader, and its settings."""

from dataclasses import dataclass
from typing import Literal

ManagerType = Literal[
    "round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"
]
# Kinds whose manager is not a member.
MANAGED: tuple[ManagerType, ...] = ("supervisor", "dynamic", "sleeptime", "voice_sleeptime")
# Kinds whose members work on the manager's memory after its turns.
ASLEEP: tuple[ManagerType, ...] = ("sleeptime", "voice_sleeptime")


@dataclass(frozen=True, slots=True)
class Group:
    """A group of agents.

    `agent_ids` are its members without the manager, in the order in which they were named.
    `max_turns` and `termination_token` end a talk. `sleeptime_agent_frequency` counts turns of the
    manager. The two lengths of the buffer count messages.
    """

    id: str
    organization_id: str
    manager_type: ManagerType
    description: str = ""
    agent_ids: tuple[str, ...] = ()
    block_ids: tuple[str, ...] = ()
    manager_agent_id: str | None = None
    termination_token: str | None = None
    max_turns: int | None = None
    sleeptime_agent_frequency: int | None = None
    max_message_buffer_length: int | None = None
    min_message_buffer_length: int | None = None
    hidden: bool = False
    created_by: str | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def leader_id(self) -> str | None:
        """The agent in whose conversation the group talks: its manager, or else its first member.

        None for a group without agents.
        """
        return self.manager_agent_id or next(iter(self.agent_ids), None)

    @property
    def everyone(self) -> tuple[str, ...]:
        """The members, followed by the manager."""
        return (*self.agent_ids, *((self.manager_agent_id,) if self.manager_agent_id else ()))
