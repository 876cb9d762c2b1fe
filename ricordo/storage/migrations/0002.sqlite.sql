CREATE TABLE search_documents (
    space BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (space, chunk)
)
 WITHOUT ROWID
--
CREATE TABLE search_postings (
    space BIGINT NOT NULL,
    term TEXT NOT NULL,
    chunk BIGINT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (space, term, chunk)
)
 WITHOUT ROWID
--
CREATE TABLE search_spaces (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    owner_id VARCHAR NOT NULL,
    kind TEXT NOT NULL,
    documents BIGINT DEFAULT 0 NOT NULL,
    gone BIGINT DEFAULT 0 NOT NULL,
    generation BIGINT DEFAULT 0 NOT NULL,
    embedding TEXT,
    vectors BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT search_spaces_owner_id_key UNIQUE (owner_id)
)
--
CREATE TABLE search_tail (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    owner_id VARCHAR NOT NULL,
    document BIGINT NOT NULL,
    data BLOB NOT NULL
)
--
CREATE INDEX search_tail_by_owner ON search_tail (owner_id, seq)
--
CREATE TABLE search_terms (
    space BIGINT NOT NULL,
    term TEXT NOT NULL,
    PRIMARY KEY (space, term)
)
 WITHOUT ROWID
--
CREATE TABLE search_vectors (
    space BIGINT NOT NULL,
    embedding TEXT NOT NULL,
    chunk BIGINT NOT NULL,
    dimensions BIGINT DEFAULT 0 NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (space, embedding, chunk)
)
 WITHOUT ROWID
--
CREATE TABLE jobs (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    organization_id VARCHAR NOT NULL,
    kind TEXT NOT NULL,
    payload JSON DEFAULT '{}' NOT NULL,
    "key" TEXT,
    is_single BOOLEAN DEFAULT 0 NOT NULL,
    status TEXT NOT NULL,
    attempts BIGINT DEFAULT 0 NOT NULL,
    most_attempts BIGINT DEFAULT 0 NOT NULL,
    not_before BIGINT NOT NULL,
    worker TEXT,
    heartbeat_at BIGINT,
    progress JSON DEFAULT '{}' NOT NULL,
    error JSON,
    user_id TEXT,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    ended_at BIGINT,
    PRIMARY KEY (seq),
    CONSTRAINT jobs_id_key UNIQUE (id),
    CONSTRAINT jobs_organization_id_fkey FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
)
--
CREATE INDEX jobs_by_key ON jobs ("key", status)
--
CREATE INDEX jobs_by_time ON jobs (organization_id, created_at, seq)
--
CREATE INDEX jobs_by_turn ON jobs (status, not_before)
--
CREATE UNIQUE INDEX jobs_one_running ON jobs ("key") WHERE status = 'running'
--
CREATE UNIQUE INDEX jobs_one_waiting ON jobs (kind, "key") WHERE is_single AND status = 'waiting'
