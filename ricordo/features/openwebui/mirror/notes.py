"""Sync of a user's memory blocks with notes of Open WebUI.

The notes belong to the account of the API key and are shared with the user. The user's edit of a
note becomes a version by the user. Memory takes precedence: a deleted note is created again. An
empty note is written again too, since the editor sometimes saves an empty note by mistake. The
user's changes are merged by lines. If memory changed in the same lines, the note's text waits as a
proposal.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ricordo.domain.block import Block
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Invalid, TooLong
from ricordo.features.files.workspaces.queries import digest_of
from ricordo.features.openwebui.mirror import queries
from ricordo.features.openwebui.mirror.queries import SyncedItem
from ricordo.features.openwebui.mirror.sessions import OpenWebUI, StoredNote, grants_of
from ricordo.features.openwebui.mirror.texts import carried_over, markdown_key, says_the_same
from ricordo.features.sync.remotes.service import RemoteMoved
from ricordo.memory import user_memory
from ricordo.memory.proposals import ProposalDraft, Unchanged, propose
from ricordo.memory.text import merge_lines
from ricordo.memory.user_memory import UserMemory
from ricordo.pages.filters import editable_markdown
from ricordo.storage import proposals
from ricordo.storage.engine.store import Store, Transaction

_REASON = "Edited as a note in Open WebUI"


class NoteSync:
    """One sync of the notes.

    `reader` is the id of the user in Open WebUI. `problems` are sentences for the user.
    """

    def __init__(
        self, store: Store, client: OpenWebUI, remote: Remote, user: User, reader: str
    ) -> None:
        self.problems: list[str] = []
        self._store = store
        self._client = client
        self._remote = remote
        self._reader = reader
        self._user = user
        self._metadata = ChangeMetadata(Actor("user", user.id, user.name), _REASON)

    async def run(self) -> None:
        """Pull, then push. Raises RemoteMoved for a note that changed meanwhile."""
        refused_labels = await self._pull()
        items, blocks = await self._store.read(
            lambda tx: (self._items(tx), user_memory.listed(tx, self._memory(tx)))
        )
        items_by_label = {item.name: item for item in items}
        removed_labels = items_by_label.keys() - {block.label for block in blocks}
        for label in removed_labels - refused_labels:
            item = items_by_label[label]
            await self._require_unmoved(item)
            await self._client.remove_note(item.there_id)
            await self._store.write(partial(queries.remove, item=item))
        is_settled = True
        for block in blocks:
            if block.label not in refused_labels:
                is_settled &= await self._push(block, items_by_label.get(block.label))
        if not is_settled:
            raise RemoteMoved
        self.problems += await self._store.read(self._conflicts)

    def _conflicts(self, tx: Transaction) -> list[str]:
        """Return a sentence for each note whose text waits for the user's decision."""
        waiting = proposals.waiting(tx, self._memory(tx).chain.id)
        return [
            f'"{proposal.label}" changed here and in its note, in the same lines. The note\'s text '
            f"waits as the proposal {proposal.id}."
            for proposal in waiting
            if proposal.reasoning == _REASON
        ]

    async def _pull(self) -> set[str]:
        """Store the changes of each note; return the labels whose note was refused."""
        refused_labels = set[str]()
        for item in await self._store.read(self._items):
            note = await self._client.note(item.there_id)
            try:
                if note is None:
                    await self._store.write(partial(queries.remove, item=item))
                elif note.updated_at != item.seen:
                    await self._store.write(partial(self._store_edit, item=item, note=note))
            except (Invalid, TooLong) as error:
                refused_labels.add(item.name)
                self.problems.append(f'The note of "{item.name}" cannot be stored here: {error}')
        return refused_labels

    def _items(self, tx: Transaction) -> Sequence[SyncedItem]:
        return queries.of_remote(tx, self._remote.id, "note")

    def _memory(self, tx: Transaction) -> UserMemory:
        return user_memory.open_memory(tx, Scope(self._remote.organization_id), self._user.id)

    def _store_edit(self, tx: Transaction, item: SyncedItem, note: StoredNote) -> None:
        """Store the edit of a note as a version, and its text as synced."""
        base = queries.content(tx, item).decode()
        synced = replace(item, seen=note.updated_at)
        if not note.text.strip() and base.strip():
            queries.put(tx, synced, b"")  # the note differs from the block, so it is written again
            return
        if says_the_same(base, note.text, markdown_key):
            queries.put(tx, synced, base.encode())
            return
        text = carried_over(base, note.text, markdown_key)
        memory = self._memory(tx)
        block = user_memory.find(tx, memory, item.name)
        merged = text if block is None else merge_lines(base, text, block.value)
        if merged is not None:
            user_memory.put(tx, memory, item.name, merged, self._metadata)
        elif block:
            self._propose(tx, memory, block, text)
        queries.put(tx, synced, text.encode())

    def _propose(self, tx: Transaction, memory: UserMemory, block: Block, text: str) -> None:
        block.require_fits(text)
        draft = ProposalDraft(memory.chain.id, block.label, text, block)
        with suppress(Unchanged):
            propose(tx, draft, self._metadata)

    async def _push(self, block: Block, item: SyncedItem | None) -> bool:
        """Write the block into its note, which is created if it is missing.

        Returns False for a note that has to be pulled again.
        """
        if item is None:
            return await self._push_new(block)
        if item.digest != digest_of(block.value.encode()):
            await self._require_unmoved(item)
            note = await self._write_note(item.there_id, block, [])
            synced = replace(item, seen=note.updated_at)
            await self._store.write(lambda tx: queries.put(tx, synced, block.value.encode()))
        return True

    async def _push_new(self, block: Block) -> bool:
        """Create the block's note, or adopt the note of a sync that was killed.

        Returns False if the note must be pulled again because note or block were edited meanwhile.
        """
        title = block.title or block.label
        note = await self._client.find_note(title, self._marks(block), self._reader)
        if note is None:
            grants = grants_of(self._reader, is_writable=not block.read_only)
            note = await self._write_note(None, block, grants)
        text = str(note.noted.get("text", ""))
        is_edited = note.text != text
        item = SyncedItem(
            id="",
            organization_id=block.organization_id,
            user_id=self._user.id,
            remote_id=self._remote.id,
            kind="note",
            name=block.label,
            there_id=note.id,
            seen="" if is_edited else note.updated_at,
        )
        await self._store.write(lambda tx: queries.put(tx, item, text.encode()))
        return bool(item.seen) and text == block.value

    def _marks(self, block: Block) -> dict[str, str]:
        """Return the metadata by which the note of a killed sync is recognized."""
        return {"user": self._user.id, "label": block.label}

    async def _write_note(
        self, note_id: str | None, block: Block, grants: list[dict[str, str]]
    ) -> StoredNote:
        return await self._client.put_note(
            note_id,
            block.title or block.label,
            content={"json": None, "html": str(editable_markdown(block.value)), "md": block.value},
            noted=self._marks(block) | {"text": block.value},
            grants=grants,
        )

    async def _require_unmoved(self, item: SyncedItem) -> None:
        note = await self._client.note(item.there_id)
        if note and note.updated_at != item.seen:
            raise RemoteMoved
