"""Forgetting one thing, over HTTP: the list, the removal, and agents' requests for it."""

from typing import Any, Literal

from fastapi import Response
from pydantic import Field

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.models.base import RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.features.memory_care.erasure.routes import (
    ACCEPTED,
    ErasureResponse,
    ReceiptResponse,
    answer_erasure,
)
from ricordo.features.memory_care.forgetting import queries, service
from ricordo.features.memory_care.forgetting.needle import Match
from ricordo.features.memory_care.forgetting.service import Choice
from ricordo.storage import users

router = Routes(tags=["users' memory"], scope="memory")
_MOST_IDS = 1_000


class ForgetBody(RequestModel):
    """A fact to forget, with the choice of items to remove.

    Without a choice the items are listed.
    """

    text: str = Field(
        min_length=1,
        max_length=service.LONGEST_TEXT,
        description="A line of memory, a sentence, or a subject.",
    )
    ids: list[str] = Field([], max_length=_MOST_IDS, description="The ids from the list to remove.")
    all: bool = Field(False, description="Remove every text that says it.")
    perhaps: bool = Field(False, description="With `all`: also remove texts that perhaps say it.")
    never_again: bool = Field(
        True,
        description="Stop agents from remembering it again. The rule for this does not contain the text.",
    )
    request_id: str | None = Field(None, description="The agent's request that this call decides.")


class ForgetItemResponse(ResponseModel):
    """A stored text that mentions the fact.

    `where` names the agent, conversation, block or file.
    """

    id: str
    kind: str
    match: Match
    excerpts: list[str]
    where: dict[str, Any]
    created_at: Timestamp | None


class ForgetListResponse(ResponseModel):
    """The items that mention a thing, certainly or perhaps; nothing was changed.

    `remains` are sentences about texts that a removal does not change: blocks that others share,
    and names of blocks. `is_cut` is true if there are more items than the list shows.
    """

    status: Literal["preview"]
    items: list[ForgetItemResponse]
    perhaps: list[ForgetItemResponse]
    remains: list[str]
    is_cut: bool


class ForgetRequestResponse(ResponseModel):
    """A waiting request of an agent to forget something."""

    id: str
    text: str
    reason: str | None
    agent_id: str | None
    conversation_id: str | None
    created_at: Timestamp


_RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": ErasureResponse, "description": "The removal has begun; poll its receipt"}
}


@router.post("/users/{user_id}/forget", response_model=ForgetListResponse, responses=_RESPONSES)
@needs("memory:approve", "users:write")
async def forget_one_thing(context: RequestContext, user_id: str, body: ForgetBody) -> Response:
    """List all items of a user that mention a fact; with a choice, remove the chosen ones.

    The removal continues in the background, and cannot be undone. Its receipt says what was
    removed and what remains.
    """
    if not (body.ids or body.all):
        found = await service.preview(context.runtime, context.scope, user_id, body.text)
        items = [ForgetItemResponse.of(None, **service.as_json(item)) for item in found.items]
        return answer(
            ForgetListResponse.of(
                None,
                status="preview",
                items=[item for item in items if item["match"] == "exact"],
                perhaps=[item for item in items if item["match"] == "perhaps"],
                remains=list(found.remains),
                is_cut=found.is_cut,
            )
        )
    choice = Choice(
        ids=body.ids,
        takes_all=body.all,
        takes_perhaps=body.perhaps,
        is_never_again=body.never_again,
        request_id=body.request_id,
    )
    state = await service.forget(context.runtime, context.scope, user_id, body.text, choice)
    return answer(state, 202)


@router.get("/users/{user_id}/forget", response_model=list[ForgetRequestResponse])
async def list_forget_requests(context: RequestContext, user_id: str) -> list[Any]:
    """List the waiting requests of agents to forget something."""
    scope = context.scope

    def read(tx: Any) -> list[queries.ForgetRequest]:
        user = users.require(tx, scope, user_id)
        return queries.of_user(tx, user.organization_id, user.id)

    return [ForgetRequestResponse.of(row) for row in await context.runtime.store.read(read)]


@router.delete("/users/{user_id}/forget/{forget_request_id}", status_code=204)
@needs("memory:approve", "users:write")
async def decline_forget_request(
    context: RequestContext, user_id: str, forget_request_id: str
) -> Response:
    """Decline an agent's request: nothing is forgotten."""
    scope = context.scope

    def work(tx: Any) -> None:
        user = users.require(tx, scope, user_id)
        queries.remove(tx, scope, user.id, forget_request_id)

    await context.runtime.store.write(work)
    return Response(status_code=204)


@router.get("/v1/receipts/{receipt_id}", response_model=ReceiptResponse, responses=ACCEPTED)
async def retrieve_receipt(context: RequestContext, receipt_id: str) -> Response:
    """Return the signed receipt of an erasure or of something forgotten, or its state."""
    return answer_erasure(await service.find_receipt(context.runtime, context.scope, receipt_id))
