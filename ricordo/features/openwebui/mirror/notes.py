"""A user's memory blocks as notes of Open WebUI, and what she writes there as versions of hers.

The notes belong to the account of the API key and are shared with the user. The memory is the truth: a note that was deleted comes
back, and one that is suddenly empty (its editor saves that by mistake at times) is written again. What the user changed is merged
by lines; where memory changed in the same lines, what she wrote waits as a proposal for her, and nothing is lost.
"""

from collections.abc import Sequence
from dataclasses import replace

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
from ricordo.features.sync.remotes.service import RemoteMoved, require_lease
from ricordo.memory import user_memory
from ricordo.memory.merge import merge_lines
from ricordo.memory.proposals import ProposalDraft, Unchanged, propose
from ricordo.memory.user_memory import UserMemory
from ricordo.pages.filters import markdown
from ricordo.storage.engine.store import Store, Transaction

_REASON = "Edited as a note in Open WebUI"


class NoteSync:
    """One sync of the notes. `reader` is the id of the user in Open WebUI, `problems` are sentences for the user."""

    def __init__(
        self, store: Store, client: OpenWebUI, remote: Remote, user: User, reader: str
    ) -> None:
        self.problems: list[str] = []
        self._store, self._client, self._remote, self._reader = store, client, remote, reader
        self._user = user
        self._by = ChangeMetadata(Actor("user", user.id, user.name), _REASON)

    async def run(self) -> None:
        """Pull, then push. Raises RemoteMoved where a note changed meanwhile."""
        held = set[str]()
        for item in await self._store.read(self._items):
            note = await self._client.note(item.there_id)
            try:
                if note is None:
                    await self._store.write(lambda tx, item=item: queries.remove(tx, item))  # type: ignore[misc]
                elif note.updated_at != item.seen:
                    await self._store.write(
                        lambda tx, item=item, note=note: self._take(tx, item, note)  # type: ignore[misc]
                    )
            except (Invalid, TooLong) as error:
                held.add(item.name)
                self.problems.append(f'The note of "{item.name}" cannot be taken: {error}')
        items, blocks = await self._store.read(
            lambda tx: (self._items(tx), user_memory.listed(tx, self._memory(tx)))
        )
        known = {item.name: item for item in items}
        for label in known.keys() - {block.label for block in blocks} - held:
            await self._require_unmoved(known[label])
            await self._client.remove_note(known[label].there_id)
            await self._store.write(lambda tx, label=label: queries.remove(tx, known[label]))  # type: ignore[misc]
        is_settled = True
        for block in blocks:
            if block.label not in held:
                is_settled &= await self._push(block, known.get(block.label))
        if not is_settled:
            raise RemoteMoved

    def _items(self, tx: Transaction) -> Sequence[SyncedItem]:
        return queries.of_remote(tx, self._remote.id, "note")

    def _memory(self, tx: Transaction) -> UserMemory:
        return user_memory.open_memory(tx, Scope(self._remote.organization_id), self._user.id)

    def _take(self, tx: Transaction, item: SyncedItem, note: StoredNote) -> None:
        """Make what the user wrote a version of hers, and note that both sides had it."""
        base, seen = queries.content(tx, item).decode(), replace(item, seen=note.updated_at)
        if not note.text.strip() and base.strip():
            queries.put(tx, seen, b"")  # so that it is written again
            return
        if says_the_same(base, note.text, markdown_key):
            queries.put(tx, seen, base.encode())
            return
        text = carried_over(base, note.text, markdown_key)
        memory = self._memory(tx)
        block = user_memory.find(tx, memory, item.name)
        merged = text if block is None else merge_lines(base, text, block.value)
        if merged is not None:
            user_memory.put(tx, memory, item.name, merged, self._by)
        elif block:
            self._propose(tx, memory, block, text)
        queries.put(tx, seen, text.encode())

    def _propose(self, tx: Transaction, memory: UserMemory, block: Block, text: str) -> None:
        block.require_fits(text)
        try:
            proposal = propose(
                tx, ProposalDraft(memory.chain.id, block.label, text, block), self._by
            )
        except Unchanged:
            return
        self.problems.append(
            f'"{block.label}" changed here and in its note in the same lines. What the note had waits as {proposal.id}.'
        )

    async def _push(self, block: Block, item: SyncedItem | None) -> bool:
        """Write the block into its note, which is made where it is missing; False where the note has to be looked at again."""
        noted = {"user": self._user.id, "label": block.label}
        title = block.title or block.label
        if item is None:
            grants = grants_of(self._reader, is_writable=not block.read_only)
            # Made by a sync that was killed: what it had written is noted with it.
            note = await self._client.find_note(title, noted, self._reader)
            if note is None:
                note = await self._written(None, title, block, noted, grants)
            text = str(note.noted.get("text", ""))
            seen = note.updated_at if note.text == text else ""  # it was edited since
            ids = "", block.organization_id, self._user.id, self._remote.id
            made = SyncedItem(*ids, "note", block.label, note.id, seen)
            await self._store.write(lambda tx: queries.put(tx, made, text.encode()))
            return bool(seen) and text == block.value
        if item.digest != digest_of(block.value.encode()):
            await self._require_unmoved(item)
            note = await self._written(item.there_id, title, block, noted, [])
            done = replace(item, seen=note.updated_at)
            await self._store.write(lambda tx: queries.put(tx, done, block.value.encode()))
        return True

    async def _written(
        self,
        id: str | None,
        title: str,
        block: Block,
        noted: dict[str, str],
        grants: list[dict[str, str]],
    ) -> StoredNote:
        await require_lease(self._store)
        content = {"json": None, "html": str(markdown(block.value)), "md": block.value}
        return await self._client.put_note(
            id, title, content, noted | {"text": block.value}, grants
        )

    async def _require_unmoved(self, item: SyncedItem) -> None:
        note = await self._client.note(item.there_id)
        if note and note.updated_at != item.seen:
            raise RemoteMoved
        await require_lease(self._store)
