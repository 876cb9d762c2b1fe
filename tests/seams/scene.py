"""A running server with scripted models on loopback, and helpers for its suites.

In a test: `scene.says(calls(("roll", {})), "Six.")`, then `scene.send(agent, "Roll!")`, then look
at `scene.asked[-1]`.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from ricordo import app as composition
from ricordo.agents.run_end import close_all
from ricordo.domain.message import Part
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.features import FEATURES
from ricordo.plugins import Plugins, load_plugins
from ricordo.search.index import insert_messages
from ricordo.settings import ProviderSettings
from ricordo.storage import agents, runs, tools
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.seams import make
from tests.seams.server import ServerInThread, StrictLetta, events_of
from tests.support.model_server import Answer, ModelServer, completion, tool_call
from tests.support.server_process import free_port

WAITS = {"type": "requires_approval", "tool_name": "roll"}
OPENAI, CLAUDE = "openai/scripted-1", "anthropic/scripted-1"
Wire = dict[str, Any]


class Games:
    """A plugin with tools for tests; `played` records the calls that really ran."""

    def __init__(self) -> None:
        self.played: list[tuple[str, Any]] = []

    def tools(self) -> Sequence[ServerTool]:
        """A die, a coin, a card, and a tool that fails."""

        def roll(context: ToolContext, sides: int = 6) -> str:
            """Roll a die.

            Args:
                sides: How many sides it has.
            """
            self.played.append(("roll", sides))
            return str(sides)

        def game(name: str, what: str, result: str) -> Any:
            def play(context: ToolContext) -> str:
                self.played.append((name, None))
                if not result:
                    raise ValueError("fell over")
                return result

            play.__name__, play.__doc__ = name, what
            return play

        toss, draw = game("toss", "Toss a coin.", "heads"), game("draw", "Draw a card.", "ace")
        return [
            *(ServerTool(one, "custom", runs_in_parallel=True) for one in (roll, toss, draw)),
            ServerTool(game("stumble", "Fall over.", ""), "custom"),
        ]


def calls(*named: tuple[str, Any], text: str | None = None, **message: Any) -> Answer:
    """Return an answer of OpenAI's format with these parallel calls: names with arguments."""
    made = [
        tool_call(
            name,
            arguments if isinstance(arguments, str) else json.dumps(arguments),
            f"call_{place}_{id(named)}",
        )
        for place, (name, arguments) in enumerate(named)
    ]
    return completion(text, made, **message)


def speech(words: str, **arguments: Any) -> Answer:
    return calls(("send_message", {"message": words, **arguments}))


TOO_LONG = Answer({"error": {"message": "too much", "code": "context_length_exceeded"}}, status=400)
# No other form of the request would avoid this error, so none is tried.
BROKEN = Answer({"error": {"message": "no: the account's billing is inactive"}}, status=400)


