"""Authors of commits that come by git: users are found by address, others by name.

A commit's author line is only a claim and grants no rights. The policies apply to the user who
pushed or pulled the commit.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ricordo.domain.authors import author_of
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.version import ChangeMetadata
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

_LONGEST = 255


def shown_name(name: str) -> str:
    """Return the name that an author line claims, as one storable line without secrets.

    Args:
        name: The name, which anyone may have written. It is cut; an empty one becomes "unknown".
    """
    printable = "".join(sign if sign.isprintable() else " " for sign in name)
    return redact(" ".join(printable.split())).text[:_LONGEST] or "unknown"


@dataclass(slots=True)
class CommitAuthors:
    """The authors of commits that the user `by` pushed or pulled, in one transaction.

    A user is recognized by the e-mail address, or by the address that Ricordo writes. An address in
    `own_addresses` is an address of `by`. In commits from a remote that an owner configured, all
    users of the organization are recognized. In a push, only `by` is recognized; every other author
    becomes a "remote" one.
    """

    tx: Transaction
    scope: Scope
    by: Actor
    is_pushed: bool = False
    own_addresses: Collection[str] = ()
    _users: dict[str, User | None] = field(default_factory=dict)

    def of(self, name: str, address: str) -> Actor:
        """Return the author of a commit with this name and address.

        Args:
            name: The name in the commit's author line; it proves nothing.
            address: The e-mail address in that line.

        Returns:
            `by`, a user, or a "remote" author with the claimed name.
        """
        user = self.user(name, address)
        if user is not None and user.id == self.by.id:
            return self.by
        if user is None and address.lower() in self.own_addresses:
            return self.by
        if user is not None and not self.is_pushed:
            return Actor("user", user.id, user.name)
        claimed = author_of(name, address)
        if claimed is not None and claimed.kind == "remote":
            return Actor("remote", shown_name(claimed.id), shown_name(claimed.name))
        if name.strip():
            shown = shown_name(name)
        else:
            shown = shown_name(address)
        return Actor("remote", shown, shown)

    def user(self, name: str, address: str) -> User | None:
        """Return the user with this e-mail address, or with the id in the address.

        Args:
            name: The name in the commit's author line.
            address: The e-mail address in that line.

        Returns:
            The user; None if the organization has none. It is not checked who sent the commit.
        """
        if address not in self._users:
            claimed = author_of(name, address)
            if claimed is None:
                user = users.with_email(self.tx, self.scope, address)
            elif claimed.kind in ("user", "administrator"):
                user = users.named(self.tx, self.scope.organization_id, claimed.id)
                user = user if user and user.id == claimed.id else None
            else:
                user = None
            self._users[address] = user
        return self._users[address]

    def only(self, name_addresses: Iterable[tuple[str, str]]) -> Actor:
        """Return the one author of these commits; the sender, if there is none or several.

        Args:
            name_addresses: The names and addresses of the author lines.
        """
        authors = {self.of(*name_address) for name_address in name_addresses}
        if len(authors) == 1:
            return authors.pop()
        return self.by

    def metadata(self, author: Actor, reason: str) -> ChangeMetadata:
        """Return the metadata of a change by this author.

        If the author is not the sender, the sender is recorded as the approver.

        Args:
            author: The author, as `of` or `only` returned it.
            reason: The message of the commit.
        """
        return ChangeMetadata(author, reason, approved_by=None if author == self.by else self.by.id)
