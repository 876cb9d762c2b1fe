"""Forget one thing: list the user's items that mention it, and remove the chosen items.

Decision 0066 gives the reasons.
"""
