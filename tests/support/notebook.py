"""A kind of remote as a plugin adds it: a file with the blocks of a user as JSON."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from ricordo.domain.remote import Access, Remote
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, Unavailable
from ricordo.features.sync.remotes.service import owner_of, require_folder, require_lease
from ricordo.settings import Settings
from ricordo.storage import blocks, history
from ricordo.storage.engine.store import Store, Transaction


class Notebooks:
    """Remotes of the kind `notebook`; the option `title` stands above the blocks."""

    kind = "notebook"

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.passwords: list[str | None] = []

    def read(self, asked: Access, settings: Settings) -> Access:
        if asked.options.keys() - {"title"}:
            raise Invalid("A notebook has a title and nothing else.")
        require_folder(Path(asked.address), settings.folders_of_remotes)
        return asked

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Write the whole file again."""
        self.read(access, settings)
        if self.fails:
            raise self.fails
        self.passwords.append(access.password)

        def look(tx: Transaction) -> tuple[dict[str, str], int]:
            found = blocks.of_user(tx, Scope(remote.organization_id), owner_of(tx, remote).id)
            last = history.page(tx, remote.chain_id, limit=1)
            return {block.label: block.value for block in found}, last[0].number if last else 0

        texts, number = await store.read(look)
        await require_lease(store)
        try:
            await asyncio.to_thread(
                self._write, Path(access.address), {**access.options, "blocks": texts}
            )
        except OSError as error:
            raise Unavailable(f"The notebook cannot be written: {error.strerror}.") from error
        return replace(remote, followed=number, last_error=None)

    def memory_remotes(self) -> list["Notebooks"]:
        return [self]

    def _write(self, path: Path, content: dict[str, object]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
