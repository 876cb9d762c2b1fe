"""Making a window smaller because somebody asks for it."""

from typing import Annotated

from fastapi import Response
from pydantic import Field

from ricordo.agents import threads
from ricordo.agents.request import TurnRequest
from ricordo.agents.turn import collect, run_turn
from ricordo.api.bodies import WholeBody
from ricordo.api.call import Call, Here, answer
from ricordo.api.compaction_bodies import CompactionSettingsBody
from ricordo.api.errors import model_failure
from ricordo.api.routing import Routes
from ricordo.api.wire.schemas import Shape
from ricordo.domain.compaction import CompactionSettings
from ricordo.domain.conversation import Conversation
from ricordo.domain.message import CompactionPart
from ricordo.errors import Invalid
from ricordo.storage import agents
from ricordo.storage.store import Transaction

router = Routes(prefix="/v1", tags=["messages"])


class CompactBody(WholeBody):
    """How it shall be done; what is left out is as the agent has it."""

    compaction_settings: CompactionSettingsBody | None = None
    agent_id: Annotated[str | None, Field(description="Whose conversation `default` is meant.")] = None


class CompactShape(Shape):
    """What stands for the messages that left, and how many are in view."""

    summary: str
    num_messages_before: int
    num_messages_after: int


@router.post("/agents/{agent_id}/summarize", response_model=CompactShape)
async def compact_own(here: Here, agent_id: str, body: CompactBody | None = None) -> Response:
    """Sum up the older part of the agent's own thread; the messages stay in its history."""
    return await _compact(here, threads.DEFAULT, agent_id, body or CompactBody())


@router.post("/conversations/{conversation_id}/compact", response_model=CompactShape)
async def compact(
    here: Here, conversation_id: str, body: CompactBody | None = None, agent_id: str | None = None
) -> Response:
    """Sum up the older part of a thread; the messages stay in its history."""
    asked = body or CompactBody()
    return await _compact(here, conversation_id, asked.agent_id or agent_id, asked)


async def _compact(here: Call, conversation_id: str, agent_id: str | None, body: CompactBody) -> Response:
    def read(tx: Transaction) -> tuple[Conversation, CompactionSettings]:
        thread = threads.resolve(tx, here.scope, conversation_id, agent_id)
        return thread, agents.load(tx, here.scope, thread.agent_id).agent.compaction

    thread, usual = await here.store.read(read)
    settings = body.compaction_settings.settings(usual) if body.compaction_settings else usual
    request = TurnRequest(
        here.scope, thread.agent_id, conversation_id=thread.id, compaction=settings, purpose="compaction"
    )
    result = await collect(await run_turn(here.runtime, request))
    if result.failure:
        if result.failure.kind == "invalid_request":
            raise Invalid(result.failure.message)
        return model_failure(result.failure.kind, result.failure.message, result.failure.detail)
    summary = result.messages[-1]
    part = next(part for part in summary.parts if isinstance(part, CompactionPart))
    return answer(
        {
            "summary": summary.text,
            "num_messages_before": part.messages_before,
            "num_messages_after": part.messages_after,
        }
    )
