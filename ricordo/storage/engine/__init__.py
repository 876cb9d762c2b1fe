"""The engine: stores on SQLite and PostgreSQL, statements, backups, and how repositories use them."""
