"""Dolt databases as remotes of a user's memory.

Such a database keeps versions. It is on a Dolt server, or in a file of doltlite.
"""
