"""The table of sign-in links, and its SQL."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Index, UniqueConstraint, bindparam, delete, func, select, update

from ricordo.domain.clock import DAY
from ricordo.domain.scope import Role, Scope
from ricordo.storage import keys
from ricordo.storage.engine.repository import Page, Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import names, root, strings, table, texts, timestamps

Kind = Literal["invitation", "login"]
# Ended login links are deleted after this time; invitations are deleted with their user.
_KEPT = 30 * DAY

sign_in_links = table(
    "sign_in_links",
    *root(),
    *strings("kind", null=False, erasure="keep"),
    *strings("user_id", null=False),
    *strings("role", null=False, erasure="keep"),
    *names("course", erasure="keep"),
    *strings("token_hash", null=False, erasure="keep"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at", "expires_at"),
    *timestamps("used_at", "revoked_at", "mailed_at", null=True),
    *texts("problem"),
    UniqueConstraint("token_hash"),
    Index("sign_in_links_by_time", "organization_id", "created_at", "seq"),
    Index("sign_in_links_by_user", "user_id"),
    erasure="delete",
)


@dataclass(frozen=True, slots=True)
class SignInLink:
    """A one-time link that opens a session of one user. `problem` is the error of its e-mail."""

    id: str
    organization_id: str
    kind: Kind
    user_id: str
    role: Role
    course: str | None
    token_hash: str
    created_by: str | None
    created_at: int
    expires_at: int
    used_at: int | None = None
    revoked_at: int | None = None
    mailed_at: int | None = None
    problem: str | None = None


_ROWS = Repository(SignInLink, sign_in_links, name="Invitation")
_BY_TOKEN = _ROWS.select.where(equal(sign_in_links, "token_hash"))
_BY_ID = _ROWS.select.where(equal(sign_in_links, "id"))
_IS_OPEN = sign_in_links.c.used_at.is_(None) & sign_in_links.c.revoked_at.is_(None)
_USE = (
    update(sign_in_links)
    .where(equal(sign_in_links, "id"), _IS_OPEN)
    .values(used_at=bindparam("now"))
)
_REVOKE = (
    update(sign_in_links)
    .where(equal(sign_in_links, "id"), _IS_OPEN)
    .values(revoked_at=bindparam("now"))
)
_REVOKE_INVITATIONS = (
    update(sign_in_links)
    .where(equal(sign_in_links, "user_id"), sign_in_links.c.kind == "invitation", _IS_OPEN)
    .values(revoked_at=bindparam("now"))
)
_REVOKE_ALL = (
    update(sign_in_links)
    .where(equal(sign_in_links, "user_id"), _IS_OPEN)
    .values(revoked_at=bindparam("now"))
)
_NOTE_MAIL = (
    update(sign_in_links)
    .where(equal(sign_in_links, "id"))
    .values(mailed_at=bindparam("sent_at"), problem=bindparam("reason"))
)
_DELETE_OLD = delete(sign_in_links).where(
    sign_in_links.c.kind == "login", sign_in_links.c.expires_at < bindparam("before")
)
_INVITED = (
    select(sign_in_links.c.id)
    .where(equal(sign_in_links, "user_id"), sign_in_links.c.kind == "invitation")
    .limit(1)
)
_USED = (
    select(sign_in_links.c.id)
    .where(equal(sign_in_links, "user_id"), sign_in_links.c.used_at.is_not(None))
    .limit(1)
)
_LOGINS_SINCE = select(func.count()).where(
    equal(sign_in_links, "user_id"),
    sign_in_links.c.kind == "login",
    sign_in_links.c.created_at >= bindparam("since"),
)
_LAST_ROLE = (
    select(sign_in_links.c.role)
    .where(
        equal(sign_in_links, "user_id"),
        sign_in_links.c.kind == "invitation",
        sign_in_links.c.used_at.is_not(None),
    )
    .order_by(sign_in_links.c.used_at.desc())
    .limit(1)
)

_INVITED_AS = (
    select(sign_in_links.c.role)
    .where(
        equal(sign_in_links, "user_id"),
        sign_in_links.c.kind == "invitation",
        sign_in_links.c.revoked_at.is_(None),
    )
    .order_by(sign_in_links.c.created_at.desc(), sign_in_links.c.seq.desc())
    .limit(1)
)


def add(tx: Transaction, link: SignInLink) -> None:
    """Store a link; a new invitation replaces the user's open ones.

    Login links that ended more than 30 days ago are deleted.

    Args:
        tx: The transaction.
        link: The link, with the hash of its token.
    """
    now = tx.clock.now()
    tx.run(_DELETE_OLD, {"before": now - _KEPT})
    if link.kind == "invitation":
        tx.run(_REVOKE_INVITATIONS, {"user_id": link.user_id, "now": now})
    _ROWS.insert(tx, link)


def with_token(tx: Transaction, token_hash: str) -> SignInLink | None:
    """Return the link with this token, used or not; None if there is none.

    Args:
        tx: The transaction, or a read.
        token_hash: The hash of the token, as `SignInLink.token_hash`.
    """
    return _ROWS.first(tx, _BY_TOKEN, {"token_hash": token_hash})


def by_id(tx: Transaction, id: str) -> SignInLink | None:
    """Return any organization's link, or None.

    Args:
        tx: The transaction, or a read.
        id: The link.
    """
    return _ROWS.first(tx, _BY_ID, {"id": id})


def get(tx: Transaction, scope: Scope, id: str) -> SignInLink:
    """Return a link of the organization.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        id: The link. This function does not check that it is an invitation.

    Raises:
        NotFound: The organization has no such link.
    """
    return _ROWS.get(tx, scope, id)


def page(tx: Transaction, scope: Scope, page: Page) -> list[SignInLink]:
    """Return one page of the organization's invitations.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        page: The part of the list, by creation.
    """
    return _ROWS.page(tx, scope, page, kind="invitation")


def use(tx: Transaction, link: SignInLink) -> bool:
    """Mark the link as used; False if it was used or revoked meanwhile.

    Args:
        tx: The transaction.
        link: The link. Whether it has expired is not checked here.
    """
    return bool(tx.run(_USE, {"id": link.id, "now": tx.clock.now()}))


def revoke(tx: Transaction, link: SignInLink) -> bool:
    """Revoke the link; False if it was used or revoked before.

    Args:
        tx: The transaction.
        link: The link.
    """
    return bool(tx.run(_REVOKE, {"id": link.id, "now": tx.clock.now()}))


def revoke_all_of(tx: Transaction, user_id: str) -> None:
    """Revoke the user's open links, of invitations and logins.

    Args:
        tx: The transaction.
        user_id: The user.
    """
    tx.run(_REVOKE_ALL, {"user_id": user_id, "now": tx.clock.now()})


def note_mail(tx: Transaction, link_id: str, problem: str | None = None) -> None:
    """Record that the link's e-mail was sent, or the reason why it could not be sent.

    Args:
        tx: The transaction.
        link_id: The link.
        problem: The reason; None if the e-mail was sent.
    """
    sent_at = None if problem else tx.clock.now()
    tx.run(_NOTE_MAIL, {"id": link_id, "sent_at": sent_at, "reason": problem})


def count_logins(tx: Transaction, user_id: str, since: int) -> int:
    """Return the number of logins by e-mail that the user began since then.

    Args:
        tx: The transaction, or a read.
        user_id: The user.
        since: A time in microseconds.
    """
    return int(tx.all(_LOGINS_SINCE, {"user_id": user_id, "since": since})[0][0])


def awaits_first_sign_in(tx: Transaction, user_id: str) -> bool:
    """Return True if the user was invited, but never signed in and never had a key.

    Args:
        tx: The transaction, or a read.
        user_id: The user.
    """
    of_user = {"user_id": user_id}
    was_invited = tx.first(_INVITED, of_user) is not None
    has_entered = tx.first(_USED, of_user) is not None or keys.had_any(tx, user_id)
    return was_invited and not has_entered


def role_without_invitation(tx: Transaction, user_id: str) -> Role:
    """Return the role of a login that no invitation gave: "guardian" or "user".

    The role of the user's newest key decides. Without a key the newest invitation decides, even if
    its link was never used. All other roles become "user", so no login gives more rights.

    Args:
        tx: The transaction, or a read.
        user_id: The user.
    """
    invited = tx.first(_INVITED_AS, {"user_id": user_id})
    last_role = keys.last_role(tx, user_id) or (invited.role if invited else None)
    return "guardian" if last_role == "guardian" else "user"


def role_of(tx: Transaction, user_id: str) -> Role:
    """Return the role in the user's last accepted invitation, or the one without an invitation.

    Args:
        tx: The transaction, or a read.
        user_id: The user.
    """
    row = tx.first(_LAST_ROLE, {"user_id": user_id})
    role: Role = row[0] if row else role_without_invitation(tx, user_id)
    return role
