"""The database: tables, repositories by noun, migrations and the engines."""
