"""The agents of the fault campaign, and its audit.

The agents are of every type, with tools, rules and a long history. After a fault nothing
acknowledged is lost, the order is kept, runs are closed, and search finds the words.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, create_agent
from ricordo.agents.request import (
    TurnRequest,
)
from ricordo.domain.agent import AgentType, Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, Role, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelSettings, ToolSchema
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.runtime import Runtime
from ricordo.search.index import MessageFilter, insert_messages
from ricordo.storage import agents, conversations, messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.seams import make
from tests.seams.stage import Gate, split_pairs

TYPES: tuple[AgentType, ...] = (
    "letta_v1_agent",
    "memgpt_v2_agent",
    "memgpt_agent",
    "react_agent",
    "workflow_agent",
)
_LATEST = 4
MODES = ("all", "sliding_window", "self_compact_all", "self_compact_sliding_window")
SMALL, LARGE = 16_000, 120_000
THEIRS = ToolSchema(
    "theirs",
    "Runs where the caller is.",
    {"type": "object", "properties": {"mark": {"type": "string"}}, "required": []},
)


GATE = Gate()  # The hanging tool waits here.


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
class Told:
    """The knowledge of an agent's users.

    That is the tokens they sent, the acknowledged ones, and the messages they saw saved.
    """

    sent: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    refused: Exception | None = None
    failed: str | None = None

    def acknowledge(self, request: TurnRequest) -> None:
        self.acknowledged += [message.otid for message in request.messages if message.otid]


@dataclass
class Subject:
    """An agent of the campaign, with the messages of its users and its answers."""

    id: str
    name: str
    window: int
    faults: int = 0
    told: Told = field(default_factory=Told)


async def make_subject(runtime: Runtime, luck: random.Random) -> Subject:
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
        tool_names=(
            *_NAMES,
            "send_message" if kind != "letta_v1_agent" else "archival_memory_search",
            *_MEMORY,
        ),
        tool_rules=tuple(rules),
        settings={"compaction": {"mode": luck.choice(MODES)}},
        model_settings=ModelSettings(
            thinks_in_arguments=luck.random() < 0.3 or None, max_output_tokens=1_000
        ),
    )
    state = await create_agent(runtime, Scope(), spec)
    ruled = "+".join(rule.type for rule in rules[1:]) or "free"
    return Subject(state.agent.id, f"{kind} {provider} {name} {ruled}", window)


_MEMORY = (
    "memory_insert",
    "conversation_search",
    "archival_memory_insert",
    "archival_memory_search",
)
_RULES: tuple[tuple[ToolRule, ...], ...] = (
    (),
    (),
    (ToolRule("conversation_search", "run_first"),),
    (ToolRule("ring", "required_before_exit"),),
    (ToolRule("ring", "max_count_per_step", options={"max_count_limit": 1}),),
    (
        ToolRule(
            "big", "constrain_child_tools", options={"children": ["ring", "send_message", "big"]}
        ),
    ),
)


async def flood(runtime: Runtime, subject: Subject, windows: float) -> None:
    """Fill the window with a longer history, as after a change from a larger model."""
    words = "Much was said about gardens, trains and the weather of those days. " * 24

    def work(tx: Transaction) -> None:
        state = agents.load(tx, Scope(), subject.id)
        thread = state.conversation
        rows: list[Message] = []

        def add(role: Role, *parts: Part) -> None:
            rows.append(
                make.message(state.agent, role=role, parts=parts, created_at=tx.clock.now())
            )

        for number in range(int(subject.window * windows * 4 / (len(words) * 3))):
            call = ToolCallPart(
                f"flood_{new_id('call')}", "conversation_search", '{"query": "gardens"}'
            )
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


async def waiting_of(runtime: Runtime, agent_id: str) -> Message | None:
    """Return the message whose calls wait for an answer."""

    def read(tx: Transaction) -> Message | None:
        last = messages.by_ids(tx, agents.load(tx, Scope(), agent_id).conversation.window[-1:])
        return last[0] if last and last[0].is_waiting else None

    return await runtime.store.read(read)


def whole_history(tx: Transaction, agent_id: str) -> list[Message]:
    rows: list[Message] = []
    while page := messages.page(
        tx,
        Scope(),
        Page(limit=1000, order="asc", after=rows[-1].id if rows else None),
        agent_id=agent_id,
    ):
        rows += page
    return rows


async def audit(runtime: Runtime, agent_id: str, told: Told) -> list[str]:
    """Return all errors of an agent that has just answered a message."""

    def read(tx: Transaction) -> tuple[Conversation, list[Message], list[Message], list[Run]]:
        thread = agents.load(tx, Scope(), agent_id).conversation
        rows = whole_history(tx, agent_id)
        return (
            thread,
            rows,
            messages.by_ids(tx, thread.window),
            runs.open_runs(tx, agent_id=agent_id),
        )

    thread, rows, window, still_open = await runtime.store.read(read)
    wrong = [f"{run.id} is open" for run in still_open]
    wrong += _lost(rows, told)
    wrong += _window(thread, rows, window)
    for otid in told.acknowledged[-_LATEST:]:
        word = otid.split("-")[2]
        hits = await runtime.recall_for(Scope()).messages(word, MessageFilter((agent_id,)), 20)
        if not any(word in hit.message.text for hit in hits):
            wrong.append(f"search does not find {word}")
    return wrong


def _lost(rows: Sequence[Message], told: Told) -> list[str]:
    stored = Counter(row.otid for row in rows if row.otid)
    wrong = [
        f"{otid} is stored {stored[otid]} times" for otid in told.acknowledged if stored[otid] != 1
    ]
    wrong += [f"{otid} is stored {times} times" for otid, times in stored.items() if times > 1]
    places = {row.id: place for place, row in enumerate(rows)}
    said = [message for message in told.messages if message.id in places]
    wrong += [
        f"{message.role} {message.id} was told and is gone"
        for message in told.messages
        if message.id not in places
    ]
    wrong += [
        f"{message.id} was told in other words"
        for message in said
        if rows[places[message.id]].parts != message.parts
    ]
    order = [places[message.id] for message in dict.fromkeys(said)]
    if order != sorted(order):
        wrong.append("the history has another order than what was told")
    inputs = [row.otid for row in rows if row.otid in set(told.acknowledged)]
    if inputs != [otid for otid in told.acknowledged if otid in set(inputs)]:
        wrong.append("what was said has another order")
    return wrong


def _window(thread: Conversation, rows: Sequence[Message], window: Sequence[Message]) -> list[str]:
    wrong = []
    if len(window) != len(thread.window) or len(set(thread.window)) != len(thread.window):
        wrong.append("the window names messages that are gone, or twice")
    if not window or window[0].role != "system" or any(row.role == "system" for row in window[1:]):
        wrong.append("the window does not begin with its one system message")
    if thread.message_count != len(rows):
        wrong.append(f"the thread counts {thread.message_count} messages and has {len(rows)}")
    return wrong + split_pairs(window)
