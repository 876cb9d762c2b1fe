"""Forget one fact: list the user's items that mention it, and remove the chosen ones.

Decision 0066 gives the reasons.
"""
