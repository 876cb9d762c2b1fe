"""What a plugin offers by its hook `memory_remotes`: a kind of place outside the database that is kept in sync with memory."""

from typing import Protocol

from ricordo.domain.remote import Access, Remote
from ricordo.settings import Settings
from ricordo.storage.engine.store import Store


class RemoteKind(Protocol):
    """A kind of remote by its name, as in `{"kind": "git"}`; `is_shared` if several users may have one address."""

    kind: str

    def read(self, asked: Access, settings: Settings) -> Access:
        """The access as it is stored, an address's password beside it; in a thread. Raises Invalid where there may be no remote."""
        ...

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Bring the remote and the memory together; returns the remote with `followed`, `seen` and `last_error` as they are then.

        Raises Unavailable where it cannot be reached, Conflict or Invalid where what is there cannot be pulled. Once another server
        has taken the job over, each write to `store` raises LeaseLost: call `require_lease` before you write to the remote.
        """
        ...