@dataclass
class Scene:
    """A server, its model server, clients, and the games that its agents can play."""

    server: ServerInThread
    models: ModelServer
    games: Games
    http: httpx2.Client
    client: StrictLetta

    def says(self, *lines: str | Answer) -> None:
        self.models.push(*(completion(line) if isinstance(line, str) else line for line in lines))

    @property
    def asked(self) -> list[Wire]:
        return [seen.body for seen in self.models.requests if seen.method == "POST"]

    @property
    def played(self) -> list[str]:
        return [name for name, _ in self.games.played]

    def agent(self, *tools: str, **body: Any) -> str:
        """Make an agent with only these tools; it is native by default."""
        given = {
            "model": OPENAI,
            "include_base_tools": False,
            "tools": list(tools),
            "system": "You play.",
        } | body
        return str(_ok(self.http.post("/v1/agents/", json=given)).json()["id"])

    def post(self, agent: str, *said: str | Wire, path: str = "", **body: Any) -> httpx2.Response:
        messages = [
            {"role": "user", "content": one} if isinstance(one, str) else one for one in said
        ]
        headers = body.pop("headers", None)
        sent = {"messages": messages, **body}
        return self.http.post(f"/v1/agents/{agent}/messages{path}", json=sent, headers=headers)

    def send(self, agent: str, *said: str | Wire, **body: Any) -> Wire:
        return dict(_ok(self.post(agent, *said, **body)).json())

    def stream(self, agent: str, *said: str | Wire, **body: Any) -> list[tuple[str | None, Any]]:
        return events_of(_ok(self.post(agent, *said, path="/stream", **body)).text)

    def change(self, agent: str, **body: Any) -> Wire:
        return dict(_ok(self.http.patch(f"/v1/agents/{agent}", json=body)).json())

    def state(self, agent: str) -> Wire:
        return dict(self.http.get(f"/v1/agents/{agent}").json())

    def history(self, agent: str, **query: Any) -> list[Wire]:
        wanted: dict[str, Any] = {"order": "asc", "limit": 1000} | query
        return list(self.http.get(f"/v1/agents/{agent}/messages", params=wanted).json())

    def wait_until_asked(self, before: int = 0) -> None:
        """Return when the model servers got more requests than before."""
        for _ in range(1000):
            if len(self.asked) > before:
                return
            time.sleep(0.005)
        raise AssertionError("the model was not asked in time")

    def asks(
        self, *named: tuple[str, Any], rules: list[Wire] | None = None, **body: Any
    ) -> tuple[str, list[str]]:
        agent = self.agent(
            "roll", "toss", "draw", tool_rules=[WAITS] if rules is None else rules, **body
        )
        self.says(calls(*(named or (("roll", {"sides": 8}),))))
        return agent, pending(self.send(agent, "Play."))

    def require_free(self, agent: str) -> None:
        assert self.state(agent)["pending_approval"] is None
        self.says("Still here.")
        assert said(self.send(agent, "Are you there?"))[-1] == "Still here."

    def kill_after_answer(self, agent: str, *parts: Part, words: str | None = None) -> Run:
        """Leave the database as after a kill between adopting an approval and saving results."""

        def work(tx: Transaction) -> Run:
            state = agents.load_whole(tx, Scope(), agent)
            run = make.run(state.agent)
            runs.open_run(tx, run)
            now = tx.clock.now()
            new = [
                make.message(
                    state.agent, role="approval", parts=parts, run_id=run.id, created_at=now
                )
            ]
            if words:
                new.append(make.message(state.agent, words, run_id=run.id, created_at=now))
            insert_messages(tx, new)
            return run

        return self.server.write(work)

    def set_approval(self, name: str, wanted: bool) -> None:
        """Set whether this tool needs approval, for every agent that gets it."""

        def work(tx: Transaction) -> None:
            tools.lock(tx, Scope())
            (tool,) = tools.find(tx, Scope(), [name], [])
            tools.update(tx, replace(tool, needs_approval=wanted))

        self.server.write(work)

    def restart(self) -> None:
        """Close the runs of the previous server, as a server does at its start."""
        self.server.write(close_all)


def _ok(answer: httpx2.Response) -> httpx2.Response:
    assert answer.status_code == 200, answer.text
    return answer


def pending(answer: Wire) -> list[str]:
    request = next(
        one for one in answer["messages"] if one["message_type"] == "approval_request_message"
    )
    return [call["tool_call_id"] for call in request["tool_calls"]]


def decides(*decisions: tuple[str, bool] | tuple[str, bool, str], **more: Any) -> Wire:
    """Return an approval message with the decision about each call."""
    approvals = [
        {
            "type": "approval",
            "tool_call_id": one[0],
            "approve": one[1],
            "reason": one[2] if len(one) > 2 else None,
        }
        for one in decisions
    ]
    return {"type": "approval", "approvals": approvals, **more}


def kinds(answer: Wire | Sequence[Wire]) -> list[str]:
    messages = answer["messages"] if isinstance(answer, dict) else answer
    return [message["message_type"].removesuffix("_message") for message in messages]


def stopped(answer: Wire) -> str:
    return str(answer["stop_reason"]["stop_reason"])


def said(answer: Wire) -> list[str]:
    return [
        message["content"]
        for message in answer["messages"]
        if message["message_type"] == "assistant_message"
    ]


def returns(answer: Wire | Sequence[Wire]) -> list[tuple[str, str]]:
    messages = answer["messages"] if isinstance(answer, dict) else answer
    found = (message for message in messages if message["message_type"] == "tool_return_message")
    return [
        (one["status"], one["tool_return"]) for message in found for one in message["tool_returns"]
    ]


def roles(body: Wire) -> str:
    return " ".join(message["role"] for message in body["messages"])


def tools_of(body: Wire) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", [])]


@contextmanager
def open_scene(data_dir: Path, **settings: Any) -> Iterator[Scene]:
    games, models, port = Games(), ModelServer(), free_port()
    root = f"http://127.0.0.1:{port}"
    providers = ProviderSettings.model_construct(
        openai_api_key=SecretStr("key-1"),
        openai_base_url=f"{root}/v1",
        anthropic_api_key=SecretStr("key-2"),
        anthropic_base_url=root,
    )
    with pytest.MonkeyPatch.context() as patch:
        loaded = [*load_plugins(FEATURES)._plugins, ("games", games)]
        patch.setattr(composition, "load_plugins", lambda _: Plugins(loaded))
        # A default model that calls no server.
        given = {"model": LIBRARIAN, "model_retries": 0} | settings
        server = ServerInThread(data_dir, providers=providers, **given)
    server.start()
    server.run(models.start(port))
    try:
        with server.http() as http, server.client() as client:
            # Done now, since a request for a list would later use a line of the script.
            http.get("/v1/models/")
            yield Scene(server, models, games, http, client)
    finally:
        server.run(models.stop())
        server.stop()
