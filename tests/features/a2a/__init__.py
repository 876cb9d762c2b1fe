"""A2A.

An agent without a list of its users is open to everybody, and so are its A2A routes.
"""

SHARED_ROUTES = """
    POST /v1/agents/<agent_id>/a2a
    GET /v1/agents/<agent_id>/a2a/.well-known/agent-card.json
"""
