"""Tests of guardians."""

# They list the caller's own students.
SHARED_ROUTES = "GET (/v1/guardian/students|/ui/guardian)"
