"""Typed memory: blocks with fields, for programs that use Ricordo.

Programs import `blocks`, `manager`, `rotation` and `client` of this package. It adds nothing to a
server.
"""
