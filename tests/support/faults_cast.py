"""Who takes part in the fault campaign: agents of every type with tools and rules, and a history too long for a window."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, create_agent
from ricordo.domain.agent import AgentType
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, Role, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelSettings, ToolSchema
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.seams import make
from tests.support.faults_audit import Told

TYPES: tuple[AgentType, ...] = ("letta_v1_agent", "memgpt_v2_agent", "memgpt_agent", "react_agent", "workflow_agent")
MODES = ("all", "sliding_window", "self_compact_all", "self_compact_sliding_window")
SMALL, LARGE = 16_000, 120_000
THEIRS = ToolSchema(
    "theirs",
    "Runs where the caller is.",
    {"type": "object", "properties": {"mark": {"type": "string"}}, "required": []},
)


class Gate:
    """Where the tool that hangs waits."""

    def __init__(self) -> None:
        self.shut()

    def open(self) -> None:
        self._opened.set()

    def shut(self) -> None:
        self.reached, self._opened = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        """Tell that somebody is here, and wait until the gate is open."""
        self.reached.set()
        await self._opened.wait()


GATE = Gate()


def _tool(name: str, what: str, act: Callable[[str], Awaitable[str]], **how: bool) -> ServerTool:
    async def run(_context: ToolContext, mark: str) -> str:
        return await act(mark)

    run.__name__, run.__doc__ = name, f"{what}\n\nArgs:\n    mark: What the call is called."
    return ServerTool(run, "custom", **how)


async def _done(mark: str) -> str:
    await asyncio.sleep(0)
    return f"Did {mark}."


async def _boom(mark: str) -> str:
    await asyncio.sleep(0)
    raise ZeroDivisionError(mark)


async def _big(mark: str) -> str:
    return f"{mark} and so on. " * 600


async def _nap(mark: str) -> str:
    for _ in range(5):
        await asyncio.sleep(0)
    return mark


async def _hang(mark: str) -> str:
    await GATE.pass_through()
    return mark


TOOLS = (
    _tool("ring", "Ring a bell outside.", _done, acts_outside=True),
    _tool("boom", "Fail.", _boom),
    _tool("big", "Tell very much.", _big),
    _tool("nap", "Rest a little.", _nap, runs_in_parallel=True),
    _tool("hang", "Never come back.", _hang),
    _tool("guarded", "Do what needs approval.", _done, acts_outside=True),
)
_NAMES = tuple(tool.name for tool in TOOLS)


@dataclass
class Subject:
    """An agent of the campaign, with what it was told and what it told."""

    id: str
    name: str
    window: int
    faults: int = 0
    told: Told = field(default_factory=Told)


async def make_subject(runtime: Runtime, luck: random.Random) -> Subject:
    """Make an agent of a random type, with a random provider, window, way to sum up, and rules."""
    kind = luck.choice(TYPES)
    provider = luck.choice(("openai", "openai", "anthropic"))
    window = luck.choice((SMALL, LARGE))
    name = "small" if window == SMALL else "large"
    rules = [ToolRule("guarded", "requires_approval"), *luck.choice(_RULES)]
    spec = AgentSpec(
        agent_type=kind,
        model=f"{provider}/scripted-{name}",
        context_window=window,
        blocks=(BlockSpec("notes", "Begin."),),
        tool_names=(*_NAMES, "send_message" if kind != "letta_v1_agent" else "archival_memory_search", *_MEMORY),
        tool_rules=tuple(rules),
        settings={"compaction": {"mode": luck.choice(MODES)}},
        model_settings=ModelSettings(thinks_in_arguments=luck.random() < 0.3 or None, max_output_tokens=1_000),
    )
    state = await create_agent(runtime, Scope(), spec)
    ruled = "+".join(rule.type for rule in rules[1:]) or "free"
    return Subject(state.agent.id, f"{kind} {provider} {name} {ruled}", window)


_MEMORY = ("memory_insert", "conversation_search", "archival_memory_insert", "archival_memory_search")
_RULES: tuple[tuple[ToolRule, ...], ...] = (
    (),
    (),
    (ToolRule("conversation_search", "run_first"),),
    (ToolRule("ring", "required_before_exit"),),
    (ToolRule("ring", "max_count_per_step", options={"max_count_limit": 1}),),
    (ToolRule("big", "constrain_child_tools", options={"children": ["ring", "send_message", "big"]}),),
)


async def flood(runtime: Runtime, subject: Subject, windows: float) -> None:
    """Put so many windows of history into the agent's window, as a much larger model before would leave it."""
    words = "Much was said about gardens, trains and the weather of those days. " * 24

    def work(tx: Transaction) -> None:
        state = agents.load(tx, Scope(), subject.id)
        thread = state.conversation
        rows: list[Message] = []

        def add(role: Role, *parts: Part) -> None:
            rows.append(make.message(state.agent, role=role, parts=parts, created_at=tx.clock.now()))

        for number in range(int(subject.window * windows * 4 / (len(words) * 3))):
            call = ToolCallPart(f"flood_{new_id('call')}", "conversation_search", '{"query": "gardens"}')
            add("user", TextPart(f"{number}. {words}"))
            add("assistant", TextPart(words), call)
            add("tool", ToolReturnPart(call.call_id, call.name, "success", words))
        last = messages.by_ids(tx, thread.window[-1:])
        if last and last[0].is_waiting:
            return
        insert_messages(tx, rows)
        window = [*thread.window, *(row.id for row in rows)]
        conversations.save_window(tx, thread.id, window, thread.prompt_key, added=len(rows))

    await runtime.store.write(work)
