"""The HTTP API, over HTTP."""
