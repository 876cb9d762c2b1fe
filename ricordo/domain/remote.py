"""Remotes: repositories and databases elsewhere, kept in sync with the memory of a chain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job

# The kind of the jobs that sync a remote.
SYNC = "memory_follow"
# The delay of a sync job in microseconds. It collects changes, since an agent seldom makes only one
# edit.
SETTLES = SECOND


@dataclass(frozen=True, slots=True)
class Access:
    """The address of a remote without a password, and its credentials.

    `options` are specific to its kind.
    """

    address: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote of a chain.

    Times are in microseconds.

    Attributes:
        settings: Its options and credentials; the password is encrypted.
        followed: The number of the newest version that the remote has.
        seen: The remote's newest commit at the last sync, or None.
        last_error: The reason why the last sync failed, or its conflicts that wait for the owner;
            None without either.
        last_at: The time of the last sync, or None.
    """

    id: str
    organization_id: str
    chain_id: str
    kind: str
    address: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    followed: int = 0
    seen: str | None = None
    last_error: str | None = None
    last_at: int | None = None
    created_at: int = 0

    @property
    def options(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = self.settings.get("options", {})
        return options

    def job(self) -> Job:
        return sync_job(self.organization_id, self.id)


def sync_job(organization_id: str, remote_id: str, not_before: int = 0) -> Job:
    """Return the job that syncs a remote with its memory.

    Args:
        organization_id: The organization of the remote.
        remote_id: The remote.
        not_before: The earliest time to run the job, in microseconds; 0 for at once.
    """
    return Job(
        SYNC,
        organization_id,
        {"remote_id": remote_id},
        key=f"remote:{remote_id}",
        is_single=True,
        not_before=not_before,
    )
