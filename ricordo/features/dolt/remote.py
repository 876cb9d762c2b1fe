"""Dolt remotes of users' memory: a Dolt server, or a file of doltlite, follows, and is pulled from."""

from ricordo.domain.remote import Access, Remote
from ricordo.errors import Invalid
from ricordo.features.dolt.address import Place, read_place
from ricordo.features.dolt.sync import sync
from ricordo.settings import Settings
from ricordo.storage.store import Store


class DoltRemotes:
    """The kind `dolt`."""

    kind = "dolt"
    is_shared = True  # its rows name whose they are

    def read(self, asked: Access, settings: Settings) -> Access:
        """As the protocol says."""
        if asked.options or asked.username:
            raise Invalid(
                "A Dolt remote takes no options, and the name with which it is entered stands in its address."
            )
        place = place_of(asked, settings)
        return Access(place.address, None, place.password)

    async def sync(self, store: Store, remote: Remote, access: Access, settings: Settings) -> Remote:
        """As the protocol says."""
        return await sync(store, remote, place_of(access, settings))


def place_of(access: Access, settings: Settings) -> Place:
    """Where the database is, and what the operator allows. Raises Invalid where it cannot be there."""
    return read_place(
        access.address,
        access.password,
        allow_private=settings.allow_private_remotes,
        folders=settings.folders_of_remotes,
    )
