"""The tables of notifications, and their SQL.

`owner_id` of preferences is the id of a user or of an organization. `notices` has a row for each
proposal and each channel that told its owner. `owner_visits` has the time of each owner's last
visit.
"""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Index, Select, UniqueConstraint, and_, bindparam, func, or_, select, update

from ricordo.domain.clock import DAY
from ricordo.domain.scope import Scope
from ricordo.storage import organizations, proposals, users
from ricordo.storage.engine.repository import Missing, Replacing, Repository, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import (
    numbers,
    reference,
    seq,
    strings,
    table,
    timestamps,
)

Channel = Literal["email", "webhook"]
When = Literal["off", "daily", "immediate"]
CHANNELS: tuple[Channel, ...] = ("email", "webhook")
_DECIDED_SINCE = 30 * DAY

preferences = table(
    "notification_preferences",
    seq(),
    reference("organization_id", "organizations"),
    *strings("user_id"),
    *strings("owner_id", null=False),
    *strings("email", "webhook", erasure="keep"),
    *strings("webhook_url"),
    *numbers("hour", null=True),
    *strings("problem"),
    *timestamps("retry_at", null=True),
    *timestamps("updated_at"),
    UniqueConstraint("owner_id"),
    erasure="delete",
)
notices = table(
    "notices",
    seq(),
    reference("proposal_id", "proposals"),
    *strings("user_id", null=False),
    *strings("channel", null=False, erasure="keep"),
    *timestamps("sent_at"),
    UniqueConstraint("proposal_id", "channel"),
    Index("notices_by_user", "user_id"),
    erasure="delete",
)
decision_links = table(
    "decision_links",
    seq(),
    reference("organization_id", "organizations"),
    *strings("user_id", null=False),
    reference("proposal_id", "proposals"),
    *strings("token_hash", null=False, erasure="keep"),
    *timestamps("created_at", "expires_at"),
    *timestamps("used_at", null=True),
    UniqueConstraint("token_hash"),
    Index("decision_links_by_user", "user_id"),
    Index("decision_links_by_proposal", "proposal_id"),
    erasure="delete",
)
owner_visits = table(
    "owner_visits",
    seq(),
    *strings("user_id", null=False),
    *timestamps("seen_at"),
    UniqueConstraint("user_id"),
    erasure="delete",
)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The times and channels of notifications of a user, or of an organization's users.

    If a field is None, the organization's choice applies. Without one, the setting applies for
    e-mails, the webhook is off, and the hour is seven.
    """

    organization_id: str
    owner_id: str
    user_id: str | None = None
    email: When | None = None
    webhook: When | None = None
    webhook_url: str | None = None
    hour: int | None = None
    problem: str | None = None
    retry_at: int | None = None
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class DecisionLink:
    """A one-time link to the decision on one proposal, bound to its owner."""

    organization_id: str
    user_id: str
    proposal_id: str
    token_hash: str
    created_at: int
    expires_at: int
    used_at: int | None = None


@dataclass(frozen=True, slots=True)
class UntoldProposal:
    """A waiting proposal that a channel has not reported to its owner."""

    id: str
    organization_id: str
    owner_id: str
    created_at: int


@dataclass(frozen=True, slots=True)
class UntoldOwner:
    """An owner with untold proposals, and the time of the first of them."""

    organization_id: str
    owner_id: str
    first_created_at: int


@dataclass(frozen=True, slots=True)
class DecisionFigures:
    """Figures of the last 30 days: the median seconds to a decision, and the decisions.

    `never_seen` counts undecided proposals of these days that their owners never saw; `waiting`
    counts all proposals that wait now.
    """

    median_seconds: float
    decided: int
    never_seen: int
    waiting: int


_PREFERENCES = Repository(Preferences, preferences, name="Preferences")
_LINKS = Repository(DecisionLink, decision_links, name="Link")
_OF_OWNERS = _PREFERENCES.select.where(one_of(preferences.c.owner_id, "ids"))
_SAVE = Replacing(
    preferences,
    *("email", "webhook", "webhook_url", "hour", "problem", "retry_at", "updated_at"),
)
_WAITING = proposals.of_users(proposals.WAITS)
_WAITING_OF_ENABLED = proposals.of_users(proposals.WAITS, only_enabled=True)
_UNDECIDED = proposals.of_users(proposals.IS_UNDECIDED)
_UNTOLD = (
    select(_WAITING.c.id, _WAITING.c.organization_id, _WAITING.c.owner_id, _WAITING.c.created_at)
    .outerjoin(
        notices,
        and_(notices.c.proposal_id == _WAITING.c.id, notices.c.channel == bindparam("channel")),
    )
    .where(notices.c.seq.is_(None), _WAITING.c.owner_id == bindparam("owner"))
    .order_by(_WAITING.c.created_at, _WAITING.c.seq)
    .limit(bindparam("limit"))
)
_OWN = preferences.alias("own")
_OF_ORGANIZATION = preferences.alias("of_organization")


def _owners_by(channel: Channel) -> Select[Any]:
    """Return the query of enabled owners with untold proposals whose channel is on.

    It groups by owner, so that many proposals of owners without this channel do not delay others.
    """
    waiting = _WAITING_OF_ENABLED.c
    choice = func.coalesce(_OWN.c[channel], _OF_ORGANIZATION.c[channel], bindparam("default"))
    by_this_channel = (notices.c.proposal_id == waiting.id) & (notices.c.channel == channel)
    return (
        select(waiting.organization_id, waiting.owner_id, func.min(waiting.created_at))
        .outerjoin(notices, by_this_channel)
        .outerjoin(_OWN, _OWN.c.owner_id == waiting.owner_id)
        .outerjoin(_OF_ORGANIZATION, _OF_ORGANIZATION.c.owner_id == waiting.organization_id)
        .where(
            notices.c.seq.is_(None),
            choice != "off",
            func.coalesce(_OWN.c.retry_at, 0) <= bindparam("now"),
        )
        .group_by(waiting.organization_id, waiting.owner_id)
        .order_by(func.min(waiting.created_at))
    )


_UNTOLD_OWNERS = {channel: _owners_by(channel) for channel in CHANNELS}
_LINK = _LINKS.select.where(equal(decision_links, "token_hash"))
_USE = (
    update(decision_links)
    .where(equal(decision_links, "token_hash"), decision_links.c.used_at.is_(None))
    .values(used_at=bindparam("now"))
)
_NEVER_SEEN = (
    select(func.count())
    .select_from(_UNDECIDED)
    .outerjoin(owner_visits, owner_visits.c.user_id == _UNDECIDED.c.owner_id)
    .where(
        or_(
            owner_visits.c.seen_at.is_(None),
            owner_visits.c.seen_at < _UNDECIDED.c.created_at,
        ),
        _UNDECIDED.c.created_at >= bindparam("since"),
    )
)


def of_owners(tx: Transaction, ids: list[str]) -> dict[str, Preferences]:
    """Return the preferences of these users and organizations, by owner.

    Args:
        tx: The transaction.
        ids: Ids of users and of organizations; those without preferences are left out.
    """
    rows = _PREFERENCES.all(tx, _OF_OWNERS, {"ids": ids}) if ids else []
    return {row.owner_id: row for row in rows}


def get_for_change(tx: Transaction, scope: Scope, user_id: str | None) -> Preferences:
    """Lock the owner until this transaction ends, and return the owner's preferences.

    Args:
        tx: The transaction.
        scope: The caller; only its organization matters.
        user_id: The owner; None for the organization.
    """
    if user_id:
        users.lock(tx, user_id)
    else:
        organizations.lock(tx, scope.organization_id)
    return inherited(tx, scope, user_id)[0]


def save(tx: Transaction, row: Preferences) -> None:
    """Store preferences that `get_for_change` returned, with their changes.

    Args:
        tx: The transaction.
        row: All preferences of the owner.
    """
    tx.run(_SAVE, _PREFERENCES.values(row))


def untold_owners(tx: Transaction, channel: Channel, default: When) -> list[UntoldOwner]:
    """Return the owners with untold proposals for whom this channel is on and not paused.

    Args:
        tx: The transaction.
        channel: The channel.
        default: The frequency if neither the owner nor the organization has made a choice.
    """
    parameters = {"channel": channel, "default": default, "now": tx.clock.now()}
    return [UntoldOwner(*row) for row in tx.all(_UNTOLD_OWNERS[channel], parameters)]


def untold_of(tx: Transaction, channel: Channel, user_id: str, limit: int) -> list[UntoldProposal]:
    """Return the waiting proposals that a channel has not reported, the oldest first.

    Args:
        tx: The transaction.
        channel: The channel.
        user_id: The owner.
        limit: The most proposals.
    """
    parameters = {"channel": channel, "owner": user_id, "limit": limit}
    return [UntoldProposal(*row) for row in tx.all(_UNTOLD, parameters)]


def mark_told(tx: Transaction, channel: Channel, user_id: str, proposal_ids: list[str]) -> None:
    """Store that the owner was told; proposals that were deleted meanwhile are left out.

    Args:
        tx: The transaction.
        channel: The channel that told of them.
        user_id: The owner.
        proposal_ids: The proposals of the digest.
    """
    now = tx.clock.now()
    for id in proposals.existing_ids(tx, proposal_ids):
        tx.run(
            Missing(notices),
            {"proposal_id": id, "user_id": user_id, "channel": channel, "sent_at": now},
        )


def add_link(tx: Transaction, link: DecisionLink) -> None:
    """Store a link if it does not exist yet; a repeated job makes the same link again.

    Args:
        tx: The transaction.
        link: The link, with the hash of its token.
    """
    tx.run(Missing(decision_links), _LINKS.values(link))


def find_link(tx: Transaction, token_hash: str) -> DecisionLink | None:
    """Return the link with this token; None if there is none. It may be used or expired.

    Args:
        tx: The transaction.
        token_hash: The hash of the token.
    """
    return _LINKS.first(tx, _LINK, {"token_hash": token_hash})


def use_link(tx: Transaction, link: DecisionLink) -> bool:
    """Mark the link as used; False if it was used already.

    Args:
        tx: The transaction.
        link: The link.
    """
    return bool(tx.run(_USE, {"token_hash": link.token_hash, "now": tx.clock.now()}))


def note_visit(tx: Transaction, user_id: str) -> None:
    """Store the time of the owner's visit to the waiting proposals.

    Args:
        tx: The transaction.
        user_id: The owner.
    """
    row: dict[str, Any] = {"user_id": user_id, "seen_at": tx.clock.now()}
    tx.run(Replacing(owner_visits, "seen_at"), row)


def figures(tx: Transaction, organization_id: str | None = None) -> DecisionFigures:
    """Return the figures of decisions in the last 30 days, and of proposals that wait now.

    Args:
        tx: The transaction.
        organization_id: The organization; None for the whole server.
    """
    since = tx.clock.now() - _DECIDED_SINCE
    never_seen = _NEVER_SEEN
    if organization_id is not None:
        never_seen = never_seen.where(_UNDECIDED.c.organization_id == organization_id)
    times = sorted(proposals.decision_times(tx, since, organization_id))
    median = times[len(times) // 2] if times else 0.0
    return DecisionFigures(
        median,
        decided=len(times),
        never_seen=int(tx.all(never_seen, {"since": since})[0][0]),
        waiting=proposals.count_all_waiting(tx, organization_id),
    )


def inherited(tx: Transaction, scope: Scope, user_id: str | None) -> tuple[Preferences, ...]:
    """Return the preferences of a user and of the organization; empty ones if none are stored.

    Args:
        tx: The transaction.
        scope: The caller; only its organization matters.
        user_id: The user; None for those of the organization alone.
    """
    ids = [id for id in (user_id, scope.organization_id) if id]
    rows = of_owners(tx, ids)
    return tuple(
        rows.get(id)
        or Preferences(scope.organization_id, id, user_id=id if id == user_id else None)
        for id in ids
    )


def gauges(tx: Transaction) -> dict[str, tuple[str, float]]:
    """Return the figures of decisions for `/metrics`, of the whole server.

    Args:
        tx: The transaction.

    Returns:
        The help text and the value by the name of the gauge.
    """
    all_figures = figures(tx)
    return {
        "ricordo_decision_seconds_median": (
            "Median time from a proposal to its owner's decision, in the last 30 days.",
            all_figures.median_seconds,
        ),
        "ricordo_proposals_never_seen": (
            "Proposals of the last 30 days that are open or expired and that their owners "
            "never saw.",
            float(all_figures.never_seen),
        ),
    }
