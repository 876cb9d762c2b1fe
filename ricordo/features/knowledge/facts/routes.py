"""Facts over HTTP: list them as of a time, add, decide, correct and forget them."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal

from fastapi import Query

from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import to_micros
from ricordo.domain.egress import allowed_names
from ricordo.domain.scope import ADMIN, User
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.knowledge.facts import decisions, queries
from ricordo.features.knowledge.facts.decisions import FactChange
from ricordo.features.knowledge.facts.models import (
    FactChangeRequest,
    FactEgressRequest,
    FactEgressResponse,
    FactPolicyRequest,
    FactPolicyResponse,
    FactRequest,
    FactResponse,
    ForgottenResponse,
    ProfileLineResponse,
    ProfileResponse,
)
from ricordo.features.knowledge.facts.options import FactSettings
from ricordo.features.knowledge.facts.profile import profile_of
from ricordo.features.knowledge.facts.queries import EVERYBODY, FactFilter
from ricordo.features.knowledge.facts.records import FactKind, FactState, UserFact
from ricordo.llm.tokens import text_tokens
from ricordo.storage import users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/users/{user_id}/facts", tags=["users' memory"], scope="memory")
_of_organization = Routes(prefix="/v1/facts", tags=["users' memory"], scope="memory")
_of_profile = Routes(prefix="/v1/users/{user_id}/profile", tags=["users' memory"], scope="memory")
AsOf = Annotated[
    str | None,
    Query(
        max_length=40,
        description="Facts that held at this time, or at this day's end in UTC, such as 2026-05-01.",
    ),
]
State = Annotated[
    FactState | Literal["all"] | None,
    Query(description="Only facts in this state. Without `state` and `as_of`: current facts."),
]


@router.get("", response_model=list[FactResponse])
def list_facts(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    as_of: AsOf = None,
    state: State = None,
    kind: FactKind | None = None,
    limit: Annotated[int, Query(ge=1, le=200, description="The most facts to return.")] = 50,
    after: Annotated[
        str | None, Query(description="Only facts after the one with this id.")
    ] = None,
) -> list[Json]:
    """List the user's facts, newest first: by default the current ones.

    With `as_of`, these are the facts that held at a time.
    """
    user = users.require(tx, context.scope, user_id)
    if as_of is not None and state is not None:
        raise Invalid("Send either as_of or state, not both.")
    chosen: FactState | None = None
    if state is None and as_of is None:
        chosen = "current"
    elif state != "all":
        chosen = state
    moment = moment_of(as_of) if as_of is not None else None
    filters = FactFilter(state=chosen, as_of=moment, kind=kind)
    page = Page(limit=limit, after=after)
    return responses_of(tx, queries.page(tx, context.scope, user.id, page, filters))


@router.post("", response_model=FactResponse)
@needs("memory:approve", "memory:override")
def add_fact(tx: Transaction, context: RequestContext, user_id: str, body: FactRequest) -> Json:
    """Write a fact as the user; it ends current facts that it contradicts."""
    user = _owned(tx, context, user_id)
    fact = decisions.add(tx, user, body.sentence, body.kind, context.scope.user_id)
    return FactResponse.from_fact(fact)


@router.get("/policy", response_model=FactPolicyResponse)
def retrieve_policy(tx: Transaction, context: RequestContext, user_id: str) -> Json:
    """Return the policy for reading facts about the user, and whose choice it is."""
    user = users.require(tx, context.scope, user_id)
    return policy_response(tx, user.organization_id, user.id)


@router.put("/policy", response_model=FactPolicyResponse)
@needs("memory:approve", "memory:override")
def choose_policy(
    tx: Transaction, context: RequestContext, user_id: str, body: FactPolicyRequest
) -> Json:
    """Set the policy for this user; null applies the organization's policy."""
    user = _owned(tx, context, user_id)
    queries.set_policy(tx, user.organization_id, user.id, body.policy)
    return policy_response(tx, user.organization_id, user.id)


@router.get("/egress", response_model=list[FactEgressResponse])
def list_fact_egress(tx: Transaction, context: RequestContext, user_id: str) -> list[Json]:
    """List the kinds of the user's facts that only some providers of models may see."""
    user = users.require(tx, context.scope, user_id)
    labels = queries.kind_labels(tx, user.organization_id, user.id)
    return [_egress_response(kind, label) for kind, label in sorted(labels.items())]


@router.put("/egress", response_model=FactEgressResponse)
@needs("memory:approve", "memory:override")
def set_fact_egress(
    tx: Transaction, context: RequestContext, user_id: str, body: FactEgressRequest
) -> Json:
    """Set which providers of models may see the user's facts of a kind.

    Only the user may allow more than before.
    """
    user = _owned(tx, context, user_id)
    label = decisions.set_egress(tx, context.scope, user, body.kind, body.allowed)
    return _egress_response(body.kind, label)


def _egress_response(kind: str, label: str | None) -> Json:
    return FactEgressResponse.of(None, kind=kind, allowed=allowed_names(label))


@router.get("/{fact_id}", response_model=FactResponse)
def retrieve_fact(tx: Transaction, context: RequestContext, user_id: str, fact_id: str) -> Json:
    """Return one fact of the user."""
    user = users.require(tx, context.scope, user_id)
    return responses_of(tx, [decisions.require(tx, context.scope, user, fact_id, locks=False)])[0]


