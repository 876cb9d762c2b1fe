"""Routes of tools and of an agent's tools."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Query

from ricordo.agents.step_decisions import rulebook, with_approval
from ricordo.api.call import Paged, RequestContext, whole_agent
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import TextPiece
from ricordo.api.models.tools import ToolApprovalRequest, ToolResponse
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.domain.tool import Tool
from ricordo.errors import Invalid, NotFound
from ricordo.storage import agents, tools
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["tools"], scope="tools")
Names = Annotated[list[str] | None, Query()]


@dataclass(frozen=True, slots=True)
class ToolQuery:
    """The selection of tools."""

    name: str | None = None
    names: Names = None
    tool_ids: Names = None
    search: TextPiece = None
    tool_types: Names = None
    exclude_tool_types: Names = None
    return_only_letta_tools: Annotated[
        bool, Query(description="Only tools whose type begins with `letta`.")
    ] = False
    exclude_letta_tools: Annotated[
        bool, Query(description="Only tools whose type does not begin with `letta`.")
    ] = False

    def filter(self) -> tools.ToolFilter:
        return tools.ToolFilter(
            names=(*(self.names or ()), *((self.name,) if self.name else ())),
            ids=tuple(self.tool_ids or ()),
            types=tuple(self.tool_types or ()),
            other_types=tuple(self.exclude_tool_types or ()),
            search=self.search or "",
            is_built_in=(True,) * self.return_only_letta_tools
            + (False,) * self.exclude_letta_tools,
        )


Selection = Annotated[ToolQuery, Depends()]


@router.get("/tools/", response_model=list[ToolResponse])
def list_tools(
    tx: Transaction, context: RequestContext, paging: Paged, query: Selection
) -> Sequence[Tool]:
    """List tools, by default newest first.

    Filters are the name, a part of the name, the id and the type.
    """
    return tools.page(tx, context.scope, paging.page(), query.filter())


@router.get("/tools/count", response_model=int)
def count(tx: Transaction, context: RequestContext, query: Selection) -> int:
    """Return the number of selected tools."""
    return tools.count(tx, context.scope, query.filter())


@router.get("/tools/{tool_id}", response_model=ToolResponse)
def retrieve(tx: Transaction, context: RequestContext, tool_id: str) -> Tool:
    """Return one tool."""
    return tools.get(tx, context.scope, tool_id)


@router.get("/agents/{agent_id}/tools", response_model=list[ToolResponse])
def list_of_agent(
    tx: Transaction, context: RequestContext, agent_id: str, paging: Paged
) -> Sequence[Tool]:
    """List the agent's tools."""
    agents.require(tx, context.scope, agent_id)
    return tools.page(
        tx, context.scope, paging.page(default=100), tools.ToolFilter(agent_id=agent_id)
    )


@router.patch("/agents/{agent_id}/tools/attach/{tool_id}", response_model=AgentResponse)
def attach(tx: Transaction, context: RequestContext, agent_id: str, tool_id: str) -> Json:
    """Attach a tool to the agent. Attaching it again changes nothing."""
    agents.lock(tx, context.scope, agent_id)
    state = agents.load(tx, context.scope, agent_id)
    tool = tools.get(tx, context.scope, tool_id)
    if not any(attached.id == tool_id for attached in state.tools):
        tools.attach(tx, agent_id, [tool.id])
        if tool.needs_approval:
            agents.update(tx, with_approval(state.agent, tool.name, True))
    return whole_agent(tx, context, agent_id)


@router.patch("/agents/{agent_id}/tools/detach/{tool_id}", response_model=AgentResponse)
def detach(tx: Transaction, context: RequestContext, agent_id: str, tool_id: str) -> Json:
    """Detach a tool from the agent."""
    agents.require(tx, context.scope, agent_id)
    tools.get(tx, context.scope, tool_id)
    tools.detach(tx, agent_id, tool_id)
    # A rule that needs this tool must be removed first, or no turn could end.
    rulebook(agents.load(tx, context.scope, agent_id))
    return whole_agent(tx, context, agent_id)


@router.patch("/agents/{agent_id}/tools/approval/{tool_name}", response_model=AgentResponse)
def change_approval(
    tx: Transaction,
    context: RequestContext,
    agent_id: str,
    tool_name: str,
    body: ToolApprovalRequest | None = None,
    requires_approval: bool | None = None,
) -> Json:
    """Switch approval of this tool's calls on or off for this agent.

    Calls that already wait keep waiting.
    """
    is_required = body.requires_approval if body else requires_approval
    if is_required is None:
        raise Invalid("Send requires_approval: true or false.")
    agents.lock(tx, context.scope, agent_id)
    state = agents.load(tx, context.scope, agent_id)
    if not any(tool.name == tool_name for tool in state.tools):
        raise NotFound(f"The agent has no tool named {tool_name}. Attach it first.")
    changed = with_approval(state.agent, tool_name, is_required)
    if changed != state.agent:
        agents.update(
            tx, replace(changed, updated_by=context.scope.user_id, updated_at=tx.clock.now())
        )
    return whole_agent(tx, context, agent_id)
