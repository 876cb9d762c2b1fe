"""Work without a request: jobs that are taken from the database, done, and tried again."""
