"""Users' memory for a program without a server.

It opens the database of a data folder, and gives access to users' blocks and proposals.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal

from ricordo.domain.block import Block
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.clock import SECOND
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.errors import Conflict, NotFound
from ricordo.features.typed_memory.formats.service import (
    ParsedText,
    from_markdown,
    from_toml,
    to_markdown,
    to_toml,
)
from ricordo.memory import approval, user_memory
from ricordo.memory.schemas import (
    find_schema,
    read_block,
    require_follows,
    require_schema,
    starting_settings,
)
from ricordo.memory.text import unified
from ricordo.memory.user_memory import ProposalOptions, PutOptions, UserMemory
from ricordo.settings import Settings
from ricordo.storage import history, proposals, users
from ricordo.storage.engine.database import open_store
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.proposals import ProposalFilter

T = TypeVar("T")
_MOST_PROPOSALS = 1000


class GitUserStorage:
    """The memory of all users, as a context manager.

    With SQLite no server may run, since only one process may open the database. Raises Conflict,
    Unavailable.
    """

    def __init__(
        self, data_dir: Path | str, *, settings: Settings | None = None, scope: Scope | None = None
    ) -> None:
        self.data_dir = Path(data_dir)
        self.scope = scope or Scope()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._store: Store | None = open_store(settings or Settings(data_dir=self.data_dir))
        self._loop = ExitStack()
        self._portal = self._loop.enter_context(start_blocking_portal(name="ricordo storage"))

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on one consistent view, read-only."""
        return self._portal.call(self._opened().read, work)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction: all of it is saved, or nothing."""
        return self._portal.call(self._opened().write, work)

    def memory_of(self, tx: Transaction, user_id: str) -> UserMemory | None:
        """Return the user's memory; None for an unknown user."""
        if not users.find(tx, self.scope, user_id):
            return None
        return user_memory.open_memory(tx, self.scope, user_id)

    def schema(self, name: str | None) -> BlockSchema | None:
        """Return the data folder's block schema with this name, if any."""
        return find_schema(name, self.data_dir)

    def close(self) -> None:
        """Close the database; closing twice is allowed."""
        store = self._store
        self._store = None
        if store is not None:
            self._portal.call(store.close)
            self._loop.close()

    def __enter__(self) -> "GitUserStorage":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _opened(self) -> Store:
        if self._store is None:
            raise ValueError("This storage is closed. Open another GitUserStorage.")
        return self._store


class _UserAccess:
    def __init__(self, user_id: str, storage: GitUserStorage) -> None:
        self.user_id = user_id
        self.storage = storage

    def _read(self, read: Callable[[Transaction, UserMemory], T]) -> T | None:
        """Read the user's memory; returns None for an unknown user."""

        def work(tx: Transaction) -> T | None:
            memory = self.storage.memory_of(tx, self.user_id)
            return read(tx, memory) if memory else None

        return self.storage.read(work)

    def _change(self, change: Callable[[Transaction, UserMemory], T], *, makes: bool = False) -> T:
        return self.storage.write(lambda tx: change(tx, self._require(tx, makes=makes)))

    def _require(self, tx: Transaction, *, makes: bool = False) -> UserMemory:
        return user_memory.open_memory(tx, self.storage.scope, self.user_id, makes=makes)


