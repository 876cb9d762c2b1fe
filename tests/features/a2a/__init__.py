"""A2A. An agent without a list of its users is everybody's, and so is its door."""

SHARED_ROUTES = """
    POST /v1/agents/<agent_id>/a2a
    GET /v1/agents/<agent_id>/a2a/.well-known/agent-card.json
"""
