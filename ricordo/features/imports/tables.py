"""Tables of imports: uploads that wait, and each thing that was taken, so that nothing is taken twice."""

from sqlalchemy import Column, LargeBinary, UniqueConstraint

from ricordo.storage.schema.columns import json_value, numbers, root, seq, strings, table, timestamps

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
# The bytes of an upload, by the id of the job that takes it in.
import_parts = table(
    "import_parts",
    seq(),
    *strings("job_id", null=False, erasure="keep"),
    *strings("user_id"),
    *numbers("number"),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("job_id", "number"),
    erasure="delete",
)
TABLES = (imported_items, import_parts)
