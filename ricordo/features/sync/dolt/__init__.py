"""Dolt databases as remotes of a user's memory.

They have versions, and are on a Dolt server or in a file of doltlite.
"""
