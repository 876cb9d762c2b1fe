"""Sign-in links: made for a user, shown, used once, sent by e-mail."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from email.message import EmailMessage

from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_USER, ROLE_SCOPES, Role, Scope, User
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.identity.sign_in_links import queries
from ricordo.features.identity.sign_in_links.people_list import TELL_APART, Person, role_named
from ricordo.features.identity.sign_in_links.queries import Kind, SignInLink
from ricordo.features.memory_care.notifications import mail, one_time_links
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.secret import Secret
from ricordo.storage import agent_lookup, jobs, keys, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import KeyDraft
from ricordo.storage.users import UserDraft

SEND = "sign_in_links.send"
BEGIN_LOGIN = "sign_in_links.begin_login"
LINK_PURPOSE = "sign-in links"
INVITATION_PAGE = "/invitation"
LOGIN_PAGE = "/login/link"
INVITATION_DAYS = 14
LOGIN_LIFETIME = 900 * SECOND
_ATTEMPTS = 6
# The most login links that are sent to one user within the lifetime of a link.
_MOST_LOGINS = 3
_MOST_FAULTS = 10
_USED = "This link was used already. A link works once; log in, or ask for a new one."


@dataclass(frozen=True, slots=True)
class NewInvitation:
    """An invitation with its user and its token, which is shown only this once."""

    link: SignInLink
    user: User
    token: str


def can_mail(settings: NotificationSettings) -> bool:
    """Return whether e-mails with links can be sent."""
    return settings.smtp_host is not None and settings.public_url is not None


def invite(
    tx: Transaction, scope: Scope, secret: Secret, people: Sequence[Person], lifetime: int
) -> list[NewInvitation]:
    """Invite all people, or nobody if one cannot be invited; new people become users.

    Args:
        tx: The transaction.
        scope: The caller, who may see all users.
        secret: The server's secret, from which the links' tokens are derived.
        people: The people, each with a role and perhaps a course.
        lifetime: The time for which the links work, in microseconds.

    Raises:
        Invalid: with a line for each of the first ten people who cannot be invited.
        Forbidden: if the caller may not see all users.
    """
    users.require_all_users(scope)
    invitations: list[NewInvitation] = []
    faults: list[str] = []
    invited_ids: set[str] = set()
    for person in people:
        try:
            user = _user_of(tx, scope, person, invited_ids)
            course = _require_course(tx, scope, person.course)
            role: Role = role_named(person.role)  # type: ignore[assignment]
        except (NotFound, Invalid, Conflict) as error:
            faults.append(f"{person.place}{error}")
            continue
        expires_at = tx.clock.now() + lifetime
        link, token = add_link(
            tx, scope, secret, user, kind="invitation", role=role, course=course, until=expires_at
        )
        invitations.append(NewInvitation(link, user, token))
        invited_ids.add(user.id)
    if faults:
        rest = len(faults) - _MOST_FAULTS
        more = [f"and {rest} more."] if rest > 0 else []
        raise Invalid("\n".join([*faults[:_MOST_FAULTS], *more, "No invitation was made."]))
    return invitations


def _user_of(tx: Transaction, scope: Scope, person: Person, invited_ids: Collection[str]) -> User:
    """Return the user who has the person's identifier or address, or create one.

    Raises Invalid for a user who occurs twice in the list, or who may be another person, and
    Collision for a new identifier that looks like another user's.
    """
    user = users.named(tx, scope.organization_id, person.identifier)
    if user is None and person.email and not person.user:
        user = users.with_email(tx, scope, person.email)
    if user is None:
        draft = UserDraft(person.name, person.identifier, person.email)
        return users.create(tx, scope, draft)
    _require_same_person(tx, user, person, invited_ids)
    if person.email and not user.email:
        user = users.change(
            tx, scope, user.id, lambda stored: replace(stored, email=stored.email or person.email)
        )
    return user


def _require_same_person(
    tx: Transaction, user: User, person: Person, invited_ids: Collection[str]
) -> None:
    """Raise Invalid if this user cannot be invited as that person."""
    if user.id in invited_ids:
        raise Invalid(f'"{user.name}" is named twice. {TELL_APART}')
    if user.id == LOCAL_USER:
        raise Invalid("This is the user who runs the server. Choose another name.")
    if user.disabled_at is not None:
        raise Invalid(f'The user "{user.name}" is disabled. Enable the user first.')
    if person.has_name_alone and not queries.awaits_first_sign_in(tx, user.id):
        raise Invalid(
            f'There is a user "{user.name}" already, who may be another person. Give the e-mail '
            "address, or the user's identifier: an existing one for this user, a new one for "
            "another person."
        )
    if person.email and user.email and person.email.lower() != user.email.lower():
        raise Invalid(
            f'The user "{user.name}" has another e-mail address. Change it on the page of users.'
        )


def _require_course(tx: Transaction, scope: Scope, course: str | None) -> str | None:
    """Return the course's name. Raises NotFound if the course has no agent."""
    if course and agent_lookup.of_course(tx, scope.organization_id, course) is None:
        raise NotFound(
            f'There is no course "{course[:80]}" with an agent. Check: ricordo course list.'
        )
    return course


def add_link(
    tx: Transaction,
    scope: Scope,
    secret: Secret,
    user: User,
    *,
    kind: Kind,
    role: Role,
    until: int,
    course: str | None = None,
) -> tuple[SignInLink, str]:
    """Store a link of this user; return it with its token.

    Args:
        tx: The transaction.
        scope: The caller, recorded as the link's creator.
        secret: The server's secret, from which the token is derived.
        user: The user who signs in with the link.
        kind: "invitation" or "login"; a link works only on the page of its kind.
        role: The role of the session that it opens.
        until: The time at which it expires, in microseconds.
        course: The course whose chat opens first, or None.
    """
    link_id = new_id("link")
    token = one_time_links.derived_token(secret, LINK_PURPOSE, link_id)
    link = SignInLink(
        id=link_id,
        organization_id=user.organization_id,
        kind=kind,
        user_id=user.id,
        role=role,
        course=course,
        token_hash=one_time_links.hash_of(token),
        created_by=scope.user_id,
        created_at=tx.clock.now(),
        expires_at=until,
    )
    queries.add(tx, link)
    return link, token


