"""The block of a page: its owner, the caller's rights, and its versions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import Request

from ricordo.domain.block import Block, Chain
from ricordo.domain.scope import REQUEST_SCOPE, Scope, User
from ricordo.domain.version import BlockVersion, ChangeMetadata, PolicyDecision
from ricordo.errors import Conflict, NotFound
from ricordo.features.web.pages import queries
from ricordo.memory import user_memory
from ricordo.memory.blame import Blame, Place, blame_beside
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.titles import title_of
from ricordo.storage import blocks, history, proposals, users, versions
from ricordo.storage.engine.store import Transaction

# The most characters of texts whose words are counted for a timeline, estimated by the length of
# the newest text. A longer history has no counts.
_MOST_COUNTED = 400_000


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """A block with its paths in the API and among the pages.

    `block` is None if it does not exist. `decision` says if a change by the caller is
    applied, proposed or refused. `owns` is set if the caller may also change the block's other
    fields.
    """

    owner: MemoryOwner
    chain: Chain
    label: str
    block: Block | None
    api: str
    page: str
    decision: PolicyDecision
    owns: bool

    @property
    def title(self) -> str:
        """Return the block's title for people."""
        title = self.block.title if self.block else None
        if self.owner.kind != "user":
            return title or self.label.replace("_", " ").capitalize()
        return title_of(self.label, title, self.owner.name, is_self=False)

    @property
    def shown_version(self) -> str:
        """Return the id of the block's version as forms name it; "" without a version."""
        if self.block is None or self.block.head is None:
            return ""
        return self.block.head.hex()

    @property
    def version(self) -> str:
        """Return the entity tag of the block as it was read."""
        block = self.block
        if block is None:
            return ""
        return f"{block.head.hex() if block.head else 'none'}.{block.version}"


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A version, with the numbers of added and removed words; None if not counted."""

    version: BlockVersion
    added: int | None = None
    removed: int | None = None


def find_block(tx: Transaction, scope: Scope, path_params: dict[str, Any]) -> BlockAddress:
    """Return the block that the path's parameters name.

    Args:
        tx: The transaction.
        scope: The caller.
        path_params: Either `block_id`, or `user_id` and `label`.

    Raises:
        NotFound: if there is no such block.
    """
    if "block_id" not in path_params:
        memory = user_memory.open_memory(tx, scope, path_params["user_id"])
        return of_user(tx, scope, memory.user, memory.chain.id, path_params["label"])
    block = blocks.get(tx, scope, path_params["block_id"])
    owner = queries.owners_of(tx, [block.chain_id])[block.chain_id]
    if owner.kind == "user":
        return of_user(tx, scope, users.require(tx, scope, owner.id), block.chain_id, block.label)
    chain = Chain(block.chain_id, block.organization_id, "agent", owner.id)
    decision = ChangeMetadata(scope.actor).policy_decision(block.rule, chain)
    if owner.kind == "block":
        owner = queries.holder_of(tx, scope, block.id) or owner
    return BlockAddress(
        owner,
        chain,
        block.label,
        block=block,
        api=f"/v1/blocks/{block.id}",
        page=f"/ui/blocks/{block.id}",
        decision=decision,
        owns=decision == "apply",
    )


def of_user(tx: Transaction, scope: Scope, user: User, chain_id: str, label: str) -> BlockAddress:
    """Return a user's block by its label, as `find_block` does.

    A former label leads to the block that had it. A label without a block is found if it has a
    history or a waiting proposal.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        user: The user, whose memory the caller may see.
        chain_id: The user's chain.
        label: The label.

    Raises:
        NotFound: The user has no such block.
    """
    owner = MemoryOwner("user", user.id, user.name)
    block = blocks.labelled(tx, chain_id, label)
    if block is None and label not in proposals.waiting_counts(tx, chain_id):
        if not history.page(tx, chain_id, label=label, limit=1):
            raise NotFound(f'There is no memory block "{label[:80]}" of {user.name}.')
        label = history.last_label(tx, chain_id, label)
        block = blocks.labelled(tx, chain_id, label)
    chain = Chain(chain_id, user.organization_id, "user", user.id)
    edit = ChangeMetadata(scope.acting_for(user).actor)
    return BlockAddress(
        owner,
        chain,
        label,
        block=block,
        api=f"/users/{user.id}/blocks/{label}",
        page=f"{owner.path}/blocks/{quote(label)}",
        decision=edit.policy_decision(block.rule if block else "propose", chain),
        owns=edit.is_owners_of(chain),
    )


async def open_block(request: Request) -> BlockAddress:
    """Return the block of this request.

    Args:
        request: The request of a page whose path has `block_id`, or `user_id` and `label`.

    Raises:
        NotFound: The caller sees no such block.
        Conflict: A form names a user's block by id.
    """
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params
    address: BlockAddress = await request.app.state.runtime.store.read(
        lambda tx: find_block(tx, scope, path_params)
    )
    owner = address.owner
    if request.method == "POST" and "block_id" in path_params and owner.kind == "user":
        raise Conflict(
            f"This is a block of {owner.name}. Change it on the page of {owner.name}'s memory."
        )
    return address


async def read_blame(request: Request) -> Blame:
    """Return the finished blame of the block of this request.

    Args:
        request: The request of a page whose path has `block_id`, or `user_id` and `label`.

    Raises:
        NotFound: The caller sees no such block.
    """
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params

    def find_place(tx: Transaction) -> Place:
        address = find_block(tx, scope, path_params)
        return address.chain.id, address.label

    return await blame_beside(request.app.state.runtime.store, find_place)


def counted(
    tx: Transaction, address: BlockAddress, block_versions: Sequence[BlockVersion]
) -> list[TimelineEntry]:
    """Return the versions, each with its numbers of added and removed words.

    Each is compared with the version after it in the list, and the last with an empty text.

    Args:
        tx: The transaction.
        address: The block.
        block_versions: Versions of the block without gaps, the newest first.
    """
    length = len(address.block.value) if address.block else 0
    if length * len(block_versions) > _MOST_COUNTED:
        return [TimelineEntry(version) for version in block_versions]
    blobs = [version.blob for version in block_versions if version.blob]
    texts = versions.read_texts(tx, address.chain.id, blobs)
    word_counts: list[Counter[str]] = [
        Counter(texts[version.blob].split()) if version.blob else Counter()
        for version in block_versions
    ]
    word_counts.append(Counter())
    return [
        TimelineEntry(version, (new - old).total(), (old - new).total())
        for version, new, old in zip(block_versions, word_counts, word_counts[1:], strict=False)
    ]


def read_versions(
    tx: Transaction, address: BlockAddress, limit: int, before: int | None = None
) -> tuple[list[TimelineEntry], bool]:
    """Return a page of the block's versions, newest first, and True if more exist.

    Args:
        tx: The transaction.
        address: The block.
        limit: The most versions that are returned.
        before: The number of a version; only older ones are returned. None begins at the newest.
    """
    rows = history.page(tx, address.chain.id, label=address.label, limit=limit + 1, before=before)
    return counted(tx, address, rows)[:limit], len(rows) > limit
