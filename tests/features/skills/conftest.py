"""One server with a scripted model, for each module."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ricordo.llm.scripted import call
from tests.seams.databases import on_database
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, serving
from tests.support.sandboxes import bubblewrap

__all__ = ["on_database"]

TOOLS = ("open_skill", "run_skill_script", "propose_skill")


def skill_md(name: str, description: str = "Makes lists.", body: str = "Write the list.") -> str:
    """Return a SKILL.md with this name."""
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n"


class Skills:
    """A server's routes of skills, and an agent with the tools of skills."""

    def __init__(self, server: ServerInThread, http: httpx2.Client) -> None:
        self.server = server
        self.http = http
        self.agent = self.new_agent()

    def new_agent(self, *tools: str) -> str:
        body = {"model": MODEL, "tools": [*TOOLS, *tools]}
        return str(ok(self.http.post("/v1/agents/", json=body))["id"])

    def path(self, user: str) -> str:
        return f"/v1/users/{user}/skills"

    def put(self, path: str, name: str, content: str = "", **body: Any) -> Any:
        sent = {"content": content or skill_md(name), **body}
        return ok(self.http.put(f"{path}/{name}", json=sent))

    def get(self, path: str) -> Any:
        return ok(self.http.get(path))

    def say(self, user: str | None, *calls: Any, agent: str = "") -> list[str]:
        """Let the model make these calls in a turn; return their results."""
        self.server.says(*calls, "Done.")
        headers = {"x-ricordo-user": user} if user else {}
        path = f"/v1/agents/{agent or self.agent}/messages"
        answer = ok(self.http.post(path, json={"input": "Go on."}, headers=headers))
        return [
            message["tool_return"] for message in answer["messages"] if "tool_return" in message
        ]

    def prompt(self, user: str | None = None, agent: str = "") -> str:
        """Return the system prompt of a turn."""
        self.say(user, agent=agent)
        return str(self.server.model.requests[-1].messages[0].text)


def opening(name: str, **more: Any) -> Any:
    return call("open_skill", skill=name, **more)


def proposing(name: str, **more: Any) -> Any:
    return call("propose_skill", skill=name, **{"reason": "It went well.", **more})


def running(name: str, script: str, **more: Any) -> Any:
    return call("run_skill_script", skill=name, script=script, **more)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, on_database: dict[str, Any]
) -> Iterator[ServerInThread]:
    bubblewrap()
    with serving(tmp_path_factory.mktemp("skills"), **on_database) as running_server:
        yield running_server


@pytest.fixture
def skills(server: ServerInThread) -> Iterator[Skills]:
    server.forget()
    with server.http() as http:
        yield Skills(server, http)
