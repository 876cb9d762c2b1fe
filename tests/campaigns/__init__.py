"""Campaigns against a real server.

Kills at random moments, and many clients at once, in their short form.
"""
