"""Typed memory: blocks with fields, and users' memory for programs without a server.

Programs import `blocks`, `manager`, `rotation`, `client` and `user_blocks` of this package. It adds
nothing to a server.
"""
