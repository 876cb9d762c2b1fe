"""Callers and their rights.

Every repository takes a Scope, so that every read and write is limited to what the caller may see.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ricordo.errors import Forbidden

LOCAL_ORGANIZATION = "org-00000000-0000-4000-8000-000000000000"
LOCAL_USER = "user-00000000-0000-4000-8000-000000000000"
# The subject of a caller that may only see shared data.
NOBODY = "nobody"

Role = Literal["admin", "developer", "user", "service", "guardian"]
ActorKind = Literal["user", "agent", "system", "service", "administrator", "remote"]
# Key of a request's scope in its ASGI scope.
REQUEST_SCOPE = "ricordo.scope"
# Key of the same scope, limited to the user that the caller acts for.
ACTING_SCOPE = "ricordo.acting"
# Key by which a route stores the scope of a request that the audit log would not record otherwise.
# None: the request is not recorded.
RECORDED_SCOPE = "ricordo.recorded"
OVERRIDE = "memory:override"
IMPERSONATE = "users:impersonate"
APPROVE = "memory:approve"
WATCH = "students:read"
_FAMILIES = ("agents", "messages", "memory", "archives", "tools", "providers", "users")
SCOPES = (
    *(f"{family}:{kind}" for family in _FAMILIES for kind in ("read", "write")),
    APPROVE,
    OVERRIDE,
    IMPERSONATE,
    WATCH,
)
"""The scopes except `admin`: `<family>:read` and `<family>:write`, and four special ones.

- `memory:approve`: decide on proposals, and write as the owner, for the key's user or the user it
  acts for
- `memory:override`: write users' blocks directly, whatever their policy
- `users:impersonate`: act for any user of the organization; each request names the user
- `students:read`: see what students, or their courses, let their guardians see
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
    "admin": ALL_SCOPES - {OVERRIDE, IMPERSONATE, WATCH},
    "developer": frozenset(
        f"{family}:{kind}"
        for family in ("agents", "messages", "archives", "tools")
        for kind in ("read", "write")
    )
    | {"providers:read"},
    "user": frozenset((*_WORKS, APPROVE)),
    "service": frozenset((*_WORKS, IMPERSONATE)),
    "guardian": frozenset((WATCH,)),
}
# The scopes of the local administrator and of RICORDO_API_KEY.
OPERATOR_SCOPES = ALL_SCOPES - {OVERRIDE, WATCH}


@dataclass(frozen=True, slots=True)
class Organization:
    """An isolated tenant: one organization sees nothing of another."""

    id: str
    name: str
    created_at: int


@dataclass(frozen=True, slots=True)
class User:
    """A person with memory, or with access to the server.

    `identifier` is the user's name in the system that the user comes from. `former` holds earlier
    names and identifiers.
    """

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
    """The author of a change, stored with the change.

    An `administrator` wrote users' memory directly, by the scope `memory:override`. A `service`
    acted with its own key. A `remote` is the author of a commit from outside.
    """

    kind: ActorKind
    id: str
    name: str = ""

    @property
    def shown_name(self) -> str:
        """The name for people.

        An author at a remote is marked as such, since anybody can choose such a name.
        """
        name = self.name or self.id
        if self.kind == "remote":
            return f"remote:{name}"
        return name


