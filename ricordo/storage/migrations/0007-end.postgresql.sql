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
SELECT setval('commits_seq_seq', last_value, is_called) FROM old_commits_seq_seq
--
SELECT setval('blobs_seq_seq', last_value, is_called) FROM old_blobs_seq_seq
--
SELECT setval('git_objects_seq_seq', last_value, is_called) FROM old_git_objects_seq_seq
--
DROP TABLE old_commits
--
DROP TABLE old_blobs
--
DROP TABLE old_git_objects
--
DO $$
DECLARE
    found record;
BEGIN
    -- From version 18 on these constraints have names too, and the old tables had the plain ones.
    FOR found IN
        SELECT conrelid::regclass AS owner, conname FROM pg_constraint
        WHERE conrelid IN ('commits'::regclass, 'blobs'::regclass, 'git_objects'::regclass) AND conname LIKE '%\_not\_null1'
    LOOP
        EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', found.owner, found.conname, rtrim(found.conname, '1'));
    END LOOP;
END $$
