"""A running server whose models are scripted servers on loopback, and short words for what the suites do with it.

In a test: `scene.says(calls(("roll", {})), "Six.")`, then `scene.send(agent, "Roll!")`, then look at `scene.asked[-1]`.
"""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from ricordo import app as composition
from ricordo.features import FEATURES
from ricordo.plugins import Plugins, load_plugins
from ricordo.settings import ProviderSettings
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.seams.server import LIMIT, ServerInThread, StrictLetta, events_of
from tests.support.model_server import Answer, ModelServer, completion, tool_call

OPENAI, CLAUDE = "openai/scripted-1", "anthropic/scripted-1"
Wire = dict[str, Any]


class Games:
    """A plugin with tools to play with; `played` remembers what was really run."""

    def __init__(self) -> None:
        self.played: list[tuple[str, Any]] = []

    def tools(self) -> Sequence[ServerTool]:
        def roll(context: ToolContext, sides: int = 6) -> str:
            """Roll a die.

            Args:
                sides: How many sides it has.
            """
            self.played.append(("roll", sides))
            return str(sides)

        def toss(context: ToolContext) -> str:
            """Toss a coin."""
            self.played.append(("toss", None))
            return "heads"

        def draw(context: ToolContext) -> str:
            """Draw a card."""
            self.played.append(("draw", None))
            return "ace"

        def stumble(context: ToolContext) -> str:
            """Fall over."""
            self.played.append(("stumble", None))
            raise ValueError("fell over")

        def launch(context: ToolContext) -> str:
            """Launch a rocket."""
            self.played.append(("launch", None))
            return "launched"

        return [
            *(ServerTool(one, "custom", runs_in_parallel=True) for one in (roll, toss, draw)),
            ServerTool(stumble, "custom"),
            ServerTool(launch, "custom", acts_outside=True),
        ]


def calls(*named: tuple[str, Any], text: str | None = None, **message: Any) -> Answer:
    """An answer of OpenAI's format with these calls at once: names with arguments."""
    made = [
        tool_call(name, arguments if isinstance(arguments, str) else json.dumps(arguments), f"call_{place}_{id(named)}")
        for place, (name, arguments) in enumerate(named)
    ]
    return completion(text, made, **message)


def speech(words: str, **arguments: Any) -> Answer:
    """A call of `send_message`."""
    return calls(("send_message", {"message": words, **arguments}))


TOO_LONG = Answer({"error": {"message": "too much", "code": "context_length_exceeded"}}, status=400)
BROKEN = Answer({"error": {"message": "no"}}, status=400)


def faults_of(body: Wire) -> list[str]:
    """What a provider would refuse in a request: calls without results, results without calls, of both formats."""
    return _claude_faults(body["messages"]) if "max_tokens" in body and "system" in body else _openai_faults(body)


def _openai_faults(body: Wire) -> list[str]:
    faults: list[str] = []
    open_calls: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                faults.append(f"a result without its call: {message['tool_call_id']}")
            open_calls.discard(message["tool_call_id"])
            continue
        faults += [f"a call without its result: {one}" for one in open_calls]
        open_calls = {one["id"] for one in message.get("tool_calls") or ()}
        if message["role"] == "assistant" and not (message.get("content") or open_calls):
            faults.append("an empty message of the assistant's")
    return faults + [f"a call without its result: {one}" for one in open_calls]


def _claude_faults(messages: Sequence[Wire]) -> list[str]:
    faults: list[str] = []
    open_calls: set[str] = set()
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else []
        given = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if given != open_calls:
            faults.append(f"results {given} for calls {open_calls}")
        open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
    return faults + [f"a call without its result: {one}" for one in open_calls]


