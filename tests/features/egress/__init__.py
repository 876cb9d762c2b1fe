"""Egress policies: which provider may see which text."""

SHARED_ROUTES = "GET /v1/agents/<agent_id>/egress"
