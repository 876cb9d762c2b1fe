"""Copies of an agent's blocks for one user.

An agent that talks with a user keeps its new memory for that user alone. Its first edit of a block
in such a conversation creates the user's copy, which then replaces the block for this user. Blocks
that are `shared` are edited in place.
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
from ricordo.memory.course_blocks import COPY, FOR_ALL
from ricordo.memory.edits import MemoryEdit
from ricordo.memory.user_memory import open_memory
from ricordo.storage import blocks, versions
from ricordo.storage.engine.store import Transaction

REASON = "Copy of the agent's block"
_LONGEST = 40  # characters of an agent's name in a label
_UNFIT = re.compile(r"[^a-z0-9]+")


def needs_copy(block: Block, user_id: str | None) -> bool:
    """Return whether an edit of this block is made in the user's copy.

    In a conversation with a user, this is true for unshared blocks of the agent.

    Args:
        block: The block as the agent sees it.
        user_id: The conversation's user; None without one.
    """
    return bool(user_id and block.chain_id and not block.is_users and not block.shared)


def users_chain(tx: Transaction, agent: Agent, user_id: str) -> Chain:
    """Return the user's chain; create it if missing.

    Args:
        tx: The transaction.
        agent: An agent of the user's organization.
        user_id: The user.

    Raises:
        NotFound: if the user was erased.
    """
    return open_memory(tx, Scope(agent.organization_id), user_id, makes=True).chain


def with_copies(
    tx: Transaction, state: AgentState, edits: Sequence[MemoryEdit], chain_id: str, author: Actor
) -> tuple[AgentState, list[MemoryEdit]]:
    """Replace the agent's own blocks by the user's copies.

    Both the state and the edits get the copies.

    Args:
        tx: The transaction.
        state: The agent in a conversation with a user.
        edits: The step's edits.
        chain_id: The user's chain, which the caller has locked.
        author: The author of the copies.

    Returns:
        The state and the edits with copies; the given ones are not changed.
    """
    user_id = state.conversation.user_id
    originals = {edit.base.id: edit.base for edit in edits if needs_copy(edit.base, user_id)}
    copies = {
        id: copy_of(tx, state.agent, base, chain_id, author) for id, base in originals.items()
    }

    def move_edit(edit: MemoryEdit) -> MemoryEdit:
        copy = copies.get(edit.base.id)
        after = edit.after
        if copy is None:
            return edit
        changed_copy = after and replace(copy, value=after.value, description=after.description)
        return replace(edit, base=copy, after=changed_copy)

    visible_blocks = tuple(copies.get(block.id, block) for block in state.blocks)
    return replace(state, blocks=visible_blocks), [move_edit(edit) for edit in edits]


def copy_of(tx: Transaction, agent: Agent, block: Block, chain_id: str, author: Actor) -> Block:
    """Return the user's copy of an agent's block, with the block's text.

    If the copy was created meanwhile, it is used, and the edit is later merged with its text.

    Args:
        tx: The transaction.
        agent: The agent that sees the block.
        block: The agent's block, whose settings a new copy gets.
        chain_id: The user's chain, which the caller has locked.
        author: The author of a new copy.
    """
    chain = versions.lock(tx, chain_id)
    assert chain is not None  # noqa: S101 - the caller has locked it
    existing = blocks.copy_in(tx, chain_id, agent.memory_id, block.shown_label)
    is_for_all = block.metadata.get(COPY) == FOR_ALL
    if existing is None and is_for_all:
        namesake = blocks.labelled(tx, chain_id, block.label)
        if namesake and namesake.agent_id is None and namesake.course is None:
            existing = namesake
    if existing is not None:
        return replace(
            existing, value=block.value, description=block.description, version=0, is_users=True
        )
    label = _free_label(chain, agent, block)
    copied_names = (
        "value",
        "description",
        "limit",
        "read_only",
        "policy",
        "hidden",
        "metadata",
        "title",
        "schema_ref",
        "egress",
    )
    settings = {name: getattr(block, name) for name in copied_names}
    if is_for_all and label == block.label:
        settings["agent_id"] = None
    else:
        settings["agent_id"] = agent.memory_id
    seen_as = block.label if label != block.label else None
    copy = new_in(chain, label, author.id, tx.clock.now(), **settings, seen_as=seen_as)
    metadata = ChangeMetadata(author, REASON, is_untrusted=block.is_untrusted)
    return replace(blocks.insert_all(tx, [copy], [], metadata, is_copy=True)[0], is_users=True)


def _free_label(chain: Chain, agent: Agent, block: Block) -> str:
    """Return a label for the copy that is free in the user's chain.

    It is the block's label. If that is taken, it is a label in the folder `agents/` with the
    agent's name, or with the agent's id.
    """
    folder = _UNFIT.sub("-", agent.name.lower()).strip("-")[:_LONGEST]
    # Two agents may have the same name; an id is unique.
    for label in (
        block.label,
        f"agents/{folder}/{block.label}",
        f"agents/{agent.id}/{block.label}",
    ):
        with suppress(Conflict, Invalid):
            chain.require_distinct_label(require_label(label))
            if label not in chain.files:
                return label
    return f"agents/{agent.id}/{block.id}"
