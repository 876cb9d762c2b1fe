"""The context of a call for its route: the request, the runtime and the caller's scope."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError

from ricordo.agents import lifecycle
from ricordo.agents.call_context import CallContext
from ricordo.api.bodies import decode
from ricordo.api.guard import FIELDS, USER_HEADER, named_user, route_path
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import NoteResponse
from ricordo.api.models.warnings import warn
from ricordo.domain.agent import AgentState
from ricordo.domain.ids import pattern
from ricordo.domain.model import EmbeddingInfo, ModelInfo
from ricordo.domain.scope import (
    ACTING_SCOPE,
    ADMIN,
    IMPERSONATE,
    NOBODY,
    REQUEST_SCOPE,
    Scope,
    User,
)
from ricordo.domain.text import Json
from ricordo.errors import Forbidden, NotFound, Unsupported
from ricordo.memory.submission import SubmissionOutcome
from ricordo.offload import offload
from ricordo.storage import users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction


@dataclass(frozen=True, slots=True)
class HttpCall(CallContext):
    """A call by an HTTP request."""

    request: Request


# Query parameters of `letta-client` that have no effect here, each with the reason.
IGNORED_QUERIES: Mapping[str, str] = {
    "include": "Answers always contain the complete agent.",
    "include_relationships": "The older name of `include`.",
    "add_default_initial_messages": "Conversations begin without messages.",
    "update_timestamp": "The prompt has the time of the last change of memory, not the time of "
    "the prompt.",
    "max_steps": "Agent files have no steps.",
    "max_message_length": "The number of remaining messages is a setting of the agent.",
    "project_id": "Everything is in one project.",
    "include_err": "Runs and steps report failures, and no message is left out because of one.",
}
# The allowed roles of messages with a browser's token, whose holder is a user.
_USERS_ROLES = frozenset(("user", "user_message", "approval_response_message"))
# Routes where `user_id` selects only that user's objects, without shared ones.
_SELECT_BY_USER = {"/v1/ledger"}


# The prefixes of ids in paths. A conversation may also be named without an id, and a provider's id
# may be any text.
ID_PREFIXES: Mapping[str, str] = {
    **{
        f"{kind}_id": kind
        for kind in "agent archive block file identity job mcp_server message passage run step tool".split()
    },
    **{"folder_id": "source", "source_id": "source", "memory_id": "passage"},
}


_ID_PATTERNS = {prefix: re.compile(pattern(prefix)) for prefix in ID_PREFIXES.values()}


async def _open_context(request: Request) -> HttpCall:
    if request.query_params:
        _require_known(request)
    if FIELDS in request.scope and (content := await request.body()):
        _require_fields(await offload(lambda: decode(content), len(content)), request.scope[FIELDS])
    if route_path(request.scope).startswith("/v1/"):
        _require_ids(request.path_params)
    runtime = request.app.state.runtime
    scope = request.scope[REQUEST_SCOPE]
    is_for_other = scope.subject_id == NOBODY or USER_HEADER.decode() in request.headers
    if is_for_other and scope.may(IMPERSONATE):
        scope = await _acting(runtime.store, scope, request)
    context = HttpCall(runtime, scope, request)
    if route_path(request.scope) in _SELECT_BY_USER and scope.subject_id is None:
        return context
    user = request.query_params.get("user_id")
    if user is not None:
        context = await for_user(context, user, reads=request.method == "GET")
    request.scope[ACTING_SCOPE] = context.scope
    return context


# The annotation by which FastAPI gives a route its call context.
RequestContext = Annotated[HttpCall, Depends(_open_context)]


def _require_ids(ids: Mapping[str, str]) -> None:
    """Raise RequestValidationError for a malformed id.

    The retired Letta V1 server does the same.
    """
    for name, id in ids.items():
        prefix = ID_PREFIXES.get(name)
        if prefix and not _ID_PATTERNS[prefix].fullmatch(id):
            message = f"This is not an id: it is {prefix}- and a lower-case UUID of version 4"
            raise RequestValidationError(
                [{"type": "string_pattern_mismatch", "loc": ("path", name), "msg": message}]
            )


def _require_fields(body: Any, allowed: Collection[str]) -> None:
    """Raise Forbidden if a browser's request has other body fields or messages of other roles."""
    if not isinstance(body, dict):
        raise Forbidden("With a browser token, the body must be a JSON object.")
    if more := sorted(body.keys() - allowed):
        raise Forbidden(
            f"With a browser token, the field {more[0][:80]} cannot be sent. Leave it out."
        )
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        # A message in the format of answers has its role in `message_type`. A decision on a waiting
        # call has no role.
        roles: list[Any] = []
        if isinstance(message, dict):
            roles = [message.get("role"), message.get("message_type")]
        if not set(map(str, filter(None, roles))) <= _USERS_ROLES:
            raise Forbidden(
                "With a browser token, a message must have the role user. Use a key to send "
                "other roles."
            )


