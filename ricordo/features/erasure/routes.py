"""Erasure of users and its receipts, over HTTP."""

from typing import Annotated, Any

from fastapi import Query, Response

from ricordo.api.call import Here, answer
from ricordo.api.routing import Routes
from ricordo.features.erasure.models import ErasureResponse, Receipt, ReceiptResponse
from ricordo.features.erasure.service import find_receipt, forget

router = Routes(tags=["users' memory"])
WithAgents = Annotated[
    bool,
    Query(
        description="Delete the agents that are the user's alone too, with blocks and archives that no other agent has."
    ),
]
_BOTH: dict[int | str, dict[str, Any]] = {
    202: {"model": ErasureResponse, "description": "The user is hidden; the rows follow"}
}


@router.delete("/users/{user_id}", response_model=ReceiptResponse, responses=_BOTH)
async def delete_user(here: Here, user_id: str, with_agents: WithAgents = False) -> Response:
    """Forget a user: their memory, conversations, and what was kept about them. They are hidden at once; the receipt comes later.

    Asked again, it answers with the receipt. Nothing of this can be undone.
    """
    return _answered(await forget(here.runtime, here.scope, user_id, with_agents=with_agents))


@router.get("/v1/receipts/{receipt_id}", response_model=ReceiptResponse, responses=_BOTH)
async def retrieve_receipt(here: Here, receipt_id: str) -> Response:
    """Return the signed receipt of an erasure, or how far it is."""
    return _answered(await find_receipt(here.runtime, here.scope, receipt_id))


def _answered(receipt: Receipt) -> Response:
    return answer(receipt, 200 if receipt["status"] == "done" else 202)
