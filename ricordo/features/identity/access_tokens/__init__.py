"""Access tokens: short-lived keys for pages in browsers.

Each is limited to some agents and actions.
"""
