"""Sync of a user's workspace with a knowledge base of Open WebUI.

First the changes in Open WebUI are pulled. For each file, one transaction stores its content and
records that both sides have it. Then the changes of the workspace are pushed. So a sync can be
killed at any point and repeated. Only files that both sides had are deleted, and an edit takes
precedence over a deletion. When both sides changed the same lines, both texts are kept as two
files.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from ricordo.features.sync.remotes.service import RemoteMoved
from ricordo.memory.text import merge_lines
from ricordo.storage.engine.store import Store, Transaction

# Types that Open WebUI converts to a text for its search. That text differs from the file, although
# no one edited it.
_CONVERTED = (".csv", ".tsv", ".htm", ".html", ".xml", ".rst")


@dataclass(frozen=True, slots=True)
class _Pulled:
    """A file in its present state in Open WebUI.

    `edited_text` is a user's edit of the text that Open WebUI extracted from a binary file.
    """

    file: KnowledgeFile
    content: bytes
    edited_text: str | None = None


class FileSync:
    """One sync of the files. `problems` are sentences for the user."""

    def __init__(self, store: Store, client: OpenWebUI, remote: Remote, user_id: str) -> None:
        self.problems: list[str] = []
        self._store = store
        self._client = client
        self._remote = remote
        self._space = Space(remote.organization_id, user_id)

    async def run(self, knowledge_id: str) -> bool:
        """Pull, then push; False for a missing knowledge base.

        Raises RemoteMoved for a file that changed meanwhile.
        """
        remote_files = await self._client.files(knowledge_id)
        if remote_files is None:
            return False
        items = await self._store.read(self._items)
        paired, missing = _paired(remote_files, items)
        if missing and await self._client.files(knowledge_id) != remote_files:
            # A page skips a file if an earlier file was removed and another was added meanwhile.
            # The number of files does not reveal this. So read twice: if both lists agree, no file
            # was skipped.
            raise RemoteMoved
        uploaded_count = sum(1 for item in items.values() if item.there_id)
        if len(missing) > 1 and len(missing) == uploaded_count:
            # The knowledge base was emptied or replaced: upload all files again.
            await self._store.write(self.forget)
        else:
            for item in missing:
                await self._store.write(partial(self._delete_here, item=item))
        for path, file in paired:
            await self._pull(path, file, items.get(path))
        await self._push(knowledge_id)
        return True

    def forget(self, tx: Transaction) -> None:
        """Delete the records of common items, so that all files are pushed again."""
        for item in queries.of_remote(tx, self._remote.id, "file"):
            queries.remove(tx, item)

    def _items(self, tx: Transaction) -> dict[str, SyncedItem]:
        return {item.name: item for item in queries.of_remote(tx, self._remote.id, "file")}

    def _delete_here(self, tx: Transaction, item: SyncedItem) -> None:
        """Delete a file that was deleted in Open WebUI, if it was not changed here."""
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
            valid_path = service.path_of(path)
            await self._store.write(lambda tx: self._store_pulled(tx, valid_path, pulled, item))
        except (Invalid, TooLong) as error:
            self.problems.append(f"{path[:80]} in Open WebUI cannot be stored here: {error}")

    async def _read(self, file: KnowledgeFile, item: SyncedItem | None) -> _Pulled | None:
        """Return a file's bytes with the user's edits of its text.

        Returns None for a file that is missing or being processed, since its content is not known
        yet.
        """
        file_and_text = await self._client.file(file.id)
        if file_and_text is None or file_and_text[0].in_process:
            return None
        current, text = file_and_text
        same_upload = item
        if item and not (
            item.there_id == current.id and item.seen.endswith(f"|{current.file_hash}")
        ):
            same_upload = None
        if same_upload:
            original = await self._store.read(lambda tx: queries.content(tx, same_upload))
        else:
            original = await self._client.original(current.id)
        original_text = text_of(original)
        if original_text is None or current.path.lower().endswith(_CONVERTED):
            edited_text = text if same_upload and text.strip() else None
            return _Pulled(current, original, edited_text)
        if not text.strip() or says_the_same(original_text, text, plain_key):
            return _Pulled(current, original)
        return _Pulled(current, carried_over(original_text, text, plain_key).encode())

    def _store_pulled(
        self, tx: Transaction, path: str, pulled: _Pulled, item: SyncedItem | None
    ) -> None:
        """Store a pulled file, and record that both sides have its content.

        If the workspace's file changed too, both changes are merged. If both sides changed the same
        lines, the pulled file is stored under a free path.
        """
        local = workspace.content(tx, self._space, path)
        base = queries.content(tx, item) if item else None
        if local is None or local == base:
            if local != pulled.content:
                service.write(tx, self._space, path, pulled.content)
        elif local != pulled.content:
            merged = _merged(base, local, pulled.content)
            if merged is None:
                free_path = service.free_path(tx, self._space, path)
                service.write(tx, self._space, free_path, pulled.content)
            else:
                service.write(tx, self._space, path, merged)
        if pulled.edited_text is not None:
            free_path = service.free_path(tx, self._space, f"{path}.txt")
            service.write(tx, self._space, free_path, pulled.edited_text.encode())
        synced = replace(item or self._new(path), there_id=pulled.file.id, seen=pulled.file.state)
        queries.put(tx, synced, pulled.content)

    async def _push(self, knowledge_id: str) -> None:
        items, listed = await self._store.read(
            lambda tx: (self._items(tx), workspace.listed(tx, self._space))
        )
        files = {file.path: file for file in listed}
        for path, item in items.items():
            if path not in files:
                await self._remove(knowledge_id, item)
                await self._store.write(partial(queries.remove, item=item))
        changed = [
            (path, items.get(path))
            for path, file in files.items()
            if file.size and not _is_synced(items.get(path), file.digest)
        ]
        # All old texts are removed first, since Open WebUI with embeddings refuses a text that it
        # already has.
        for _, old_item in changed:
            if old_item:
                await self._remove(knowledge_id, old_item)
        for path, old_item in changed:
            await self._upload(knowledge_id, path, old_item)

    async def _remove(self, knowledge_id: str, item: SyncedItem) -> None:
        """Remove the file from Open WebUI.

        Raises RemoteMoved if it changed since the last sync.
        """
        if not item.there_id:
            return
        file_and_text = await self._client.file(item.there_id)
        if file_and_text:
            file = file_and_text[0]
            if file.in_process or file.state != item.seen:
                raise RemoteMoved
        # Record the removal first. Otherwise after a kill the next sync would assume that a person
        # deleted the file.
        await self._store.write(
            lambda tx: queries.put(
                tx, replace(item, there_id="", seen=""), queries.content(tx, item)
            )
        )
        await self._client.remove_file(knowledge_id, item.there_id)

    async def _upload(self, knowledge_id: str, path: str, item: SyncedItem | None) -> None:
        content = await self._store.read(lambda tx: workspace.content(tx, self._space, path))
        # The file was just deleted, or it is blank, which Open WebUI refuses.
        if content is None or not content.strip():
            return
        new_item = item or self._new(path)
        try:
            file = await self._client.upload(knowledge_id, path, content)
            synced = replace(new_item, there_id=file.id, seen=file.state)
        except NotTaken as error:
            refusal = f"Open WebUI refuses {path[:80]}: {error}"
            synced = replace(new_item, there_id="", seen=refusal)
        await self._store.write(lambda tx: queries.put(tx, synced, content))

    def _new(self, path: str) -> SyncedItem:
        return SyncedItem(
            id="",
            organization_id=self._space.organization_id,
            user_id=self._space.user_id or "",
            remote_id=self._remote.id,
            kind="file",
            name=path,
        )


def _is_synced(item: SyncedItem | None, digest: str) -> bool:
    """Return True if Open WebUI has this content, or has refused it."""
    return item is not None and item.digest == digest and bool(item.there_id or item.seen)


def refusals(tx: Transaction, remote: Remote) -> list[str]:
    """Return Open WebUI's reason for each file that it refused."""
    return [
        item.seen
        for item in queries.of_remote(tx, remote.id, "file")
        if item.seen and not item.there_id
    ]


