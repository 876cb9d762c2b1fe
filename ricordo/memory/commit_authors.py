"""Who the author of a commit from elsewhere is: a known user, by the address, or somebody at a remote, by the name.

What a commit says of its author is a claim, and grants no right: policies are asked with whoever brought the commit.
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
    """Return a name that somebody gave themselves as one line that can be stored, without secrets."""
    printable = "".join(sign if sign.isprintable() else " " for sign in name)
    return redact(" ".join(printable.split())).text[:_LONGEST] or "unknown"


@dataclass(slots=True)
class CommitAuthors:
    """The authors of commits that were brought by `by`, in one transaction.

    At a remote that an owner configured, the address of any user of the organization is believed. Of what is pushed with a
    credential, nobody's is but that user's: their e-mail address, the one that Ricordo writes, and the `own` addresses.
    """

    tx: Transaction
    scope: Scope
    by: Actor
    is_pushed: bool = False
    own: Collection[str] = ()
    _users: dict[str, User | None] = field(default_factory=dict)

    def of(self, name: str, address: str) -> Actor:
        """Return the author of a commit that names this one."""
        user = self.user(name, address)
        if user is not None and user.id == self.by.id:
            return self.by
        if user is None and address.lower() in self.own:
            return self.by
        if user is not None and not self.is_pushed:
            return Actor("user", user.id, user.name)
        claimed = author_of(name, address)
        if claimed is not None and claimed.kind == "remote":
            return Actor("remote", shown_name(claimed.id), shown_name(claimed.name))
        shown = shown_name(name) if name.strip() else shown_name(address)
        return Actor("remote", shown, shown)

    def user(self, name: str, address: str) -> User | None:
        """Return the user whose address it is: their e-mail address, or that of their id."""
        if address not in self._users:
            claimed = author_of(name, address)
            if claimed is None:
                found = users.with_email(self.tx, self.scope, address)
            elif claimed.kind in ("user", "administrator"):
                found = users.named(self.tx, self.scope.organization_id, claimed.id)
                found = found if found and found.id == claimed.id else None
            else:
                found = None
            self._users[address] = found
        return self._users[address]

    def only(self, named: Iterable[tuple[str, str]]) -> Actor:
        """Return the author of commits that name these, where all are one; else whoever brought them."""
        found = {self.of(*one) for one in named}
        return found.pop() if len(found) == 1 else self.by

    def metadata(self, author: Actor, reason: str) -> ChangeMetadata:
        """Return the metadata of a change by this author, which `by` took over where that is somebody else."""
        return ChangeMetadata(author, reason, approved_by=None if author == self.by else self.by.id)
