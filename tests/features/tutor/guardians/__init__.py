"""Tests of guardians."""

# These routes list the caller's own students.
SHARED_ROUTES = "GET (/v1/guardian/students|/ui/guardian)"
