"""The cost of searching in large data.

One agent and one archive have very many rows, and all others together have a million rows.
"""
