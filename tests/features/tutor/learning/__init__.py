"""Tests of learner state."""

# The page leads to the caller's own.
SHARED_ROUTES = "GET /ui/learning"
