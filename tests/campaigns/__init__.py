"""Campaigns against a real server: kills at random moments, and many clients at once, in their short form."""
