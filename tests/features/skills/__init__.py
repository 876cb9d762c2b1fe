"""Skills.

Skills of an agent and of the organization belong to everybody who may write agents.
"""

SHARED_ROUTES = """
    (GET|POST) /v1/(agents/<agent_id>/)?skills
    (GET|PUT|PATCH|DELETE) /v1/(agents/<agent_id>/)?skills/<skill_name>
    GET /v1/(agents/<agent_id>/)?skills/<skill_name>/(history|archive|proposals)
    GET /v1/(agents/<agent_id>/)?skill-proposals
    GET /ui/skills
    (GET|POST) /ui/(skills/organization|agents/<agent_id>/skills)(/<skill_name>)?
"""
