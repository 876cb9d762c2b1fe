"""Remotes: git repositories, databases and other copies in sync with a user's memory."""
