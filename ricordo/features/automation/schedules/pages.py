"""The page of schedules with their next times, and a button to delete one."""

from typing import Any

from fastapi import Request, Response

from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, render

router = Pages("/ui/schedules", scope="messages")
_AGENTS_PER_PAGE = 20
_SCHEDULE_LIMIT = 100  # of one agent


@router.get("")
async def list_schedules(request: Request) -> Response:
    """Show the schedules that the caller sees, agent by agent."""
    api = Api(request)
    after = request.query_params.get("after")
    # Read one more agent than the page shows, which tells if there is another page.
    agents: list[Any] = await api.get("/v1/agents/", limit=_AGENTS_PER_PAGE + 1, after=after)
    has_more = len(agents) > _AGENTS_PER_PAGE
    agents = agents[:_AGENTS_PER_PAGE]
    older = address_of("/ui/schedules", after=agents[-1]["id"]) if has_more else ""
    rows = []
    for agent in agents:
        page = await api.get(f"/v1/agents/{agent['id']}/schedule", limit=_SCHEDULE_LIMIT)
        rows += [
            {**row, "agent": agent, "words": _first_text(row)} for row in page["scheduled_messages"]
        ]
    # A page may be empty although another page has schedules.
    return await render(
        request,
        "automation.schedules/list.html",
        rows=rows,
        older=older,
        is_all=not (older or after),
    )


@router.post("/{agent_id}/{scheduled_message_id}/delete")
async def delete(request: Request, agent_id: str, scheduled_message_id: str) -> Response:
    """Delete a schedule, so that it sends nothing any more."""
    await Api(request).ask("DELETE", f"/v1/agents/{agent_id}/schedule/{scheduled_message_id}")
    return done(request, "/ui/schedules", "The schedule was deleted.")


def _first_text(row: Any) -> str:
    """Return the first text of the message."""
    content = row["message"]["messages"][0]["content"]
    if isinstance(content, str):
        return content
    return next((part["text"] for part in content if part["type"] == "text"), "A picture")
