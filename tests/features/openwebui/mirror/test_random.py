"""Random edits on both sides, with syncs that are killed anywhere.

No text that somebody wrote is lost.
"""

from random import Random
from typing import Any

import pytest

from ricordo.errors import LeaseLost, RicordoError
from ricordo.features.openwebui.mirror.sessions import OpenWebUI
from ricordo.memory import user_memory
from ricordo.storage import history, proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.proposals import ProposalFilter
from tests.features.openwebui.mirror.conftest import Synced
from tests.support.open_webui import FakeOpenWebUI
from tests.support.synced import Killed

PATHS = ("a.md", "b.md", "essays/a.md", "essays/deep/c.txt")
LABELS = ("human", "goals/near", "plan")
OFTEN = 4  # edits between two syncs


class Editors:
    """The written texts that nobody removed after seeing them. Their words are unique."""

    def __init__(self, here: Synced, there: FakeOpenWebUI, chance: Random) -> None:
        self.here, self.there, self.chance = here, there, chance
        self.kept: set[str] = set()
        self._count = 0

    def word(self) -> str:
        self._count += 1
        word = f"word{self._count}x"
        self.kept.add(word)
        return word

    def edited(self, text: str) -> str:
        """Return the text with a line replaced or added."""
        lines = text.rstrip("\n").split("\n") if text.strip() else []
        place = self.chance.randrange(len(lines) + 1)
        if place < len(lines) and self.chance.random() < 0.5:
            self.kept.discard(lines[place].removeprefix("*   ").removeprefix("- "))
            lines[place] = self.word()
        else:
            lines.insert(place, self.word())
        return "\n".join(lines) + "\n"

    def gone(self, text: str) -> None:
        self.kept -= set(text.split())

    async def edit_file_here(self) -> None:
        path, files = (
            self.chance.choice([*PATHS, *await self.here.files()]),
            await self.here.files(),
        )
        if path in files and self.chance.random() < 0.12:
            self.gone(files[path])
            await self.here.remove(path)
        else:
            await self.here.write(path, self.edited(files.get(path, "")))

    async def edit_file_there(self) -> None:
        if not self.there.bases:
            return
        files = self.there.user_files()
        path = self.chance.choice([*PATHS, *files])
        if path not in files:
            self.there.user_uploads(path, self.edited(""))
        elif self.chance.random() < 0.12:
            self.gone(files[path])
            self.there.user_deletes(path)
        else:
            self.there.user_edits(path, self.edited(files[path]))

    async def edit_block(self) -> None:
        label, texts = self.chance.choice(LABELS), await self.here.texts()
        if label in texts and self.chance.random() < 0.08:
            await self.here.do(lambda tx, owned: user_memory.delete(tx, owned, label, owned.owner))
        else:
            await self.here.put(label, self.edited(texts.get(label, "")))

    async def edit_note(self) -> None:
        if not (notes := self.there.user_notes()):
            return
        title = self.chance.choice([*notes])
        match self.chance.randrange(12):
            case 0:
                self.gone(notes[title])
                self.there.user_deletes_note(title)
            case 1:
                self.gone(notes[title])
                self.there.user_writes(title, "")
            case _:
                written = self.edited(notes[title])
                self.there.user_writes(title, written.replace("- ", "*   "))

    async def act(self) -> None:
        acts = (self.edit_file_here, self.edit_file_there, self.edit_block, self.edit_note)
        await self.chance.choice(acts)()

    async def found(self) -> str:
        """Return all current texts, all versions, and everything that was ever proposed."""

        def work(tx: Transaction, owned: Any) -> list[str]:
            versions = history.page(tx, owned.chain.id, limit=10_000)
            proposed = proposals.page(tx, owned.scope, Page(10_000), ProposalFilter(owned.chain.id))
            texts = [history.text_at(tx, owned.chain.id, one.label, one) for one in versions]
            return [text or "" for text in (*texts, *(one.value for one in proposed))]

        return " ".join([*(await self.here.files()).values(), *await self.here.do(work)])


