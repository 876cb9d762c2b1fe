"""The cost of searching in large data.

One agent and one archive have very many rows, and others have a million rows.
"""
