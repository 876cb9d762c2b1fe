"""The tables of what turns leave behind: runs with their lease, steps, streams, traces and what was spent (see tables.py)."""

from sqlalchemy import Index, Table, UniqueConstraint

from ricordo.storage.columns import (
    error,
    flag,
    json_value,
    metadata,
    number,
    organization,
    public_id,
    reference,
    seq,
    string,
    timestamp,
    unique_where,
    usage,
)

runs = Table(
    "runs",
    metadata,
    seq(),
    public_id(),
    organization(),
    reference("agent_id", "agents"),
    reference("conversation_id", "conversations"),
    string("status", null=False, erasure="keep"),
    string("stop_reason", erasure="keep"),
    string("user_id"),
    flag("background"),
    string("body_hash", erasure="keep"),
    json_value("request_config"),
    json_value("metadata"),
    error(),
    *usage(),
    number("step_count"),
    timestamp("created_at"),
    timestamp("ended_at", null=True),
    number("ttft_ns", null=True),
    number("duration_ns", null=True),
    string("lease_token", erasure="keep"),
    timestamp("lease_expires_at"),
    # What the turn was for, where nobody waits for it: sleeptime and the like.
    string("purpose", erasure="keep"),
    json_value("callback"),
    # The lease: at most one open run in a conversation, on every database and across processes.
    unique_where("runs_one_open", "conversation_id", where="ended_at IS NULL"),
    Index("runs_by_time", "organization_id", "created_at", "seq"),
    Index("runs_by_agent", "agent_id", "created_at", "seq"),
    Index("runs_by_conversation", "conversation_id", "created_at", "seq"),
    info={"erasure": "delete"},
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
    string("model", null=False, erasure="keep"),
    string("model_handle", null=False, erasure="keep"),
    string("provider", null=False, erasure="keep"),
    string("model_endpoint", erasure="keep"),
    number("context_window", null=True),
    string("status", null=False, erasure="keep"),
    string("stop_reason", erasure="keep"),
    error(),
    *usage(),
    timestamp("created_at"),
    timestamp("started_at"),
    number("model_ns", null=True),
    number("tools_ns", null=True),
    number("step_ns", null=True),
    string("feedback"),
    json_value("tags", "'[]'"),
    # What its prompt held of memory: ids of versions by block, and of passages.
    json_value("memory"),
    flag("is_untrusted"),
    Index("steps_by_run", "run_id", "seq"),
    Index("steps_by_agent", "agent_id", "created_at", "seq"),
    info={"erasure": "delete"},
)

# The stream of a run that outlives its readers, each event as it was sent, to be read again from any number on.
run_events = Table(
    "run_events",
    metadata,
    seq(),
    reference("run_id", "runs"),
    number("number"),
    string("data", null=False),
    timestamp("created_at"),
    UniqueConstraint("run_id", "number"),
    Index("run_events_by_time", "created_at"),
    info={"erasure": "delete"},
)

# What was sent to a provider and what came back, where the settings ask for it.
traces = Table(
    "traces",
    metadata,
    seq(),
    organization(),
    reference("run_id", "runs"),
    string("step_id", null=False, erasure="keep"),
    string("request", null=False),
    string("response"),
    timestamp("created_at"),
    UniqueConstraint("step_id"),
    Index("traces_by_run", "run_id"),
    Index("traces_by_time", "created_at"),
    info={"erasure": "delete"},
)

# Tokens spent outside of steps: compaction, embedding and other background work.
expenses = Table(
    "expenses",
    metadata,
    seq(),
    organization(),
    string("agent_id"),
    string("user_id", erasure="blank"),
    string("purpose", null=False),
    string("model", null=False),
    *usage(),
    timestamp("created_at"),
    Index("expenses_by_time", "organization_id", "created_at"),
    Index("expenses_by_agent", "agent_id", "created_at"),
    info={"erasure": "keep"},
)