@router.patch("/{fact_id}", response_model=FactResponse)
@needs("memory:approve", "memory:override")
def change_fact(
    tx: Transaction, context: RequestContext, user_id: str, fact_id: str, body: FactChangeRequest
) -> Json:
    """Correct a fact. The older wording stays, with the state `replaced`."""
    user = _owned(tx, context, user_id)
    fact = decisions.require(tx, context.scope, user, fact_id)
    changed = FactChange(
        sentence=body.sentence,
        kind=body.kind,
        holds_from=to_micros(body.holds_from) if body.holds_from else None,
        holds_until=to_micros(body.holds_until) if body.holds_until else None,
        is_open="holds_until" in body.model_fields_set and body.holds_until is None,
    )
    return FactResponse.from_fact(decisions.change(tx, fact, changed, context.scope.user_id))


@router.delete("/{fact_id}", response_model=ForgottenResponse)
@needs("memory:approve", "memory:override")
def forget_fact(tx: Transaction, context: RequestContext, user_id: str, fact_id: str) -> Json:
    """Forget a fact with its older wordings. The messages on which it is based stay."""
    user = _owned(tx, context, user_id)
    fact = decisions.require(tx, context.scope, user, fact_id)
    return ForgottenResponse.of(None, forgotten=queries.remove(tx, fact))


@router.post("/{fact_id}/approve", response_model=FactResponse)
@needs("memory:approve", "memory:override")
def approve_fact(tx: Transaction, context: RequestContext, user_id: str, fact_id: str) -> Json:
    """Approve a proposed fact; it ends current facts that it contradicts."""
    user = _owned(tx, context, user_id)
    fact = decisions.require(tx, context.scope, user, fact_id)
    return FactResponse.from_fact(decisions.approve(tx, fact, context.scope.user_id))


@router.post("/{fact_id}/reject", response_model=FactResponse)
@needs("memory:approve", "memory:override")
def reject_fact(tx: Transaction, context: RequestContext, user_id: str, fact_id: str) -> Json:
    """Reject a proposed fact. It is not proposed again soon."""
    user = _owned(tx, context, user_id)
    fact = decisions.require(tx, context.scope, user, fact_id)
    return FactResponse.from_fact(decisions.reject(tx, fact, context.scope.user_id))


@_of_organization.get("/policy", response_model=FactPolicyResponse)
def retrieve_common_policy(tx: Transaction, context: RequestContext) -> Json:
    """Return the policy for users who made no choice."""
    return policy_response(tx, context.scope.organization_id, EVERYBODY)


@_of_organization.put("/policy", response_model=FactPolicyResponse)
@needs(ADMIN)
def choose_common_policy(tx: Transaction, context: RequestContext, body: FactPolicyRequest) -> Json:
    """Set the policy for users who made no choice; null applies the server's policy."""
    queries.set_policy(tx, context.scope.organization_id, EVERYBODY, body.policy)
    return policy_response(tx, context.scope.organization_id, EVERYBODY)


def responses_of(tx: Transaction, facts: Sequence[UserFact]) -> list[Json]:
    """Return facts as responses; a proposed fact has the sentence that it would replace.

    Args:
        tx: The transaction.
        facts: Facts of one user, whose access is checked before.
    """
    ids = [fact.replaces_id for fact in facts if fact.state == "proposed" and fact.replaces_id]
    replaced = {fact.id: fact for fact in queries.by_ids(tx, ids)} if ids else {}
    return [FactResponse.from_fact(fact, replaced.get(fact.replaces_id or "")) for fact in facts]


def policy_response(tx: Transaction, organization_id: str, user_id: str) -> Json:
    """Return the policy in effect, with the choice that it comes from.

    Args:
        tx: The transaction, or a read.
        organization_id: The organization of the user.
        user_id: The user; `EVERYBODY` for users who made no choice.
    """
    choices = queries.policies(tx, organization_id, user_id)
    if user_id and user_id in choices:
        return FactPolicyResponse.of(None, policy=choices[user_id], chosen_by="user")
    if EVERYBODY in choices:
        return FactPolicyResponse.of(None, policy=choices[EVERYBODY], chosen_by="organization")
    return FactPolicyResponse.of(None, policy=FactSettings.current().facts, chosen_by="server")


def moment_of(text: str) -> int:
    """Return the time that a text names; for a day, return its end.

    Args:
        text: A day such as 2026-05-01, in UTC, or a time in ISO 8601.

    Returns:
        The time in microseconds UTC.

    Raises:
        Invalid: The text is neither.
    """
    try:
        if len(text) == len("2026-05-01"):
            day = date.fromisoformat(text) + timedelta(days=1)
            return to_micros(datetime(day.year, day.month, day.day, tzinfo=UTC)) - 1
        return to_micros(datetime.fromisoformat(text))
    except (ValueError, OverflowError) as error:
        raise Invalid(
            f'"{text[:40]}" is not a day or time. Write it as 2026-05-01 or 2026-05-01T12:00:00Z.'
        ) from error


def _owned(tx: Transaction, context: RequestContext, user_id: str) -> User:
    user = users.require(tx, context.scope, user_id)
    decisions.require_owner(context.scope, user)
    return user


@_of_profile.get("", response_model=ProfileResponse)
def retrieve_profile(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    tokens: Annotated[
        int, Query(ge=50, le=20_000, description="The most tokens of the profile.")
    ] = 800,
    question: Annotated[
        str,
        Query(
            max_length=1000,
            description="Lines that share words with it are chosen first. Without it, facts are "
            "chosen by their kind.",
        ),
    ] = "",
) -> Json:
    """Return the user's profile: facts and lines of blocks, ranked, with their sources."""
    user = users.require(tx, context.scope, user_id)
    profile = profile_of(
        tx, context.scope, user, limit=tokens, question=question, tokens_of=text_tokens
    )
    lines = [
        ProfileLineResponse.of(line, message_ids=list(line.message_ids)) for line in profile.lines
    ]
    return ProfileResponse.of(
        profile, user_id=user.id, tokens=text_tokens(profile.text), lines=lines
    )


router.routes += [*_of_organization.routes, *_of_profile.routes]
