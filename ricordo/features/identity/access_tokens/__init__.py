"""Access tokens: short-lived keys for web pages.

Each is limited to some agents and actions.
"""
