"""Remotes: repositories and databases elsewhere that are kept in sync with a user's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job

# The kind of the jobs that sync a remote.
SYNC = "memory_follow"
# How long such a job waits for more changes, in microseconds: an agent seldom makes one edit alone.
SETTLES = SECOND


@dataclass(frozen=True, slots=True)
class Access:
    """The address of a remote, without a password, and the credentials for it; `options` are those of its kind."""

    address: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote of a chain. `followed` is the number of the last version that is there, `seen` the commit it was at then.

    `last_error` is why the last sync failed, None where it did not; times are microseconds. `settings` hold what is needed for
    access beside the address, the password encrypted.
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
    """The job that brings a remote and its memory together, at this time (microseconds) at the earliest."""
    payload, key = {"remote_id": remote_id}, f"remote:{remote_id}"
    return Job(SYNC, organization_id, payload, key=key, is_single=True, not_before=not_before)
