ALTER TABLE conversations ADD COLUMN description TEXT
--
ALTER TABLE conversations ADD COLUMN model TEXT
--
ALTER TABLE conversations ADD COLUMN model_settings JSON DEFAULT '{}' NOT NULL
--
ALTER TABLE conversations ADD COLUMN context_window BIGINT
--
ALTER TABLE conversations ADD COLUMN token_percent BIGINT
--
ALTER TABLE conversations ADD COLUMN hidden BOOLEAN DEFAULT 0 NOT NULL
--
ALTER TABLE conversations ADD COLUMN archived_at BIGINT
--
ALTER TABLE conversations ADD COLUMN deleted_at BIGINT
--
ALTER TABLE conversations ADD COLUMN forked_from TEXT
--
ALTER TABLE conversations ADD COLUMN forked_seq BIGINT
--
ALTER TABLE runs ADD COLUMN purpose TEXT
--
ALTER TABLE runs ADD COLUMN callback JSON DEFAULT '{}' NOT NULL
--
ALTER TABLE steps ADD COLUMN feedback TEXT
--
ALTER TABLE steps ADD COLUMN tags JSON DEFAULT '[]' NOT NULL
--
CREATE TABLE expenses (
    seq INTEGER NOT NULL,
    organization_id VARCHAR NOT NULL,
    agent_id TEXT,
    user_id TEXT,
    purpose TEXT NOT NULL,
    model TEXT NOT NULL,
    prompt_tokens BIGINT DEFAULT 0 NOT NULL,
    completion_tokens BIGINT DEFAULT 0 NOT NULL,
    cached_tokens BIGINT,
    cache_write_tokens BIGINT,
    reasoning_tokens BIGINT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT expenses_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE INDEX expenses_by_agent ON expenses (agent_id, created_at)
--
CREATE INDEX expenses_by_time ON expenses (organization_id, created_at)
--
CREATE TABLE providers (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    name TEXT NOT NULL,
    provider_type TEXT NOT NULL,
    base_url TEXT,
    secret TEXT,
    settings JSON DEFAULT '{}' NOT NULL,
    created_by TEXT,
    updated_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT providers_organization_id_name_key UNIQUE (organization_id, name),
    CONSTRAINT providers_id_key UNIQUE (id),
    CONSTRAINT providers_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE TABLE run_events (
    seq INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    number BIGINT DEFAULT 0 NOT NULL,
    data TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT run_events_run_id_number_key UNIQUE (run_id, number),
    CONSTRAINT run_events_run_id_fkey FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
--
CREATE INDEX run_events_by_time ON run_events (created_at)
--
CREATE TABLE traces (
    seq INTEGER NOT NULL,
    organization_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    step_id TEXT NOT NULL,
    request TEXT NOT NULL,
    response TEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT traces_step_id_key UNIQUE (step_id),
    CONSTRAINT traces_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT traces_run_id_fkey FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
)
--
CREATE INDEX traces_by_run ON traces (run_id)
--
CREATE INDEX traces_by_time ON traces (created_at)
