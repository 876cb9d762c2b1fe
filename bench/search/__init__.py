"""The cost of searching in large data.

One agent and one archive have very many rows, beside a million rows of others.
"""
