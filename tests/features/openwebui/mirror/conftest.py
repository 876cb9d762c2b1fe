"""A fake Open WebUI, and a user's workspace and memory that are synced with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ricordo.domain.remote import Access
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.files.workspaces import queries, service
from ricordo.features.files.workspaces.queries import Space
from ricordo.features.openwebui.mirror.sync import OpenWebUIRemotes
from ricordo.settings import Settings
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Store, Transaction
from tests.seams.jobs import quick_jobs
from tests.support.open_webui import KEY, FakeOpenWebUI
from tests.support.synced import SyncedMemory

__all__ = ["quick_jobs"]
USER = "open-webui:ada"


class Synced(SyncedMemory):
    """A synced memory and workspace.

    `problem` is the error of the last sync.
    """

    user = USER

    def __init__(self, store: Store, settings: Settings, there: FakeOpenWebUI) -> None:
        super().__init__(store, settings, OpenWebUIRemotes(), Access(there.url))
        self.there = there

    async def settle(self) -> str | None:
        """Sync; return the user's error message."""
        return (await self.sync()).last_error

    async def write(self, path: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        space = await self.space()
        await self.store.write(lambda tx: service.write(tx, space, path, data))

    async def remove(self, path: str) -> None:
        space = await self.space()
        await self.store.write(lambda tx: service.remove(tx, space, path))

    async def files(self) -> dict[str, str]:
        space = await self.space()

        def work(tx: Transaction) -> dict[str, str]:
            return {
                path: data.decode("utf-8", "replace")
                for path, data in queries.contents(tx, space).items()
            }

        return await self.store.read(work)

    async def space(self) -> Space:
        owner = await self.do(lambda _tx, owned: owned.user)
        return Space(LOCAL_ORGANIZATION, owner.id)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenWebUI]:
    made = FakeOpenWebUI()
    monkeypatch.setenv("RICORDO_OPENWEBUI_URL", made.url)
    monkeypatch.setenv("RICORDO_OPENWEBUI_API_KEY", KEY)
    yield made
    made.close()


@pytest.fixture
def here(store: SqliteStore, tmp_path: Path, there: FakeOpenWebUI) -> Synced:
    return Synced(store, Settings(data_dir=tmp_path), there)
