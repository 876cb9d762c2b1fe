"""Steps of a stored agent that edit its memory, and what someone else does to it meanwhile."""

from dataclasses import replace
from typing import Any

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.scope import Scope
from ricordo.memory.step_commit import Committed, commit
from ricordo.memory.working_memory import WorkingMemory
from ricordo.storage import agents, blocks
from ricordo.storage.engine.store import Store, Transaction
from tests.seams import make

SCOPE = Scope()


async def save(store: Store, state: AgentState, memory: WorkingMemory, step_id: str = "step-1") -> Committed:
    return await store.write(lambda tx: commit(tx, state, memory, SCOPE, make.edit_context(state, step_id=step_id)))


async def reloaded(store: Store, state: AgentState) -> AgentState:
    return await store.read(lambda tx: agents.load(tx, SCOPE, state.agent.id))


async def someone_else(store: Store, block: Block, **changes: Any) -> None:
    """A user's change of the block as it is stored by now."""

    def work(tx: Transaction) -> None:
        stored = blocks.get(tx, SCOPE, block.id)
        blocks.update(tx, stored, replace(stored, **changes), make.change_metadata("user-else"))

    await store.write(work)
