"""Agents that talk with each other, each with scripted lines.

One model plays all agents of a test's server, and tells them apart by their prompts.
"""

import ast
import re
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line, call
from tests.seams.http import Wire, ok
from tests.seams.server import MODEL, ServerInThread

LineOf = Callable[[ModelRequest], Line | Awaitable[Line]]
WAITS, TAGS, ASYNC = (
    "send_message_to_agent_and_wait_for_reply",
    "send_message_to_agents_matching_tags",
    "send_message_to_agent_async",
)
ALL = (WAITS, TAGS, ASYNC)


class Cast:
    """Makes agents by name and lets them say their lines; an agent without a line says "ok"."""

    def __init__(self, server: ServerInThread, http: httpx2.Client) -> None:
        self.server, self.http = server, http
        self.ids: dict[str, str] = {}
        self.requests: dict[str, list[ModelRequest]] = defaultdict(list)
        self._lines: dict[str, deque[Line | LineOf]] = defaultdict(deque)
        server.answers_with(self._line)

    def agent(self, name: str, *tools: str, **body: Any) -> str:
        given = {
            "name": name,
            "system": f"You are {name}.",
            "model": MODEL,
            "include_base_tools": False,
        }
        self.ids[name] = ok(
            self.http.post("/v1/agents/", json=given | {"tools": list(tools)} | body)
        )["id"]
        return self.ids[name]

    def says(self, name: str, *lines: Line | LineOf) -> None:
        self._lines[name].extend(lines)

    def asks(
        self, name: str, other: str, message: str = "What is it?", then: str = "Done."
    ) -> None:
        """Let the agent ask another one, and answer once it has the result."""
        self.says(
            name, call(WAITS, message=message, other_agent_id=self.ids.get(other, other)), then
        )

    def send(self, name: str, text: str = "Hello.", **options: Any) -> Wire:
        body = {"messages": [{"role": "user", "content": text}]}
        answer: Wire = ok(
            self.http.post(f"/v1/agents/{self.ids[name]}/messages", json=body, **options)
        )
        return answer

    def returned(self, name: str, text: str = "Hello.", **options: Any) -> list[tuple[str, str]]:
        """Send a message to the agent; return the status and text of each of its tool results."""
        return returns(self.send(name, text, **options)["messages"])

    def messages(self, name: str, **options: Any) -> list[Wire]:
        query = {"params": {"order": "asc", "limit": 1000}} | options
        listed: list[Wire] = ok(self.http.get(f"/v1/agents/{self.ids[name]}/messages", **query))
        return listed

    def incoming(self, name: str, **options: Any) -> list[str]:
        """Return the messages that this agent got from others."""
        read = [
            one for one in self.messages(name, **options) if one["message_type"] == "system_message"
        ]
        return [
            one["content"]
            for one in read
            if one["content"].startswith("[Incoming message from agent")
        ]

    def _line(self, request: ModelRequest) -> Line | Awaitable[Line]:
        named = re.match(r"You are (.+?)\.", request.messages[0].text)
        assert named, request.messages[0].text[:200]
        name = named.group(1)
        self.requests[name].append(request)
        line = self._lines[name].popleft() if self._lines[name] else "ok"
        return line(request) if callable(line) else line


def returns(messages: Sequence[Wire]) -> list[tuple[str, str]]:
    read = [one for one in messages if one["message_type"] == "tool_return_message"]
    return [(one["status"], one["tool_return"]) for one in read]


def answer_in(result: tuple[str, str]) -> Any:
    """Return the answer in a successful result, as clients read it."""
    status, text = result
    assert status == "success", text
    return ast.literal_eval(text)
