"""Groups: several agents that answer or work together."""

from dataclasses import dataclass
from typing import Literal

ManagerType = Literal["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"]


@dataclass(frozen=True, slots=True)
class Group:
    """Agents in their order, and who says whose turn it is. `frequency` is in turns, for those that work in the background."""

    id: str
    organization_id: str
    manager_type: ManagerType
    agent_ids: tuple[str, ...]
    manager_agent_id: str | None = None
    description: str = ""
    frequency: int | None = None
    last_processed_message_id: str | None = None
    created_at: int = 0
    updated_at: int = 0
