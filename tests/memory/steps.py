"""Helpers for steps of a stored agent that edit memory, and for edits by others meanwhile."""

from dataclasses import replace
from typing import Any

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.scope import Actor, Scope
from ricordo.memory import user_memory
from ricordo.memory.commit import CommitOutcome, commit
from ricordo.memory.edits import WorkingMemory
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import agents, blocks
from ricordo.storage.engine.store import Store, Transaction
from tests.seams import make

SCOPE = Scope()
ADA = Actor("administrator", "user-ada", "Ada")
TUTOR = Actor("agent", "agent-tutor", "Tutor")


async def save(
    store: Store, state: AgentState, memory: WorkingMemory, step_id: str = "step-1"
) -> CommitOutcome:
    return await store.write(
        lambda tx: commit(tx, state, memory, SCOPE, make.edit_context(state, step_id=step_id))
    )


async def reloaded(store: Store, state: AgentState) -> AgentState:
    return await store.read(lambda tx: agents.load(tx, SCOPE, state.agent.id))


async def someone_else(store: Store, block: Block, **changes: Any) -> None:
    """Let a user change the block as it is stored now."""

    def work(tx: Transaction) -> None:
        stored = blocks.get(tx, SCOPE, block.id)
        blocks.update(tx, stored, replace(stored, **changes), make.change_metadata("user-else"))

    await store.write(work)


async def put(
    store: Store, label: str, text: str, who: str = "ada", by: Actor = ADA, **options: Any
) -> Block:
    """Write a block of a user's memory."""

    def work(tx: Transaction) -> Block:
        owned = user_memory.open_memory(tx, SCOPE, who, makes=True)
        return user_memory.put(tx, owned, label, text, by, PutOptions(**options))

    return await store.write(work)


async def owned_of(store: Store, who: str = "ada") -> UserMemory:
    return await store.read(lambda tx: user_memory.open_memory(tx, SCOPE, who))
