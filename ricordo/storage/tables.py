"""The schema, once for every database. A change here is a new numbered migration too.

`seq` is the primary key, the search row and the cursor; `id` is the public name, by which rows refer to each other. Times are
microseconds UTC. What is filtered, joined or counted is a column; the rest is JSON.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData(
    naming_convention={"uq": "%(table_name)s_%(column_0_N_name)s_key", "fk": "%(table_name)s_%(column_0_name)s_fkey"}
)
# On PostgreSQL its own module makes this JSONB; importing that dialect here would slow every start.
_Json = JSON()
_Seq = Integer().with_variant(BigInteger(), "postgresql")


def _seq() -> Column[int]:
    return Column("seq", _Seq, primary_key=True, autoincrement=True)


def _id() -> Column[str]:
    return Column("id", String, nullable=False, unique=True)


def _ref(name: str, target: str, *, null: bool = False) -> Column[str]:
    return Column(name, String, ForeignKey(f"{target}.id", ondelete="CASCADE"), nullable=null)


def _organization() -> Column[str]:
    return _ref("organization_id", "organizations")


def _time(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=null)


def _json(name: str, default: str = "'{}'") -> Column[object]:
    return Column(name, _Json, nullable=False, server_default=text(default))


def _error() -> Column[object]:
    return Column("error", JSON(none_as_null=True), nullable=True)


def _text(name: str, *, null: bool = True) -> Column[str]:
    return Column(name, Text, nullable=null)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean(create_constraint=False), nullable=False, server_default=false())


def _count(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=null, server_default=None if null else text("0"))


def _one(name: str, column: str, *, where: str) -> Index:
    # PostgreSQL's own module takes the condition from `info`: to name that dialect here would import all of it at every start.
    return Index(name, column, unique=True, sqlite_where=text(where), info={"where": where})


def _usage() -> list[Column[int]]:
    optional = ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
    return [_count("prompt_tokens"), _count("completion_tokens"), *(_count(name, null=True) for name in optional)]


organizations = Table("organizations", metadata, _seq(), _id(), _text("name", null=False), _time("created_at"))

users = Table(
    "users",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _text("name", null=False),
    _text("identifier"),
    _time("created_at"),
    UniqueConstraint("organization_id", "identifier"),
)

agents = Table(
    "agents",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _text("name", null=False),
    _text("agent_type", null=False),
    _text("system", null=False),
    _text("model", null=False),
    _text("embedding"),
    _json("model_settings"),
    _count("context_window"),
    _text("description"),
    _json("metadata"),
    _json("tool_rules", "'[]'"),
    _text("timezone", null=False),
    _flag("clears_buffer"),
    _flag("hidden"),
    _json("settings"),
    _text("created_by"),
    _text("updated_by"),
    _time("created_at"),
    _time("updated_at"),
    Index("agents_by_time", "organization_id", "created_at", "seq"),
)
agents_tags = Table(
    "agents_tags",
    metadata,
    _ref("agent_id", "agents"),
    Column("tag", String, nullable=False),
    UniqueConstraint("agent_id", "tag"),
    Index("agents_tags_by_tag", "tag", "agent_id"),
)

conversations = Table(
    "conversations",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _ref("agent_id", "agents"),
    _json("window", "'[]'"),
    _flag("is_default"),
    _text("user_id"),
    _text("summary"),
    _text("prompt_key", null=False),
    _count("message_count"),
    _time("last_message_at", null=True),
    _time("last_run_ended_at", null=True),
    _count("last_run_ms", null=True),
    _text("last_stop_reason"),
    _text("created_by"),
    _time("created_at"),
    _time("updated_at"),
    Index("conversations_by_agent", "agent_id", "created_at", "seq"),
    _one("conversations_one_default", "agent_id", where="is_default"),
)

messages = Table(
    "messages",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _ref("agent_id", "agents"),
    _ref("conversation_id", "conversations"),
    _text("role", null=False),
    _json("parts", "'[]'"),
    _text("text", null=False),
    _text("tool_name"),
    _text("user_id"),
    _text("run_id"),
    _text("step_id"),
    _text("otid"),
    _text("name"),
    _text("sender_id"),
    _text("group_id"),
    _text("model"),
    _time("created_at"),
    UniqueConstraint("conversation_id", "otid"),
    Index("messages_by_time", "conversation_id", "created_at", "seq"),
    Index("messages_by_agent", "agent_id", "created_at", "seq"),
    Index("messages_by_run", "run_id"),
    sqlite_autoincrement=True,
)

chains = Table(
    "chains",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _text("owner_kind", null=False),
    _text("owner_id", null=False),
    Column("head", LargeBinary, nullable=True),
    _count("versions"),
    UniqueConstraint("owner_kind", "owner_id"),
)
blocks = Table(
    "blocks",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _ref("chain_id", "chains"),
    _text("label", null=False),
    _text("value", null=False),
    _text("description"),
    Column("limit", BigInteger, nullable=False),
    _flag("read_only"),
    _text("policy", null=False),
    _flag("hidden"),
    _json("metadata"),
    _count("version"),
    _text("created_by"),
    _text("updated_by"),
    _time("created_at"),
    _time("updated_at"),
    UniqueConstraint("chain_id", "label"),
    Index("blocks_by_time", "organization_id", "created_at", "seq"),
)
blocks_tags = Table(
    "blocks_tags",
    metadata,
    _ref("block_id", "blocks"),
    Column("tag", String, nullable=False),
    UniqueConstraint("block_id", "tag"),
    Index("blocks_tags_by_tag", "tag", "block_id"),
)
agents_blocks = Table(
    "agents_blocks",
    metadata,
    _seq(),
    _ref("agent_id", "agents"),
    _ref("block_id", "blocks"),
    Column("label", Text, nullable=False),
    UniqueConstraint("agent_id", "block_id"),
    UniqueConstraint("agent_id", "label"),
    Index("agents_blocks_by_block", "block_id"),
)

tools = Table(
    "tools",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _text("name", null=False),
    _text("tool_type", null=False),
    _json("json_schema"),
    _text("description", null=False),
    _text("source_type"),
    _text("source_code"),
    _count("return_limit"),
    _flag("needs_approval"),
    _flag("runs_in_parallel"),
    _json("tags", "'[]'"),
    _json("metadata"),
    _text("created_by"),
    _text("updated_by"),
    _time("created_at"),
    _time("updated_at"),
    UniqueConstraint("organization_id", "name"),
)
agents_tools = Table(
    "agents_tools",
    metadata,
    _seq(),
    _ref("agent_id", "agents"),
    _ref("tool_id", "tools"),
    UniqueConstraint("agent_id", "tool_id"),
    Index("agents_tools_by_tool", "tool_id"),
)

archives = Table(
    "archives",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _text("name", null=False),
    _text("description"),
    _text("embedding"),
    _text("vector_db", null=False),
    _json("metadata"),
    _count("passage_count"),
    _json("tags", "'[]'"),
    _text("created_by"),
    _time("created_at"),
    _time("updated_at"),
)
agents_archives = Table(
    "agents_archives",
    metadata,
    _seq(),
    _ref("agent_id", "agents"),
    _ref("archive_id", "archives"),
    _flag("is_owner"),
    UniqueConstraint("agent_id", "archive_id"),
    Index("agents_archives_by_archive", "archive_id"),
)
passages = Table(
    "passages",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _ref("archive_id", "archives"),
    _text("text", null=False),
    _json("tags", "'[]'"),
    _json("metadata"),
    _text("user_id"),
    _text("created_by"),
    _text("step_id"),
    _time("created_at"),
    _time("updated_at"),
    Index("passages_by_time", "archive_id", "created_at", "seq"),
    sqlite_autoincrement=True,
)
passages_tags = Table(
    "passages_tags",
    metadata,
    _ref("passage_id", "passages"),
    _ref("archive_id", "archives"),
    Column("tag", String, nullable=False),
    UniqueConstraint("passage_id", "tag"),
    Index("passages_tags_by_tag", "archive_id", "tag", "passage_id"),
)

runs = Table(
    "runs",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _ref("agent_id", "agents"),
    _ref("conversation_id", "conversations"),
    _text("status", null=False),
    _text("stop_reason"),
    _text("user_id"),
    _flag("background"),
    _text("body_hash"),
    _json("request_config"),
    _json("metadata"),
    _error(),
    *_usage(),
    _count("step_count"),
    _time("created_at"),
    _time("ended_at", null=True),
    _count("ttft_ns", null=True),
    _count("duration_ns", null=True),
    _text("lease_token"),
    _time("lease_expires_at"),
    # The lease: at most one open run in a conversation, on every database and across processes.
    _one("runs_one_open", "conversation_id", where="ended_at IS NULL"),
    Index("runs_by_time", "organization_id", "created_at", "seq"),
    Index("runs_by_agent", "agent_id", "created_at", "seq"),
    Index("runs_by_conversation", "conversation_id", "created_at", "seq"),
)
steps = Table(
    "steps",
    metadata,
    _seq(),
    _id(),
    _organization(),
    _ref("agent_id", "agents"),
    _ref("run_id", "runs"),
    _ref("conversation_id", "conversations"),
    _text("model", null=False),
    _text("model_handle", null=False),
    _text("provider", null=False),
    _text("model_endpoint"),
    _count("context_window", null=True),
    _text("status", null=False),
    _text("stop_reason"),
    _error(),
    *_usage(),
    _time("created_at"),
    _time("started_at"),
    _count("model_ns", null=True),
    _count("tools_ns", null=True),
    _count("step_ns", null=True),
    Index("steps_by_run", "run_id", "seq"),
    Index("steps_by_agent", "agent_id", "created_at", "seq"),
)
