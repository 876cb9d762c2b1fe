"""Tables of templates and of their saved versions."""

from sqlalchemy import UniqueConstraint

from ricordo.storage.schema.columns import (
    json_value,
    names,
    numbers,
    public_id,
    reference,
    root,
    seq,
    strings,
    table,
    texts,
    timestamps,
)

templates = table(
    "templates",
    *root(),
    *names("name", null=False),
    *texts("description"),
    # The agent that the template follows; it may be deleted.
    *strings("agent_id", erasure="keep"),
    *numbers("version"),
    json_value("content"),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("organization_id", "name"),
    erasure="delete",
)
template_versions = table(
    "template_versions",
    seq(),
    public_id(),
    reference("template_id", "templates"),
    *numbers("number"),
    *texts("message"),
    json_value("content"),
    *strings("digest", null=False, erasure="keep"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at"),
    UniqueConstraint("template_id", "number"),
    erasure="delete",
)
TABLES = (templates, template_versions)
