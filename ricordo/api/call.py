"""What every route needs to know of a call: the runtime it runs in and who is asking."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError

from ricordo.agents import lifecycle
from ricordo.api.bodies import decode
from ricordo.api.guard import FIELDS, USER_HEADER
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import Json, NoteResponse
from ricordo.api.models.warnings import warn
from ricordo.api.paths import route_path
from ricordo.domain.agent import AgentState
from ricordo.domain.ids import is_id
from ricordo.domain.model import EmbeddingInfo, ModelInfo
from ricordo.domain.scope import (
    ACTING_SCOPE,
    ADMIN,
    IMPERSONATE,
    NOBODY,
    REQUEST_SCOPE,
    Actor,
    Scope,
    User,
)
from ricordo.errors import Forbidden, NotFound, Unsupported
from ricordo.memory.proposals import expiry_of
from ricordo.memory.submission import Submission, Submitted
from ricordo.offload import offload
from ricordo.runtime import Runtime
from ricordo.storage import users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction


@dataclass(frozen=True, slots=True)
class CallContext:
    """One request, with the opened parts and the caller's scope."""

    request: Request
    runtime: Runtime
    scope: Scope

    @property
    def store(self) -> Store:
        return self.runtime.store

    def submission(self, user: User | None = None, reason: str | None = None) -> Submission:
        """Return an edit by the caller, in this user's memory."""
        author = self.actor_for(user) if user else self.scope.actor
        return Submission(author, reason, expiry_of(self.runtime.settings))

    def actor_for(self, user: User) -> Actor:
        """Return the author of what the caller does in this user's memory."""
        return self.scope.acting_for(user).actor


# What some version of `letta-client` sends in queries and what changes nothing here, each with the reason.
IGNORED_QUERIES: Mapping[str, str] = {
    "include": "Answers have all that belongs to an agent.",
    "include_relationships": "The older name of `include`.",
    "add_default_initial_messages": "Conversations begin without messages.",
    "update_timestamp": "The prompt says when memory was changed, not when the prompt was made.",
    "max_steps": "Agent files have no steps.",
    "max_message_length": "The older client needs it. How much stays is a setting of the agent.",
    "project_id": "Everything is in one project.",
    "include_err": "Failures are told by runs and steps, and no message is left out for one.",
}
# What a browser's message may be: whoever holds its token is a user, and speaks as no other.
_USERS_ROLES = frozenset(("user", "user_message", "approval_response_message"))
# Where user_id selects by the user alone, without what is shared.
_SELECT_BY_USER = {"/v1/ledger"}


# With what the ids in paths begin. A conversation has other names too, and one of a provider is looked for as it is.
ID_PREFIXES: Mapping[str, str] = {
    **{
        f"{kind}_id": kind
        for kind in "agent archive block file identity job mcp_server message passage run step tool".split()
    },
    **{"folder_id": "source", "source_id": "source", "memory_id": "passage"},
}


async def _open_context(request: Request) -> CallContext:
    if request.query_params:
        _require_known(request)
    if FIELDS in request.scope and (content := await request.body()):
        _require_fields(await offload(lambda: decode(content), len(content)), request.scope[FIELDS])
    if route_path(request.scope).startswith("/v1/"):
        _require_ids(request.path_params)
    runtime, scope = request.app.state.runtime, request.scope[REQUEST_SCOPE]
    if scope.may(IMPERSONATE):
        scope = await _acting(runtime.store, scope, request)
    context = CallContext(request, runtime, scope)
    if route_path(request.scope) in _SELECT_BY_USER and scope.subject_id is None:
        return context
    context = await for_user(
        context, request.query_params.get("user_id"), reads=request.method == "GET"
    )
    request.scope[ACTING_SCOPE] = context.scope
    return context


# The annotation by which FastAPI gives a route its call context.
RequestContext = Annotated[CallContext, Depends(_open_context)]


def _require_ids(named: Mapping[str, str]) -> None:
    """Raise RequestValidationError for what cannot be an id of its kind, as the retired Letta V1 server does."""
    for name, value in named.items():
        prefix = ID_PREFIXES.get(name)
        if prefix and not is_id(value, prefix):
            told = f"This is no id: it is {prefix}- and a lower-case UUID of version 4"
            raise RequestValidationError(
                [{"type": "string_pattern_mismatch", "loc": ("path", name), "msg": told}]
            )


def _require_fields(sent: Any, allowed: Collection[str]) -> None:
    """Raise Forbidden where the body of a browser's request has anything but these fields."""
    if not isinstance(sent, dict):
        raise Forbidden("With a token of a browser the body has to be a JSON object.")
    if more := sorted(sent.keys() - allowed):
        raise Forbidden(
            f"With a token of a browser the field {more[0][:80]} cannot be sent. Leave it out."
        )
    said = sent.get("messages")
    for message in said if isinstance(said, list) else ():
        # By `message_type` a message may have the role of one that was answered. An answer to a call that waits has none.
        named = (
            [message.get("role"), message.get("message_type")] if isinstance(message, dict) else []
        )
        if not set(map(str, filter(None, named))) <= _USERS_ROLES:
            raise Forbidden(
                "With a token of a browser a message has the role user. Send another role with a key."
            )


def _require_known(request: Request) -> None:
    """Raise Unsupported for a query parameter of no effect: without it another question would be answered than was asked."""
    dependant: Dependant | None = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None:
        return
    known = {"user_id", *_query_names(dependant)}
    for name in request.query_params:
        if name in IGNORED_QUERIES and name not in known:
            warn([name], IGNORED_QUERIES[name])
        elif name not in known:
            raise Unsupported(
                f"The query parameter {name[:80]} is not supported by this version of Ricordo. Leave it out. "
                f"Here are: {', '.join(sorted(known))}."
            )


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


