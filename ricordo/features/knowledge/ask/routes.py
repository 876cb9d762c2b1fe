"""The route `POST /users/{user}/ask`."""

from pydantic import Field

from ricordo.api.call import RequestContext, for_user
from ricordo.api.models.base import RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.errors import Forbidden
from ricordo.features.knowledge.ask import service

router = Routes(prefix="/users/{user_id}/ask", tags=["users' memory"], scope="memory")
_SCOPES = ("memory:read", "messages:read", "archives:read")


class AskRequest(RequestModel):
    """A question about a user."""

    question: str = Field(min_length=1, max_length=4000)
    model: str | None = Field(
        None, max_length=300, description="A handle; without it the server's default model."
    )


class SourceResponse(ResponseModel):
    """A source of an answer, with its number in the answer.

    It is a message, a fact or a line of memory (both have the kind `fact`), or a passage.
    """

    number: int
    kind: str
    id: str
    text: str
    role: str | None
    agent_id: str | None
    label: str | None
    created_at: Timestamp | None


class AskResponse(ResponseModel):
    """An answer with the sources that it cites.

    `known` is false if the stored data does not answer the question.
    """

    answer: str
    known: bool
    citations: list[SourceResponse]


@router.post("", response_model=AskResponse)
async def ask(context: RequestContext, user_id: str, body: AskRequest) -> Json:
    """Answer a question about a user from all stored data, with citations.

    Only the cost of the answer is stored.
    """
    if missing := [scope for scope in _SCOPES if not context.scope.may(scope)]:
        raise Forbidden(
            f"This key lacks the scope {missing[0]}. Ask an administrator for a key that has it."
        )
    context = await for_user(context, user_id)
    outcome = await service.ask(context.runtime, context.scope, body.question, body.model)
    cited = [
        SourceResponse.of(outcome.sources[number - 1], number=number) for number in outcome.cited
    ]
    return AskResponse.of(None, answer=outcome.text, known=outcome.is_known, citations=cited)
