"""Pages of the API at `/docs`, made from the OpenAPI document.

They load nothing from other servers.
"""