def add_mail(tx: Transaction, link: SignInLink) -> None:
    """Add the job that sends the link to its user's address."""
    job = Job(
        SEND,
        link.organization_id,
        {"link_id": link.id},
        key=f"{SEND}:{link.id}",
        user_id=link.user_id,
        most_attempts=_ATTEMPTS,
    )
    jobs.add(tx, job)


def open_link(tx: Transaction, token: str, kind: Kind) -> tuple[SignInLink, User]:
    """Return the link with its user; opening changes nothing.

    Args:
        tx: The transaction.
        token: The token of the link's address.
        kind: The kind of the page that was opened.

    Raises:
        NotFound: for an unknown link, or one of another kind.
        Conflict: for one that was used or has expired.
    """
    link = queries.with_token(tx, one_time_links.hash_of(token))
    if link is None or link.kind != kind:
        raise NotFound("This link is not valid. Copy it whole, or ask for a new one.")
    user = users.find(tx, Scope(link.organization_id), link.user_id)
    if link.used_at is not None:
        raise Conflict(_USED)
    is_over = link.revoked_at is not None or link.expires_at <= tx.clock.now()
    if is_over or user is None or user.disabled_at is not None:
        raise Conflict("This link has expired. Ask for a new one.")
    return link, user


def accept(
    tx: Transaction, token: str, kind: Kind, secret: bytes, *, seconds: int
) -> tuple[str, Scope, SignInLink]:
    """Use the link up, and return the key and scope of the session that it opens.

    Args:
        tx: The transaction.
        token: The token of the link's address.
        kind: The kind of the page that was opened.
        secret: The server's key for hashes of keys.
        seconds: The lifetime of the session.

    Raises:
        NotFound, Conflict: as `open_link` does.
    """
    link, user = open_link(tx, token, kind)
    if not queries.use(tx, link):
        raise Conflict(_USED)
    now = tx.clock.now()
    draft = KeyDraft(
        kind, role=link.role, user=user.id, expires_at=now + seconds * SECOND, kind="session"
    )
    scope = Scope(link.organization_id, user_id=user.id)
    stored, key = keys.create(tx, scope, secret, draft)
    return key, keys.scope_of(stored, user), link


def landing_page(tx: Transaction, link: SignInLink) -> str:
    """Return the first page after the link: the chat of the invitation's course, or else home.

    A guardian, who may not chat, gets the home page in any case.
    """
    if link.course and "messages:read" in ROLE_SCOPES[link.role]:
        agent_id = agent_lookup.of_course(tx, link.organization_id, link.course)
        if agent_id:
            return f"/ui/agents/{agent_id}/chat"
    return "/"


def begin_logins(tx: Transaction, secret: Secret, address: str) -> None:
    """Create and send a login link for each user with this address who does not have too many.

    Args:
        tx: The transaction.
        secret: The server's secret, from which the tokens are derived.
        address: An e-mail address; for an unknown one nothing happens.
    """
    now = tx.clock.now()
    for user in users.enabled_with_email(tx, address):
        if user.id == LOCAL_USER:
            continue
        if queries.count_logins(tx, user.id, now - LOGIN_LIFETIME) >= _MOST_LOGINS:
            continue
        role = queries.role_of(tx, user.id)
        scope = Scope(user.organization_id, user_id=user.id)
        link, _ = add_link(
            tx, scope, secret, user, kind="login", role=role, until=now + LOGIN_LIFETIME
        )
        add_mail(tx, link)


def prepare_mail(
    tx: Transaction, link_id: str, secret: Secret, settings: NotificationSettings
) -> EmailMessage | None:
    """Return the e-mail with the link; None if the link is no longer needed.

    Args:
        tx: The transaction.
        link_id: The link.
        secret: The server's secret, from which the link's token is derived again.
        settings: The mail server, and this server's public address.

    Raises:
        Invalid: if the user has no e-mail address, or the server no public address.
    """
    link = queries.by_id(tx, link_id)
    if link is None or link.mailed_at is not None:
        return None
    token = one_time_links.derived_token(secret, LINK_PURPOSE, link.id)
    try:
        _, user = open_link(tx, token, link.kind)
    except (NotFound, Conflict):
        return None
    page = INVITATION_PAGE if link.kind == "invitation" else LOGIN_PAGE
    address = one_time_links.address_of(page, token, settings)
    if address is None or not user.email:
        raise Invalid("The user has no e-mail address, or RICORDO_PUBLIC_URL is not set.")
    if link.kind == "invitation":
        subject = "Your invitation to Ricordo"
        days = max(1, (link.expires_at - link.created_at) // DAY)
        lines = [
            "You are invited to Ricordo, where AI agents remember what you allow.",
            f"Open this link within {days} {'day' if days == 1 else 'days'}: {address}",
        ]
    else:
        subject = "Your login to Ricordo"
        lines = [
            f"Open this link within 15 minutes to log in as {mail.one_line(user.name)}: {address}",
            "If you did not request it, ignore this message.",
        ]
    message = mail.new_message(user.email, subject, settings, link.id)
    greeting = f"Hello {mail.one_line(user.name)},"
    end = "The link works once, and for you alone: do not pass it on."
    message.set_content("\n".join([greeting, "", *lines, "", end]))
    return message
