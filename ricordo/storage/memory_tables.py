"""The tables of core memory: chains of versions, the blocks as they are now, and proposals (see tables.py).

A chain is one owner's history. Its ids are git's, so they are 20 raw bytes, and equal in two chains of equal histories: they
are looked up with their chain. What there is of every version names its chain by its number (`chains.seq`), since an id of 42
letters in each row and each index would be a third of all that is stored.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    ScalarSelect,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    select,
    text,
)

from ricordo.storage.columns import (
    flag,
    json_value,
    metadata,
    moment,
    number,
    organization,
    packed_id,
    public_id,
    reference,
    seq,
    words,
)

_RENAMED, _DELETED = "old_label IS NOT NULL", "deleted_label IS NOT NULL"


def git_id(name: str, *, null: bool = True) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=null)


def chain_number() -> Column[int]:
    return Column("chain", BigInteger, ForeignKey("chains.seq", ondelete="CASCADE"), nullable=False)


chains = Table(
    "chains",
    metadata,
    seq(),
    public_id(),
    organization(),
    words("owner_kind", null=False),
    words("owner_id", null=False),
    git_id("head"),
    number("versions"),
    # What the chain's tree holds now: by label the id of the text and how many steps it is from one stored whole.
    json_value("files"),
    UniqueConstraint("owner_kind", "owner_id"),
)
blocks = Table(
    "blocks",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("chain_id", "chains"),
    words("label", null=False),
    words("value", null=False),
    words("description"),
    Column("limit", BigInteger, nullable=False),
    flag("read_only"),
    words("policy", null=False),
    flag("hidden"),
    json_value("metadata"),
    number("version"),
    words("created_by"),
    words("updated_by"),
    moment("created_at"),
    moment("updated_at"),
    git_id("head"),
    words("title"),
    words("schema_ref"),
    # Of a user's block: for this agent, or this course, alone.
    words("agent_id"),
    words("course"),
    # Whether its text came from a step that had read untrusted content.
    flag("is_untrusted"),
    UniqueConstraint("chain_id", "label"),
    Index("blocks_by_time", "organization_id", "created_at", "seq"),
)
blocks_tags = Table(
    "blocks_tags",
    metadata,
    reference("block_id", "blocks"),
    Column("tag", String, nullable=False),
    UniqueConstraint("block_id", "tag"),
    Index("blocks_tags_by_tag", "tag", "block_id"),
)
agents_blocks = Table(
    "agents_blocks",
    metadata,
    seq(),
    reference("agent_id", "agents"),
    reference("block_id", "blocks"),
    Column("label", Text, nullable=False),
    UniqueConstraint("agent_id", "block_id"),
    UniqueConstraint("agent_id", "label"),
    Index("agents_blocks_by_block", "block_id"),
)

# One block's change. A commit that came by git may change several: then they share its id. `parent` is left out where it is the
# commit of the version before, which nearly all have (`versions.PARENT` fills it in).
commits = Table(
    "commits",
    metadata,
    seq(),
    chain_number(),
    number("number"),
    git_id("id", null=False),
    git_id("parent"),
    git_id("other_parent"),
    words("label", null=False),
    words("old_label"),
    git_id("blob"),
    words("author_kind", null=False),
    words("author_id", null=False),
    words("author_name", null=False),
    words("reason", null=False),
    words("approved_by"),
    words("proposal_id"),
    packed_id("run_id", "run"),
    packed_id("step_id", "step"),
    flag("is_untrusted"),
    moment("created_at"),
    UniqueConstraint("chain", "number"),
    Index("commits_by_id", "chain", "id"),
    Index("commits_by_label", "chain", "label", "number"),
    # What a block was called before is looked for at every page of its history, and most changes are no renames.
    Index("commits_by_rename", "chain", "number", sqlite_where=text(_RENAMED), info={"where": _RENAMED}),
    Index("commits_by_run", "run_id"),
)
blobs = Table(
    "blobs",
    metadata,
    seq(),
    chain_number(),
    git_id("id", null=False),
    git_id("base"),
    number("depth"),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("chain", "id"),
)
# Objects that came by git and cannot be made from versions: commits of other shapes, with their trees.
git_objects = Table(
    "git_objects",
    metadata,
    seq(),
    chain_number(),
    git_id("id", null=False),
    words("kind", null=False),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("chain", "id"),
)
proposals = Table(
    "proposals",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("chain_id", "chains"),
    words("label", null=False),
    words("new_label"),
    git_id("base"),
    git_id("base_blob"),
    git_id("blob"),
    words("description"),
    words("author_kind", null=False),
    words("author_id", null=False),
    words("author_name", null=False),
    words("reasoning", null=False),
    Column("confidence", Float, nullable=True),
    words("status", null=False),
    words("run_id"),
    words("step_id"),
    flag("is_untrusted"),
    moment("created_at"),
    moment("expires_at", null=True),
    moment("resolved_at", null=True),
    words("resolved_by"),
    words("note"),
    git_id("result"),
    words("superseded_by"),
    Index("proposals_by_chain", "chain_id", "status", "label"),
    Index("proposals_by_step", "step_id"),
    Index("proposals_by_run", "run_id"),
)
# Changes of what lies outside the tree: description, limit, policy and so on.
blocks_log = Table(
    "blocks_log",
    metadata,
    seq(),
    reference("chain_id", "chains"),
    words("block_id", null=False),
    json_value("changed"),
    words("author_kind", null=False),
    words("author_id", null=False),
    words("author_name", null=False),
    moment("created_at"),
    # Of a deletion: what the block was called.
    words("deleted_label"),
    Index("blocks_log_by_block", "block_id", "seq"),
    Index("blocks_log_by_chain", "chain_id", "seq"),
    Index(
        "blocks_log_by_deletion",
        *("chain_id", "deleted_label", "seq"),
        sqlite_where=text(_DELETED),
        info={"where": _DELETED},
    ),
)
# Where else a chain is kept in step: each remote follows, and `followed` is the number of the last version it has.
memory_remotes = Table(
    "memory_remotes",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("chain_id", "chains"),
    words("kind", null=False),
    words("address", null=False),
    json_value("settings"),
    number("followed"),
    words("seen"),
    words("last_error"),
    moment("last_at", null=True),
    moment("created_at"),
    UniqueConstraint("chain_id", "kind", "address"),
)


def number_of_chain(parameter: str = "chain_id") -> ScalarSelect[Any]:
    """A chain's number where a parameter has its id, by which everybody else knows it."""
    return select(chains.c.seq).where(chains.c.id == bindparam(parameter)).scalar_subquery()


def is_in_chain(table: Table, parameter: str = "chain_id") -> ColumnElement[bool]:
    """The rows of the table that are of the chain whose id a parameter has."""
    if "chain" in table.c:
        return table.c.chain == number_of_chain(parameter)
    return table.c.chain_id == bindparam(parameter)
