"""The tables of core memory: chains of versions, current blocks, and proposals.

A chain is one owner's history. The ids of its versions are git's: 20 raw bytes. Versions of two
chains with equal histories have equal ids, so lookups also name the chain. Tables with a row for
each version refer to the chain by number (`chains.seq`). A public id in each row and index would
take a third of all stored bytes. The other tables are in `core_tables.py`.
"""

from typing import Any

import sqlalchemy as sa

from ricordo.storage.schema.columns import (
    KEEP,
    PackedId,
    flag,
    git_id,
    json_value,
    names,
    numbers,
    partial_index,
    reference,
    root,
    seq,
    strings,
    table,
    tags_table,
    texts,
    timestamps,
)


def chain_number() -> sa.Column[int]:
    return sa.Column(
        "chain", sa.BigInteger, sa.ForeignKey("chains.seq", ondelete="CASCADE"), nullable=False
    )


chains = table(
    "chains",
    *root(),
    *strings("owner_kind", null=False, erasure="keep"),
    *strings("owner_id", null=False),
    git_id("head"),
    *numbers("versions"),
    # The chain's current tree: each label's text id and its number of deltas from a whole text.
    json_value("files"),
    # Bytes of its versions, texts, proposals and log (`storage/history_size.py`).
    *numbers("history_bytes"),
    sa.UniqueConstraint("owner_kind", "owner_id"),
    erasure="delete",
)
blocks = table(
    "blocks",
    *root(),
    reference("chain_id", "chains"),
    *names("label", null=False),
    # Normalised before it is stored, since a version holds it byte for byte.
    *strings("value", null=False),
    *texts("description"),
    sa.Column("limit", sa.BigInteger, nullable=False),
    flag("read_only"),
    *strings("policy", null=False, erasure="keep"),
    flag("hidden"),
    json_value("metadata"),
    *numbers("version"),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    git_id("head"),
    *names("title"),
    *strings("schema_ref"),
    # A user's block may be limited to one agent or one course.
    *strings("agent_id"),
    *names("course"),
    # True if its text came from a step that had read untrusted content.
    flag("is_untrusted"),
    flag("shared"),
    # The label under which agents see a user's copy, if it differs from the block's label.
    *names("seen_as"),
    # The label of its egress policy.
    *strings("egress", erasure="keep"),
    sa.UniqueConstraint("chain_id", "label"),
    sa.Index("blocks_by_time", "organization_id", "created_at", "seq"),
    erasure="delete",
)
blocks_tags = tags_table("blocks_tags", "blocks")
agents_blocks = table(
    "agents_blocks",
    seq(),
    reference("agent_id", "agents"),
    reference("block_id", "blocks"),
    *names("label", null=False),
    sa.UniqueConstraint("agent_id", "block_id"),
    sa.UniqueConstraint("agent_id", "label"),
    sa.Index("agents_blocks_by_block", "block_id"),
    erasure="delete",
)
# Agents that share their memory: attaching or detaching a block changes both.
agents_pairs = table(
    "agents_pairs",
    seq(),
    reference("agent_id", "agents"),
    reference("other_id", "agents"),
    sa.UniqueConstraint("agent_id", "other_id"),
    sa.Index("agents_pairs_by_other", "other_id"),
    erasure="delete",
)
# Blocks that older clients attached to identities. They are reported back, and lists of
# blocks can be filtered by them. No prompt contains a block because of them.
blocks_users = table(
    "blocks_users",
    seq(),
    reference("block_id", "blocks"),
    reference("user_id", "users"),
    sa.UniqueConstraint("block_id", "user_id"),
    sa.Index("blocks_users_by_user", "user_id"),
    erasure="delete",
)