def _require_known(request: Request) -> None:
    """Raise Unsupported for an unknown query parameter.

    If the parameter were ignored, the answer would not fit the request.
    """
    dependant: Dependant | None = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None:
        return
    names = {"user_id", *_query_names(dependant)}
    for name in request.query_params:
        if name in IGNORED_QUERIES and name not in names:
            warn([name], IGNORED_QUERIES[name])
        elif name not in names:
            raise Unsupported(
                f"The query parameter {name[:80]} is not supported by this version of Ricordo. "
                f"Leave it out. This route knows: {', '.join(sorted(names))}."
            )


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


async def for_user(
    context: RequestContext, user: str | None, *, reads: bool = True
) -> RequestContext:
    """Return the context narrowed to shared objects and those of this user.

    Args:
        context: The caller's context, which is not changed.
        user: The user's id or name; None leaves the context as it is.
        reads: Only narrow the data. False: the caller then acts for the user.

    Raises:
        NotFound: There is no such user.
        Forbidden: The caller may not name or act for this user, or the user is disabled.
    """
    if user is None:
        return context
    scope = context.scope

    def find(tx: Transaction) -> User:
        if scope.subject_id is not None and users.find(tx, scope, user) is None:
            raise Forbidden("Your key cannot read another user's data. Leave user_id out.")
        return users.require(tx, scope, user)

    subject = await context.store.read(find)
    if reads or scope.subject == subject.id:
        return replace(context, scope=replace(scope, subject_id=subject.id))
    if subject.disabled_at is not None:
        raise Forbidden(f'The user "{subject.name[:80]}" is disabled.')
    if not scope.may(IMPERSONATE):
        raise Forbidden(
            f"Your key lacks the scope {IMPERSONATE}, so it cannot act for another user. Use this "
            "user's own key or a service's key, or leave user_id out."
        )
    return replace(context, scope=scope.acting_for(subject))


async def _acting(store: Store, scope: Scope, request: Request) -> Scope:
    """Return the scope for acting as a user.

    The header names the user. Without the header, the path names the user if the caller is bound
    to no user. A new user is created, except by a request that only reads. Raises NotFound,
    Invalid, Collision and Forbidden.
    """
    header = named_user(request.scope["headers"])
    name = header
    if name is None and scope.subject_id == NOBODY:
        name = request.path_params.get("user_id")
    if name is None:
        return scope
    acting = await scope_of_user(store, scope, name, makes=request.method not in ("GET", "HEAD"))
    if acting is None and (header is None or scope.subject_id == NOBODY):
        raise NotFound(f'There is no user "{name[:80]}". Check the name.')
    # If the user does not exist yet, limit the caller to shared objects.
    return acting or replace(scope, subject_id=NOBODY)


