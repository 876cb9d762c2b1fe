"""Tests of invitations and logins by e-mail."""

# These routes list the invitations of the administrator's own organization.
SHARED_ROUTES = """
    GET /ui/invitations
    GET /v1/invitations
"""
