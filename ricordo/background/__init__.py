"""Background work: jobs are claimed from the database, run, and retried."""
