"""The HTTP API.

HTTP API: a route translates the request, calls the core, and translates the result back.
"""
