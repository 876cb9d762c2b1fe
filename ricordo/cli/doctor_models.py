"""`ricordo doctor models`: can these models run an agent? Each is put through a few tasks with real tools on a memory of its own.

Nothing is written and nobody is called but the models named; a task is at most a few short calls.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import typer

from ricordo.agents.agent_types import traits_of
from ricordo.app import open_models
from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.block import Block
from ricordo.domain.conversation import Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, Role, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ModelRequest, TextChunk, ToolSchema
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.tool import Tool
from ricordo.errors import ModelError, RicordoError
from ricordo.features import FEATURES
from ricordo.llm.chat import ChatModel
from ricordo.llm.registry import LIBRARIAN, Models
from ricordo.memory.recall import Recall
from ricordo.memory.working import WorkingMemory
from ricordo.plugins import load_plugins
from ricordo.prompt.assemble import system_prompt
from ricordo.prompt.texts import text
from ricordo.prompt.transcript import transcript
from ricordo.settings import load_settings
from ricordo.storage.store import Store
from ricordo.tools.toolbox import ServerTool, Toolbox, ToolContext, failed_result

TASK_SECONDS = 180.0
MOST_ROUNDS = 5
# So many models of one provider are tried without being named: more would cost the user's money and patience.
MOST_OF_ONE = 6
CAN = "can run an agent"
_SEARCHES = ("conversation_search", "archival_memory_search")
_NO_RESULT = "No results found."
_ARCHIVED = "The passage is kept."


@dataclass(slots=True)
class Report:
    """What was seen of one model. `fails` names the tasks that it failed, in the words of the table."""

    handle: str
    answers: bool = False
    streams: bool = False
    calls: int = 0
    right: int = 0
    seconds: float = 0.0
    fails: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def can_run_an_agent(self) -> bool:
        """Whether it does all that an agent cannot do without."""
        return self.answers and not self.fails and self.error is None

    @property
    def verdict(self) -> str:
        """The last column of the table."""
        if self.error is not None:
            return f"no: {self.error}"
        if self.fails or not self.answers:
            return f"no: {', '.join(self.fails or ['does not answer'])}"
        return f"{CAN}, but {', '.join(self.weak)}" if self.weak else CAN


class Desk:
    """One model at work on a memory of its own, with the tools that agents get; the memory is forgotten at the end."""

    def __init__(self, model: ChatModel, tools: Sequence[ServerTool], notes: str) -> None:
        self._model = model
        self._schemas = {tool.name: tool.schema for tool in tools}
        self._toolbox = Toolbox(tools)
        agent = Agent(
            new_id("agent"),
            LOCAL_ORGANIZATION,
            "Doctor's patient",
            "letta_v1_agent",
            text(traits_of("letta_v1_agent").prompt_key),
            model.info.handle,
            context_window=model.info.context_window,
        )
        thread = Conversation("default", LOCAL_ORGANIZATION, agent.id, is_default=True, message_count=40)
        about = "What you know about the person you talk with. Keep it up to date."
        block = Block(new_id("block"), LOCAL_ORGANIZATION, "", "human", notes, about)
        self._state = AgentState(agent, thread, (block,))
        self._memory = WorkingMemory(self._state)
        self.window: list[Message] = []
        self.called: list[ToolCallPart] = []
        self.right = 0

    @property
    def notes(self) -> str:
        """The memory as it is now."""
        return self._memory.block("human").value

    async def say(self, text: str) -> str:
        """Say something; the model works with its tools until it answers in plain text, which is returned."""
        self._add("user", TextPart(text))
        for _ in range(MOST_ROUNDS):
            reply = await self.ask()
            calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
            self._add("assistant", *reply.parts)
            if not calls:
                return "".join(part.text for part in reply.parts if isinstance(part, TextPart)).strip()
            self._add("tool", *[await self._run(call) for call in calls])
        return ""

    async def ask(self) -> ModelReply:
        state = replace(self._state, blocks=(self._memory.block("human"),))
        prompt = system_prompt(state, self._model.info.provider, time.time_ns() // 1_000, recall_count=40).text
        messages = (self._message("system", TextPart(prompt)), *self.window)
        request = ModelRequest(
            messages=transcript(messages, "UTC", self._model.info.context_window),
            tools=tuple(self._schemas.values()),
        )
        async for item in self._model.answer(request):
            if isinstance(item, ModelReply):
                return item
        raise ModelError("llm_empty_response", "It gave no reply.")

    async def _run(self, call: ToolCallPart) -> ToolReturnPart:
        self.called.append(call)
        result = await self._result(call)
        self.right += result.status == "success"
        return result

    async def _result(self, call: ToolCallPart) -> ToolReturnPart:
        schema = self._schemas.get(call.name)
        if schema is None or not call.name.startswith("memory"):
            if (fault := _fault_in(call, schema)) is not None:
                return failed_result(call, fault)
            # There is no history and no archive here: they look as they do when they are empty.
            found = _NO_RESULT if call.name in _SEARCHES else _ARCHIVED
            return ToolReturnPart(call.call_id, call.name, "success", found)
        tool = Tool(new_id("tool"), LOCAL_ORGANIZATION, call.name, "letta_memory_core", {})
        # Tools that edit memory touch the working copy alone.
        store, recall = cast("Store", None), cast("Recall", None)
        context = ToolContext(call.call_id, self._state, self._memory, store, Scope(), recall)
        (result,) = await self._toolbox.run([call], {call.name: tool}, lambda _: context)
        return result

    def _add(self, role: Role, *parts: Part) -> None:
        self.window.append(self._message(role, *parts))

    def _message(self, role: Role, *parts: Part) -> Message:
        return Message(new_id("message"), self._state.agent.id, "default", role, parts, time.time_ns() // 1_000)


def _fault_in(call: ToolCallPart, schema: ToolSchema | None) -> str | None:
    if schema is None:
        return f"There is no tool named {call.name} here."
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return "The arguments are not valid JSON. Call the tool again with valid JSON."
    wanted, known = set(schema.parameters.get("required", ())), set(schema.parameters.get("properties", {}))
    if not isinstance(arguments, dict) or not wanted <= set(arguments) <= known:
        return f"The arguments of {call.name} are not those of its schema. Call it again with {sorted(known)}."
    return None


@dataclass(frozen=True, slots=True)
class Task:
    """One thing asked of a model: what is said to it, what its notes hold before, and what must be seen after."""

    fault: str
    notes: str
    says: str
    is_done: Callable[[Desk, str], bool]
    is_needed: bool = True


TASKS = (
    Task(
        "does not note a fact",
        "Her name is Ada.",
        "I work as a gardener. Please keep that in your memory.",
        lambda desk, said: "gardener" in desk.notes and "Ada" in desk.notes and bool(said),
    ),
    Task(
        "does not correct a fact",
        "Her name is Ada.\nMy favourite colour is blue.",
        "My favourite colour is not blue any more, it is green. Please correct it in your memory.",
        lambda desk, said: "green" in desk.notes and "colour is blue" not in desk.notes and bool(said),
    ),
    Task(
        "does not make two calls in a row",
        "Her name is Ada.",
        "Please keep two things in your memory. My dog is called Rex. I live in Oslo.",
        lambda desk, said: "Rex" in desk.notes and "Oslo" in desk.notes and bool(said),
    ),
    Task(
        "does not search",
        "Her name is Ada.",
        "What did I tell you last month about my holiday? Look it up, please.",
        lambda desk, said: any(call.name in _SEARCHES for call in desk.called) and bool(said),
        is_needed=False,
    ),
    Task(
        "calls tools for nothing",
        "Her name is Ada.",
        "Thank you!",
        lambda desk, said: not desk.called and bool(said),
        is_needed=False,
    ),
)


async def examine_model(model: ChatModel, tools: Sequence[ServerTool], *, limit: float = TASK_SECONDS) -> Report:
    """Put one model through all tasks. `limit` is the longest time for one of them, in seconds; nothing is raised."""
    report = Report(model.info.handle)
    began = time.monotonic()
    try:
        await _greet(model, report, limit)
        for task in TASKS if report.answers else ():
            await _try(task, model, tools, report, limit)
    except TimeoutError:
        report.error = f"took longer than {limit:.0f} s for one task"
    except RicordoError as error:
        report.error = " ".join(str(error).split())
    report.seconds = time.monotonic() - began
    return report


async def _greet(model: ChatModel, report: Report, limit: float) -> None:
    greeting = Message(
        new_id("message"), "doctor", "default", "user", (TextPart("Say hello in one short sentence."),), 0
    )
    async with asyncio.timeout(limit):
        chunks = 0
        async for item in model.answer(ModelRequest((greeting,), stream=True)):
            if isinstance(item, ModelReply):
                report.answers = any(isinstance(part, TextPart) and part.text.strip() for part in item.parts)
            else:
                chunks += isinstance(item, TextChunk)
        report.streams = chunks > 1


async def _try(task: Task, model: ChatModel, tools: Sequence[ServerTool], report: Report, limit: float) -> None:
    desk = Desk(model, tools, task.notes)
    async with asyncio.timeout(limit):
        said = await desk.say(task.says)
    report.calls += len(desk.called)
    report.right += desk.right
    if not task.is_done(desk, said):
        (report.fails if task.is_needed else report.weak).append(task.fault)


def agent_tools(tools: Sequence[ServerTool]) -> list[ServerTool]:
    """The tools that a new agent gets."""
    wanted = traits_of("letta_v1_agent").base_tools
    return [tool for tool in tools if tool.name in wanted]


async def _handles(models: Models, handle: str | None) -> tuple[list[str], list[str]]:
    """The handles to try, and sentences on those that are left out."""
    if handle is not None:
        await models.require(handle)
        return [handle], []
    await models.find_local()
    by_provider: dict[str, list[str]] = {}
    for info in await models.list():
        by_provider.setdefault(info.provider, []).append(info.handle)
    chosen = models.default_handle()
    handles, left = [chosen], []
    for provider, listed in by_provider.items():
        others = [each for each in listed if each not in (chosen, LIBRARIAN)]
        if len(others) > MOST_OF_ONE:
            left.append(f"{provider} lists {len(listed)} models. Try one of them with: --model {others[0]}")
        else:
            handles += others
    return handles, left


def line(report: Report, width: int) -> str:
    """One line of the table."""
    right = f"{report.right}/{report.calls}"
    answers, streams = ("yes" if seen else "no" for seen in (report.answers, report.streams))
    calls = "yes" if report.calls else "no"
    return f"{report.handle:<{width}} {answers:<8} {calls:<6} {right:<10} {streams:<8} {report.seconds:>7.1f}  {report.verdict}"


def heading(width: int) -> str:
    """The table's first line."""
    return f"{'model':<{width}} {'answers':<8} {'calls':<6} {'arguments':<10} {'streams':<8} {'seconds':>7}  verdict"


async def examine_models(handle: str | None = None, *, say: Callable[[str], None] = typer.echo) -> bool:
    """Try the models that are configured, or one by its handle, and print the table; tells whether all can run an agent."""
    settings, providers = load_settings()
    plugins = load_plugins(FEATURES)
    models = open_models(settings, providers, plugins)
    try:
        handles, left = await _handles(models, handle)
        width = max(len(each) for each in [*handles, "model"])
        say(heading(width))
        reports = []
        for each in handles:
            report = await examine_model(models.get(each), agent_tools(plugins.tools()))
            say(line(report, width))
            reports.append(report)
        for sentence in left:
            say(sentence)
    finally:
        await models.close()
    return all(report.can_run_an_agent for report in reports)


def doctor_models(handle: str | None) -> bool:
    """`ricordo doctor models`: asks the models, prints the table; tells whether all of them can run an agent."""
    return asyncio.run(examine_models(handle))
