"""Tables of imports: each file that is being brought in, and each thing that was, so that nothing is brought in twice."""

from sqlalchemy import Column, LargeBinary, UniqueConstraint

from ricordo.storage.schema.columns import json_value, numbers, reference, root, seq, strings, table, timestamps

# What was taken of one thing elsewhere, written in the transaction that took it. Its id is made of the organization, the source
# and the name it has there. Reports are sums of these rows.
imported_items = table(
    "imported_items",
    *root(),
    *strings("source", null=False, erasure="keep"),
    *strings("item", null=False),
    json_value("outcome"),
    *strings("user_id"),
    *timestamps("created_at"),
    UniqueConstraint("organization_id", "source", "item"),
    erasure="delete",
)
# An upload, by the id of its job.
imports = table(
    "imports",
    *root(),
    *strings("kind", null=False, erasure="keep"),
    *strings("source", null=False, erasure="keep"),
    *strings("agent_id", erasure="keep"),
    *strings("user_id"),
    json_value("report"),
    *timestamps("created_at"),
    erasure="delete",
)
import_parts = table(
    "import_parts",
    seq(),
    reference("import_id", "imports"),
    *numbers("number"),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("import_id", "number"),
    erasure="delete",
)
TABLES = (imported_items, imports, import_parts)
