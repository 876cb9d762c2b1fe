"""Invitations over HTTP: make, list and revoke them."""

import asyncio
from typing import Annotated, Literal

from pydantic import Field

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import RequestModel, RequestPart, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import DAY
from ricordo.domain.scope import ADMIN, Role, Scope
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Invalid
from ricordo.features.identity.sign_in_links import queries, service
from ricordo.features.identity.sign_in_links.people_list import MOST_PEOPLE, Person, read_people
from ricordo.features.identity.sign_in_links.queries import SignInLink
from ricordo.features.memory_care.notifications import one_time_links
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.secret import Secret
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/invitations", tags=["accounts"])
_NAME = 255
_LONGEST_DAYS = 60
Name = Annotated[str | None, Field(None, max_length=_NAME)]
Status = Literal["open", "accepted", "revoked", "expired"]


class PersonRequest(RequestPart):
    """A person to invite. A new person becomes a user."""

    name: str = Field("", max_length=_NAME, description="By default the e-mail address.")
    email: str | None = Field(None, max_length=_NAME)
    role: str = Field("user", max_length=40, description="user, developer or guardian.")
    course: str | None = Field(
        None, max_length=_NAME, description="The course whose chat opens first."
    )
    user: str | None = Field(
        None, max_length=_NAME, description="The identifier; by default the e-mail address or name."
    )


class InvitationsRequest(RequestModel):
    """People to invite, as a list or as CSV. All are invited, or none."""

    people: list[PersonRequest] = Field(default_factory=list, max_length=MOST_PEOPLE)
    csv: str = Field(
        "",
        description="A CSV file with the columns name, email, role, course. The first line names them.",
    )
    days: int = Field(
        service.INVITATION_DAYS, ge=1, le=_LONGEST_DAYS, description="The lifetime of the links."
    )
    mail: bool = Field(False, description="Send each link to its person.")


class InvitationResponse(ResponseModel):
    """An invitation without its link. `problem` says why its e-mail was not sent."""

    id: str
    user_id: str
    user: str
    email: str | None
    role: Role
    course: str | None
    status: Status
    created_at: Timestamp
    expires_at: Timestamp
    used_at: Timestamp | None
    mailed_at: Timestamp | None
    problem: str | None


class NewInvitationResponse(InvitationResponse):
    """A new invitation with its link; only the link's path if the server has no public address."""

    url: str | None
    path: str


@router.post("", response_model=list[NewInvitationResponse])
@needs(ADMIN)
async def make_invitations(context: RequestContext, body: InvitationsRequest) -> list[Json]:
    """Invite people by one-time links, which are shown only this once."""
    settings = NotificationSettings.current()
    authentication = context.request.app.state.authentication
    if await authentication.local(context.runtime) is not None:
        raise Conflict(
            "This server has no keys yet, so an invitation would have no effect. Create a key for "
            "yourself first: ricordo key create --user NAME --role admin."
        )
    if body.mail and not service.can_mail(settings):
        raise Invalid(
            "This server sends no e-mails. Set RICORDO_SMTP_HOST and RICORDO_PUBLIC_URL, or pass "
            "the links on yourself."
        )
    people = _people(body)
    if body.mail and (without := [person.name for person in people if not person.email]):
        raise Invalid(f"No e-mail address for: {', '.join(without[:10])}. No invitation was made.")
    secret = Secret(context.runtime.settings.data_dir)
    await asyncio.to_thread(secret.derive, service.LINK_PURPOSE)  # it may write the secret's file

    def invite(tx: Transaction) -> list[Json]:
        invitations = service.invite(tx, context.scope, secret, people, body.days * DAY)
        if body.mail:
            for invitation in invitations:
                service.add_mail(tx, invitation.link)
        return [_shown_new(tx, invitation, settings) for invitation in invitations]

    return await context.store.write(invite)


@router.get("", response_model=list[InvitationResponse])
@needs(ADMIN)
def list_invitations(tx: Transaction, context: RequestContext, paging: Paged) -> list[Json]:
    """Return the organization's invitations, by default the newest first."""
    links = queries.page(tx, context.scope, paging.page())
    people = {user.id: user for user in users.ROWS.by_ids(tx, [link.user_id for link in links])}
    return [
        _shown(tx, link, name=people[link.user_id].name, email=people[link.user_id].email)
        for link in links
        if link.user_id in people
    ]


@router.delete("/{invitation_id}", response_model=InvitationResponse)
@needs(ADMIN)
def revoke_invitation(tx: Transaction, context: RequestContext, invitation_id: str) -> Json:
    """Revoke an invitation that was not accepted. Its user stays."""
    link = queries.get(tx, context.scope, invitation_id)
    if not queries.revoke(tx, link):
        raise Conflict(
            "This invitation was already accepted or revoked. To end the user's access, revoke "
            "the key or disable the user."
        )
    user = users.require(tx, Scope(link.organization_id), link.user_id)
    return _shown(
        tx, queries.get(tx, context.scope, invitation_id), name=user.name, email=user.email
    )


def _people(body: InvitationsRequest) -> list[Person]:
    """Return the people of the list and of the CSV. Raises Invalid."""
    people = [
        Person(
            name=person.name or (person.email or "").partition("@")[0],
            email=person.email or None,
            role=person.role,
            course=person.course or None,
            user=person.user or None,
        )
        for person in body.people
    ]
    named_apart = dict.fromkeys(person for person in people if not person.has_name_alone)
    people = [*named_apart, *(person for person in people if person.has_name_alone)]
    if body.csv:
        people += read_people(body.csv)
    if not people:
        raise Invalid("Name people to invite, in `people` or in `csv`.")
    return people


def status_of(link: SignInLink, now: int) -> Status:
    if link.used_at is not None:
        return "accepted"
    if link.revoked_at is not None:
        return "revoked"
    return "expired" if link.expires_at <= now else "open"


def _shown(tx: Transaction, link: SignInLink, *, name: str, email: str | None) -> Json:
    status = status_of(link, tx.clock.now())
    return InvitationResponse.of(link, user=name, email=email, status=status)


def _shown_new(
    tx: Transaction, invitation: service.NewInvitation, settings: NotificationSettings
) -> Json:
    user, page = invitation.user, service.INVITATION_PAGE
    return NewInvitationResponse.of(
        invitation.link,
        user=user.name,
        email=user.email,
        status=status_of(invitation.link, tx.clock.now()),
        url=one_time_links.address_of(page, invitation.token, settings),
        path=one_time_links.path_of(page, invitation.token),
    )
