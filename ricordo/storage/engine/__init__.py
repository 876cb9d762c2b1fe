"""The engine: stores on SQLite and PostgreSQL, statements, backups and repositories."""
