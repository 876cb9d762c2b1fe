"""A kind of memory remote: a copy elsewhere that is synced with memory.

Plugins offer kinds by their hook `memory_remotes`.
"""

from typing import Protocol, runtime_checkable

from ricordo.domain.remote import Access, Remote
from ricordo.settings import Settings
from ricordo.storage.engine.store import Store


class RemoteKind(Protocol):
    """A kind of remote, such as git in `{"kind": "git"}`.

    Attributes:
        kind: Its name.
    """

    kind: str

    def read(self, access: Access, settings: Settings) -> Access:
        """Return the access in the form that is stored; runs in a thread.

        An address's password is stored apart from the address.

        Args:
            access: The access as the caller gave it.
            settings: The operator's permissions for addresses.

        Raises:
            Invalid: if the address is not allowed.
        """
        ...

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Synchronize the remote and the memory.

        Call `require_lease` before each write to the remote. It raises LeaseLost if another server
        has taken over the job.

        Args:
            store: The store. Every write to it raises LeaseLost too.
            remote: The remote with its progress so far.
            access: The address with its decrypted password.
            settings: The settings of the server.

        Returns:
            The remote with updated `followed`, `seen` and `last_error`.

        Raises:
            Unavailable: if the remote cannot be reached.
            Conflict, Invalid: if its content cannot be pulled.
        """
        ...


@runtime_checkable
class RewritesHistory(RemoteKind, Protocol):
    """A kind of remote that can drop old versions after their text was forgotten here."""

    async def keeps_forgotten(self, store: Store, settings: Settings, remote: Remote) -> bool:
        """Return whether the remote still has versions that were rewritten here.

        Args:
            store: The store of the memory.
            settings: The settings of the server.
            remote: The remote.

        Raises:
            Unavailable: if the remote cannot be reached.
        """
        ...
