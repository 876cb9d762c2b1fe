"""Tests of learner state."""

# The page leads to the caller's own skills.
SHARED_ROUTES = "GET /ui/learning"
