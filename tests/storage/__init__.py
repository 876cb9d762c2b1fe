"""Tests of ricordo/storage, on a temporary SQLite file."""
