"""Backups, restores and upgrades of the whole database.

The commands are `ricordo backup`, `ricordo restore` and `ricordo upgrade`; there is a page too.
"""
