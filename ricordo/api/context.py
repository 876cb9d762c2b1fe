"""What an agent has in view: its context window, section by section."""

from typing import Annotated

from fastapi import Query, Response

from ricordo.agents import threads
from ricordo.api.call import Here, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.context import ContextShape, overview_to_wire
from ricordo.memory.overview import Overview, overview
from ricordo.storage import agents, messages
from ricordo.storage.store import Transaction
from ricordo.tools.toolbox import schema_of

router = Routes(prefix="/v1/agents", tags=["agents"])


@router.get("/{agent_id}/context", response_model=ContextShape)
async def retrieve(
    here: Here,
    agent_id: str,
    conversation_id: Annotated[str, Query(description="Which of its conversations.")] = threads.DEFAULT,
) -> Response:
    """What fills the agent's context window, in tokens by our own estimate."""

    def read(tx: Transaction) -> Overview:
        thread = threads.resolve(tx, here.scope, conversation_id, agent_id)
        state = threads.effective(agents.load(tx, here.scope, agent_id, thread.id))
        tools = [schema_of(tool) for tool in state.tools]
        return overview(state, messages.by_ids(tx, state.conversation.window), tools)

    return answer(overview_to_wire(await here.store.read(read)))
