"""Agent cards.

An agent without a list of its users is open to everybody, and so is its card.
"""

SHARED_ROUTES = "GET /v1/agents/<agent_id>/card"
