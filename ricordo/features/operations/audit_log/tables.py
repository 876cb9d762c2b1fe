"""The tables of the audit log: rows, ends of chains, and people.

Rows name people only by pseudonyms, so rows never change. Erasing a user deletes the rows that
connect the pseudonyms with the user.
"""

from sqlalchemy import Index, UniqueConstraint

from ricordo.storage.schema.columns import (
    json_value,
    numbers,
    reference,
    root,
    seq,
    strings,
    table,
    timestamps,
)

audit_log = table(
    "audit_log",
    *root(),
    *numbers("number"),
    *timestamps("created_at"),
    # Pseudonyms of the caller, and of the user whom the caller acted for.
    *strings("person", "on_behalf_of"),
    *strings("key_id", "role"),
    *strings("action", null=False),
    json_value("objects"),
    # The HTTP status of a request, or the exit code of a command.
    *numbers("status", "repeats"),
    # The SHA-256 of the row before.
    *strings("previous", null=False),
    UniqueConstraint("organization_id", "number"),
    erasure="keep",
)
audit_chains = table(
    "audit_chains",
    seq(),
    reference("organization_id", "organizations"),
    # The chain's last row with its hash; and the first remaining row, with the hash of the deleted
    # row before it.
    *numbers("number"),
    *strings("hash", null=False),
    *numbers("first"),
    *strings("anchor", null=False),
    UniqueConstraint("organization_id"),
    erasure="keep",
)
audit_people = table(
    "audit_people",
    *root(),
    *strings("user_id", "address"),
    *strings("salt", null=False),
    *timestamps("created_at"),
    Index("audit_people_by_user", "user_id"),
    erasure="delete",
)
TABLES = (audit_log, audit_chains, audit_people)