def _paired(
    remote_files: Sequence[KnowledgeFile], items: Mapping[str, SyncedItem]
) -> tuple[list[tuple[str, KnowledgeFile]], list[SyncedItem]]:
    """Return each remote file with its path, and the items without a file."""
    by_id = {item.there_id: item for item in items.values() if item.there_id}
    paired = [(by_id[file.id].name, file) for file in remote_files if file.id in by_id]
    paths = {path for path, _ in paired}
    for file in remote_files:
        if file.id not in by_id:
            path = _free_path(_normal_path(file.path), paths)
            paired.append((path, file))
            paths.add(path)
    missing = [item for item in items.values() if item.there_id and item.name not in paths]
    return paired, missing


def _normal_path(path: str) -> str:
    try:
        return service.path_of(path)
    except Invalid:
        return path  # `_pull` reports the fault


def _free_path(path: str, paths: Collection[str]) -> str:
    """Return the path, with a number if it is in use.

    A knowledge base may contain a name twice.
    """
    if path not in paths:
        return path
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".") if "." in name.strip(".") else (name, "", "")
    numbered_paths = (f"{folder}{slash}{stem} ({number}){dot}{ending}" for number in count(2))
    return next(numbered for numbered in numbered_paths if numbered not in paths)


def _merged(base: bytes | None, local: bytes, remote: bytes) -> bytes | None:
    """Merge both sides' changes of a text; None for overlaps or binary content."""
    base_text = None if base is None else text_of(base)
    local_text = text_of(local)
    remote_text = text_of(remote)
    if base_text is None or local_text is None or remote_text is None:
        return None
    merged = merge_lines(base_text, local_text, remote_text)
    return None if merged is None else merged.encode()
