"""Honcho: it gets the messages of users and agents, and answers questions about users.

It is used only if it is configured.
"""
