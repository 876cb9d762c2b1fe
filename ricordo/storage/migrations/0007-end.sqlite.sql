CREATE INDEX commits_by_id ON commits (chain, id)
--
CREATE INDEX commits_by_label ON commits (chain, label, number)
--
CREATE INDEX commits_by_rename ON commits (chain, number) WHERE old_label IS NOT NULL
--
CREATE INDEX commits_by_run ON commits (run_id)
--
CREATE INDEX blocks_log_by_deletion ON blocks_log (chain_id, deleted_label, seq) WHERE deleted_label IS NOT NULL
--
DROP TABLE old_commits
--
DROP TABLE old_blobs
--
DROP TABLE old_git_objects
