"""Questions about a user, answered from all stored data with citations.

The answer cites messages and lines of memory.
"""
