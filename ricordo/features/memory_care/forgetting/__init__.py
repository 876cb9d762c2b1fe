"""Forget one thing: find what says it about a user, show the list, remove the chosen.

Decision 0066 gives the reasons.
"""
