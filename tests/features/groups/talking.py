"""Groups of agents that talk, and a model that knows which agent it plays."""

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from ricordo.domain.ids import new_id
from ricordo.domain.message import Part, ReasoningPart, TextPart
from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import Scope
from ricordo.features.groups import queries
from ricordo.features.groups.records import Group
from ricordo.llm.scripted import Line
from tests.api.conftest import Api
from tests.seams.server import MODEL

_NUMBERS = count(1)
_SPEAKER = re.compile(r"You are (.+?) in a group chat")


def new_agent(api: Api, name: str, **more: Any) -> str:
    """Make an agent without a persona; return its id."""
    return api.client.agents.create(name=name, model=MODEL, **more).id


def new_group(api: Api, kind: str, members: Sequence[str], **more: Any) -> str:
    """Make a group of these agents; return its id."""
    group = Group(new_id("group"), Scope().organization_id, kind, agent_ids=tuple(members), **more)  # type: ignore[arg-type]
    api.server.write(lambda tx: queries.insert_group(tx, group))
    return group.id


def panel(api: Api, *names: str, **more: Any) -> tuple[str, dict[str, str]]:
    """Make a round robin of new agents with these names; return its id, and theirs by name."""
    agents = {name: new_agent(api, name) for name in names}
    return new_group(api, "round_robin", list(agents.values()), **more), agents


def speaker_of(request: ModelRequest) -> str:
    """Return the name of the member that the model plays.

    It is empty for the manager and outside of groups.
    """
    found = _SPEAKER.search(request.messages[0].text)
    return found[1] if found else ""


def aloud(text: str) -> Sequence[Part]:
    """Return a reply with a thought before it."""
    return (ReasoningPart("I think."), TextPart(text))


def speaking(
    *, manager: Callable[[ModelRequest], Line] | None = None
) -> Callable[[ModelRequest], Line]:
    """Return a model that says who speaks, and the number of the turn."""

    def answer(request: ModelRequest) -> Line:
        name = speaker_of(request)
        if not name and manager:
            return manager(request)
        return aloud(f"{name} says {next(_NUMBERS)}")

    return answer


def say(api: Api, group_id: str, text: str = "Hello all.", **more: Any) -> dict[str, Any]:
    """Send a message to the group and return the answer."""
    body = {"messages": [{"role": "user", "content": text, **more.pop("message", {})}], **more}
    response = api.http.post(f"/v1/groups/{group_id}/messages", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def group_messages(api: Api, agent_id: str, group_id: str) -> list[dict[str, Any]]:
    """Return an agent's messages of the group, oldest first."""
    response = api.http.get(
        f"/v1/agents/{agent_id}/messages", params={"group_id": group_id, "order": "asc"}
    )
    assert response.status_code == 200, response.text
    messages: list[dict[str, Any]] = response.json()
    return messages


def names_of(answer: dict[str, Any]) -> list[str]:
    """Return who spoke, in order."""
    return [one["name"] for one in answer["messages"] if one["message_type"] == "assistant_message"]
