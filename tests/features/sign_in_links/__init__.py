"""Tests of invitations and logins by e-mail."""

# Each administrator's own organization.
SHARED_ROUTES = """
    (GET|POST) /ui/invitations
    (GET|POST) /v1/invitations
"""
