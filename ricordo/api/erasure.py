"""Forgetting a user, and the receipts of it."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from ricordo.agents.erasing import find_receipt, forget
from ricordo.api.call import Here, answer
from ricordo.api.models.base import ResponseModel
from ricordo.api.routing import Routes

router = Routes(tags=["users' memory"])


class MemoryGoneShape(ResponseModel):
    """A chain of versions that was removed: the id of its last version, and how many there were."""

    chain: str
    head: str | None
    versions: int


class AgentSeenShape(ResponseModel):
    """An agent she talked with, how many versions of its own memory came of her turns, and whether it was deleted with her.

    Where all that were hers alone were to be deleted, `stays` tells why this one was not.
    """

    id: str
    versions: int
    is_deleted: bool = False
    stays: str | None = None


class SignatureShape(ResponseModel):
    """Ed25519 over the receipt without it, as JSON with sorted keys; base64."""

    algorithm: Literal["ed25519"]
    public_key: str
    value: str


class ReceiptShape(ResponseModel):
    """What was removed, by table; what stays, and what lies elsewhere. `subject` and `names` are hashes."""

    id: str
    status: Literal["done"]
    subject: str
    names: list[str]
    organization_id: str
    asked_at: datetime
    asked_by: str
    finished_at: datetime
    ricordo: str
    database: str
    removed: dict[str, int]
    changed: dict[str, int]
    memory: list[MemoryGoneShape]
    files: dict[str, str]
    agents: list[AgentSeenShape]
    remaining: dict[str, int]
    elsewhere: list[str]
    signature: SignatureShape


class ErasureShape(ResponseModel):
    """An erasure under way: the user is gone for everyone, and her rows follow. `receipt` is where its receipt will be."""

    id: str
    status: Literal["running"]
    organization_id: str
    receipt: str
    removed: dict[str, int]


WithAgents = Annotated[
    bool,
    Query(description="Delete the agents that are hers alone too, with blocks and archives that no other agent has."),
]
_BOTH: dict[int | str, dict[str, Any]] = {202: {"model": ErasureShape, "description": "She is gone; her rows follow"}}


@router.delete("/users/{user_id}", response_model=ReceiptShape, responses=_BOTH)
async def delete_user(here: Here, user_id: str, with_agents: WithAgents = False) -> Response:
    """Forget a user: her memory, her conversations, and what was kept about her. She is gone at once; the receipt comes later.

    Asked again, it answers with the receipt. Nothing of this can be undone.
    """
    return _answered(await forget(here.runtime, here.scope, user_id, with_agents=with_agents))


@router.get("/v1/receipts/{receipt_id}", response_model=ReceiptShape, responses=_BOTH)
async def retrieve_receipt(here: Here, receipt_id: str) -> Response:
    """The signed receipt of an erasure, or how far it is."""
    return _answered(await find_receipt(here.runtime, here.scope, receipt_id))


def _answered(told: dict[str, Any]) -> Response:
    return answer(told, 200 if told["status"] == "done" else 202)
