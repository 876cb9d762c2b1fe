"""The tables of the audit log: its rows, the end of each organization's chain, and who is behind the pseudonyms in rows.

A row names people by pseudonyms alone, so that it never changes. Erasing a user deletes what says who their pseudonyms are.
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
    # Pseudonyms: who asked, and for whom.
    *strings("person", "on_behalf_of"),
    *strings("key_id", "role"),
    *strings("action", null=False),
    json_value("objects"),
    # Of a request the HTTP status, of a command its exit code.
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
    # The last row and its hash; the first row that is kept, and the hash of the one before it.
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
