"""The HTTP API.

A route translates the request, calls the core, and translates the result back.
"""
