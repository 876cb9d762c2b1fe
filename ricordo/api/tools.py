"""Tools: those there are, and those an agent has."""

from dataclasses import replace
from typing import Annotated

from fastapi import Query, Response

from ricordo.agents.step_decisions import rulebook, with_approval
from ricordo.api.call import Here, Paged, answer, changed_agent
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import TextPiece
from ricordo.api.models.tools import ToolApprovalRequest, ToolResponse
from ricordo.api.routing import Routes
from ricordo.domain.tool import Tool
from ricordo.errors import Invalid, NotFound
from ricordo.storage import agents, tools
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["tools"])


@router.get("/tools/", response_model=list[ToolResponse])
async def list_tools(
    here: Here,
    paging: Paged,
    name: str | None = None,
    names: Annotated[list[str] | None, Query()] = None,
    tool_ids: Annotated[list[str] | None, Query()] = None,
    search: TextPiece = None,
    tool_types: Annotated[list[str] | None, Query()] = None,
    exclude_tool_types: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Tools, by default newest first; by name, by a piece of it, by id or by type."""
    wanted = tools.ToolFilter(
        names=(*(names or ()), *((name,) if name else ())),
        ids=tuple(tool_ids or ()),
        types=tuple(tool_types or ()),
        other_types=tuple(exclude_tool_types or ()),
        search=search or "",
    )
    found = await here.store.read(lambda tx: tools.page(tx, here.scope, paging.page(), wanted))
    return answer([ToolResponse.of(tool) for tool in found])


@router.get("/tools/count", response_model=int)
async def count(here: Here) -> Response:
    """How many tools there are."""
    return answer(await here.store.read(lambda tx: tools.count(tx, here.scope)))


@router.get("/tools/{tool_id}", response_model=ToolResponse)
async def retrieve(here: Here, tool_id: str) -> Response:
    """One tool."""
    return answer(ToolResponse.of(await here.store.read(lambda tx: tools.get(tx, here.scope, tool_id))))


@router.get("/agents/{agent_id}/tools", response_model=list[ToolResponse])
async def list_of_agent(here: Here, agent_id: str, paging: Paged) -> Response:
    """The agent's tools."""

    def read(tx: Transaction) -> list[Tool]:
        agents.require(tx, here.scope, agent_id)
        return tools.page(tx, here.scope, paging.page(default=100), tools.ToolFilter(agent_id=agent_id))

    return answer([ToolResponse.of(tool) for tool in await here.store.read(read)])


@router.patch("/agents/{agent_id}/tools/attach/{tool_id}", response_model=AgentResponse)
async def attach(here: Here, agent_id: str, tool_id: str) -> Response:
    """Give a tool to the agent; doing it twice is the same as once."""

    def work(tx: Transaction) -> None:
        agents.lock(tx, here.scope, agent_id)
        state = agents.load(tx, here.scope, agent_id)
        tool = tools.get(tx, here.scope, tool_id)
        if any(attached.id == tool_id for attached in state.tools):
            return
        tools.attach(tx, agent_id, [tool.id])
        if tool.needs_approval:
            agents.update(tx, with_approval(state.agent, tool.name, True))

    return await changed_agent(here, agent_id, work)


@router.patch("/agents/{agent_id}/tools/detach/{tool_id}", response_model=AgentResponse)
async def detach(here: Here, agent_id: str, tool_id: str) -> Response:
    """Take a tool from the agent."""

    def work(tx: Transaction) -> None:
        agents.require(tx, here.scope, agent_id)
        tools.get(tx, here.scope, tool_id)
        tools.detach(tx, agent_id, tool_id)
        # A rule that needs this tool has to go first, or no turn could end.
        rulebook(agents.load(tx, here.scope, agent_id))

    return await changed_agent(here, agent_id, work)


@router.patch("/agents/{agent_id}/tools/approval/{tool_name}", response_model=AgentResponse)
async def change_approval(
    here: Here,
    agent_id: str,
    tool_name: str,
    body: ToolApprovalRequest | None = None,
    requires_approval: bool | None = None,
) -> Response:
    """Let this agent's calls of the tool wait for approval, or no longer. Calls that wait already go on waiting."""
    wanted = body.requires_approval if body else requires_approval
    if wanted is None:
        raise Invalid("Say requires_approval: true or false.")

    def work(tx: Transaction) -> None:
        agents.lock(tx, here.scope, agent_id)
        state = agents.load(tx, here.scope, agent_id)
        if not any(tool.name == tool_name for tool in state.tools):
            raise NotFound(f"The agent has no tool named {tool_name}. Attach it first.")
        changed = with_approval(state.agent, tool_name, wanted)
        if changed != state.agent:
            agents.update(tx, replace(changed, updated_by=here.scope.user_id, updated_at=tx.clock.now()))

    return await changed_agent(here, agent_id, work)
