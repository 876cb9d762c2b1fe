"""The tables of facts: the facts, the last message read, and the choices of policy."""

import sqlalchemy as sa

from ricordo.storage.schema.columns import (
    KEEP,
    json_value,
    numbers,
    reference,
    root,
    seq,
    strings,
    table,
    texts,
    timestamps,
)

user_facts = table(
    "user_facts",
    *root(),
    *strings("user_id", null=False),
    *strings("agent_id", "conversation_id", erasure="keep"),
    *texts("sentence", "subject", null=False),
    *strings("kind", null=False, erasure="keep"),
    *texts("slot", "value", null=False),
    *timestamps("starts_at", "ends_at", null=True),
    *strings("precision", erasure="keep"),
    json_value("evidence", "'[]'"),
    sa.Column("confidence", sa.Float, nullable=True, info=KEEP),
    *strings("source", "state", null=False, erasure="keep"),
    *timestamps("said_at", "holds_from"),
    *timestamps("holds_until", null=True),
    *strings("relation", "replaces_id", "replacement_id", erasure="keep"),
    *timestamps("created_at"),
    *timestamps("resolved_at", null=True),
    *strings("resolved_by", erasure="blank"),
    # The egress label. A new fact gets that of its kind, from `fact_egress`. An older database gets
    # the column by a migration of the core.
    *strings("egress", erasure="keep"),
    sa.Index("user_facts_by_user", "user_id", "state", "seq"),
    sa.Index("user_facts_by_time", "organization_id", "created_at", "seq"),
    erasure="delete",
)
# The seq of the last message that was read for facts, by conversation and user.
fact_marks = table(
    "fact_marks",
    seq(),
    reference("conversation_id", "conversations"),
    *strings("user_id", null=False),
    *numbers("read_to"),
    sa.UniqueConstraint("conversation_id", "user_id"),
    erasure="delete",
)
# The policy that a user chose; with an empty user, the organization's choice.
fact_policies = table(
    "fact_policies",
    seq(),
    reference("organization_id", "organizations"),
    *strings("user_id", null=False),
    *strings("policy", null=False, erasure="keep"),
    sa.UniqueConstraint("organization_id", "user_id"),
    erasure="delete",
)
# The egress policy of a kind of a user's facts, as a label.
fact_egress = table(
    "fact_egress",
    seq(),
    reference("organization_id", "organizations"),
    *strings("user_id", null=False),
    *strings("kind", "egress", null=False, erasure="keep"),
    sa.UniqueConstraint("organization_id", "user_id", "kind"),
    erasure="delete",
)
