"""The page of schedules: what is sent to each agent, when next, and a button to delete it."""

from typing import Any

from fastapi import Request, Response

from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, render

router = Pages("/ui/schedules", scope="messages")
_EACH = 20  # agents of one page


@router.get("")
async def list_schedules(request: Request) -> Response:
    """The schedules that the caller sees, agent by agent."""
    api, after = Api(request), request.query_params.get("after")
    agents: list[Any] = await api.get("/v1/agents/", limit=_EACH + 1, after=after)
    older = (
        address_of("/ui/schedules", after=agents[_EACH - 1]["id"]) if len(agents) > _EACH else ""
    )
    rows = []
    for agent in agents[:_EACH]:
        found = await api.get(f"/v1/agents/{agent['id']}/schedule", limit=100)
        rows += [
            {**row, "agent": agent, "words": _words(row)} for row in found["scheduled_messages"]
        ]
    # One page may be empty where another is not.
    return await render(
        request,
        "automation.schedules/list.html",
        rows=rows,
        older=older,
        is_all=not (older or after),
    )


@router.post("/{agent_id}/{scheduled_message_id}/delete")
async def delete(request: Request, agent_id: str, scheduled_message_id: str) -> Response:
    """Delete a schedule, so that nothing more is sent by it."""
    await Api(request).ask("DELETE", f"/v1/agents/{agent_id}/schedule/{scheduled_message_id}")
    return done(request, "/ui/schedules", "The schedule was deleted.")


def _words(row: Any) -> str:
    """The first words of the message."""
    content = row["message"]["messages"][0]["content"]
    if isinstance(content, str):
        return content
    return next((part["text"] for part in content if part["type"] == "text"), "A picture")
