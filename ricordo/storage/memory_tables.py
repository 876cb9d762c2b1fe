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
    created_and_updated_by,
    flag,
    json_value,
    metadata,
    number,
    organization,
    packed_id,
    public_id,
    reference,
    seq,
    string,
    timestamp,
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
    string("owner_kind", null=False, erasure="keep"),
    string("owner_id", null=False),
    git_id("head"),
    number("versions"),
    # What the chain's tree holds now: by label the id of the text and how many steps it is from one stored whole.
    json_value("files"),
    UniqueConstraint("owner_kind", "owner_id"),
    info={"erasure": "delete"},
)
blocks = Table(
    "blocks",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("chain_id", "chains"),
    string("label", null=False),
    string("value", null=False),
    string("description"),
    Column("limit", BigInteger, nullable=False),
    flag("read_only"),
    string("policy", null=False, erasure="keep"),
    flag("hidden"),
    json_value("metadata"),
    number("version"),
    *created_and_updated_by(),
    timestamp("created_at"),
    timestamp("updated_at"),
    git_id("head"),
    string("title"),
    string("schema_ref"),
    # Of a user's block: for this agent, or this course, alone.
    string("agent_id"),
    string("course"),
    # Whether its text came of a step that had read untrusted content.
    flag("is_untrusted"),
    UniqueConstraint("chain_id", "label"),
    Index("blocks_by_time", "organization_id", "created_at", "seq"),
    info={"erasure": "delete"},
)
blocks_tags = Table(
    "blocks_tags",
    metadata,
    reference("block_id", "blocks"),
    Column("tag", String, nullable=False),
    UniqueConstraint("block_id", "tag"),
    Index("blocks_tags_by_tag", "tag", "block_id"),
    info={"erasure": "delete"},
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
    info={"erasure": "delete"},
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
    string("label", null=False),
    string("old_label"),
    git_id("blob"),
    string("author_kind", null=False, erasure="keep"),
    string("author_id", null=False),
    string("author_name", null=False),
    string("reason", null=False),
    string("approved_by", erasure="blank"),
    string("proposal_id", erasure="keep"),
    packed_id("run_id", "run"),
    packed_id("step_id", "step"),
    flag("is_untrusted"),
    timestamp("created_at"),
    UniqueConstraint("chain", "number"),
    Index("commits_by_id", "chain", "id"),
    Index("commits_by_label", "chain", "label", "number"),
    # What a block was called before is looked for at every page of its history, and most changes are no renames.
    Index("commits_by_rename", "chain", "number", sqlite_where=text(_RENAMED), info={"where": _RENAMED}),
    Index("commits_by_run", "run_id"),
    info={"erasure": "delete"},
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
    info={"erasure": "delete"},
)
# Objects that came by git and cannot be made from versions: commits of other shapes, with their trees.
git_objects = Table(
    "git_objects",
    metadata,
    seq(),
    chain_number(),
    git_id("id", null=False),
    string("kind", null=False, erasure="keep"),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("chain", "id"),
    info={"erasure": "delete"},
)
proposals = Table(
    "proposals",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("chain_id", "chains"),
    string("label", null=False),
    string("new_label"),
    git_id("base"),
    git_id("base_blob"),
    git_id("blob"),
    string("description"),
    string("author_kind", null=False, erasure="keep"),
    string("author_id", null=False, erasure="blank"),
    string("author_name", null=False, erasure="blank"),
    string("reasoning", null=False, erasure="blank"),
    Column("confidence", Float, nullable=True),
    string("status", null=False, erasure="keep"),
    string("run_id", erasure="keep"),
    string("step_id", erasure="keep"),
    flag("is_untrusted"),
    timestamp("created_at"),
    timestamp("expires_at", null=True),
    timestamp("resolved_at", null=True),
    string("resolved_by", erasure="blank"),
    string("note"),
    git_id("result"),
    string("superseded_by", erasure="keep"),
    Index("proposals_by_chain", "chain_id", "status", "label"),
    Index("proposals_by_step", "step_id"),
    Index("proposals_by_run", "run_id"),
    info={"erasure": "delete"},
)
# Changes of what lies outside the tree: description, limit, policy and so on.
blocks_log = Table(
    "blocks_log",
    metadata,
    seq(),
    reference("chain_id", "chains"),
    string("block_id", null=False, erasure="keep"),
    json_value("changed"),
    string("author_kind", null=False, erasure="keep"),
    string("author_id", null=False, erasure="blank"),
    string("author_name", null=False, erasure="blank"),
    timestamp("created_at"),
    # Of a deletion: what the block was called.
    string("deleted_label"),
    Index("blocks_log_by_block", "block_id", "seq"),
    Index("blocks_log_by_chain", "chain_id", "seq"),
    Index(
        "blocks_log_by_deletion",
        *("chain_id", "deleted_label", "seq"),
        sqlite_where=text(_DELETED),
        info={"where": _DELETED},
    ),
    info={"erasure": "delete"},
)
# Where else a chain is kept in step: each remote follows, and `followed` is the number of the last version it has.
memory_remotes = Table(
    "memory_remotes",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("chain_id", "chains"),
    string("kind", null=False, erasure="keep"),
    string("address", null=False),
    json_value("settings"),
    number("followed"),
    string("seen"),
    string("last_error"),
    timestamp("last_at", null=True),
    timestamp("created_at"),
    UniqueConstraint("chain_id", "kind", "address"),
    info={"erasure": "delete"},
)


def number_of_chain(parameter: str = "chain_id") -> ScalarSelect[Any]:
    """A chain's number where a parameter has its id, by which everybody else knows it."""
    return select(chains.c.seq).where(chains.c.id == bindparam(parameter)).scalar_subquery()


def is_in_chain(table: Table, parameter: str = "chain_id") -> ColumnElement[bool]:
    """The rows of the table that are of the chain whose id a parameter has."""
    if "chain" in table.c:
        return table.c.chain == number_of_chain(parameter)
    return table.c.chain_id == bindparam(parameter)
