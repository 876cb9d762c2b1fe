"""The tables of agents with everything they own, and of the search index.

`seq` is the primary key, the number of a document in the search index, and the order of rows that
were created at one time; `id` is the public id. Times are microseconds, UTC. Memory is in
`memory_tables.py`.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Index, LargeBinary, String, Table, Text, UniqueConstraint

from ricordo.storage.schema.columns import (
    error,
    flag,
    json_value,
    names,
    numbers,
    partial_index,
    public_id,
    reference,
    root,
    seq,
    strings,
    table,
    tags_table,
    texts,
    timestamps,
    usage,
)

organizations = table(
    "organizations",
    seq(),
    public_id(),
    *names("name", null=False),
    *timestamps("created_at"),
    erasure="keep",
)
users = table(
    "users",
    *root(),
    *names("name", null=False),
    *names("identifier"),
    *timestamps("created_at"),
    *strings("email"),
    *timestamps("disabled_at", null=True),
    # Identities: users in the terms of clients of the retired Letta V1 server.
    *strings("identity_type", erasure="keep"),
    json_value("properties", "'[]'"),
    # A form of the identifier that is equal for all identifiers that look alike. It is used to find
    # such users.
    *strings("look"),
    # Identifiers and names before a rename: messages may contain them, so erasure searches for
    # them.
    json_value("former", "'[]'"),
    UniqueConstraint("organization_id", "identifier"),
    Index("users_by_look", "organization_id", "look"),
    erasure="delete",
)
# A key is stored as a keyed hash. `ApiKey` in `storage/keys.py` describes the kinds.
api_keys = table(
    "api_keys",
    *root(),
    *strings("kind", null=False, erasure="keep"),
    *names("name", null=False),
    *strings("hash", null=False),
    *strings("hint", null=False),
    *strings("user_id"),
    *strings("role", null=False, erasure="keep"),
    json_value("scopes", "'[]'", erasure="keep"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at"),
    *timestamps("expires_at", "last_used_at", "revoked_at", null=True),
    *numbers("requests_per_minute", "max_body_bytes", null=True),
    UniqueConstraint("hash"),
    Index("api_keys_by_time", "organization_id", "created_at", "seq"),
    Index("api_keys_by_user", "user_id"),
    erasure="delete",
)

agents = table(
    "agents",
    *root(),
    *names("name", null=False),
    *strings("agent_type", null=False, erasure="keep"),
    *texts("system", null=False),
    *strings("model", null=False, erasure="keep"),
    *strings("embedding", erasure="keep"),
    json_value("model_settings"),
    *numbers("context_window"),
    *texts("description"),
    json_value("metadata"),
    json_value("tool_rules", "'[]'"),
    *strings("timezone", null=False, erasure="keep"),
    flag("clears_buffer"),
    flag("hidden"),
    json_value("settings"),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    # Counted by triggers (`message_changes.py`) and never written by us.
    *numbers("message_changes"),
    Index("agents_by_time", "organization_id", "created_at", "seq"),
    erasure="delete",
)
agents_tags = tags_table("agents_tags", "agents")
# The users of an agent; without a row, everybody in its organization may use it.
agents_users = table(
    "agents_users",
    seq(),
    reference("agent_id", "agents"),
    reference("user_id", "users"),
    UniqueConstraint("agent_id", "user_id"),
    Index("agents_users_by_user", "user_id"),
    erasure="delete",
)

conversations = table(
    "conversations",
    *root(),
    reference("agent_id", "agents"),
    json_value("window", "'[]'", erasure="blank"),
    flag("is_default"),
    *strings("user_id", erasure="blank"),
    *texts("summary", erasure="blank"),
    *strings("prompt_key", null=False, erasure="keep"),
    *numbers("message_count"),
    *timestamps("last_message_at", "last_run_ended_at", null=True),
    *numbers("last_run_ms", null=True),
    *strings("last_stop_reason", erasure="keep"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    *texts("description", erasure="blank"),
    *strings("model", erasure="keep"),
    json_value("model_settings", erasure="keep"),
    *numbers("context_window", null=True),
    # The provider's last token count for a prompt, in percent of our own estimate.
    *numbers("token_percent", null=True),
    flag("hidden"),
    # A deleted conversation keeps its messages until the last fork that shares them is deleted.
    *timestamps("archived_at", "deleted_at", null=True),
    *strings("forked_from", erasure="blank"),
    *numbers("forked_seq", null=True),
    # True if the user gave reasons for rejections that the next turn has to tell the agent.
    flag("has_untold"),
    # The label of the egress policies of its messages, present and future.
    *strings("egress", erasure="keep"),
    Index("conversations_by_agent", "agent_id", "created_at", "seq"),
    partial_index("conversations_one_default", "agent_id", where="is_default", unique=True),
    erasure="delete",
)
messages = table(
    "messages",
    *root(),
    reference("agent_id", "agents"),
    reference("conversation_id", "conversations"),
    *strings("role", null=False, erasure="keep"),
    json_value("parts", "'[]'"),
    *texts("text", null=False),
    *strings("tool_name", erasure="keep"),
    *strings("user_id"),
    *strings("run_id", "step_id", erasure="keep"),
    *strings("otid"),
    *names("name"),
    *strings("sender_id", "group_id"),
    *strings("model", erasure="keep"),
    *timestamps("created_at"),
    flag("is_untrusted"),
    # The label of the egress policies of its sources.
    *strings("egress", erasure="keep"),
    UniqueConstraint("conversation_id", "otid"),
    Index("messages_by_time", "conversation_id", "created_at", "seq"),
    Index("messages_by_agent", "agent_id", "created_at", "seq"),
    Index("messages_by_run", "run_id"),
    Index("messages_newest", "created_at", "seq"),
    partial_index(
        "messages_of_groups", "group_id", "created_at", "seq", where="group_id IS NOT NULL"
    ),
    erasure="delete",
    sqlite_autoincrement=True,
)

tools = table(
    "tools",
    *root(),
    *names("name", null=False),
    *strings("tool_type", null=False),
    json_value("json_schema"),
    *texts("description", null=False),
    *strings("source_type", "source_code"),
    *numbers("return_limit"),
    flag("needs_approval"),
    flag("runs_in_parallel"),
    json_value("tags", "'[]'"),
    json_value("metadata"),
    json_value("options"),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("organization_id", "name"),
    erasure="keep",
)
agents_tools = table(
    "agents_tools",
    seq(),
    reference("agent_id", "agents"),
    reference("tool_id", "tools"),
    UniqueConstraint("agent_id", "tool_id"),
    Index("agents_tools_by_tool", "tool_id"),
    erasure="keep",
)

archives = table(
    "archives",
    *root(),
    *names("name", null=False),
    *texts("description"),
    *strings("embedding"),
    *strings("vector_db", null=False),
    json_value("metadata"),
    *numbers("passage_count"),
    json_value("tags", "'[]'", erasure="blank"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    erasure="keep",
)
agents_archives = table(
    "agents_archives",
    seq(),
    reference("agent_id", "agents"),
    reference("archive_id", "archives"),
    flag("is_owner"),
    UniqueConstraint("agent_id", "archive_id"),
    Index("agents_archives_by_archive", "archive_id"),
    erasure="keep",
)
passages = table(
    "passages",
    *root(),
    reference("archive_id", "archives"),
    *texts("text", null=False),
    json_value("tags", "'[]'"),
    json_value("metadata"),
    *strings("user_id"),
    *strings("created_by", erasure="blank"),
    *strings("step_id", erasure="keep"),
    *timestamps("created_at", "updated_at"),
    flag("is_untrusted"),
    *strings("egress", erasure="keep"),
    Index("passages_by_time", "archive_id", "created_at", "seq"),
    # An archive's row counts only shared passages; passages of one user are counted by query.
    partial_index("passages_of_users", "archive_id", "user_id", where="user_id IS NOT NULL"),
    erasure="delete",
    sqlite_autoincrement=True,
)
passages_tags = tags_table(
    "passages_tags", "passages", reference("archive_id", "archives"), users_by="archive_id"
)

# Providers that an organization added itself; `secret` is encrypted.
providers = table(
    "providers",
    *root(),
    *names("name", null=False),
    *strings("provider_type", null=False),
    *strings("base_url", "secret"),
    json_value("settings"),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("organization_id", "name"),
    erasure="keep",
)

jobs = table(
    "jobs",
    *root(),
    *strings("kind", null=False, erasure="keep"),
    json_value("payload"),
    *strings("key"),
    flag("is_single"),
    *strings("status", null=False, erasure="keep"),
    *numbers("attempts", "most_attempts"),
    *timestamps("not_before"),
    *strings("worker", erasure="keep"),
    *timestamps("heartbeat_at", null=True),
    json_value("progress", erasure="keep"),
    error(),
    *strings("user_id"),
    *timestamps("created_at"),
    *timestamps("started_at", "ended_at", null=True),
    Index("jobs_by_time", "organization_id", "created_at", "seq"),
    Index("jobs_by_turn", "status", "not_before"),
    Index("jobs_by_key", "key", "status"),
    # For a single job, one waiting row is enough for all requests.
    partial_index(
        "jobs_one_waiting", "kind", "key", where="is_single AND status = 'waiting'", unique=True
    ),
    partial_index("jobs_one_running", "key", where="status = 'running'", unique=True),
    erasure="delete",
)

runs = table(
    "runs",
    *root(),
    reference("agent_id", "agents"),
    reference("conversation_id", "conversations"),
    *strings("status", null=False, erasure="keep"),
    *strings("stop_reason", erasure="keep"),
    *strings("user_id"),
    flag("background"),
    *strings("body_hash", erasure="keep"),
    json_value("request_config"),
    json_value("metadata"),
    error(),
    *usage(),
    *numbers("step_count"),
    *timestamps("created_at"),
    *timestamps("ended_at", null=True),
    *numbers("ttft_ns", "duration_ns", null=True),
    *strings("lease_token", erasure="keep"),
    *timestamps("lease_expires_at"),
    # Purpose of a background run, e.g. "sleeptime"; NULL for a run started by a message.
    *strings("purpose", erasure="keep"),
    json_value("callback"),
    # The lease: at most one open run in a conversation, on every database and across processes. A
    # run that is only planned has no token and no lease.
    partial_index(
        "runs_one_open",
        "conversation_id",
        where="ended_at IS NULL AND lease_token IS NOT NULL",
        unique=True,
    ),
    Index("runs_by_time", "organization_id", "created_at", "seq"),
    Index("runs_by_agent", "agent_id", "created_at", "seq"),
    Index("runs_by_conversation", "conversation_id", "created_at", "seq"),
    erasure="delete",
)
steps = table(
    "steps",
    *root(),
    reference("agent_id", "agents"),
    reference("run_id", "runs"),
    reference("conversation_id", "conversations"),
    *strings("model", "model_handle", "provider", null=False, erasure="keep"),
    *strings("model_endpoint", erasure="keep"),
    *numbers("context_window", null=True),
    *strings("status", null=False, erasure="keep"),
    *strings("stop_reason", erasure="keep"),
    error(),
    *usage(),
    *timestamps("created_at", "started_at"),
    *numbers("model_ns", "tools_ns", "step_ns", null=True),
    *strings("feedback"),
    json_value("tags", "'[]'"),
    # The memory in the run's prompt: ids of versions by block, and ids of passages.
    json_value("memory"),
    flag("is_untrusted"),
    Index("steps_by_run", "run_id", "seq"),
    Index("steps_by_agent", "agent_id", "created_at", "seq"),
    erasure="delete",
)
# Events of a run that outlives its readers. They are stored as sent, and can be read again from any
# number.
run_events = table(
    "run_events",
    seq(),
    reference("run_id", "runs"),
    *numbers("number"),
    *strings("data", null=False),
    *timestamps("created_at"),
    UniqueConstraint("run_id", "number"),
    Index("run_events_by_time", "created_at"),
    erasure="delete",
)
# Requests to providers and their responses, if the settings ask for them.
traces = table(
    "traces",
    seq(),
    reference("organization_id", "organizations"),
    reference("run_id", "runs"),
    *strings("step_id", null=False, erasure="keep"),
    *strings("request", null=False),
    *strings("response"),
    *timestamps("created_at"),
    UniqueConstraint("step_id"),
    Index("traces_by_run", "run_id"),
    Index("traces_by_time", "created_at"),
    erasure="delete",
)
# Tokens spent outside of steps (compaction, embedding and other background work), and tokens of
# deleted steps.
expenses = table(
    "expenses",
    seq(),
    reference("organization_id", "organizations"),
    *strings("agent_id"),
    *strings("user_id", erasure="blank"),
    *strings("purpose", "model", null=False),
    *usage(),
    *timestamps("created_at"),
    Index("expenses_by_time", "organization_id", "created_at"),
    Index("expenses_by_agent", "agent_id", "created_at"),
    erasure="keep",
)


# The search index. A partition is the scope of one search: an agent's messages, or an archive's
# passages. New documents wait in the write buffer until a flush packs them. The buffer is also
# searched. A packed document has a dense position in its partition, which addresses the blobs.


def _data() -> Column[bytes]:
    return Column("data", LargeBinary, nullable=False)


def _blobs(name: str, *keys: str, more: tuple[Column[Any], ...] = ()) -> Table:
    """Return a table of a partition's blobs.

    Their keys are texts (terms, embeddings) or numbers (chunks).
    """
    kinds = {"partition": BigInteger, "chunk": BigInteger}
    columns = [
        Column(key, kinds.get(key, Text), primary_key=True, autoincrement=False)
        for key in ("partition", *keys)
    ]
    return table(name, *columns, *more, erasure="delete", sqlite_with_rowid=False)


search_partitions = table(
    "search_partitions",
    seq(),
    Column("owner_id", String, nullable=False, unique=True),
    *strings("kind", null=False),
    *numbers("documents", "deleted", "generation"),
    *strings("embedding"),
    *numbers("vectors"),
    # Numbers are never reused, since caches of partitions in a process use them as keys.
    sqlite_autoincrement=True,
    erasure="keep",
)
search_buffer = table(
    "search_buffer",
    seq(),
    Column("owner_id", String, nullable=False),
    Column("document", BigInteger, nullable=False),
    _data(),
    Index("search_buffer_by_owner", "owner_id", "seq"),
    sqlite_autoincrement=True,
    erasure="delete",
)
search_postings = _blobs("search_postings", "term", "chunk", more=(_data(),))
search_documents = _blobs("search_documents", "chunk", more=(_data(),))
search_vectors = _blobs(
    "search_vectors", "embedding", "chunk", more=(*numbers("dimensions"), _data())
)
search_terms = _blobs("search_terms", "term")
