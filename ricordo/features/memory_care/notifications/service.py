"""Digests of waiting proposals: recipients, times, one-time links, and decisions by links.

A digest is marked as told only after it was sent. So a kill between the two sends it once more,
with the same links and ids, but never loses it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ricordo.domain.clock import DAY, day_of, to_datetime
from ricordo.domain.hidden_text import with_marks
from ricordo.domain.job import Job
from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.version import Proposal
from ricordo.errors import Conflict, NotFound
from ricordo.features.memory_care.notifications import one_time_links, queries
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.features.memory_care.notifications.queries import (
    CHANNELS,
    Channel,
    DecisionLink,
    Preferences,
    When,
)
from ricordo.memory import approval
from ricordo.memory.approval import Approved, Conflicted
from ricordo.memory.text import line_changes
from ricordo.plugins import Plugins, Waiting
from ricordo.secret import Secret
from ricordo.storage import jobs, proposals, users
from ricordo.storage.engine.store import Transaction

SEND = "notifications.send"
DECISION_PAGE = "/decide"
LINK_PURPOSE = "decision links"
LINK_LIFETIME = 7 * DAY
RETRY_AFTER = DAY
_DEFAULT_HOUR = 7
_HOUR = DAY // 24
# The most proposals in one digest.
MOST_IN_DIGEST = 50
_ATTEMPTS = 8
_EXCERPT = 300


@dataclass(frozen=True, slots=True)
class Delivery:
    """One owner's notifications by one channel: the frequency, the hour (UTC), and the address.

    After a failure nothing is sent before `paused_until`, in microseconds.
    """

    when: When
    hour: int
    address: str
    paused_until: int = 0

    def is_due(self, first_created_at: int, now: int) -> bool:
        """Return True if a digest is due for proposals that have waited since this time.

        Args:
            first_created_at: The time of the oldest of these proposals, in microseconds.
            now: The present time in microseconds.
        """
        if self.when == "off" or not self.address or now < self.paused_until:
            return False
        if self.when == "immediate":
            return True
        return now >= self.due_at(first_created_at)

    def due_at(self, first_created_at: int) -> int:
        """Return the time at which items that have waited since this time are reported.

        Args:
            first_created_at: The time of the oldest of them, in microseconds, like the result.
        """
        if self.when == "immediate":
            return first_created_at
        hour = day_of(first_created_at) + self.hour * _HOUR
        return hour if hour > first_created_at else hour + DAY


@dataclass(frozen=True, slots=True)
class DigestEntry:
    """One proposal of a digest, with its link."""

    proposal: Proposal
    link: str | None

    @property
    def changes(self) -> tuple[str, ...]:
        """Lines that are added (+) or removed (−), with marks for hidden text."""
        proposal = self.proposal
        if proposal.value is None:
            return ("This deletes the block.",)
        before = (proposal.base_value or "").split("\n")
        lines: list[str] = []
        for change in line_changes(proposal.base_value or "", proposal.value) or []:
            lines += [f"− {line}" for line in before[change.start : change.end] if line.strip()]
            lines += [f"+ {line}" for line in change.lines if line.strip()]
        return tuple(with_marks(line)[:_EXCERPT] for line in lines)


@dataclass(frozen=True, slots=True)
class Digest:
    """The waiting proposals that are reported to one owner.

    `others` are other waiting items, such as facts, each with a number and a noun.
    """

    user: User
    address: str
    entries: tuple[DigestEntry, ...]
    waiting: int
    others: tuple[Waiting, ...] = ()

    @property
    def ids(self) -> list[str]:
        return [entry.proposal.id for entry in self.entries]


def delivery_of(
    channel: Channel,
    settings: NotificationSettings,
    personal: Preferences | None,
    organization: Preferences | None,
    user: User | None,
) -> Delivery:
    """Return the delivery chosen by the user, else by the organization, else by the settings.

    Args:
        channel: The channel.
        settings: The mail server and the defaults.
        personal: The user's stored preferences, or None.
        organization: The organization's stored preferences, or None.
        user: The user. Without one, the delivery has no e-mail address.
    """
    rows = [row for row in (personal, organization) if row]
    choices: list[When | None] = [getattr(row, channel) for row in rows]
    when = next((choice for choice in choices if choice), None)
    hour = next((row.hour for row in rows if row.hour is not None), _DEFAULT_HOUR)
    paused_until = max((row.retry_at or 0 for row in rows[:1] if row.user_id), default=0)
    if channel == "email":
        address = _email_of(user, settings)
        return Delivery(when or settings.notify_email, hour, address, paused_until)
    url = next((row.webhook_url for row in rows if row.webhook_url), None)
    return Delivery(when or "off", hour, url or "", paused_until)


def _email_of(user: User | None, settings: NotificationSettings) -> str:
    """Return the address for e-mails to the user; empty if none can be sent."""
    if user is None or not settings.smtp_host:
        return ""
    return user.email or ""


def plan(tx: Transaction, settings: NotificationSettings) -> int:
    """Add a job for each owner and channel that is due; return their number."""
    count = 0
    for channel in CHANNELS:
        default: When = settings.notify_email if channel == "email" else "off"
        owners = queries.untold_owners(tx, channel, default)
        owner_ids = [owner.owner_id for owner in owners]
        organization_ids = list({owner.organization_id for owner in owners})
        rows = queries.of_owners(tx, [*owner_ids, *organization_ids])
        people = {user.id: user for user in users.ROWS.by_ids(tx, owner_ids)}
        for owner in owners:
            user, personal = people.get(owner.owner_id), rows.get(owner.owner_id)
            delivery = delivery_of(
                channel, settings, personal, rows.get(owner.organization_id), user
            )
            if delivery.is_due(owner.first_created_at, tx.clock.now()):
                job = _job_of(owner.organization_id, owner.owner_id, channel)
                count += jobs.add(tx, job) is not None
    return count


def tell_of_others(tx: Transaction, organization_id: str, user_id: str) -> None:
    """Add jobs that tell a user of other new items, such as facts.

    A daily channel sends at its hour, an immediate one at once. A digest that already waits
    includes them.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user.
    """
    settings = NotificationSettings.current()
    rows = queries.of_owners(tx, [user_id, organization_id])
    user = users.find(tx, Scope(organization_id), user_id)
    now = tx.clock.now()
    for channel in CHANNELS:
        delivery = delivery_of(
            channel, settings, rows.get(user_id), rows.get(organization_id), user
        )
        if delivery.when == "off" or not delivery.address:
            continue
        not_before = max(delivery.due_at(now), delivery.paused_until)
        jobs.add(tx, _job_of(organization_id, user_id, channel, not_before))


def _job_of(organization_id: str, user_id: str, channel: Channel, not_before: int = 0) -> Job:
    return Job(
        SEND,
        organization_id,
        {"user_id": user_id, "channel": channel},
        key=f"{SEND}:{channel}:{user_id}",
        is_single=True,
        not_before=not_before,
        user_id=user_id,
        most_attempts=_ATTEMPTS,
    )


def prepare(
    tx: Transaction, job: Job, settings: NotificationSettings, secret: Secret, plugins: Plugins
) -> Digest | None:
    """Return the job's digest with its links; None if there is nothing to tell or no way to.

    Args:
        tx: The transaction, which stores the links.
        job: A job with `user_id` and `channel`. The tokens are derived from its id and those of
            the proposals.
        settings: The mail server, the defaults and the public address.
        secret: The server's secret, from which the tokens are derived.
        plugins: The features that may have other items for the user.
    """
    channel, user_id = job.payload["channel"], job.payload["user_id"]
    scope = Scope(job.organization_id)
    untold = queries.untold_of(tx, channel, user_id, MOST_IN_DIGEST)
    user = users.find(tx, scope, user_id)
    others = tuple(plugins.waiting(tx, job.organization_id, user_id)) if user else ()
    if user is None or not (untold or others):
        return None
    rows = queries.of_owners(tx, [user_id, job.organization_id])
    delivery = delivery_of(
        channel, settings, rows.get(user_id), rows.get(job.organization_id), user
    )
    if delivery.when == "off" or not delivery.address:
        return None
    entries = []
    for row in untold:
        token = one_time_links.derived_token(secret, LINK_PURPOSE, f"{job.id}:{row.id}")
        link = add_link(tx, user, row.id, token, settings)
        entries.append(DigestEntry(proposals.get(tx, scope, row.id), link))
    waiting = proposals.count_waiting_for(tx, user_id)
    return Digest(user, delivery.address, tuple(entries), waiting, others)


def add_link(
    tx: Transaction, user: User, proposal_id: str, token: str, settings: NotificationSettings
) -> str | None:
    """Store a one-time link, and return its address; None without a public address.

    Args:
        tx: The transaction.
        user: The proposal's owner, who alone may use the link.
        proposal_id: The proposal that the link decides.
        token: The link's token. Only its hash is stored.
        settings: The settings with the public address.
    """
    now = tx.clock.now()
    link = DecisionLink(
        organization_id=user.organization_id,
        user_id=user.id,
        proposal_id=proposal_id,
        token_hash=one_time_links.hash_of(token),
        created_at=now,
        expires_at=now + LINK_LIFETIME,
    )
    queries.add_link(tx, link)
    return one_time_links.address_of(DECISION_PAGE, token, settings)


def open_link(tx: Transaction, token: str) -> tuple[DecisionLink, User, Proposal]:
    """Return the link with its owner and proposal; opening changes nothing.

    Args:
        tx: The transaction.
        token: The token of the link's address.

    Raises:
        NotFound: for an unknown link, or if the proposal was deleted.
        Conflict: for a link that was used or has expired, or a proposal that was decided.
    """
    link = queries.find_link(tx, one_time_links.hash_of(token))
    if link is None:
        raise NotFound("This link is not valid. Open Ricordo, and decide there.")
    scope = Scope(link.organization_id, subject_id=link.user_id)
    user = users.require(tx, Scope(link.organization_id), link.user_id)
    proposal = proposals.get(tx, scope, link.proposal_id)
    if link.used_at is not None or not proposal.waits:
        raise Conflict(f"This proposal no longer waits for a decision: it is {proposal.status}.")
    if link.expires_at <= tx.clock.now() or user.disabled_at is not None:
        raise Conflict("This link has expired. Open Ricordo, and decide there.")
    return link, user, proposal


def decide(
    tx: Transaction, token: str, decision: str, reason: str | None
) -> Approved | Conflicted | Proposal:
    """Decide the link's proposal in the name of its owner, and use up the link.

    Both happen in one transaction. After a conflict the link stays usable, since its owner may
    still reject.

    Args:
        tx: The transaction.
        token: The token of the link's address.
        decision: "approve"; anything else rejects.
        reason: The owner's reason for a rejection, or None.

    Raises:
        NotFound, Conflict: as `open_link` does.
        Conflict, TooLong, Invalid: if the proposal cannot be approved, as `approval.approve` does.
    """
    link, user, proposal = open_link(tx, token)
    scope = Scope(link.organization_id, subject_id=user.id)
    actor = Actor("user", user.id, user.name)
    if decision == "approve":
        outcome = approval.approve(tx, scope, proposal.id, actor)
        if isinstance(outcome, Conflicted):
            return outcome
    else:
        outcome = approval.reject(tx, scope, proposal.id, actor, reason=reason)  # type: ignore[assignment]
    if not queries.use_link(tx, link):
        raise Conflict(
            "This link was used twice at the same moment. Only the first decision counts."
        )
    queries.note_visit(tx, user.id)
    return outcome


def note_problem(tx: Transaction, job: Job, problem: str) -> None:
    """Store the reason why the user cannot be notified, and wait a day before the next attempt.

    Args:
        tx: The transaction.
        job: The job that failed, with the user.
        problem: A sentence for the user.
    """
    user_id = job.payload["user_id"]
    personal = queries.get_for_change(tx, Scope(job.organization_id), user_id)
    now = tx.clock.now()
    paused = replace(personal, problem=problem, retry_at=now + RETRY_AFTER, updated_at=now)
    queries.save(tx, paused)


def to_json(digest: Digest, *, job_id: str) -> Mapping[str, Any]:
    """Return the digest in the form of a webhook.

    Args:
        digest: The digest.
        job_id: The id of the job, by which a receiver recognizes a repeated delivery.
    """
    return {
        "type": "proposals.waiting",
        "delivery": job_id,
        "user_id": digest.user.id,
        "user": digest.user.name,
        "waiting": digest.waiting,
        "proposals": [
            {
                "id": entry.proposal.id,
                "label": entry.proposal.label,
                "author": entry.proposal.author.shown_name,
                "reasoning": with_marks(entry.proposal.reasoning),
                "changes": list(entry.changes),
                "has_hidden_text": entry.proposal.has_hidden_text,
                "created_at": to_datetime(entry.proposal.created_at).isoformat(),
                "link": entry.link,
            }
            for entry in digest.entries
        ],
        "also_waiting": [{"what": other.text, "page": other.path} for other in digest.others],
    }
