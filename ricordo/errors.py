"""All errors that callers can meet, in one tree.

A message states the cause and what to do.

RicordoError
├── NotFound          no such thing here, or it is not yours
├── Invalid           the request is wrong; change it
│   ├── TooLong       a text is longer than its limit
│   └── Unsupported   this version cannot do that
├── Conflict          the request is right, but not now
│   ├── Stale         the thing changed since it was read
│   ├── PreconditionFailed  If-Match or If-None-Match does not hold
│   ├── Collision     the name or id is taken, or a referenced row is missing
│   └── Busy          another turn runs in this conversation
├── Forbidden         this credential may not do that
├── Unavailable       something outside is missing or down
│   ├── DatabaseFailed  the database is down, full, read-only or damaged, or lacks our tables
│   │   └── CommitUnknown  the connection was lost during a commit, which may have succeeded
│   └── LeaseLost     another server, or a cancel, ended this run or job
└── ModelError        the model's provider failed; `kind` says how
"""

import errno
from typing import Any, Literal

ModelErrorKind = Literal[
    "llm_timeout",
    "llm_rate_limit",
    "llm_authentication",
    "llm_insufficient_credits",
    "llm_bad_request",
    "llm_empty_response",
    "llm_error",
    "context_window_exceeded",
]
# Reasons why a file cannot be written: a full disk, an exhausted quota, a read-only file system.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
DatabaseFailure = Literal["down", "full", "read-only", "damaged", "schema"]
_SUMMARIES: dict[DatabaseFailure, str] = {
    "down": "The database does not answer.",
    "full": "The disk of the database is full.",
    "read-only": "The database cannot be written.",
    "damaged": "The database is damaged.",
    "schema": "The database lacks tables of this server, or its user may not use them.",
}


class RicordoError(Exception):
    """The base of all our errors; `str(error)` is a sentence for people."""


class NotFound(RicordoError):
    """The object does not exist, or it lies outside the caller's scope.

    The caller never learns which of the two.
    """


class Invalid(RicordoError):
    """The request cannot be carried out in this form."""


class TooLong(Invalid):
    """A text is longer than its limit."""


class Unsupported(Invalid):
    """The request is understood, but this version does not support it."""


class Conflict(RicordoError):
    """The request does not fit the present state."""


class Stale(Conflict):
    """The object has changed since the version that the request names."""


class PreconditionFailed(Conflict):
    """The condition in If-Match or If-None-Match is false, so nothing was done (RFC 9110: 412)."""


class Collision(Conflict):
    """A row with the same name or id exists, or a referenced row is missing."""


class Busy(Conflict):
    """Another turn runs in this conversation. `run_id` names it."""

    def __init__(self, run_id: str | None = None) -> None:
        # The sentence is a wire fact: clients of the retired Letta V1 server match it.
        super().__init__(
            "Cannot send a new message: Another request is currently being processed for this "
            "conversation. Please wait for the current request to complete."
        )
        self.run_id = run_id


class Forbidden(RicordoError):
    """The credential does not allow this."""


class Unavailable(RicordoError):
    """Something outside Ricordo, or an optional part, is missing or down."""


class DatabaseFailed(Unavailable):
    """The database is down, full, read-only or damaged, or lacks our tables; `kind` says which.

    Code that reports an error as the failure of something else, such as another server or a tool,
    calls `require_others_failure` first.
    """

    def __init__(self, message: str, kind: DatabaseFailure = "down") -> None:
        super().__init__(message)
        self.kind = kind


class CommitUnknown(DatabaseFailed):
    """The connection was lost during a commit, which may have succeeded.

    `result` is the result of the unit of work if it did.
    """

    def __init__(self, result: Any) -> None:
        super().__init__(
            "The connection to PostgreSQL was lost during a save, which may have succeeded. Check "
            "the current state before you send it again."
        )
        self.result = result


def database_summary(error: RicordoError) -> str:
    """Return a failure of the database in words that anybody may read: they name no files.

    Args:
        error: The error that the database's use raised.
    """
    return _SUMMARIES[error.kind if isinstance(error, DatabaseFailed) else "down"]


def require_others_failure(error: RicordoError) -> None:
    """Raise the error again if the database failed: nothing else is to blame for it.

    Args:
        error: The error that the caller reports as the failure of a tool, an agent or a server.

    Raises:
        DatabaseFailed: The error is one.
    """
    if isinstance(error, DatabaseFailed):
        raise error


class LeaseLost(Unavailable):
    """The run or job was ended elsewhere, by a cancel or by another server."""


class ModelError(RicordoError):
    """A provider failed.

    `kind` is the error type on the wire; `retry_after` is in seconds. `status` is the HTTP status
    of the provider's answer, and `words` is its whole text. For a request that was too long,
    `limit` is the window in tokens that the answer names. `is_judged` is True if the answer does
    not say that the request was too long, and only the size of the request suggests it.
    `discarded` is the Usage of answers that the call got before it failed; None without one.

    The kinds llm_bad_request and context_window_exceeded say that the request is to blame, so its
    new messages are not sent again. Any other failure is the provider's or the setup's. If
    `is_lasting` is True, such a failure is not retried, since another attempt would fail too.
    """

    def __init__(
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        retry_after: float | None = None,
        status: int | None = None,
        words: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.status = status
        self.words = words
        self.limit: int | None = None
        self.is_judged = False
        self.is_lasting = False
        self.discarded: Any = None
