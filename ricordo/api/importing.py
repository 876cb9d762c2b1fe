"""History import: past messages of an agent, stored for recall without a turn."""

from fastapi import Response

from ricordo.agents.history import PastMessage, import_messages
from ricordo.api.archive_bodies import ImportBody
from ricordo.api.call import Here, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.schemas import ImportedShape

router = Routes(prefix="/v1/agents/{agent_id}/messages", tags=["messages"])


@router.post("/import", response_model=ImportedShape)
async def import_past(here: Here, agent_id: str, body: ImportBody) -> Response:
    """Store past messages of the user and the agent, oldest first: search finds them, the window stays as it is.

    Send an `otid` with each message, and the request can be repeated: what stands there already is not stored again.
    """
    past = [PastMessage(item.role, tuple(item.texts), item.name, item.created_at, item.otid) for item in body.messages]
    thread = None if body.conversation_id in (None, "default") else body.conversation_id
    return answer({"message_ids": await import_messages(here.store, here.scope, agent_id, past, thread)})