class UserBlockManager(_UserAccess):
    """A user's memory blocks.

    The first block creates the user. All changes are in the user's name.
    """

    def list_blocks(self) -> list[str]:
        """Return the labels of the blocks, sorted; none for an unknown user."""
        return [block.label for block in self._read(user_memory.listed) or ()]

    def get_block(self, label: str) -> str | None:
        """Return the text of a block, if there is one."""
        block = self._block(label)
        return None if block is None else block.value

    def get_block_markdown(self, label: str) -> str | None:
        """Return a block as Markdown with a front matter."""
        return self._format(label, to_markdown)

    def get_block_toml(self, label: str) -> str | None:
        """Return a block as TOML, with fields if it has a schema."""
        return self._format(label, to_toml)

    def update_block(
        self, label: str, text: str, *, message: str | None = None, schema_ref: str | None = None
    ) -> str:
        """Write the block, and return the new version's id. Raises Invalid, TooLong.

        A new block gets its schema's settings.
        """
        block = self._block(label) if schema_ref else None
        options = PutOptions(message=message, schema_ref=schema_ref)
        if schema_ref and (block is None or block.schema_ref != schema_ref):
            schema = require_schema(schema_ref, self.storage.data_dir)
            if block is None:
                options = replace(options, **starting_settings(schema))

        def put(tx: Transaction, memory: UserMemory) -> Block:
            return user_memory.put(tx, memory, label, text, memory.owner, options)

        return _head(self._change(put, makes=True))

    def update_block_from_markdown(
        self, label: str, markdown: str, *, message: str | None = None
    ) -> str:
        """Write the block from Markdown. Raises Invalid with the lines to correct."""
        return self._update_from(from_markdown, label, markdown, message)

    def update_block_from_toml(self, label: str, toml: str, *, message: str | None = None) -> str:
        """Write the block from TOML. Raises Invalid with the lines to correct."""
        return self._update_from(from_toml, label, toml, message)

    def delete_block(self, label: str, *, message: str | None = None) -> None:
        """Delete a block; its history stays. Raises NotFound."""
        self._change(
            lambda tx, memory: user_memory.delete(tx, memory, label, memory.owner, message=message)
        )

    def get_history(self, label: str, limit: int = 50) -> list[dict[str, Any]]:
        """Return the versions, newest first.

        Each has sha, message, author, author_id and timestamp (ISO 8601).
        """
        versions = self._read(
            lambda tx, memory: history.page(tx, memory.chain.id, label=label, limit=limit)
        )
        return [
            {
                "sha": version.id.hex(),
                "message": version.reason,
                "author": version.author.shown_name,
                "author_id": version.author.id,
                "timestamp": _iso(version.created_at),
            }
            for version in versions or ()
        ]

    def get_version(self, label: str, sha: str) -> str | None:
        """Return the text at a version. Raises NotFound."""

        def read(tx: Transaction) -> str | None:
            chain = self._require(tx).chain
            return history.text_at(tx, chain.id, label, history.get(tx, chain.id, sha))

        return self.storage.read(read)

    def compare(self, label: str, old_sha: str, new_sha: str) -> str:
        """Return the changes between two versions as a unified diff. Raises NotFound."""
        old = self.get_version(label, old_sha) or ""
        new = self.get_version(label, new_sha) or ""
        return unified(old, new, f"{label}@{old_sha[:12]}", f"{label}@{new_sha[:12]}")

    def restore_version(self, label: str, sha: str) -> str:
        """Restore an older text as a new version; returns its id. Raises NotFound."""
        return _head(
            self._change(
                lambda tx, memory: user_memory.restore(tx, memory, label, sha, memory.owner)
            )
        )

    def _format(self, label: str, write: Callable[..., str]) -> str | None:
        block = self._block(label)
        if block is None:
            return None
        return write(label, block.value, self.storage.schema(block.schema_ref))

    def _update_from(
        self, parse: Callable[..., ParsedText], label: str, source: str, message: str | None
    ) -> str:
        block = self._block(label)
        parsed = read_block(
            parse, source, block.schema_ref if block else None, self.storage.data_dir
        )
        return self.update_block(label, parsed.text, message=message, schema_ref=parsed.schema_ref)

    def _block(self, label: str) -> Block | None:
        return self._read(lambda tx, memory: user_memory.find(tx, memory, label))


