"""A user's workspace and a knowledge base of Open WebUI, brought together.

First what is new there is pulled, each file in one transaction with what both sides then have in common; then what is new here is
pushed. So a sync can be killed anywhere and repeated: nothing is deleted but what both sides had, an edit counts more than a
deletion, and where both changed the same lines both texts stay, one beside the other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from ricordo.domain.remote import Remote
from ricordo.errors import Invalid, TooLong
from ricordo.features.files.workspaces import queries as workspace
from ricordo.features.files.workspaces import service
from ricordo.features.files.workspaces.queries import Space
from ricordo.features.openwebui.mirror import queries
from ricordo.features.openwebui.mirror.queries import SyncedItem
from ricordo.features.openwebui.mirror.sessions import KnowledgeFile, NotTaken, OpenWebUI, text_of
from ricordo.features.openwebui.mirror.texts import carried_over, plain_key, says_the_same
from ricordo.features.sync.remotes.service import RemoteMoved, require_lease
from ricordo.memory.merge import merge_lines
from ricordo.storage.engine.store import Store, Transaction

# What is searched of these is not what they hold, so that is no edit.
_CONVERTED = (".csv", ".tsv", ".htm", ".html", ".xml", ".rst")


@dataclass(frozen=True, slots=True)
class _Pulled:
    """A file as it is there. `beside` is what somebody made of the text that was taken from a file that is none."""

    file: KnowledgeFile
    content: bytes
    beside: str | None = None


class FileSync:
    """One sync of the files. `problems` are sentences for the user."""

    def __init__(self, store: Store, client: OpenWebUI, remote: Remote, user_id: str) -> None:
        self.problems: list[str] = []
        self._store, self._client, self._remote = store, client, remote
        self._space = Space(remote.organization_id, user_id)

    async def run(self, knowledge_id: str) -> bool:
        """Pull, then push; False where the knowledge base is gone. Raises RemoteMoved where a file changed meanwhile."""
        there = await self._client.files(knowledge_id)
        if there is None:
            return False
        items = await self._store.read(self._items)
        paired, missing = _paired(there, items)
        if len(missing) > 1 and len(missing) == sum(1 for item in items.values() if item.there_id):
            # Somebody reset it, or it is not the one that it was: what was in it is put there again.
            await self._store.write(self.forget)
        else:
            for item in missing:
                await self._store.write(lambda tx, item=item: self._gone(tx, item))  # type: ignore[misc]
        for path, file in paired:
            await self._pull(path, file, items.get(path))
        await self._push(knowledge_id)
        return True

    def forget(self, tx: Transaction) -> None:
        """Forget what both sides had; what is here is pushed anew."""
        for item in queries.of_remote(tx, self._remote.id, "file"):
            queries.remove(tx, item)

    def _items(self, tx: Transaction) -> dict[str, SyncedItem]:
        return {item.name: item for item in queries.of_remote(tx, self._remote.id, "file")}

    def _gone(self, tx: Transaction, item: SyncedItem) -> None:
        """Delete what was deleted there, unless it was changed here."""
        stored = workspace.find(tx, self._space, item.name)
        if stored and stored.digest == item.digest:
            workspace.remove(tx, self._space, item.name)
        queries.remove(tx, item)

    async def _pull(self, path: str, file: KnowledgeFile, item: SyncedItem | None) -> None:
        if item and item.there_id == file.id and item.seen == file.state:
            return
        pulled = await self._read(file, item)
        if pulled is None:
            return
        try:
            named = service.path_of(path)
            await self._store.write(lambda tx: self._take(tx, named, pulled, item))
        except (Invalid, TooLong) as error:
            self.problems.append(f"{path[:80]} in Open WebUI cannot be taken: {error}")

    async def _read(self, file: KnowledgeFile, item: SyncedItem | None) -> _Pulled | None:
        """What the file holds: its bytes, or what somebody made of its text. None while that is not known."""
        found = await self._client.file(file.id)
        if found is None or found[0].is_processed:
            return None
        now, text = found
        known = (
            item
            if item and item.there_id == now.id and item.seen.endswith(f"|{now.file_hash}")
            else None
        )
        if known:
            before = await self._store.read(lambda tx: queries.content(tx, known))
        else:
            before = await self._client.original(now.id)
        was = text_of(before)
        if was is None or now.path.lower().endswith(_CONVERTED):
            return _Pulled(now, before, text if known and text.strip() else None)
        if not text.strip() or says_the_same(was, text, plain_key):
            return _Pulled(now, before)
        return _Pulled(now, carried_over(was, text, plain_key).encode())

    def _take(self, tx: Transaction, path: str, pulled: _Pulled, item: SyncedItem | None) -> None:
        """Store what was pulled, merged with what changed here, or beside it, and note that both sides had it."""
        here = workspace.content(tx, self._space, path)
        base = queries.content(tx, item) if item else None
        if here is None or here == base:
            if here != pulled.content:
                service.write(tx, self._space, path, pulled.content)
        elif here != pulled.content:
            merged = _merged(base, here, pulled.content)
            target = path if merged is not None else service.free_path(tx, self._space, path)
            service.write(tx, self._space, target, pulled.content if merged is None else merged)
        if pulled.beside is not None:
            service.write(
                tx,
                self._space,
                service.free_path(tx, self._space, f"{path}.txt"),
                pulled.beside.encode(),
            )
        known = item or self._new(path)
        queries.put(
            tx, replace(known, there_id=pulled.file.id, seen=pulled.file.state), pulled.content
        )

    async def _push(self, knowledge_id: str) -> None:
        items, listed = await self._store.read(
            lambda tx: (self._items(tx), workspace.listed(tx, self._space))
        )
        here = {file.path: file for file in listed}
        for path, item in items.items():
            if path not in here:
                await self._remove(knowledge_id, item)
                await self._store.write(lambda tx, item=item: queries.remove(tx, item))  # type: ignore[misc]
        known = {path: items.get(path) for path, file in here.items() if file.size}
        changed = [
            (path, item) for path, item in known.items() if not _is_there(item, here[path].digest)
        ]
        # Taken out first: where Open WebUI embeds texts, it takes none that it still has.
        for _, old in changed:
            if old:
                await self._remove(knowledge_id, old)
        for path, old in changed:
            await self._upload(knowledge_id, path, old)

    async def _remove(self, knowledge_id: str, item: SyncedItem) -> None:
        """Take the file out, if it is still as it was seen. Raises RemoteMoved."""
        if not item.there_id:
            return
        found = await self._client.file(item.there_id)
        if found and (found[0].is_processed or found[0].state != item.seen):
            raise RemoteMoved
        await require_lease(self._store)
        # Noted first: after a kill, a file that is gone there is not taken for one that a person deleted.
        await self._store.write(
            lambda tx: queries.put(
                tx, replace(item, there_id="", seen=""), queries.content(tx, item)
            )
        )
        await self._client.remove_file(knowledge_id, item.there_id)

    async def _upload(self, knowledge_id: str, path: str, item: SyncedItem | None) -> None:
        content = await self._store.read(lambda tx: workspace.content(tx, self._space, path))
        if (
            content is None or not content.strip()
        ):  # deleted a moment ago, or nothing that Open WebUI would take
            return
        await require_lease(self._store)
        try:
            file = await self._client.upload(knowledge_id, path, content)
            id, seen = file.id, file.state
        except NotTaken as error:
            id, seen = "", f"Open WebUI does not take {path[:80]}: {error}"
        known = item or self._new(path)
        await self._store.write(
            lambda tx: queries.put(tx, replace(known, there_id=id, seen=seen), content)
        )

    def _new(self, path: str) -> SyncedItem:
        space = self._space
        return SyncedItem(
            "", space.organization_id, space.user_id or "", self._remote.id, "file", path
        )


def _is_there(item: SyncedItem | None, digest: str) -> bool:
    """Whether Open WebUI has this content, or has refused it."""
    return item is not None and item.digest == digest and bool(item.there_id or item.seen)


def refusals(tx: Transaction, remote: Remote) -> list[str]:
    """Why files are not in Open WebUI, for each that it does not take."""
    return [
        item.seen
        for item in queries.of_remote(tx, remote.id, "file")
        if item.seen and not item.there_id
    ]


def _paired(
    there: Sequence[KnowledgeFile], items: Mapping[str, SyncedItem]
) -> tuple[list[tuple[str, KnowledgeFile]], list[SyncedItem]]:
    """Each file with the path that it has here, and the items whose files are gone."""
    by_id = {item.there_id: item for item in items.values() if item.there_id}
    paired = [(by_id[file.id].name, file) for file in there if file.id in by_id]
    taken = {path for path, _ in paired}
    for file in there:
        if file.id not in by_id:
            paired.append((_free(_named(file.path), taken), file))
            taken.add(paired[-1][0])
    return paired, [item for item in items.values() if item.there_id and item.name not in taken]


def _named(path: str) -> str:
    try:
        return service.path_of(path)
    except Invalid:
        return path  # which is said when it is pulled


def _free(path: str, taken: Collection[str]) -> str:
    """The path with a number where it is taken: a knowledge base may have a name twice."""
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".") if "." in name.strip(".") else (name, "", "")
    numbered = (f"{folder}{slash}{stem} ({number}){dot}{ending}" for number in count(2))
    return path if path not in taken else next(one for one in numbered if one not in taken)


def _merged(base: bytes | None, here: bytes, there: bytes) -> bytes | None:
    """Both changes of a text; None where they meet, or where it is no text."""
    was, ours, theirs = (None if data is None else text_of(data) for data in (base, here, there))
    if was is None or ours is None or theirs is None:
        return None
    merged = merge_lines(was, ours, theirs)
    return None if merged is None else merged.encode()
