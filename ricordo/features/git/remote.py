"""Git remotes of users' memory: a bare repository in a folder of this machine or at an http address follows, and is pulled from."""

import os

from ricordo.domain.remote import Access, Remote
from ricordo.errors import Invalid
from ricordo.features.git.sync import SHOWS_TOML, sync
from ricordo.features.git.transport import Place
from ricordo.settings import Settings
from ricordo.storage.store import Store


class GitRemotes:
    """The kind `git`. With the option `shows_toml` a branch `toml` shows the memory as TOML."""

    kind = "git"

    def read(self, asked: Access, settings: Settings) -> Access:
        """As the protocol says."""
        if asked.options.keys() - {SHOWS_TOML}:
            raise Invalid(f"A git remote takes no option but {SHOWS_TOML}. Leave the others out.")
        place = place_of(asked, settings)
        place.require_usable()
        if place.is_folder:
            return Access(os.path.normpath(place.address), options=asked.options)
        if asked.password is None:
            return Access(place.address, options=asked.options)
        return Access(place.address, place.username, place.password, asked.options)

    async def sync(self, store: Store, remote: Remote, access: Access, settings: Settings) -> Remote:
        """As the protocol says."""
        return await sync(store, settings.data_dir, remote, place_of(access, settings))


def place_of(access: Access, settings: Settings) -> Place:
    """Where the repository is, and what the operator allows."""
    allowed = settings.allow_private_remotes, settings.folders_of_remotes
    return Place(access.address, access.username or "git", access.password, *allowed)