class ModelServerInThread:
    """The scripted model server in a thread of its own, so that it answers while a test waits."""

    def __init__(self) -> None:
        self.scripted = ModelServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.scripted.start(), self._loop).result(LIMIT)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.scripted.stop(), self._loop).result(LIMIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()


@dataclass
class Scene:
    """A server, its model server, clients, and the games that its agents can play."""

    server: ServerInThread
    models: ModelServer
    games: Games
    http: httpx2.Client
    client: StrictLetta

    def says(self, *lines: str | Answer) -> None:
        """What the model servers answer next."""
        self.models.push(*(completion(line) if isinstance(line, str) else line for line in lines))

    @property
    def asked(self) -> list[Wire]:
        """The bodies of all requests that a model server got."""
        return [seen.body for seen in self.models.requests if seen.method == "POST"]

    @property
    def played(self) -> list[str]:
        """The names of the games that were really played."""
        return [name for name, _ in self.games.played]

    def agent(self, *tools: str, **body: Any) -> str:
        """Make an agent, a native one unless told otherwise, with these tools and no others unless told otherwise."""
        given = {"model": OPENAI, "include_base_tools": False, "tools": list(tools), "system": "You play."} | body
        answer = self.http.post("/v1/agents/", json=given)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def post(self, agent: str, *said: str | Wire, **body: Any) -> httpx2.Response:
        """Send messages to the agent: what a user says, or whole messages as on the wire."""
        messages = [{"role": "user", "content": one} if isinstance(one, str) else one for one in said]
        headers = body.pop("headers", None)
        return self.http.post(f"/v1/agents/{agent}/messages", json={"messages": messages, **body}, headers=headers)

    def send(self, agent: str, *said: str | Wire, **body: Any) -> Wire:
        """The same, where it has to go well: the whole answer."""
        answer = self.post(agent, *said, **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def stream(self, agent: str, *said: str | Wire, **body: Any) -> list[tuple[str | None, Any]]:
        """The same as server-sent events."""
        messages = [{"role": "user", "content": one} if isinstance(one, str) else one for one in said]
        answer = self.http.post(f"/v1/agents/{agent}/messages/stream", json={"messages": messages, **body})
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    def change(self, agent: str, **body: Any) -> Wire:
        """Change the agent."""
        answer = self.http.patch(f"/v1/agents/{agent}", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def state(self, agent: str) -> Wire:
        """The agent as it is shown."""
        return dict(self.http.get(f"/v1/agents/{agent}").json())

    def history(self, agent: str, **query: Any) -> list[Wire]:
        """Every message of the agent's thread as it is shown, oldest first."""
        wanted: dict[str, Any] = {"order": "asc", "limit": 1000} | query
        return list(self.http.get(f"/v1/agents/{agent}/messages", params=wanted).json())


def kinds(answer: Wire | Sequence[Wire]) -> list[str]:
    """The types of the messages in an answer or a list, shortened: `tool_call`, `assistant`."""
    messages = answer["messages"] if isinstance(answer, dict) else answer
    return [message["message_type"].removesuffix("_message") for message in messages]


def stopped(answer: Wire) -> str:
    """Why a turn ended."""
    return str(answer["stop_reason"]["stop_reason"])


def said(answer: Wire) -> list[str]:
    """What the agent said."""
    return [message["content"] for message in answer["messages"] if message["message_type"] == "assistant_message"]


def returns(answer: Wire | Sequence[Wire]) -> list[tuple[str, str]]:
    """The results of calls, in order: status and text."""
    messages = answer["messages"] if isinstance(answer, dict) else answer
    found = (message for message in messages if message["message_type"] == "tool_return_message")
    return [(one["status"], one["tool_return"]) for message in found for one in message["tool_returns"]]


def roles(body: Wire) -> str:
    """The roles of a request's messages, in order."""
    return " ".join(message["role"] for message in body["messages"])


def tools_of(body: Wire) -> list[str]:
    """The names of the tools that a request offers."""
    return [tool["function"]["name"] for tool in body.get("tools", [])]


@contextmanager
def open_scene(data_dir: Path, **settings: Any) -> Iterator[Scene]:
    """A scene, torn down on leaving."""
    games, models = Games(), ModelServerInThread()
    models.start()
    providers = ProviderSettings.model_construct(
        openai_api_key=SecretStr("key-1"),
        openai_base_url=models.scripted.url,
        anthropic_api_key=SecretStr("key-2"),
        anthropic_base_url=models.scripted.root,
    )
    with pytest.MonkeyPatch.context() as patch:
        loaded = [*load_plugins(FEATURES)._plugins, ("games", games)]
        patch.setattr(composition, "load_plugins", lambda _: Plugins(loaded))
        server = ServerInThread(data_dir, providers=providers, model_retries=0, **settings)
        server.start()
    try:
        with server.http() as http, server.client() as client:
            http.get("/v1/models/")  # now, since a list would take a line of the script otherwise
            yield Scene(server, models.scripted, games, http, client)
    finally:
        server.stop()
        models.stop()
