"""The database: tables, repositories by noun, migrations, search, and what SQLite alone knows."""
