"""The context of a call: the opened parts of the server, and the caller's scope."""

from dataclasses import dataclass

from ricordo.domain.scope import Actor, Scope, User
from ricordo.memory.proposals import expiry_of
from ricordo.memory.submission import Submission
from ricordo.runtime import Runtime
from ricordo.storage.engine.store import Store


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call by an HTTP request, a command or a job."""

    runtime: Runtime
    scope: Scope

    @property
    def store(self) -> Store:
        return self.runtime.store

    def submission(self, user: User | None = None, reason: str | None = None) -> Submission:
        """Return who proposes the caller's edit, why, and how long the proposal stays open.

        Args:
            user: The user whose memory is changed. None: memory without a user; the author is the
                caller.
            reason: The reason for the version; None: a usual sentence is used.
        """
        if user:
            author = self.actor_for(user)
        else:
            author = self.scope.actor
        return Submission(author, reason, expiry_of(self.runtime.settings))

    def actor_for(self, user: User) -> Actor:
        """Return the author of the caller's edits in this user's memory.

        Args:
            user: The user whose memory is edited; the caller acts for this user.
        """
        return self.scope.acting_for(user).actor