# One block's change. Changes from one git commit share its id. The parent of nearly all is the
# commit of the previous version. Then `parent` is NULL, and `versions.PARENT` fills it in.
commits = table(
    "commits",
    seq(),
    chain_number(),
    *numbers("number"),
    git_id("id", null=False),
    git_id("parent"),
    git_id("other_parent"),
    *strings("label", null=False),
    *strings("old_label"),
    git_id("blob"),
    *strings("author_kind", null=False, erasure="keep"),
    *strings("author_id", "author_name", "reason", null=False),
    *strings("approved_by", erasure="blank"),
    *strings("proposal_id", erasure="keep"),
    sa.Column("run_id", PackedId("run"), info=KEEP),
    sa.Column("step_id", PackedId("step"), info=KEEP),
    flag("is_untrusted"),
    *timestamps("created_at"),
    sa.UniqueConstraint("chain", "number"),
    sa.Index("commits_by_id", "chain", "id"),
    sa.Index("commits_by_label", "chain", "label", "number"),
    # Every page of a block's history looks for its former labels, and most changes are no renames.
    partial_index("commits_by_rename", "chain", "number", where="old_label IS NOT NULL"),
    sa.Index("commits_by_run", "run_id"),
    erasure="delete",
)
blobs = table(
    "blobs",
    seq(),
    chain_number(),
    git_id("id", null=False),
    git_id("base"),
    *numbers("depth"),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("chain", "id"),
    erasure="delete",
)
# Git objects that cannot be computed from versions: commits of other shapes, with their trees. Also
# the tombstones of versions that forgetting has rewritten.
git_objects = table(
    "git_objects",
    seq(),
    chain_number(),
    git_id("id", null=False),
    *strings("kind", null=False, erasure="keep"),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("chain", "id"),
    erasure="delete",
)
proposals = table(
    "proposals",
    *root(),
    reference("chain_id", "chains"),
    *strings("label", null=False),
    *strings("new_label"),
    git_id("base"),
    git_id("base_blob"),
    git_id("blob"),
    *strings("description"),
    *strings("author_kind", null=False, erasure="keep"),
    *strings("author_id", "author_name", "reasoning", null=False, erasure="blank"),
    sa.Column("confidence", sa.Float, nullable=True),
    *strings("status", null=False, erasure="keep"),
    *strings("run_id", "step_id", erasure="keep"),
    flag("is_untrusted"),
    *timestamps("created_at"),
    *timestamps("expires_at", "resolved_at", null=True),
    *strings("resolved_by", erasure="blank"),
    *strings("note"),
    git_id("result"),
    *strings("superseded_by", erasure="keep"),
    # The proposal was rejected with a reason that the agent has not been told.
    flag("is_untold"),
    *strings("egress", erasure="keep"),
    sa.Index("proposals_by_chain", "chain_id", "status", "label"),
    # Most proposals are decided. Lists and counts of waiting ones read only this index.
    partial_index(
        "proposals_waiting",
        "organization_id",
        "created_at",
        "seq",
        where="status IN ('open', 'conflicted')",
    ),
    sa.Index("proposals_by_step", "step_id"),
    sa.Index("proposals_by_run", "run_id"),
    erasure="delete",
)
# Changes outside of the tree: description, limit, policy and so on.
blocks_log = table(
    "blocks_log",
    seq(),
    reference("chain_id", "chains"),
    *strings("block_id", null=False, erasure="keep"),
    json_value("changed"),
    *strings("author_kind", null=False, erasure="keep"),
    *strings("author_id", "author_name", null=False, erasure="blank"),
    *timestamps("created_at"),
    # For a deletion: the block's label.
    *strings("deleted_label"),
    sa.Index("blocks_log_by_block", "block_id", "seq"),
    sa.Index("blocks_log_by_chain", "chain_id", "seq"),
    partial_index(
        "blocks_log_by_deletion",
        "chain_id",
        "deleted_label",
        "seq",
        where="deleted_label IS NOT NULL",
    ),
    erasure="delete",
)
# Remotes of a chain: `followed` is the number of the last version at the remote.
memory_remotes = table(
    "memory_remotes",
    *root(),
    reference("chain_id", "chains"),
    *strings("kind", null=False, erasure="keep"),
    *strings("address", null=False),
    json_value("settings"),
    *numbers("followed"),
    *strings("seen", "last_error"),
    *timestamps("last_at", null=True),
    *timestamps("created_at"),
    sa.UniqueConstraint("chain_id", "kind", "address"),
    erasure="delete",
)


def number_of_chain() -> sa.ScalarSelect[Any]:
    """Return a select of the number (`seq`) of the chain whose id is the parameter `chain_id`."""
    return sa.select(chains.c.seq).where(chains.c.id == sa.bindparam("chain_id")).scalar_subquery()


def is_in_chain(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a row is of the chain whose id is the parameter `chain_id`.

    Args:
        table: A table that refers to the chain by its number (`chain`) or by its id (`chain_id`).
    """
    if "chain" in table.c:
        return table.c.chain == number_of_chain()
    return table.c.chain_id == sa.bindparam("chain_id")
