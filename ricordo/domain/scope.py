"""Who is asking, and what they may do. Every repository takes a Scope, so that no read or write is done without an owner."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ricordo.errors import Forbidden

LOCAL_ORGANIZATION = "org-00000000-0000-4000-8000-000000000000"
LOCAL_USER = "user-00000000-0000-4000-8000-000000000000"
# The subject of a caller who may see what is shared and what is about no user.
NOBODY = "nobody"

Role = Literal["admin", "developer", "user", "service"]
ActorKind = Literal["user", "agent", "system", "service", "administrator", "remote"]
# Where the server keeps the scope of a request, among what ASGI knows of it.
REQUEST_SCOPE = "ricordo.scope"
# The same, narrowed to the user for whom the caller acts.
ACTING_SCOPE = "ricordo.acting"
# Where a route says in whose name a request is to be recorded that would not be recorded by itself; None: not at all.
RECORDED_SCOPE = "ricordo.recorded"
OVERRIDE, IMPERSONATE, APPROVE = "memory:override", "users:impersonate", "memory:approve"
_FAMILIES = ("agents", "messages", "memory", "archives", "tools", "providers", "users")
SCOPES = (
    *(f"{family}:{kind}" for family in _FAMILIES for kind in ("read", "write")),
    APPROVE,
    OVERRIDE,
    IMPERSONATE,
)
"""The scopes by family, without `admin`: `<family>:read` and `<family>:write`, and three that stand alone.

- `memory:approve`: decide on proposals, and write as the owner, for the user that the key belongs to or acts for
- `memory:override`: write users' blocks in place whatever their policy says
- `users:impersonate`: act for any user of the organization, who is named in each request
"""
ADMIN = "admin"
ALL_SCOPES = frozenset((*SCOPES, ADMIN))
_WORKS = (
    "agents:read",
    "messages:read",
    "messages:write",
    "memory:read",
    "memory:write",
    "archives:read",
    "tools:read",
)
ROLE_SCOPES: Mapping[Role, frozenset[str]] = {
    "admin": ALL_SCOPES - {OVERRIDE, IMPERSONATE},
    "developer": frozenset(
        f"{family}:{kind}"
        for family in ("agents", "messages", "archives", "tools")
        for kind in ("read", "write")
    )
    | {"providers:read"},
    "user": frozenset((*_WORKS, APPROVE)),
    "service": frozenset((*_WORKS, IMPERSONATE)),
}
# The local administrator, and whoever has RICORDO_API_KEY.
OPERATOR_SCOPES = ALL_SCOPES - {OVERRIDE}


@dataclass(frozen=True, slots=True)
class Organization:
    """A world of its own: nothing of one organization is seen from another."""

    id: str
    name: str
    created_at: int


@dataclass(frozen=True, slots=True)
class User:
    """A person whom memory can be about, or who runs the server. `identifier` is the name in the system that sent the user."""

    id: str
    organization_id: str
    name: str
    identifier: str | None
    created_at: int
    email: str | None = None
    disabled_at: int | None = None
    identity_type: str | None = None
    properties: tuple[Mapping[str, Any], ...] = ()
    former: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Actor:
    """Who made a change, as it is kept with the change.

    An `administrator` wrote users' memory in place by the scope `memory:override`; a `service` acted by its own key; a `remote`
    is the author of a commit that came from elsewhere.
    """

    kind: ActorKind
    id: str
    name: str = ""

    @property
    def shown_name(self) -> str:
        """The name for people; of somebody at a remote it says so, as it is no more than what they call themselves."""
        name = self.name or self.id
        return f"remote:{name}" if self.kind == "remote" else name


@dataclass(frozen=True, slots=True)
class Reach:
    """What a token is limited to: of a browser to pages of one origin, and pairs of an agent's id and what may be done with it.

    A token of another program is limited to one `path`.
    """

    origin: str
    agents: frozenset[tuple[str, str]]
    path: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """How often a caller may ask, and how much at once; where one is None, the settings say. One count for all of a `name`."""

    name: str
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What the caller may see and do in one organization.

    `subject_id` narrows it to what is about one user or shared (NOBODY: to what is shared; None: no narrowing). `user_id`,
    `user_name` and `identifier` are of the user who asks, or for whom the caller acts; `caller` names the service or the
    administrator who acts for another. `reach` is there for a token of a browser, which may use the routes in `api/guard.py` alone.
    `limits` are there for whoever has a stored key.
    """

    organization_id: str = LOCAL_ORGANIZATION
    user_id: str = LOCAL_USER
    subject_id: str | None = None
    user_name: str = "Local user"
    role: Role = "admin"
    scopes: frozenset[str] = field(default=OPERATOR_SCOPES, repr=False)
    caller: str = ""
    key_id: str | None = None
    identifier: str | None = None
    reach: Reach | None = field(default=None, repr=False)
    limits: Limits | None = field(default=None, repr=False)

    def may(self, *scopes: str) -> bool:
        """Return whether the caller has one of these scopes."""
        return not self.scopes.isdisjoint(scopes)

    @property
    def subject(self) -> str | None:
        """The id of the one user whom the caller may see; None where there is no such user."""
        return None if self.subject_id == NOBODY else self.subject_id

    @property
    def uses_every_agent(self) -> bool:
        """Whether the caller may use agents that are kept to others: administrators, developers, and who sees everything."""
        return self.subject_id is None or self.role in ("admin", "developer")

    def acting_for(self, user: User) -> "Scope":
        """Return the scope in which the caller acts for this user, narrowed to them, where it may act for others."""
        if not self.may(IMPERSONATE) or self.subject == user.id:
            return self
        return replace(
            self,
            user_id=user.id,
            user_name=user.name,
            subject_id=user.id,
            identifier=user.identifier,
        )

    @property
    def actor(self) -> Actor:
        """The author of what the caller writes. A service that may not approve acts as itself, and not as the user."""
        if self.role == "service" and not (self.subject and self.may(APPROVE)):
            name = f"{self.caller} for {self.user_name}" if self.subject else self.caller
            return Actor("service", self.key_id or self.caller, name)
        if self.may(OVERRIDE) and self.role != "user":
            return Actor("administrator", self.user_id, self.user_name)
        name = (
            f"{self.caller} for {self.user_name}"
            if self.caller and self.subject
            else self.user_name
        )
        return Actor("user", self.user_id, name)

    def owns(self, user_id: str | None) -> bool:
        """Return whether the caller may change what is about this user (None: shared)."""
        return self.subject_id is None or user_id == self.subject

    def require_owns(self, user_id: str | None) -> None:
        """Raise Forbidden where the caller may read what is about this user (None: shared), but not change it."""
        if not self.owns(user_id):
            raise Forbidden(
                "This is shared with others, so your key cannot change it. Ask an administrator."
            )

    def sees(self, user_id: str | None) -> bool:
        """Return whether the caller may see what is about this user (None: shared)."""
        return self.subject_id is None or user_id in (None, self.subject_id)


def background_scope(user: User, name: str) -> Scope:
    """Return the scope of work of this name that is done for a user by itself.

    It acts as a user, so that an agent which is kept to others does nothing for this one.
    """
    return Scope(
        user.organization_id, role="user", user_name=name, scopes=OPERATOR_SCOPES
    ).acting_for(user)
