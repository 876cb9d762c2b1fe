"""AG-UI.

An agent without a list of its users is open to everybody, and so are its runs.
"""

SHARED_ROUTES = "POST /v1/agents/<agent_id>/ag-ui"
