"""The tables of what turns leave behind: runs with their lease, steps, streams, traces and what was spent (see tables.py)."""

from sqlalchemy import Index, Table, UniqueConstraint

from ricordo.storage.columns import (
    error,
    flag,
    json_value,
    metadata,
    moment,
    number,
    only_one,
    organization,
    public_id,
    reference,
    seq,
    usage,
    words,
)

runs = Table(
    "runs",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("agent_id", "agents"),
    reference("conversation_id", "conversations"),
    words("status", null=False),
    words("stop_reason"),
    words("user_id"),
    flag("background"),
    words("body_hash"),
    json_value("request_config"),
    json_value("metadata"),
    error(),
    *usage(),
    number("step_count"),
    moment("created_at"),
    moment("ended_at", null=True),
    number("ttft_ns", null=True),
    number("duration_ns", null=True),
    words("lease_token"),
    moment("lease_expires_at"),
    # What the turn was for, where nobody waits for it: sleeptime and the like.
    words("purpose"),
    json_value("callback"),
    # The lease: at most one open run in a conversation, on every database and across processes.
    only_one("runs_one_open", "conversation_id", where="ended_at IS NULL"),
    Index("runs_by_time", "organization_id", "created_at", "seq"),
    Index("runs_by_agent", "agent_id", "created_at", "seq"),
    Index("runs_by_conversation", "conversation_id", "created_at", "seq"),
)
steps = Table(
    "steps",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("agent_id", "agents"),
    reference("run_id", "runs"),
    reference("conversation_id", "conversations"),
    words("model", null=False),
    words("model_handle", null=False),
    words("provider", null=False),
    words("model_endpoint"),
    number("context_window", null=True),
    words("status", null=False),
    words("stop_reason"),
    error(),
    *usage(),
    moment("created_at"),
    moment("started_at"),
    number("model_ns", null=True),
    number("tools_ns", null=True),
    number("step_ns", null=True),
    words("feedback"),
    json_value("tags", "'[]'"),
    # What its prompt held of memory: ids of versions by block, and of passages.
    json_value("memory"),
    flag("is_untrusted"),
    Index("steps_by_run", "run_id", "seq"),
    Index("steps_by_agent", "agent_id", "created_at", "seq"),
)

# The stream of a run that outlives its readers, each event as it was sent, to be read again from any number on.
run_events = Table(
    "run_events",
    metadata,
    seq(),
    reference("run_id", "runs"),
    number("number"),
    words("data", null=False),
    moment("created_at"),
    UniqueConstraint("run_id", "number"),
    Index("run_events_by_time", "created_at"),
)

# What was sent to a provider and what came back, where the settings ask for it.
traces = Table(
    "traces",
    metadata,
    seq(),
    organization(),
    reference("run_id", "runs"),
    words("step_id", null=False),
    words("request", null=False),
    words("response"),
    moment("created_at"),
    UniqueConstraint("step_id"),
    Index("traces_by_run", "run_id"),
    Index("traces_by_time", "created_at"),
)

# Tokens spent outside of steps: compaction, embedding and other background work.
expenses = Table(
    "expenses",
    metadata,
    seq(),
    organization(),
    words("agent_id"),
    words("user_id"),
    words("purpose", null=False),
    words("model", null=False),
    *usage(),
    moment("created_at"),
    Index("expenses_by_time", "organization_id", "created_at"),
    Index("expenses_by_agent", "agent_id", "created_at"),
)
