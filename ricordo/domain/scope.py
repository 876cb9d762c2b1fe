"""Who is asking. Every repository takes a Scope, so that no read or write is done without an owner."""

from dataclasses import dataclass
from typing import Literal

LOCAL_ORGANIZATION = "org-00000000-0000-4000-8000-000000000000"
LOCAL_USER = "user-00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class User:
    """A person whom memory can be about, or who runs the server. `identifier` is the name in the system that sent the user."""

    id: str
    organization_id: str
    name: str
    identifier: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Actor:
    """Who made a change, as it is kept with the change."""

    kind: Literal["user", "agent", "system"]
    id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the caller may see: one organization; `subject_id` narrows it to what is about one user (None: no narrowing)."""

    organization_id: str = LOCAL_ORGANIZATION
    user_id: str = LOCAL_USER
    subject_id: str | None = None
    user_name: str = "Local user"

    @property
    def actor(self) -> Actor:
        return Actor("user", self.user_id, self.user_name)
