DROP INDEX commits_by_id
--
DROP INDEX commits_by_label
--
DROP INDEX commits_by_rename
--
DROP INDEX commits_by_run
--
DROP INDEX commits_by_step
--
ALTER TABLE commits RENAME TO old_commits
--
ALTER TABLE blobs RENAME TO old_blobs
--
ALTER TABLE git_objects RENAME TO old_git_objects
--
CREATE TABLE commits (
    seq INTEGER NOT NULL,
    chain BIGINT NOT NULL,
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
    run_id BLOB,
    step_id BLOB,
    is_untrusted BOOLEAN DEFAULT 0 NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT commits_chain_number_key UNIQUE (chain, number),
    CONSTRAINT commits_chain_fkey FOREIGN KEY(chain) REFERENCES chains (seq) ON DELETE CASCADE
)
--
CREATE TABLE blobs (
    seq INTEGER NOT NULL,
    chain BIGINT NOT NULL,
    id BLOB NOT NULL,
    base BLOB,
    depth BIGINT DEFAULT 0 NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT blobs_chain_id_key UNIQUE (chain, id),
    CONSTRAINT blobs_chain_fkey FOREIGN KEY(chain) REFERENCES chains (seq) ON DELETE CASCADE
)
--
CREATE TABLE git_objects (
    seq INTEGER NOT NULL,
    chain BIGINT NOT NULL,
    id BLOB NOT NULL,
    kind TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT git_objects_chain_id_key UNIQUE (chain, id),
    CONSTRAINT git_objects_chain_fkey FOREIGN KEY(chain) REFERENCES chains (seq) ON DELETE CASCADE
)
--
ALTER TABLE blocks_log ADD COLUMN deleted_label TEXT
