"""Egress policies: what which provider may see."""

SHARED_ROUTES = "GET /v1/agents/<agent_id>/egress"
