ALTER TABLE chains ADD COLUMN files JSON DEFAULT '{}' NOT NULL
--
ALTER TABLE blocks ADD COLUMN head BLOB
--
ALTER TABLE blocks ADD COLUMN title TEXT
--
ALTER TABLE blocks ADD COLUMN schema_ref TEXT
--
ALTER TABLE blocks ADD COLUMN agent_id TEXT
--
ALTER TABLE blocks ADD COLUMN course TEXT
--
ALTER TABLE blocks ADD COLUMN is_untrusted BOOLEAN DEFAULT 0 NOT NULL
--
ALTER TABLE messages ADD COLUMN is_untrusted BOOLEAN DEFAULT 0 NOT NULL
--
ALTER TABLE passages ADD COLUMN is_untrusted BOOLEAN DEFAULT 0 NOT NULL
--
ALTER TABLE steps ADD COLUMN memory JSON DEFAULT '{}' NOT NULL
--
ALTER TABLE steps ADD COLUMN is_untrusted BOOLEAN DEFAULT 0 NOT NULL
--
CREATE TABLE commits (
    seq INTEGER NOT NULL,
    chain_id VARCHAR NOT NULL,
    number BIGINT DEFAULT 0 NOT NULL,
    id BLOB NOT NULL,
    parent BLOB,
    other_parent BLOB,
    label TEXT NOT NULL,
    old_label TEXT,
    blob BLOB,
    author_kind TEXT NOT NULL,
    author_id TEXT NOT NULL,
    author_name TEXT NOT NULL,
    reason TEXT NOT NULL,
    approved_by TEXT,
    proposal_id TEXT,
    run_id TEXT,
    step_id TEXT,
    is_untrusted BOOLEAN DEFAULT 0 NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT commits_chain_id_number_key UNIQUE (chain_id, number),
    CONSTRAINT commits_chain_id_fkey FOREIGN KEY(chain_id) REFERENCES chains (id) ON DELETE CASCADE
)
--
CREATE INDEX commits_by_id ON commits (chain_id, id)
--
CREATE INDEX commits_by_label ON commits (chain_id, label, number)
--
CREATE INDEX commits_by_rename ON commits (chain_id, number) WHERE old_label IS NOT NULL
--
CREATE INDEX commits_by_run ON commits (run_id)
--
CREATE INDEX commits_by_step ON commits (step_id)
--
CREATE TABLE blobs (
    seq INTEGER NOT NULL,
    chain_id VARCHAR NOT NULL,
    id BLOB NOT NULL,
    base BLOB,
    depth BIGINT DEFAULT 0 NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT blobs_chain_id_id_key UNIQUE (chain_id, id),
    CONSTRAINT blobs_chain_id_fkey FOREIGN KEY(chain_id) REFERENCES chains (id) ON DELETE CASCADE
)
--
CREATE TABLE git_objects (
    seq INTEGER NOT NULL,
    chain_id VARCHAR NOT NULL,
    id BLOB NOT NULL,
    kind TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT git_objects_chain_id_id_key UNIQUE (chain_id, id),
    CONSTRAINT git_objects_chain_id_fkey FOREIGN KEY(chain_id) REFERENCES chains (id) ON DELETE CASCADE
)
--
CREATE TABLE proposals (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    chain_id VARCHAR NOT NULL,
    label TEXT NOT NULL,
    new_label TEXT,
    base BLOB,
    base_blob BLOB,
    blob BLOB,
    description TEXT,
    author_kind TEXT NOT NULL,
    author_id TEXT NOT NULL,
    author_name TEXT NOT NULL,
    reasoning TEXT NOT NULL,
    confidence FLOAT,
    status TEXT NOT NULL,
    run_id TEXT,
    step_id TEXT,
    is_untrusted BOOLEAN DEFAULT 0 NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    resolved_at BIGINT,
    resolved_by TEXT,
    note TEXT,
    result BLOB,
    superseded_by TEXT,
    PRIMARY KEY (seq),
    CONSTRAINT proposals_id_key UNIQUE (id),
    CONSTRAINT proposals_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT proposals_chain_id_fkey FOREIGN KEY(chain_id) REFERENCES chains (id) ON DELETE CASCADE
)
--
CREATE INDEX proposals_by_chain ON proposals (chain_id, status, label)
--
CREATE INDEX proposals_by_run ON proposals (run_id)
--
CREATE INDEX proposals_by_step ON proposals (step_id)
--
CREATE TABLE blocks_log (
    seq INTEGER NOT NULL,
    chain_id VARCHAR NOT NULL,
    block_id TEXT NOT NULL,
    changed JSON DEFAULT '{}' NOT NULL,
    author_kind TEXT NOT NULL,
    author_id TEXT NOT NULL,
    author_name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT blocks_log_chain_id_fkey FOREIGN KEY(chain_id) REFERENCES chains (id) ON DELETE CASCADE
)
--
CREATE INDEX blocks_log_by_block ON blocks_log (block_id, seq)
--
CREATE INDEX blocks_log_by_chain ON blocks_log (chain_id, seq)
--
CREATE TABLE memory_remotes (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    chain_id VARCHAR NOT NULL,
    kind TEXT NOT NULL,
    address TEXT NOT NULL,
    settings JSON DEFAULT '{}' NOT NULL,
    followed BIGINT DEFAULT 0 NOT NULL,
    seen TEXT,
    last_error TEXT,
    last_at BIGINT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT memory_remotes_chain_id_kind_address_key UNIQUE (chain_id, kind, address),
    CONSTRAINT memory_remotes_id_key UNIQUE (id),
    CONSTRAINT memory_remotes_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE,
    CONSTRAINT memory_remotes_chain_id_fkey FOREIGN KEY(chain_id) REFERENCES chains (id) ON DELETE CASCADE
)
