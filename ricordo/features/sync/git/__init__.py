"""Git access to a user's memory, and git repositories elsewhere as remotes.

Users clone, fetch and push their memory.
"""