async def for_user(
    context: RequestContext, user: str | None, *, reads: bool = True
) -> RequestContext:
    """Return the call narrowed to what is about this user, or shared (None: as it is); unless it `reads`, to act for the user.

    Raises Forbidden where the caller may not name the user, NotFound.
    """
    if user is None:
        return context
    scope = context.scope

    def find(tx: Transaction) -> User:
        if scope.subject_id is not None and users.find(tx, scope, user) is None:
            raise Forbidden(
                "With your key you cannot ask for what is about another user. Leave user_id out."
            )
        return users.require(tx, scope, user)

    named = await context.store.read(find)
    if reads or scope.subject == named.id:
        return replace(context, scope=replace(scope, subject_id=named.id))
    if named.disabled_at is not None:
        raise Forbidden(f'The user "{named.name[:80]}" is disabled.')
    if not scope.may(IMPERSONATE):
        raise Forbidden(
            f"Your key lacks the scope {IMPERSONATE}, so it cannot act for a user. Leave user_id out."
        )
    return replace(context, scope=scope.acting_for(named))


async def _acting(store: Store, scope: Scope, request: Request) -> Scope:
    """The scope of a caller who acts for the user in the header, or in the path where it sees nobody by itself.

    A user who is new is made, unless the request only reads. Raises NotFound, Invalid, Forbidden.
    """
    named = request.headers.get(USER_HEADER.decode())
    name = (
        named
        if named is not None
        else request.path_params.get("user_id")
        if scope.subject_id == NOBODY
        else None
    )
    if name is None:
        return scope
    acting = await scope_of_user(store, scope, name, makes=request.method not in ("GET", "HEAD"))
    if acting is None and (named is None or scope.subject_id == NOBODY):
        raise NotFound(f'There is no user "{name[:80]}". Check the name.')
    return acting or replace(
        scope, subject_id=NOBODY
    )  # a user who is not there yet sees what is shared


async def scope_of_user(store: Store, scope: Scope, name: str, *, makes: bool) -> Scope | None:
    """Return the scope in which the caller acts for this user, who is made where new, or None. Raises Invalid, Forbidden."""
    user = await store.read(lambda tx: users.named(tx, scope.organization_id, name))
    if user is None and makes:
        user = await store.write(
            lambda tx: users.find_or_make(tx, Scope(scope.organization_id), name)
        )
    if user is None:
        return None
    if user.disabled_at is not None:
        raise Forbidden(f'The user "{user.name[:80]}" is disabled.')
    return scope.acting_for(user)


def require_administrator(request: Request) -> None:
    """Raise Forbidden for all but administrators."""
    if not request.scope[REQUEST_SCOPE].may(ADMIN):
        raise Forbidden(
            f"This key lacks the scope {ADMIN}. Ask an administrator for a key that has it."
        )


@dataclass(frozen=True, slots=True)
class Paging:
    """The query parameters of a list."""

    before: Annotated[str | None, Query(description="Only items before the one with this id.")] = (
        None
    )
    after: Annotated[str | None, Query(description="Only items after the one with this id.")] = None
    limit: Annotated[int | None, Query(ge=1, le=1000, description="How many items at most.")] = None
    order: Annotated[
        Literal["asc", "desc"] | None,
        Query(description="By time of creation, oldest or newest first."),
    ] = None
    order_by: Annotated[Literal["created_at"] | None, Query(description="What to order by.")] = None
    ascending: Annotated[bool | None, Query(description="The older way to say `order`.")] = None
    user_id: Annotated[
        str | None,
        Query(
            description="Only what this user sees, by id or name: what is theirs, and what is shared."
        ),
    ] = None

    def page(self, *, default: int = 50, order: Literal["asc", "desc"] = "desc") -> Page:
        if self.ascending is not None:
            order = "asc" if self.ascending else "desc"
        return Page(
            self.limit or default, self.before, self.after, self.order or order, is_bounded=True
        )

    def page_by_time(self, *, default: int) -> Page:
        """Return the page where `before` means older and `after` newer in either order: what is newest or oldest of these."""
        page = self.page(default=default)
        marks = (page.after, page.before) if page.order == "desc" else (page.before, page.after)
        return replace(page, before=marks[0], after=marks[1], from_start=True)


Paged = Annotated[Paging, Depends()]


def told(response: Response, submitted: Submitted) -> Response:
    """Return the answer to an edit with the proposal that it became, if it did, in the header `x-proposal-id`."""
    if submitted.proposal:
        response.headers["x-proposal-id"] = submitted.proposal.id
    return response


def note(message: str) -> Json:
    return NoteResponse.of(None, message=message)


def agent_json(context: RequestContext, state: AgentState) -> Json:
    """Return an agent, also where its model's provider is no longer configured: it can still be looked at."""
    try:
        info = (
            context.runtime.organization_providers.known(context.scope.organization_id)
            .get(state.agent.model)
            .info
        )
    except NotFound:
        provider, _, name = state.agent.model.partition("/")
        info = ModelInfo(state.agent.model, provider, name, "openai", state.agent.context_window)
    return AgentResponse.from_state(state, info, embedding_of(context, state.agent.embedding))


def embedding_of(context: RequestContext, handle: str | None) -> EmbeddingInfo | None:
    """Return the embedding model with this handle, or the default; None where there is none."""
    embedders = context.runtime.models.embedders
    handle = handle or embedders.default_handle()
    return embedders.info(handle) if handle else None


def whole_agent(tx: Transaction, context: RequestContext, agent_id: str) -> Json:
    return agent_json(context, lifecycle.whole_agent(tx, context.runtime, context.scope, agent_id))
