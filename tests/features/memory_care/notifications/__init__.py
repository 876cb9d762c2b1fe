"""Tests of notifications."""

# Each caller's own choice, and an organization's.
SHARED_ROUTES = """
    (GET|POST) /ui/notifications
    (GET|PATCH) /v1/notifications
    GET /v1/notifications/decisions
"""
