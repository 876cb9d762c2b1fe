"""Tests of notifications."""

# These routes show the settings of the caller or of an organization.
SHARED_ROUTES = """
    (GET|POST) /ui/notifications
    (GET|PATCH) /v1/notifications
    GET /v1/notifications/decisions
"""
