"""Which block a page is about, whose it is, what the caller may do with it, and its versions with how much each changed."""

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
from ricordo.features.web.pages.queries import ListedBlock, MemoryOwner
from ricordo.memory import user_memory
from ricordo.storage import agents, blocks, history, proposals, users, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

# Characters of texts whose words are counted for a time line; of a longer history it shows no counts.
_MOST_COUNTED = 400_000


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """A block, None where it is not there any more or not yet, with its paths in the API and among the pages.

    `decision` is what becomes of a change by the caller, who may set what else the block has where they `own` it.
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
    def version(self) -> str:
        """The entity tag that names the block as it was read."""
        block = self.block
        return f"{block.head.hex() if block.head else 'none'}.{block.version}" if block else ""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A version, and how many words came and went with it; None where nobody counted."""

    version: BlockVersion
    added: int | None = None
    removed: int | None = None


def find_block(tx: Transaction, scope: Scope, given: dict[str, Any]) -> BlockAddress:
    """Return the block that the parameters of a path name; raises NotFound."""
    if "block_id" not in given:
        memory = user_memory.open_memory(tx, scope, given["user_id"])
        return of_user(tx, scope, memory.user, memory.chain.id, given["label"])
    block = blocks.get(tx, scope, given["block_id"])
    owner = queries.owners_of(tx, [block.chain_id])[block.chain_id]
    if owner.kind == "user":
        return of_user(tx, scope, users.require(tx, scope, owner.id), block.chain_id, block.label)
    chain = Chain(block.chain_id, block.organization_id, "agent", owner.id)
    decision = ChangeMetadata(scope.actor).policy_decision(block.rule, chain)
    if owner.kind == "block":
        seen_by = next(
            iter(agents.page(tx, scope, Page(limit=1), agents.has_block(block.id))), None
        )
        owner = MemoryOwner("agent", seen_by.agent.id, seen_by.agent.name) if seen_by else owner
    address = f"/blocks/{block.id}"
    return BlockAddress(
        owner,
        chain,
        block.label,
        block,
        f"/v1{address}",
        f"/ui{address}",
        decision,
        decision == "apply",
    )


def of_user(tx: Transaction, scope: Scope, user: User, chain_id: str, label: str) -> BlockAddress:
    owner, block = MemoryOwner("user", user.id, user.name), blocks.labelled(tx, chain_id, label)
    is_known = block or history.page(tx, chain_id, label=label, limit=1)
    if not is_known and label not in proposals.waiting_counts(tx, chain_id):
        raise NotFound(f'There is no memory block "{label[:80]}" of {user.name}.')
    chain = Chain(chain_id, user.organization_id, "user", user.id)
    edit = ChangeMetadata(scope.acting_for(user).actor)
    decision, owns = (
        edit.policy_decision(block.rule if block else "propose", chain),
        edit.is_owners_of(chain),
    )
    page = f"{owner.path}/blocks/{quote(label)}"
    return BlockAddress(
        owner, chain, label, block, f"/users/{user.id}/blocks/{label}", page, decision, owns
    )


async def open_block(request: Request) -> BlockAddress:
    """Return the block of this request; raises NotFound, and Conflict for a form that names a user's block by its id."""
    scope, given = request.scope[REQUEST_SCOPE], request.path_params
    found: BlockAddress = await request.app.state.runtime.store.read(
        lambda tx: find_block(tx, scope, given)
    )
    if request.method == "POST" and "block_id" in given and found.owner.kind == "user":
        raise Conflict(
            f"This is a block of {found.owner.name}. Change it on the page of {found.owner.name}'s memory."
        )
    return found


def counted(
    tx: Transaction, address: BlockAddress, found: Sequence[BlockVersion]
) -> list[TimelineEntry]:
    """Return the versions, the last of them left out where it is only there to compare with, and how many words each changed."""
    length = len(address.block.value) if address.block else 0
    if length * len(found) > _MOST_COUNTED:
        return [TimelineEntry(one) for one in found]
    texts = versions.read_texts(tx, address.chain.id, [one.blob for one in found if one.blob])
    words = [Counter(texts[one.blob].split()) if one.blob else Counter() for one in found]
    words.append(Counter())
    return [
        TimelineEntry(one, (new - old).total(), (old - new).total())
        for one, new, old in zip(found, words, words[1:], strict=False)
    ]


def read_versions(
    tx: Transaction, address: BlockAddress, limit: int, before: int | None = None
) -> tuple[list[TimelineEntry], bool]:
    """Return a page of the block's versions, newest first, and whether there are older ones."""
    found = history.page(tx, address.chain.id, label=address.label, limit=limit + 1, before=before)
    return counted(tx, address, found)[:limit], len(found) > limit


def blocks_beside(
    tx: Transaction, scope: Scope, owner: MemoryOwner, chain_id: str
) -> list[ListedBlock]:
    if owner.kind == "user":
        return queries.blocks_of_chain(tx, owner, chain_id)
    if owner.kind == "block":
        return []
    seen = [block.id for block in agents.load(tx, scope, owner.id).blocks]
    return queries.blocks_with_ids(tx, [block.id for block in blocks.by_ids(tx, scope, seen)])
