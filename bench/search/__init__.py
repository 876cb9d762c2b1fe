"""What searching takes where much is kept.

One agent and one archive with very many rows, beside a million rows of others.
"""
