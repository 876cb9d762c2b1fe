"""Copies for a user: what an agent learns in a conversation about a user stays with that user.

The first edit of a block of the agent's own, in such a conversation, makes the user's copy of it, which stands in its place for
this user from then on. Blocks that are `shared` are edited in place.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.block import Block, Chain, new_in, require_label
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Invalid
from ricordo.memory.user_memory import open_memory
from ricordo.memory.working_memory import MemoryEdit
from ricordo.storage import blocks, versions
from ricordo.storage.engine.store import Transaction

REASON = "Copy of the agent's block"
# In a block's metadata: its copies are in the prompts of all agents that talk with the user, and not of this agent alone.
COPY, FOR_ALL = "copy", "for_all_agents"
_LONGEST = 40  # characters of an agent's name in a label
_UNFIT = re.compile(r"[^a-z0-9]+")


def needs_copy(block: Block, user_id: str | None) -> bool:
    """Whether an edit of this block of an agent's, in a conversation about this user, is made in a copy."""
    return bool(user_id and block.chain_id and not block.is_users and not block.shared)


def users_chain(tx: Transaction, agent: Agent, user_id: str) -> Chain:
    """The user's chain, made where it is missing. Raises NotFound where the user was erased."""
    return open_memory(tx, Scope(agent.organization_id), user_id, makes=True).chain


def with_copies(
    tx: Transaction, state: AgentState, edits: Sequence[MemoryEdit], chain_id: str, author: Actor
) -> tuple[AgentState, list[MemoryEdit]]:
    """The state and the edits with copies in this chain, which is locked, in place of the agent's own blocks."""
    user_id = state.conversation.user_id
    wanted = {edit.base.id: edit.base for edit in edits if needs_copy(edit.base, user_id)}
    copies = {id: copy_of(tx, state.agent, base, chain_id, author) for id, base in wanted.items()}

    def moved(edit: MemoryEdit) -> MemoryEdit:
        copy, after = copies.get(edit.base.id), edit.after
        if copy is None:
            return edit
        changed = after and replace(copy, value=after.value, description=after.description)
        return replace(edit, base=copy, after=changed)

    seen = tuple(copies.get(block.id, block) for block in state.blocks)
    return replace(state, blocks=seen), [moved(edit) for edit in edits]


def copy_of(tx: Transaction, agent: Agent, block: Block, chain_id: str, author: Actor) -> Block:
    """The user's copy of an agent's block as the edit saw it, in the locked chain; one made meanwhile is merged with."""
    chain = versions.lock(tx, chain_id)
    assert chain is not None  # noqa: S101 - the caller has locked it
    known = blocks.copy_in(tx, chain_id, agent.memory_id, block.shown_label)
    is_for_all = block.metadata.get(COPY) == FOR_ALL
    if known is None and is_for_all:
        made = blocks.labelled(tx, chain_id, block.label)
        known = made if made and made.agent_id is None and made.course is None else None
    if known is not None:
        return replace(
            known, value=block.value, description=block.description, version=0, is_users=True
        )
    label = _free_label(chain, agent, block)
    kept = (
        "value",
        "description",
        "limit",
        "read_only",
        "policy",
        "hidden",
        "metadata",
        "title",
        "schema_ref",
    )
    given = {name: getattr(block, name) for name in kept}
    given["agent_id"] = None if is_for_all and label == block.label else agent.memory_id
    seen_as = block.label if label != block.label else None
    made = new_in(chain, label, author.id, tx.clock.now(), **given, seen_as=seen_as)
    metadata = ChangeMetadata(author, REASON, is_untrusted=block.is_untrusted)
    return replace(blocks.insert_all(tx, [made], [], metadata, is_copy=True)[0], is_users=True)


def _free_label(chain: Chain, agent: Agent, block: Block) -> str:
    """The block's label, or one that names the agent too, where the user's chain has such a one already."""
    folder = _UNFIT.sub("-", agent.name.lower()).strip("-")[:_LONGEST]
    # Two agents may have one name; the id is of one alone.
    for label in (
        block.label,
        f"agents/{folder}/{block.label}",
        f"agents/{agent.id}/{block.label}",
    ):
        with suppress(Conflict, Invalid):
            chain.require_told_apart(require_label(label))
            if label not in chain.files:
                return label
    return f"agents/{agent.id}/{block.id}"
