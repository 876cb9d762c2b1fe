"""Send messages of users and agents to Honcho, and ask it questions about users.

Honcho is used only if it is configured.
"""