@dataclass(frozen=True, slots=True)
class Reach:
    """The limits of a token: a browser token's origin, and agents with permitted actions.

    `agents` holds pairs of an agent's id and an action. A token of another program is limited to
    one `path`.
    """

    origin: str
    agents: frozenset[tuple[str, str]]
    path: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rate and size limits of a caller; None: the limit in the settings.

    All callers with the same `name` share one count.
    """

    name: str
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The data and actions that the caller may use in one organization.

    `subject_id` limits the data to one user's and shared data (NOBODY: shared only; None: all).
    `user_id`, `user_name` and `identifier` describe the user who asks, or whom the caller acts for.
    `caller` names a service, an administrator that acts for somebody, or background work. `reach`
    is set for a token of a browser or of another program, which may use only the routes in
    `api/guard.py`. `limits` are set for stored
    keys. `is_local_user` is true for a person who uses a server without keys on the same machine.
    """

    organization_id: str = LOCAL_ORGANIZATION
    user_id: str = LOCAL_USER
    subject_id: str | None = None
    user_name: str = "Local user"
    role: Role = "admin"
    scopes: frozenset[str] = field(default=OPERATOR_SCOPES, repr=False)
    caller: str = ""
    key_id: str | None = None
    key_name: str = ""
    identifier: str | None = None
    reach: Reach | None = field(default=None, repr=False)
    limits: Limits | None = field(default=None, repr=False)
    is_local_user: bool = field(default=False, repr=False)

    def may(self, *scopes: str) -> bool:
        """Return True if the caller has one of these scopes.

        Args:
            *scopes: Names of scopes, such as "memory:write".
        """
        return not self.scopes.isdisjoint(scopes)

    @property
    def subject(self) -> str | None:
        """The id of the only user whose data the caller may see; None if there is no such user."""
        if self.subject_id == NOBODY:
            return None
        return self.subject_id

    @property
    def is_operator(self) -> bool:
        """True for the server's operator.

        The operator has RICORDO_API_KEY or the data folder, or runs a server without keys.
        """
        if self.key_id is not None or self.organization_id != LOCAL_ORGANIZATION:
            return False
        return self.may(ADMIN)

    @property
    def uses_every_agent(self) -> bool:
        """True if the caller may use agents that are restricted to other users.

        Administrators, developers and callers who see all data may.
        """
        return self.subject_id is None or self.role in ("admin", "developer")

    def acting_for(self, user: User) -> "Scope":
        """Return the scope for acting as this user, narrowed to the user's data.

        Without the right to act for others the scope is returned unchanged.

        Args:
            user: A user of the same organization. Whether the user is disabled is not checked here.
        """
        if not self.may(IMPERSONATE) or self.subject == user.id:
            return self
        return replace(
            self,
            user_id=user.id,
            user_name=user.name,
            subject_id=user.id,
            identifier=user.identifier,
            is_local_user=False,
        )

    @property
    def actor(self) -> Actor:
        """The author of the caller's writes.

        A service without the right to approve acts in its own name, not in the user's.
        """
        if self.role == "service" and not (self.subject and self.may(APPROVE)):
            if self.subject:
                name = f"{self.caller} for {self.user_name}"
            else:
                name = self.caller
            return Actor("service", self.key_id or self.caller, name)
        if self.may(OVERRIDE) and self.role != "user":
            return Actor("administrator", self.user_id, self.user_name)
        acts_for_user = self.caller and self.subject
        if acts_for_user:
            name = f"{self.caller} for {self.user_name}"
        else:
            name = self.user_name
        return Actor("user", self.user_id, name)

    def owns(self, user_id: str | None) -> bool:
        """Return True if the caller may change data about this user.

        Args:
            user_id: The id of the user whom the data is about; None for shared data.
        """
        return self.subject_id is None or user_id == self.subject

    def require_owns(self, user_id: str | None) -> None:
        """Refuse a caller who may not change data about this user.

        Args:
            user_id: The id of the user whom the data is about; None for shared data.

        Raises:
            Forbidden: The caller is limited to one user, and the data is not about this user.
        """
        if not self.owns(user_id):
            raise Forbidden(
                "This is shared with others, so your key cannot change it. Ask an administrator."
            )

    @property
    def decides_for_everybody(self) -> bool:
        """True if the caller may decide about the memory of every user in the organization."""
        if self.subject_id is not None:
            return False
        return self.may(OVERRIDE) or (self.may(APPROVE) and self.may(IMPERSONATE))

    def may_decide_for(self, owner_kind: str, owner_id: str) -> bool:
        """Return True if the caller may approve and reject changes of this owner's memory.

        All memory except users' belongs to everyone who sees all data of the organization.

        Args:
            owner_kind: The kind of the owner, such as "user" or "agent".
            owner_id: The id of the owner.
        """
        if self.decides_for_everybody:
            return True
        if not self.may(APPROVE):
            return False
        if owner_kind == "user":
            return owner_id == (self.subject or self.user_id)
        return self.subject_id is None

    def sees(self, user_id: str | None) -> bool:
        """Return True if the caller may see data about this user.

        Args:
            user_id: The id of the user whom the data is about; None for shared data.
        """
        return self.subject_id is None or user_id in (None, self.subject_id)


def background_scope(user: User, name: str) -> Scope:
    """Return the scope for background work as a user.

    An agent that is restricted to other users does nothing for this one.

    Args:
        user: The user whose data the work may use.
        name: The name of the work. The author of its changes is "<name> for <the user's name>".
    """
    return Scope(user.organization_id, role="user", caller=name, scopes=OPERATOR_SCOPES).acting_for(
        user
    )
