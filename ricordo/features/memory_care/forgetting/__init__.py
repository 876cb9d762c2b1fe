"""Forget one thing: list a user's items that say it, and remove the chosen ones.

Decision 0066 gives the reasons.
"""
