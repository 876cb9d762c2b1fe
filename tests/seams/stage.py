"""A runtime on a real database with a scripted model, and helpers for tests of turns."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, create_agent
from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.turn import Answer, collect, run_turn
from ricordo.api.wire import ApiFormat
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.event import Event, StepSaved
from ricordo.domain.message import Message, TextPart
from ricordo.domain.model import ModelRequest
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import ModelError
from ricordo.llm.registry.models import Models
from ricordo.llm.scripted import (
    Line,
    ScriptedModel,
    call,  # noqa: F401 - for tests
)
from ricordo.plugins import Plugins
from ricordo.prompt.texts import text as prompt_text  # noqa: F401 - for tests
from ricordo.runtime import LiveTurn, Runtime
from ricordo.sandbox.service import Sandbox
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import agents, blocks, conversations, messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import SqlStore
from ricordo.tools.builtin import TOOLS
from ricordo.tools.toolbox import ServerTool, Toolbox, ToolRunner, sync_tools

T = TypeVar("T")
LIMIT = 180  # seconds that anything here may take
LineOf = Callable[[ModelRequest], Line | Awaitable[Line]]


class Gate:
    """A gate in a script or a tool.

    It reports when somebody reaches it, and holds them until it is opened.
    """

    def __init__(self) -> None:
        self.shut()

    def shut(self) -> None:
        self._reached, self._opened = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        await soon(self._reached.wait())

    def open(self) -> None:
        self._opened.set()

    def line(self, line: Line) -> LineOf:
        """Return a line of a script that the model says once the gate is open."""

        async def wait(_request: ModelRequest) -> Line:
            await self.pass_through()
            return line

        return wait


@dataclass
class Hooks:
    """A plugin whose hooks a test sets."""

    offered: Sequence[ServerTool] = ()
    runners: Sequence[ToolRunner] = ()
    ended: list[Run] = field(default_factory=list)
    fails: bool = False

    def tools(self) -> Sequence[ServerTool]:
        return self.offered

    def tool_runners(self, _settings: Settings, _sandbox: Sandbox) -> Sequence[ToolRunner]:
        return self.runners

    async def after_turn(self, _runtime: Runtime, run: Run) -> None:
        self.ended.append(run)
        if self.fails:
            raise RuntimeError("The plugin is broken.")


# The tools are made once, since building the models of their arguments takes longer than most
# tests.
BUILTIN = Hooks(TOOLS)


class Stage:
    """A runtime with a model that says one of the `lines` for each call.

    A line may be a function of the request.
    """

    def __init__(self, store: SqlStore, folder: Path, hooks: Hooks) -> None:
        self.lines: deque[Line | LineOf] = deque()
        self.store = store
        self.hooks = hooks
        self.model = ScriptedModel(self._next)
        # Built without reading the environment: reading it takes longer than a turn, and its values
        # must not matter.
        settings = Settings.model_construct(data_dir=folder, find_local_models=False)
        models = Models(settings, ProviderSettings.model_construct())
        models.add(self.model)
        plugins = Plugins([("builtin", BUILTIN), ("hooks", hooks)])
        sandbox = Sandbox(settings)
        self.runtime = Runtime(
            settings,
            store,
            models,
            Toolbox(plugins.tools(), plugins.tool_runners(settings, sandbox)),
            plugins,
            sandbox,
            wire=ApiFormat(),
        )

    async def open(self) -> "Stage":
        await self.store.write(lambda tx: sync_tools(tx, Scope(), self.runtime.toolbox))
        return self

    async def close(self) -> None:
        await asyncio.gather(*(turn.cancel() for turn in list(self.runtime.live.values())))
        await self.runtime.sandbox.close()
        await self.runtime.models.close()

    async def agent(self, *with_blocks: tuple[str, str], **spec: Any) -> str:
        """Make an agent with these blocks and the base tools; returns its id."""
        specs = tuple(BlockSpec(label, value) for label, value in with_blocks)
        defaults: dict[str, Any] = {
            "model": "scripted/model",
            "blocks": specs,
            "system": "You remember.",
        }
        return (await create_agent(self.runtime, Scope(), AgentSpec(**defaults | spec))).agent.id

    async def begin(
        self, agent_id: str, *texts: str, otids: Sequence[str] = (), **request: Any
    ) -> LiveTurn:
        """Send messages, by default "Hello."; `otids` belong to them one by one."""
        new = []
        for place, words in enumerate(texts or ("Hello.",)):
            new.append(
                NewMessage("user", (TextPart(words),), otids[place] if place < len(otids) else None)
            )
        scope = request.pop("scope", Scope())
        return await soon(run_turn(self.runtime, turn_request(scope, agent_id, *new, **request)))

    async def asked(
        self, agent_id: str, *texts: str, line: Line = "Here.", **request: Any
    ) -> tuple[LiveTurn, Gate]:
        """Send messages; return when the model is called, which answers after the gate opens."""
        gate = Gate()
        self.lines.append(gate.line(line))
        turn = await self.begin(agent_id, *texts, **request)
        await gate.reached()
        return turn, gate

    async def say(self, agent_id: str, *texts: str, **request: Any) -> Answer:
        return await soon(collect(await self.begin(agent_id, *texts, **request)))

    async def send(self, agent_id: str, *new: NewMessage) -> Answer:
        return await soon(
            collect(await run_turn(self.runtime, TurnRequest(Scope(), agent_id, new)))
        )

    async def state(self, agent_id: str) -> AgentState:
        return await self.store.read(lambda tx: agents.load(tx, Scope(), agent_id))

    async def thread(self, agent_id: str) -> Conversation:
        return (await self.state(agent_id)).conversation

    async def history(self, agent_id: str) -> list[Message]:
        thread, wanted = conversations.default_id(agent_id), Page(limit=1000, order="asc")
        return await self.store.read(
            lambda tx: messages.page(tx, Scope(), wanted, conversation_id=thread)
        )

    async def runs(self, agent_id: str) -> list[Run]:
        wanted = Page(limit=1000, order="asc")
        return await self.store.read(
            lambda tx: runs.page(tx, Scope(), wanted, agent_ids=[agent_id])
        )

    async def block(self, agent_id: str, label: str) -> str:
        held = await self.store.read(lambda tx: blocks.of_agent(tx, agent_id))
        return next(block.value for block in held if block.label == label)

    async def require_sound(self, agent_id: str) -> None:
        """Check the rules that hold between any two turns of an agent.

        Nothing runs, all messages are in the window in order, and the next message is answered.
        """
        assert [run.id for run in await self.runs(agent_id) if run.ended_at is None] == []
        await self.require_whole_window(agent_id)
        self.lines.clear()
        self.lines.append("Still here.")
        assert text_of(await self.say(agent_id, "Are you there?")) == "Still here."
        faults = faults_of(self.model.requests[-1].messages)
        assert faults == []

    async def require_whole_window(self, agent_id: str) -> None:
        history, thread = await self.history(agent_id), await self.thread(agent_id)
        assert list(thread.window) == [message.id for message in history]
        assert thread.message_count == len(history)

    def _next(self, request: ModelRequest) -> Line | Awaitable[Line]:
        if not self.lines:
            return ModelError("llm_error", "The script is at its end.")
        line = self.lines.popleft()
        return line(request) if callable(line) else line


def turn_request(scope: Scope, agent_id: str, *new: NewMessage, **fields: Any) -> TurnRequest:
    """Return a turn request, with each field in the part that has it."""
    parts = [
        kind(**{name: fields.pop(name) for name in kind.__slots__ if name in fields})
        for kind in (TurnOverrides, TurnDelivery)
    ]
    return TurnRequest(scope, agent_id, new, overrides=parts[0], delivery=parts[1], **fields)


def text_of(answer: Answer) -> str:
    return "\n".join(message.text for message in answer.messages if message.text)


def faults_of(transcript: Sequence[Message]) -> list[str]:
    """Return the faults of a transcript; it must never have any."""
    faults = (
        []
        if [message.role for message in transcript].index("system") == 0
        else ["no system message first"]
    )
    return faults + split_pairs(transcript)


def split_pairs(window: Sequence[Message]) -> list[str]:
    """Return calls without exactly one result right after them, and results without a call.

    Decisions about calls do not count.
    """
    wrong = []
    open_calls: list[str] = []
    for row in window:
        if row.role == "approval" and not row.tool_calls:
            continue
        # Results may be spread over several messages.
        for part in row.tool_returns if row.role == "tool" else ():
            if part.call_id in open_calls:
                open_calls.remove(part.call_id)
            else:
                wrong.append(f"the result of {part.call_id} has no call")
        if row.role != "tool":
            wrong += [f"the call {call_id} has no result" for call_id in open_calls]
            open_calls = [one.call_id for one in row.tool_calls]
    return wrong + [f"the call {call_id} has no result" for call_id in open_calls]


def returns(answer: Answer) -> list[tuple[str, str]]:
    return [
        (part.status, part.content) for message in answer.messages for part in message.tool_returns
    ]


def roles(listed: Sequence[Message]) -> str:
    return " ".join(message.role for message in listed)


def saved(events: Sequence[Event]) -> list[str]:
    return [
        message.id for event in events if isinstance(event, StepSaved) for message in event.messages
    ]


async def all_events(turn: LiveTurn) -> list[Event]:
    return await soon(_gather(turn))


async def _gather(turn: LiveTurn) -> list[Event]:
    return [event async for event in turn.events()]


async def soon(awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(LIMIT):
        return await awaitable
