CREATE TABLE organizations (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT organizations_id_key UNIQUE (id)
)
--
CREATE TABLE agents (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    name TEXT NOT NULL,
    agent_type TEXT NOT NULL,
    system TEXT NOT NULL,
    model TEXT NOT NULL,
    embedding TEXT,
    model_settings JSON DEFAULT '{}' NOT NULL,
    context_window BIGINT DEFAULT 0 NOT NULL,
    description TEXT,
    metadata JSON DEFAULT '{}' NOT NULL,
    tool_rules JSON DEFAULT '[]' NOT NULL,
    timezone TEXT NOT NULL,
    clears_buffer BOOLEAN DEFAULT 0 NOT NULL,
    hidden BOOLEAN DEFAULT 0 NOT NULL,
    settings JSON DEFAULT '{}' NOT NULL,
    created_by TEXT,
    updated_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT agents_id_key UNIQUE (id),
    CONSTRAINT agents_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE INDEX agents_by_time ON agents (organization_id, created_at, seq)
--
CREATE TABLE archives (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    embedding TEXT,
    vector_db TEXT NOT NULL,
    metadata JSON DEFAULT '{}' NOT NULL,
    passage_count BIGINT DEFAULT 0 NOT NULL,
    tags JSON DEFAULT '[]' NOT NULL,
    created_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT archives_id_key UNIQUE (id),
    CONSTRAINT archives_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE TABLE chains (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    owner_kind TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    head BLOB,
    versions BIGINT DEFAULT 0 NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT chains_owner_kind_owner_id_key UNIQUE (owner_kind, owner_id),
    CONSTRAINT chains_id_key UNIQUE (id),
    CONSTRAINT chains_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE TABLE tools (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    name TEXT NOT NULL,
    tool_type TEXT NOT NULL,
    json_schema JSON DEFAULT '{}' NOT NULL,
    description TEXT NOT NULL,
    source_type TEXT,
    source_code TEXT,
    return_limit BIGINT DEFAULT 0 NOT NULL,
    needs_approval BOOLEAN DEFAULT 0 NOT NULL,
    runs_in_parallel BOOLEAN DEFAULT 0 NOT NULL,
    tags JSON DEFAULT '[]' NOT NULL,
    metadata JSON DEFAULT '{}' NOT NULL,
    created_by TEXT,
    updated_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT tools_organization_id_name_key UNIQUE (organization_id, name),
    CONSTRAINT tools_id_key UNIQUE (id),
    CONSTRAINT tools_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE TABLE users (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    name TEXT NOT NULL,
    identifier TEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT users_organization_id_identifier_key UNIQUE (organization_id, identifier),
    CONSTRAINT users_id_key UNIQUE (id),
    CONSTRAINT users_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE TABLE agents_archives (
    seq INTEGER NOT NULL,
    agent_id VARCHAR NOT NULL,
    archive_id VARCHAR NOT NULL,
    is_owner BOOLEAN DEFAULT 0 NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT agents_archives_agent_id_archive_id_key UNIQUE (agent_id, archive_id),
    CONSTRAINT agents_archives_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE,
    CONSTRAINT agents_archives_archive_id_fkey FOREIGN KEY(archive_id) REFERENCES archives (id) ON DELETE CASCADE
)
--
CREATE INDEX agents_archives_by_archive ON agents_archives (archive_id)
--
CREATE TABLE agents_tags (
    agent_id VARCHAR NOT NULL,
    tag VARCHAR NOT NULL,
    CONSTRAINT agents_tags_agent_id_tag_key UNIQUE (agent_id, tag),
    CONSTRAINT agents_tags_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE
)
--
CREATE INDEX agents_tags_by_tag ON agents_tags (tag, agent_id)
--
CREATE TABLE agents_tools (
    seq INTEGER NOT NULL,
    agent_id VARCHAR NOT NULL,
    tool_id VARCHAR NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT agents_tools_agent_id_tool_id_key UNIQUE (agent_id, tool_id),
    CONSTRAINT agents_tools_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE,
    CONSTRAINT agents_tools_tool_id_fkey FOREIGN KEY(tool_id) REFERENCES tools (id) ON DELETE CASCADE
)
--
CREATE INDEX agents_tools_by_tool ON agents_tools (tool_id)
--
CREATE TABLE blocks (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    chain_id VARCHAR NOT NULL,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    description TEXT,
    "limit" BIGINT NOT NULL,
    read_only BOOLEAN DEFAULT 0 NOT NULL,
    policy TEXT NOT NULL,
    hidden BOOLEAN DEFAULT 0 NOT NULL,
    metadata JSON DEFAULT '{}' NOT NULL,
    version BIGINT DEFAULT 0 NOT NULL,
    created_by TEXT,
    updated_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT blocks_chain_id_label_key UNIQUE (chain_id, label),
    CONSTRAINT blocks_id_key UNIQUE (id),
    CONSTRAINT blocks_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT blocks_chain_id_fkey FOREIGN KEY(chain_id) REFERENCES chains (id) ON DELETE CASCADE
)
--
CREATE INDEX blocks_by_time ON blocks (organization_id, created_at, seq)
--
CREATE TABLE conversations (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    window JSON DEFAULT '[]' NOT NULL,
    is_default BOOLEAN DEFAULT 0 NOT NULL,
    user_id TEXT,
    summary TEXT,
    prompt_key TEXT NOT NULL,
    message_count BIGINT DEFAULT 0 NOT NULL,
    last_message_at BIGINT,
    last_run_ended_at BIGINT,
    last_run_ms BIGINT,
    last_stop_reason TEXT,
    created_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT conversations_id_key UNIQUE (id),
    CONSTRAINT conversations_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT conversations_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE
)
--
CREATE INDEX conversations_by_agent ON conversations (agent_id, created_at, seq)
--
CREATE UNIQUE INDEX conversations_one_default ON conversations (agent_id) WHERE is_default
--
CREATE TABLE passages (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    archive_id VARCHAR NOT NULL,
    text TEXT NOT NULL,
    tags JSON DEFAULT '[]' NOT NULL,
    metadata JSON DEFAULT '{}' NOT NULL,
    user_id TEXT,
    created_by TEXT,
    step_id TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    CONSTRAINT passages_id_key UNIQUE (id),
    CONSTRAINT passages_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT passages_archive_id_fkey FOREIGN KEY(archive_id) REFERENCES archives (id) ON DELETE CASCADE
)
--
CREATE INDEX passages_by_time ON passages (archive_id, created_at, seq)
--
CREATE TABLE agents_blocks (
    seq INTEGER NOT NULL,
    agent_id VARCHAR NOT NULL,
    block_id VARCHAR NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT agents_blocks_agent_id_block_id_key UNIQUE (agent_id, block_id),
    CONSTRAINT agents_blocks_agent_id_label_key UNIQUE (agent_id, label),
    CONSTRAINT agents_blocks_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE,
    CONSTRAINT agents_blocks_block_id_fkey FOREIGN KEY(block_id) REFERENCES blocks (id) ON DELETE CASCADE
)
--
CREATE INDEX agents_blocks_by_block ON agents_blocks (block_id)
--
CREATE TABLE blocks_tags (
    block_id VARCHAR NOT NULL,
    tag VARCHAR NOT NULL,
    CONSTRAINT blocks_tags_block_id_tag_key UNIQUE (block_id, tag),
    CONSTRAINT blocks_tags_block_id_fkey FOREIGN KEY(block_id) REFERENCES blocks (id) ON DELETE CASCADE
)
--
CREATE INDEX blocks_tags_by_tag ON blocks_tags (tag, block_id)
--
CREATE TABLE messages (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    conversation_id VARCHAR NOT NULL,
    role TEXT NOT NULL,
    parts JSON DEFAULT '[]' NOT NULL,
    text TEXT NOT NULL,
    tool_name TEXT,
    user_id TEXT,
    run_id TEXT,
    step_id TEXT,
    otid TEXT,
    name TEXT,
    sender_id TEXT,
    group_id TEXT,
    model TEXT,
    created_at BIGINT NOT NULL,
    CONSTRAINT messages_conversation_id_otid_key UNIQUE (conversation_id, otid),
    CONSTRAINT messages_id_key UNIQUE (id),
    CONSTRAINT messages_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT messages_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE,
    CONSTRAINT messages_conversation_id_fkey FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
)
--
CREATE INDEX messages_by_agent ON messages (agent_id, created_at, seq)
--
CREATE INDEX messages_by_run ON messages (run_id)
--
CREATE INDEX messages_by_time ON messages (conversation_id, created_at, seq)
--
CREATE TABLE passages_tags (
    passage_id VARCHAR NOT NULL,
    archive_id VARCHAR NOT NULL,
    tag VARCHAR NOT NULL,
    CONSTRAINT passages_tags_passage_id_tag_key UNIQUE (passage_id, tag),
    CONSTRAINT passages_tags_passage_id_fkey FOREIGN KEY(passage_id) REFERENCES passages (id) ON DELETE CASCADE,
    CONSTRAINT passages_tags_archive_id_fkey FOREIGN KEY(archive_id) REFERENCES archives (id) ON DELETE CASCADE
)
--
CREATE INDEX passages_tags_by_tag ON passages_tags (archive_id, tag, passage_id)
--
CREATE TABLE runs (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    conversation_id VARCHAR NOT NULL,
    status TEXT NOT NULL,
    stop_reason TEXT,
    user_id TEXT,
    background BOOLEAN DEFAULT 0 NOT NULL,
    body_hash TEXT,
    request_config JSON DEFAULT '{}' NOT NULL,
    metadata JSON DEFAULT '{}' NOT NULL,
    error JSON,
    prompt_tokens BIGINT DEFAULT 0 NOT NULL,
    completion_tokens BIGINT DEFAULT 0 NOT NULL,
    cached_tokens BIGINT,
    cache_write_tokens BIGINT,
    reasoning_tokens BIGINT,
    step_count BIGINT DEFAULT 0 NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    ttft_ns BIGINT,
    duration_ns BIGINT,
    lease_token TEXT,
    lease_expires_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT runs_id_key UNIQUE (id),
    CONSTRAINT runs_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT runs_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE,
    CONSTRAINT runs_conversation_id_fkey FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
)
--
CREATE INDEX runs_by_agent ON runs (agent_id, created_at, seq)
--
CREATE INDEX runs_by_conversation ON runs (conversation_id, created_at, seq)
--
CREATE INDEX runs_by_time ON runs (organization_id, created_at, seq)
--
CREATE UNIQUE INDEX runs_one_open ON runs (conversation_id) WHERE ended_at IS NULL
--
CREATE TABLE steps (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    conversation_id VARCHAR NOT NULL,
    model TEXT NOT NULL,
    model_handle TEXT NOT NULL,
    provider TEXT NOT NULL,
    model_endpoint TEXT,
    context_window BIGINT,
    status TEXT NOT NULL,
    stop_reason TEXT,
    error JSON,
    prompt_tokens BIGINT DEFAULT 0 NOT NULL,
    completion_tokens BIGINT DEFAULT 0 NOT NULL,
    cached_tokens BIGINT,
    cache_write_tokens BIGINT,
    reasoning_tokens BIGINT,
    created_at BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    model_ns BIGINT,
    tools_ns BIGINT,
    step_ns BIGINT,
    PRIMARY KEY (seq),
    CONSTRAINT steps_id_key UNIQUE (id),
    CONSTRAINT steps_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT steps_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE,
    CONSTRAINT steps_run_id_fkey FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT steps_conversation_id_fkey FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
)
--
CREATE INDEX steps_by_agent ON steps (agent_id, created_at, seq)
--
CREATE INDEX steps_by_run ON steps (run_id, seq)
--
CREATE VIRTUAL TABLE messages_fts USING fts5(text, tokenize = 'porter unicode61 remove_diacritics 2')
--
CREATE VIRTUAL TABLE passages_fts USING fts5(text, tokenize = 'porter unicode61 remove_diacritics 2')
--
INSERT INTO organizations (id, name, created_at) VALUES ('org-00000000-0000-4000-8000-000000000000', 'local', 0)
--
INSERT INTO users (id, organization_id, name, identifier, created_at) VALUES ('user-00000000-0000-4000-8000-000000000000', 'org-00000000-0000-4000-8000-000000000000', 'local', NULL, 0)
