"""Lists for pages: records of storage with the addresses of their pages.

They need a few statements for a list, while the API would need one call for each row.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from ricordo.domain.message import TextPart
from ricordo.domain.scope import Scope, User
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import RicordoError
from ricordo.features.web.pages.memory_text import without_day
from ricordo.memory.course_blocks import COPY, FOR_ALL
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.storage import agents, conversation_overviews, history, memory_overviews
from ricordo.storage import blocks as stored_blocks
from ricordo.storage import messages as stored_messages
from ricordo.storage import proposals as stored_proposals
from ricordo.storage import users as stored_users
from ricordo.storage.conversation_overviews import MOST_NAMES
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.memory_overviews import AttachedBlock, ChainOwner, MemorySize
from ricordo.storage.proposals import ProposalFilter


@dataclass(frozen=True, slots=True)
class WaitingProposal:
    """A proposal with the owner of its memory, and with its block if that exists."""

    proposal: Proposal
    owner: MemoryOwner
    block_id: str | None

    def path(self, action: str) -> str:
        """Return the API's path for a decision.

        Args:
            action: `approve` or `reject`.

        Raises:
            Conflict: The proposal for a deleted block of an agent has expired with it.
        """
        if self.owner.kind == "user":
            block = f"/users/{self.owner.id}/blocks/{self.proposal.label}"
        else:
            if self.block_id is None:
                self.proposal.require_waiting()
            block = f"/v1/blocks/{self.block_id}"
        return f"{block}/diffs/{self.proposal.id}/{action}"


def waiting(
    tx: Transaction, scope: Scope, page: Page, proposal_filter: ProposalFilter | None = None
) -> list[WaitingProposal]:
    """Return waiting proposals that the caller may see, newest first.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The requested part of the list.
        proposal_filter: The selection; None selects all that wait.
    """
    proposal_filter = proposal_filter or ProposalFilter(waits=True)
    return _with_owners(tx, stored_proposals.page(tx, scope, page, proposal_filter))


def undo_of_approval(tx: Transaction, scope: Scope, proposal_ids: Sequence[str]) -> str:
    """Return the address to which a page posts to undo the approval of these proposals.

    Call it before the decision. Undoing restores the block's present text, or removes a new block.

    Args:
        tx: The transaction.
        scope: The caller.
        proposal_ids: The proposals that will be approved.

    Returns:
        The address; "" if the proposals concern several blocks or cannot be read, and for a new
        block of an agent or a block without a version.
    """
    try:
        proposals = [proposal(tx, scope, id) for id in proposal_ids]
    except RicordoError:
        return ""
    if len({(waiting.owner.path, waiting.proposal.label) for waiting in proposals}) != 1:
        return ""
    first = proposals[0]
    owner, label, block_id = first.owner, first.proposal.label, first.block_id
    block = stored_blocks.get(tx, scope, block_id) if block_id else None
    if block is None:
        return f"{owner.path}/remove/{quote(label)}" if owner.kind == "user" else ""
    if block.head is None:
        return ""
    page = f"/ui/blocks/{block.id}"
    if owner.kind == "user":
        page = f"{owner.path}/blocks/{quote(label)}"
    return f"{page}/restore?sha={block.head.hex()}"


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """The number of changes that wait for one owner."""

    owner: MemoryOwner
    count: int


def waiting_by_owner(
    tx: Transaction, scope: Scope, limit: int, *, without: str | None = None
) -> list[WaitingCount]:
    """Return the owners with waiting changes, the largest number first.

    Args:
        tx: The transaction.
        scope: The caller. Only memories that the caller may see count.
        limit: The most owners that are returned.
        without: The id of a user who is left out; None leaves out no user.
    """
    rows = memory_overviews.waiting_by_owner(tx, scope, limit, without=without)
    return [WaitingCount(_with_path(owner), count) for owner, count in rows]


def expected_blocks(
    tx: Transaction, scope: Scope, user: User, labels: Collection[str], limit: int
) -> list[AttachedBlock]:
    """Return the blocks that courses will add about a user.

    The courses' agents add them once they talk with the user.

    Args:
        tx: The transaction.
        scope: The caller.
        user: The user.
        labels: The labels of blocks that the user has. Blocks with these labels are left out.
        limit: The most blocks that are returned.
    """
    return memory_overviews.blocks_marked_for(
        tx, scope, user, (COPY, FOR_ALL), labels=labels, limit=limit
    )


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """The message that began a run: its page, and its text."""

    path: str
    text: str


def source_of_run(tx: Transaction, scope: Scope, run_id: str | None) -> SourceMessage | None:
    """Return the message that began a run, if the caller may read it.

    Args:
        tx: The transaction.
        scope: The caller.
        run_id: The run. For None, the result is None.
    """
    path = messages_of_runs(tx, scope, [run_id]).get(run_id or "")
    if path is None:
        return None
    message = stored_messages.by_ids(tx, [path.rpartition("=")[2]])[0]
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    return SourceMessage(path, "\n".join(texts))


def proposal(tx: Transaction, scope: Scope, id: str) -> WaitingProposal:
    """Return one proposal, waiting or resolved, with its owner.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        id: The proposal.

    Raises:
        NotFound: The caller may not see such a proposal.
    """
    (waiting,) = _with_owners(tx, [stored_proposals.get(tx, scope, id)])
    if waiting.owner.kind == "block" and waiting.block_id:
        holder = holder_of(tx, scope, waiting.block_id)
        return replace(waiting, owner=holder or waiting.owner)
    return waiting


def holder_of(tx: Transaction, scope: Scope, block_id: str) -> MemoryOwner | None:
    """Return the first of the caller's agents that has the block; None if none has it.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        block_id: A block that is no user's.
    """
    states = agents.page(tx, scope, Page(limit=1), agents.has_block(block_id))
    return next((MemoryOwner("agent", one.agent.id, one.agent.name) for one in states), None)


def _with_owners(tx: Transaction, waiting: Sequence[Proposal]) -> list[WaitingProposal]:
    owners = owners_of(tx, {proposal.chain_id for proposal in waiting})
    ids = memory_overviews.ids_of_blocks(
        tx, {(proposal.chain_id, proposal.label) for proposal in waiting}
    )
    return [
        WaitingProposal(
            proposal, owners[proposal.chain_id], ids.get((proposal.chain_id, proposal.label))
        )
        for proposal in waiting
    ]


def owners_of(tx: Transaction, chain_ids: Iterable[str]) -> Mapping[str, MemoryOwner]:
    """Return the owners of these chains by chain id.

    Args:
        tx: The transaction, or a read.
        chain_ids: The chains. This function does not check that the caller may see them.
    """
    owners = memory_overviews.owners_of(tx, chain_ids)
    return {chain_id: _with_path(owner) for chain_id, owner in owners.items()}


def _with_path(owner: ChainOwner) -> MemoryOwner:
    return MemoryOwner(owner.kind, owner.id, owner.name)


def owners_of_blocks(
    tx: Transaction, scope: Scope, ids: Sequence[str]
) -> Mapping[str, MemoryOwner]:
    """Return the owners of these blocks' memory by block id.

    Args:
        tx: The transaction, or a read.
        scope: The caller. Blocks of other organizations are left out; further rights are not
            checked.
        ids: The blocks, of which only a limited number is read.
    """
    chain_of = memory_overviews.chains_of_blocks(tx, scope, ids)
    owners = owners_of(tx, chain_of.values()) if chain_of else {}
    return {id: owners[chain_id] for id, chain_id in chain_of.items() if chain_id in owners}


@dataclass(frozen=True, slots=True)
class ListedBlock:
    """A block in a list; `id` is empty if it is only proposed.

    `length` and `limit` are in characters.
    """

    id: str
    label: str
    title: str | None
    length: int
    limit: int
    policy: str
    is_untrusted: bool
    waiting: int
    path: str


@dataclass(frozen=True, slots=True)
class Person:
    """A user in the list of people, with the size of their memory."""

    user: User
    size: MemorySize

    @property
    def blocks(self) -> int:
        return self.size.blocks

    @property
    def characters(self) -> int:
        return self.size.characters

    @property
    def waiting(self) -> int:
        """Return the number of waiting proposals."""
        return self.size.waiting


def people(tx: Transaction, scope: Scope, page: Page, search_text: str) -> list[Person]:
    """Return one page of the users with this text in their names or identifiers, newest first.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The requested part of the list.
        search_text: A part of a name or identifier; empty for all users.
    """
    named_users = stored_users.page_named_like(tx, scope, page, search_text)
    sizes = memory_overviews.sizes_of_users(tx, [user.id for user in named_users])
    return [Person(user, sizes.get(user.id, MemorySize())) for user in named_users]


def blocks_of_chain(tx: Transaction, owner: MemoryOwner, chain_id: str) -> list[ListedBlock]:
    """Return a user's blocks by label, and labels that are only proposed.

    Args:
        tx: The transaction.
        owner: The user.
        chain_id: The user's chain. The caller's access is checked earlier.
    """
    counts = stored_proposals.waiting_counts(tx, chain_id)
    existing = _listed(
        memory_overviews.blocks_of_chain(tx, chain_id),
        lambda row: f"{owner.path}/blocks/{quote(row.label)}",
    )
    labels = {block.label for block in existing}
    proposed = [
        ListedBlock(
            id="",
            label=label,
            title=None,
            length=0,
            limit=0,
            policy="",
            is_untrusted=False,
            waiting=waiting,
            path=f"{owner.path}/blocks/{quote(label)}",
        )
        for label, waiting in sorted(counts.items())
        if label not in labels
    ]
    return existing + proposed


def _listed(rows: Sequence[Any], path: Callable[[Any], str]) -> list[ListedBlock]:
    return [
        ListedBlock(
            id=row.id,
            label=row.label,
            title=row.title,
            length=row.length,
            limit=row.limit,
            policy="read_only" if row.read_only else row.policy,
            is_untrusted=row.is_untrusted,
            waiting=row.waiting,
            path=path(row),
        )
        for row in rows
    ]


def first_lines(tx: Transaction, chain_id: str, limit: int) -> list[str]:
    """Return the first lines of a user's memory without headings, those about the person first.

    Args:
        tx: The transaction.
        chain_id: The user's chain. The caller's access is checked earlier.
        limit: The most lines that are returned.
    """
    lines = [
        without_day(line)[1].lstrip(" -*").strip()
        for text in memory_overviews.beginnings(tx, chain_id, limit)
        for line in text.split("\n")
        if line.strip() and not line.startswith("#")
    ]
    return lines[:limit]


def messages_of_runs(
    tx: Transaction, scope: Scope, run_ids: Iterable[str | None]
) -> Mapping[str, str]:
    """Return by run the page of the message that began it.

    The result is empty for a caller who may not read messages.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        run_ids: The runs; None among them is ignored.
    """
    if not scope.may("messages:read"):
        return {}
    return {
        row.run_id: (
            f"/ui/agents/{row.agent_id}/chat?conversation={row.conversation_id}&message={row.id}"
        )
        for row in conversation_overviews.first_messages(tx, scope, run_ids)
    }


@dataclass(frozen=True, slots=True)
class RunChanges:
    """The changes of memory by one run.

    `applied` has an owner and a label for each changed block, and `proposed` the waiting proposals.
    `users` are the owners whose changes can be undone.
    """

    applied: Sequence[tuple[MemoryOwner, str]]
    proposed: Sequence[WaitingProposal]

    @property
    def users(self) -> list[MemoryOwner]:
        return list(dict.fromkeys(owner for owner, _ in self.applied if owner.kind == "user"))


def changes_of_runs(
    tx: Transaction, scope: Scope, run_ids: Iterable[str]
) -> Mapping[str, RunChanges]:
    """Return the changes of memory by each run, as far as the caller may see them.

    Args:
        tx: The transaction.
        scope: The caller.
        run_ids: The runs, of which only a limited number is read.
    """
    ids = sorted(set(run_ids))[:MOST_NAMES]
    rows = history.of_runs(tx, scope, ids, MOST_NAMES)
    owners = owners_of(tx, {row.chain_id for row in rows}) if rows else {}
    waits = stored_proposals.of_runs(tx, scope, ids)
    proposed = _with_owners(tx, waits) if waits else []
    changes = {}
    for id in ids:
        labels = [(owners[row.chain_id], row.label) for row in rows if row.run_id == id]
        waiting_since = [entry for entry in proposed if entry.proposal.run_id == id]
        changes[id] = RunChanges(list(dict.fromkeys(labels)), waiting_since)
    return changes


def pages_of_blocks(tx: Transaction, block_versions: Sequence[BlockVersion]) -> Mapping[bytes, str]:
    """Return by version id the page of its block at that version.

    Args:
        tx: The transaction, or a read.
        block_versions: Versions that the caller may see. Those whose block or person does not exist
            are left out.
    """
    owners = (
        owners_of(tx, {version.chain_id for version in block_versions}) if block_versions else {}
    )
    ids = memory_overviews.ids_of_blocks(
        tx, {(version.chain_id, version.label) for version in block_versions}
    )
    pages = {}
    for version in block_versions:
        owner = owners.get(version.chain_id)
        id = ids.get((version.chain_id, version.label))
        if owner and owner.kind == "user":
            pages[version.id] = (
                f"{owner.path}/blocks/{quote(version.label)}/versions/{version.id.hex()}"
            )
        elif id:
            pages[version.id] = f"/ui/blocks/{id}/versions/{version.id.hex()}"
    return pages
