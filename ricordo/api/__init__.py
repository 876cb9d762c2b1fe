"""The HTTP API.

A route translates, calls what is left of it, and translates back.
"""
