"""A stored agent with the built-in tools, and calls as a turn makes them."""

import json
from dataclasses import dataclass, field
from typing import Any

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.message import ToolCallPart, ToolReturnPart
from ricordo.domain.scope import Scope
from ricordo.llm.registry.models import Models
from ricordo.memory.commit import commit
from ricordo.memory.edits import WorkingMemory
from ricordo.memory.recall import Recall
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import agents
from ricordo.storage.engine.store import Store
from ricordo.tools.builtin import TOOLS
from ricordo.tools.toolbox import Toolbox, ToolContext
from tests.seams import make

BOX = Toolbox(TOOLS)
ATTACHED = {
    tool.name: make.tool(
        tool.name, tool_type=tool.tool_type, runs_in_parallel=tool.runs_in_parallel
    )
    for tool in BOX
}

NO_EMBEDDERS = Models(
    Settings(find_local_models=False, embedding="none"), ProviderSettings.model_construct()
).embedders

WARNING = (
    "# NOTE: Line numbers shown below (with arrows like '1→') are to help during editing. "
    "Do NOT include line number prefixes in your memory edit tool calls."
)
PREFIX = (
    "{} contains a line number prefix, which is not allowed. Do not include line numbers when "
    "calling memory tools (line numbers are for display purposes only)."
)


@dataclass
class Desk:
    """One agent in the middle of a step."""

    store: Store
    state: AgentState
    memory: WorkingMemory
    scope: Scope = field(default_factory=Scope)
    turn_began: int | None = None
    view_began: int | None = None

    @property
    def recall(self) -> Recall:
        return Recall(self.store, NO_EMBEDDERS, payer=None)

    def context(self) -> ToolContext:
        nothing: Any = None  # Memory tools do not use these.
        return ToolContext(
            *("call-1", self.state, self.memory, self.store, self.scope, lambda: self.recall),
            *(nothing, nothing),
            turn_began=lambda: self.turn_began,
            view_began=lambda: self.view_began,
        )

    async def call(self, name: str, **arguments: Any) -> ToolReturnPart:
        context = self.context()
        calls = [ToolCallPart("call-1", name, json.dumps(arguments))]
        (result,) = await BOX.run(calls, ATTACHED, lambda _call_id: context)
        return result

    async def said(self, name: str, **arguments: Any) -> str:
        result = await self.call(name, **arguments)
        assert result.status == "success", result.content
        return result.content

    async def read(self, name: str, **arguments: Any) -> Any:
        result = await self.call(name, **arguments)
        assert (result.status, result.is_json) == ("success", True), result.content
        return json.loads(result.content)

    async def refused(self, name: str, **arguments: Any) -> str:
        """Return the error of a call that must fail and leave memory unchanged."""
        before = (list(self.memory.edits), list(self.memory.passages))
        result = await self.call(name, **arguments)
        assert result.status == "error", result.content
        assert (self.memory.edits, self.memory.passages) == before
        return result.content

    async def save(self) -> None:
        await self.store.write(
            lambda tx: commit(tx, self.state, self.memory, Scope(), make.edit_context(self.state))
        )
        self.state = await self.store.read(lambda tx: agents.load(tx, Scope(), self.state.agent.id))
        self.memory = WorkingMemory(self.state)


async def desk(store: Store, *blocks: tuple[str, str], **fields: Any) -> Desk:
    made = [make.block(label, value) for label, value in blocks]
    state = await make.stored_agent(store, make.agent(**fields), with_blocks=made)
    return Desk(store, state, WorkingMemory(state))


def paper_desk(*blocks: Block) -> Desk:
    agent = make.agent()
    state = AgentState(agent, make.conversation(agent), blocks)
    no_store: Any = None
    return Desk(no_store, state, WorkingMemory(state))
