"""Erasure of users and its receipts, over HTTP."""

from typing import Annotated, Any, Literal

from fastapi import Query, Response

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.models.base import ResponseModel, often_absent
from ricordo.api.routing import Routes, needs
from ricordo.features.memory_care.erasure.receipts import ErasureFacts, Receipt
from ricordo.features.memory_care.erasure.service import forget

router = Routes(tags=["users' memory"], scope="memory")
WithAgents = Annotated[
    bool,
    Query(
        description="Also delete agents that only this user has, with blocks and archives that no "
        "other agent has."
    ),
]


class ChainReceipt(ResponseModel):
    """A deleted chain of versions: the id of its last version, and its number of versions."""

    chain: str
    head: str | None
    versions: int


class AgentReceipt(ResponseModel):
    """An agent of the user, with the number of versions of its memory from the user's turns.

    `stays` is the reason why the agent was not deleted, if the user's agents were to be deleted.
    """

    id: str
    versions: int
    is_deleted: bool = False
    stays: str | None = None


class SignatureResponse(ResponseModel):
    """Ed25519 over the receipt without the signature, as JSON with sorted keys; base64."""

    algorithm: Literal["ed25519"]
    public_key: str
    value: str


class ReceiptResponse(ErasureFacts):
    """The receipt of an erasure.

    `scope` is "one thing" if one fact was forgotten rather than a whole user. A signed receipt of a
    user has no such field.
    """

    model_config = often_absent("scope")

    status: Literal["done"]
    scope: Literal["one thing"] | None = None
    memory: list[ChainReceipt]
    agents: list[AgentReceipt]
    signature: SignatureResponse


class ErasureResponse(ResponseModel):
    """An erasure in progress. If a whole user is forgotten, nobody can see the user any more.

    `receipt` is the path of the receipt.
    """

    model_config = often_absent("scope")

    id: str
    status: Literal["running"]
    scope: Literal["one thing"] | None = None
    organization_id: str
    receipt: str
    removed: dict[str, int]


ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"model": ErasureResponse, "description": "The user is hidden; the rows are deleted later"}
}


@router.delete("/users/{user_id}", response_model=ReceiptResponse, responses=ACCEPTED)
@needs("memory:approve", "users:write")
async def delete_user(
    context: RequestContext, user_id: str, with_agents: WithAgents = False
) -> Response:
    """Forget a user: the memory, the conversations, and all other data about the user.

    The user is hidden at once; the receipt comes later. Later requests return the receipt. This
    cannot be undone.
    """
    receipt = await forget(context.runtime, context.scope, user_id, with_agents=with_agents)
    # Keys of the user become invalid now, not when their cache entries expire.
    context.request.app.state.authentication.forget()
    return answer_erasure(receipt)


def answer_erasure(receipt: Receipt) -> Response:
    """Return the response with the receipt, or with the erasure's state."""
    return answer(receipt, 200 if receipt["status"] == "done" else 202)
