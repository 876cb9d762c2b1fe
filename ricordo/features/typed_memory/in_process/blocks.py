"""One user's blocks, for a program of her own: read, write, compare, restore, and what agents propose."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from ricordo.domain.block import Block
from ricordo.domain.clock import SECOND
from ricordo.domain.version import BlockVersion
from ricordo.features.formats.service import ParsedText, from_markdown, from_toml, to_markdown, to_toml
from ricordo.features.typed_memory.in_process.storage import GitUserStorage
from ricordo.memory import user_memory
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.memory.word_diff import unified
from ricordo.storage import history
from ricordo.storage.store import Transaction

T = TypeVar("T")


class UserBlockManager:
    """A user's memory blocks. She is made with her first block; whoever holds the storage acts in her name."""

    def __init__(self, user_id: str, storage: GitUserStorage) -> None:
        self.user_id = user_id
        self.storage = storage

    def list_blocks(self) -> list[str]:
        """The labels of her blocks, sorted; none where she is unknown."""
        nothing: tuple[Block, ...] = ()
        return [block.label for block in self._of_hers(user_memory.listed, nothing)]

    def get_block(self, label: str) -> str | None:
        """The text of a block, if there is one."""
        block = self._block(label)
        return None if block is None else block.value

    def get_block_markdown(self, label: str) -> str | None:
        """A block as she edits it: Markdown, with its label on top."""
        block = self._block(label)
        return None if block is None else to_markdown(label, block.value, self.storage.schema(block.schema_ref))

    def get_block_toml(self, label: str) -> str | None:
        """A block as a TOML file, typed where a schema says how."""
        block = self._block(label)
        return None if block is None else to_toml(label, block.value, self.storage.schema(block.schema_ref))

    def update_block(self, label: str, text: str, *, message: str | None = None, schema_ref: str | None = None) -> str:
        """Make the text the block's next version; returns that version's id. Raises Invalid, TooLong."""
        options = PutOptions(message=message, schema_ref=schema_ref)

        def put(tx: Transaction) -> Block:
            owned = user_memory.open_memory(tx, self.storage.scope, self.user_id, makes=True)
            return user_memory.put(tx, owned, label, text, owned.actor, options)

        return _head(self.storage.write(put))

    def update_block_from_markdown(self, label: str, markdown: str, *, message: str | None = None) -> str:
        """The same from Markdown. Raises Invalid with the numbers of the lines that are wrong."""
        return self._update_from(from_markdown, label, markdown, message)

    def update_block_from_toml(self, label: str, toml: str, *, message: str | None = None) -> str:
        """The same from TOML. Raises Invalid with the numbers of the lines that are wrong."""
        return self._update_from(from_toml, label, toml, message)

    def delete_block(self, label: str, *, message: str | None = None) -> None:
        """Delete a block; its history stays. Raises NotFound."""
        self._change(lambda tx, owned: user_memory.delete(tx, owned, label, owned.actor, message=message))

    def get_history(self, label: str, limit: int = 50) -> list[dict[str, Any]]:
        """The block's versions, newest first: sha, message, author, author_id, timestamp (ISO 8601)."""

        def read(tx: Transaction, owned: UserMemory) -> list[BlockVersion]:
            return history.page(tx, owned.chain.id, label=label, limit=limit)

        nothing: list[BlockVersion] = []
        return [_entry(version) for version in self._of_hers(read, nothing)]

    def get_version(self, label: str, sha: str) -> str | None:
        """The text at a version. Raises NotFound where there is no such version."""

        def read(tx: Transaction, owned: UserMemory) -> str | None:
            return history.text_at(tx, owned.chain.id, label, history.get(tx, owned.chain.id, sha))

        return self._change(read, writes=False)

    def compare(self, label: str, old_sha: str, new_sha: str) -> str:
        """What changed between two versions, as a unified diff. Raises NotFound."""
        old, new = self.get_version(label, old_sha) or "", self.get_version(label, new_sha) or ""
        return unified(old, new, f"{label}@{old_sha[:12]}", f"{label}@{new_sha[:12]}")

    def restore_version(self, label: str, sha: str) -> str:
        """Make an older text the next version; returns that version's id. Raises NotFound."""
        return _head(self._change(lambda tx, owned: user_memory.restore(tx, owned, label, sha, owned.actor)))

    def _update_from(self, parse: Callable[..., ParsedText], label: str, source: str, message: str | None) -> str:
        block = self._block(label)
        parsed = parse(source, self.storage.schema(block.schema_ref if block else None))
        return self.update_block(label, parsed.text, message=message)

    def _block(self, label: str) -> Block | None:
        return self._of_hers(lambda tx, owned: user_memory.find(tx, owned, label), None)

    def _of_hers(self, read: Callable[[Transaction, UserMemory], T], otherwise: T) -> T:
        """What is read of her memory; `otherwise` where she is unknown."""

        def work(tx: Transaction) -> T:
            owned = self.storage.memory_of(tx, self.user_id)
            return otherwise if owned is None else read(tx, owned)

        return self.storage.read(work)

    def _change(self, change: Callable[[Transaction, UserMemory], T], *, writes: bool = True) -> T:
        def work(tx: Transaction) -> T:
            return change(tx, user_memory.open_memory(tx, self.storage.scope, self.user_id))

        return self.storage.write(work) if writes else self.storage.read(work)


def _head(block: Block) -> str:
    return (block.head or b"").hex()


def _entry(version: BlockVersion) -> dict[str, Any]:
    return {
        "sha": version.id.hex(),
        "message": version.reason,
        "author": version.author.name or version.author.id,
        "author_id": version.author.id,
        "timestamp": datetime.fromtimestamp(version.created_at / SECOND, UTC).isoformat(),
    }