class DyingStore:
    """A store whose server is killed before or after one of its writes."""

    def __init__(self, store: Store, chance: Random, often: float) -> None:
        self.clock, self._store, self._chance, self._often = store.clock, store, chance, often

    async def read(self, work: Any) -> Any:
        return await self._store.read(work)

    async def write(self, work: Any) -> Any:
        if self._chance.random() < self._often:
            raise Killed
        done = await self._store.write(work)
        if self._chance.random() < self._often:
            raise Killed
        return done

    async def close(self) -> None:
        await self._store.close()


async def sync_mortally(here: Synced, chance: Random, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Sync, with a kill at a random point sometimes; return whether there was one."""
    send, often = OpenWebUI._send, chance.choice([0, 0.01, 0.05])

    async def dying(self: OpenWebUI, *args: Any, **options: Any) -> Any:
        if chance.random() < often:
            raise Killed
        answer = await send(self, *args, **options)
        if chance.random() < often:
            raise Killed
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(OpenWebUI, "_send", dying)
        try:
            await here.sync(DyingStore(here.store, chance, often))
        except Killed:
            return True
        except RicordoError as error:
            assert "tried again" in str(error)  # noqa: PT017 - kills may leave more to settle than one sync does
    return False


@pytest.mark.parametrize(
    ("seed", "edits"),
    [
        (1, 80),
        pytest.param(1, 500, marks=pytest.mark.soak),
        pytest.param(2, 500, marks=pytest.mark.soak),
    ],
)
async def test_edits_on_both_sides_with_kills_lose_nothing(
    here: Synced, there: FakeOpenWebUI, seed: int, edits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)  # noqa: S311 - the same each time
    editors, kills = Editors(here, there, chance), 0
    await here.put("human", "Ada.\n")
    await here.settle()
    for number in range(edits):
        await editors.act()
        if number % OFTEN == 0:
            kills += await sync_mortally(here, chance, monkeypatch)
    for _ in range(3):
        await here.settle()
    assert kills > edits / OFTEN / 4
    files = await here.files()
    assert there.user_files() == {path: text for path, text in files.items() if text.strip()}
    assert there.user_notes() == await here.texts()
    found = set((await editors.found()).split())
    assert editors.kept - found == set()
    print(
        f"{kills} kills, {len(files)} files, {sum('conflict' in path for path in files)} conflicts"
    )


class LosingStore:
    """A store that loses the lease of the sync's job after a number of reads and writes."""

    def __init__(self, store: Store, left: int, there: FakeOpenWebUI) -> None:
        self.clock, self._store, self._left, self._there = store.clock, store, left, there
        self.asked_before: int | None = None

    async def read(self, work: Any) -> Any:
        self._count()
        return await self._store.read(work)

    async def write(self, work: Any) -> Any:
        self._count()
        if self.asked_before is not None:
            raise LeaseLost("Another server has the job.")
        return await self._store.write(work)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0 and self.asked_before is None:
            self.asked_before = len(self._there.asked)


async def test_a_server_that_lost_its_lease_writes_nothing_there(
    here: Synced, there: FakeOpenWebUI
) -> None:
    async def sync_and_lose() -> None:
        """Repeat the sync until one is complete; each loses its lease a little later."""
        for left in range(200):
            store = LosingStore(here.store, left, there)
            try:
                await here.sync(store)  # type: ignore[arg-type]
            except LeaseLost:
                after = there.asked[store.asked_before :]
                assert [request for request in after if not request.startswith("GET ")] == []
            else:
                return
        raise AssertionError("no sync was completed")

    await here.add()
    await here.write("essays/deep/c.txt", "Words.")
    await here.put("human", "Likes tea.\n", policy="propose")
    proposal = await here.propose("human", "Likes tea.", "Likes coffee.")
    await sync_and_lose()
    assert there.waiting_note()
    await here.reject(proposal.id)
    await sync_and_lose()
    assert there.waiting_note() is None
    await here.write("essays/deep/c.txt", "Other words.")
    await here.do(lambda tx, owned: user_memory.delete(tx, owned, "human", owned.owner))
    await sync_and_lose()
    await here.remove("essays/deep/c.txt")
    await sync_and_lose()
    assert there.user_notes() == {}