async def scope_of_user(
    store: Store, scope: Scope, name: str, *, makes: bool, person_name: str = ""
) -> Scope | None:
    """Return the scope in which the caller acts for this user; None for an unknown user.

    Args:
        store: The database.
        scope: The caller, who has the right to act for others.
        name: The user's id or name.
        makes: Create a user with an unknown name.
        person_name: The name that the user gets with `makes`, if the user has none so far.

    Raises:
        NotFound: A user was to be created with an id instead of a name.
        Invalid: No user can have this name.
        Collision: The name looks like another user's.
        Forbidden: The user is disabled.
    """
    organization = Scope(scope.organization_id)
    user = await store.read(lambda tx: users.named(tx, scope.organization_id, name))
    if user is None and makes:
        user = await store.write(lambda tx: users.find_or_make(tx, organization, name))
    if user is not None and makes and person_name and user.name == user.identifier:
        user = await store.write(lambda tx: users.give_name(tx, organization, name, person_name))
    if user is None:
        return None
    if user.disabled_at is not None:
        raise Forbidden(f'The user "{user.name[:80]}" is disabled.')
    return scope.acting_for(user)


def require_administrator(request: Request) -> None:
    """Raise Forbidden unless the caller is an administrator.

    Args:
        request: The request, after its authentication put the caller's scope into it.

    Raises:
        Forbidden: The caller's key lacks the scope `admin`.
    """
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
    limit: Annotated[int | None, Query(ge=1, le=1000, description="The most items to return.")] = (
        None
    )
    order: Annotated[
        Literal["asc", "desc"] | None,
        Query(description="By time of creation, oldest or newest first."),
    ] = None
    order_by: Annotated[
        Literal["created_at"] | None, Query(description="The field to sort by.")
    ] = None
    ascending: Annotated[bool | None, Query(description="Older form of `order`.")] = None
    user_id: Annotated[
        str | None,
        Query(
            description="Only items that this user can see: the user's and shared ones. An id or name."
        ),
    ] = None

    def page(self, *, default: int = 50, order: Literal["asc", "desc"] = "desc") -> Page:
        """Return the requested page of a list.

        Args:
            default: The most items if the request has no `limit`.
            order: The order if the request names none.
        """
        if self.ascending is not None:
            order = "asc" if self.ascending else "desc"
        return Page(
            self.limit or default, self.before, self.after, self.order or order, is_bounded=True
        )

    def page_by_time(self, *, default: int) -> Page:
        """Return the page; `before` selects older and `after` newer objects, in both orders.

        In ascending order, the page has the oldest of the selected objects, otherwise the newest.

        Args:
            default: The most objects if the request has no `limit`.
        """
        page = self.page(default=default)
        if page.order == "desc":
            page = replace(page, before=page.after, after=page.before)
        return replace(page, from_start=True)


Paged = Annotated[Paging, Depends()]


def with_outcome(response: Response, submitted: SubmissionOutcome) -> Response:
    """Put the proposal's id into the header `x-proposal-id`, if the edit became a proposal.

    Args:
        response: The answer, which gets the header.
        submitted: The outcome of the edit.

    Returns:
        The same response.
    """
    if submitted.proposal:
        response.headers["x-proposal-id"] = submitted.proposal.id
    return response


def note(message: str) -> Json:
    """Return a sentence as the answer of a request.

    Args:
        message: The sentence for the caller.
    """
    return NoteResponse.of(None, message=message)


def agent_json(context: CallContext, state: AgentState) -> Json:
    """Return an agent, even if its model's provider is no longer configured.

    Args:
        context: The caller's context.
        state: The complete agent, with the parts that answers show.
    """
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


def embedding_of(context: CallContext, handle: str | None) -> EmbeddingInfo | None:
    """Return the embedding model with this handle, or the default.

    Returns None if there is no default.

    Args:
        context: The caller's context.
        handle: The handle that an agent or archive stores; None for the default.
    """
    embedders = context.runtime.models.embedders
    handle = handle or embedders.default_handle()
    if handle:
        return embedders.info(handle)
    return None


def whole_agent(tx: Transaction, context: CallContext, agent_id: str) -> Json:
    """Return an agent with everything that answers show.

    Args:
        tx: The transaction, or a read.
        context: The caller's context.
        agent_id: The agent.

    Raises:
        NotFound: The caller has no such agent.
    """
    return agent_json(context, lifecycle.whole_agent(tx, context.runtime, context.scope, agent_id))
