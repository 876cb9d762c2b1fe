"""The tables, written once for both databases.

A change here is also a new numbered migration.
"""
