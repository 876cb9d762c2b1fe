"""`GET /v1/agents/{agent_id}/card`: a summary that helps people and programs to choose an agent.

It has no text of memory. It does not contain descriptions of users' blocks, since users write them.
"""

from dataclasses import replace
from typing import Literal

from ricordo.api.call import RequestContext
from ricordo.api.models.base import ResponseModel
from ricordo.api.routing import Routes
from ricordo.domain.agent import AgentState, AgentType
from ricordo.domain.block import Block
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/agents/{agent_id}/card", tags=["agents"], scope="agents")


class CardToolResponse(ResponseModel):
    """A tool that the agent may call."""

    name: str
    description: str


class CardBlockResponse(ResponseModel):
    """A block that the agent sees, without its text.

    `description` is null for a user's block.
    """

    label: str
    belongs_to: Literal["agent", "user"]
    description: str | None


class AgentCardResponse(ResponseModel):
    """The agent's description, abilities and users.

    `url` takes messages for it. Everybody in the organization may use it if `is_restricted` is
    false. Otherwise only the users in `readers` may, and administrators and developers. In
    `readers`, a user sees only the user's id.
    """

    id: str
    name: str
    description: str | None
    agent_type: AgentType
    model: str
    tags: list[str]
    url: str
    tools: list[CardToolResponse]
    blocks: list[CardBlockResponse]
    is_restricted: bool
    readers: list[str]


@router.get("", response_model=AgentCardResponse)
def retrieve_card(tx: Transaction, context: RequestContext, agent_id: str) -> Json:
    """Return the agent's card: its model, tools, labels of memory, and users."""
    state = agents.load_whole(tx, context.scope, agent_id)
    return AgentCardResponse.of(
        state.agent,
        tags=list(state.tags),
        url=f"/v1/agents/{agent_id}/messages",
        tools=[
            CardToolResponse.of(tool, description=tool.description or "") for tool in state.tools
        ],
        blocks=[_block_card(block) for block in state.blocks if not block.hidden],
        is_restricted=_is_restricted(tx, context.scope, state),
        readers=list(state.user_ids),
    )


def _block_card(block: Block) -> Json:
    description = None if block.is_users else block.description
    owner = "user" if block.is_users else "agent"
    return CardBlockResponse.of(
        block, label=block.shown_label, description=description, belongs_to=owner
    )


def _is_restricted(tx: Transaction, scope: Scope, state: AgentState) -> bool:
    """Return whether only some users may use the agent; the caller need not see them."""
    if state.user_ids or scope.subject_id is None:
        return bool(state.user_ids)
    return bool(agents.load_whole(tx, replace(scope, subject_id=None), state.agent.id).user_ids)
