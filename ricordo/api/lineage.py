"""Why an answer is as it is: what of memory the agent had before it when it wrote it."""

from fastapi import Response

from ricordo.api.call import Here, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.versions import LineageShape, lineage_to_wire
from ricordo.memory.lineage import of_message

router = Routes(prefix="/v1/messages/{message_id}", tags=["messages"])


@router.get("/memory", response_model=LineageShape)
async def retrieve(here: Here, message_id: str) -> Response:
    """The versions of blocks and the passages that were in an answer's context, and what its step changed or proposed."""
    return answer(lineage_to_wire(await here.store.read(lambda tx: of_message(tx, here.scope, message_id))))
