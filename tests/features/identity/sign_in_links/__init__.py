"""Tests of invitations and logins by e-mail."""

# Each administrator's own organization.
SHARED_ROUTES = """
    GET /ui/invitations
    GET /v1/invitations
"""