@dataclass(frozen=True, slots=True)
class PendingDiff:
    """A proposal for one block; times are ISO 8601.

    A value is None if there is no block before or after the change.
    """

    id: str
    user_id: str
    agent_id: str
    block_label: str
    current_value: str | None
    proposed_value: str | None
    reasoning: str
    confidence: float | None
    status: ProposalStatus
    created_at: str
    reviewed_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the proposal as JSON."""
        return asdict(self)


class PendingDiffStore(_UserAccess):
    """The proposals for one user's memory, made by agents.

    The user approves or rejects them.
    """

    def propose(
        self,
        agent_id: str,
        label: str,
        old_string: str,
        new_string: str,
        *,
        reasoning: str,
        confidence: float | None = None,
    ) -> PendingDiff:
        """Propose to replace a part of a block.

        It supersedes the agent's older proposal for this block. Raises NotFound, Invalid,
        Forbidden.
        """
        options = ProposalOptions(reasoning=reasoning, confidence=confidence)

        def propose(tx: Transaction, memory: UserMemory) -> Proposal:
            agent = Actor("agent", agent_id, agent_id)
            proposal = user_memory.propose_edit(
                tx, memory, label, old_string, new_string, agent, options
            )
            block = user_memory.find(tx, memory, label)
            schema = self.storage.schema(block.schema_ref) if block else None
            require_follows(label, block.value if block else "", proposal.value or "", schema)
            return proposal

        return self._diff(self._change(propose))

    def list(
        self, label: str | None = None, status: ProposalStatus | None = "open"
    ) -> "list[PendingDiff]":
        """Return proposals, newest first.

        Without a label, they are for all blocks; with status None, they have any status.
        """

        def read(tx: Transaction, memory: UserMemory) -> "list[Proposal]":
            selection = ProposalFilter(chain_id=memory.chain.id, label=label, status=status)
            return proposals.page(tx, self.storage.scope, Page(limit=_MOST_PROPOSALS), selection)

        return [self._diff(proposal) for proposal in self._read(read) or ()]

    def count_pending(self, label: str | None = None) -> int:
        """Return the number of open proposals, for one block or all."""
        counts = self._read(lambda tx, memory: proposals.waiting_counts(tx, memory.chain.id)) or {}
        return sum(counts.values()) if label is None else counts.get(label, 0)

    def get(self, diff_id: str) -> PendingDiff:
        """Return one proposal. Raises NotFound."""
        return self._diff(
            self.storage.read(lambda tx: self._proposal(tx, self._require(tx), diff_id))
        )

    def approve(self, diff_id: str, body: str | None = None) -> str:
        """Approve the proposal, or with `body` another text.

        Returns the new version's id, or "" if the block is deleted. Raises NotFound, Conflict.
        """

        def approve(tx: Transaction, memory: UserMemory) -> approval.Approved | approval.Conflicted:
            proposal = self._proposal(tx, memory, diff_id)
            return approval.approve(tx, self.storage.scope, proposal.id, memory.owner, body=body)

        outcome = self._change(approve)
        if isinstance(outcome, approval.Conflicted):
            raise Conflict(
                outcome.proposal.note
                or "The block changed in the same lines. Approve it with a text."
            )
        return (outcome.block.head or b"").hex() if outcome.block else ""

    def reject(self, diff_id: str, reason: str | None = None) -> PendingDiff:
        """Reject the proposal. Raises NotFound, Conflict.

        Conflict means that it was decided before.
        """

        def reject(tx: Transaction, memory: UserMemory) -> Proposal:
            proposal = self._proposal(tx, memory, diff_id)
            return approval.reject(tx, self.storage.scope, proposal.id, memory.owner, reason=reason)

        return self._diff(self._change(reject))

    def _proposal(self, tx: Transaction, memory: UserMemory, diff_id: str) -> Proposal:
        proposal = proposals.get(tx, self.storage.scope, diff_id)
        if proposal.chain_id != memory.chain.id:
            raise NotFound(f"Proposal with ID {diff_id} not found")
        return proposal

    def _diff(self, proposal: Proposal) -> PendingDiff:
        fields = {
            name: getattr(proposal, name) for name in ("id", "reasoning", "confidence", "status")
        }
        return PendingDiff(
            user_id=self.user_id,
            agent_id=proposal.author.id,
            block_label=proposal.label,
            current_value=proposal.base_value,
            proposed_value=proposal.value,
            created_at=_iso(proposal.created_at) or "",
            reviewed_at=_iso(proposal.resolved_at),
            **fields,
        )


def _head(block: Block) -> str:
    return (block.head or b"").hex()


def _iso(timestamp: int | None) -> str | None:
    if timestamp is None:
        return None
    return datetime.fromtimestamp(timestamp / SECOND, UTC).isoformat()
