"""Stored tools that a runner executes elsewhere, and tools that call other tools."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool, ToolRule, ToolType
from ricordo.errors import Unavailable
from ricordo.llm.scripted import call
from ricordo.storage import tools
from ricordo.tools.toolbox import ServerTool, Toolbox, ToolContext, ToolOutput, sync_tools
from tests.agents.conftest import OpenStage
from tests.seams import make
from tests.seams.stage import Gate, Stage, returns, roles, soon, text_of


class Elsewhere:
    """A runner of custom tools that records calls.

    It returns a fixed result, or fails if the argument `fails` is set.
    """

    tool_types: tuple[ToolType, ...] = ("custom",)

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.gate: Gate | None = None
        self.was_cancelled = self.is_closed = False

    async def run(
        self, tool: Tool, _context: ToolContext, arguments: Mapping[str, Any]
    ) -> ToolOutput:
        self.calls.append((tool.name, arguments))
        try:
            if self.gate:
                await self.gate.pass_through()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if arguments.get("fails") == "ours":
            raise Unavailable("No sandbox is installed. Install bubblewrap.")
        if arguments.get("fails"):
            return ToolOutput("Traceback: line 2", ("began",), ("line 2",), is_error=True)
        return ToolOutput({"sum": 3}, stdout=("added",))

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
async def stage(open_stage: OpenStage, elsewhere: Elsewhere) -> Stage:
    async def relay(context: ToolContext, tool: str, arguments: dict[str, Any]) -> str:
        """Call another tool.

        Args:
            tool: The name of the tool.
            arguments: Its arguments.
        """
        result = await context.call_tool(tool, arguments)
        return f"{result.status}: {result.content}"

    stage = await open_stage(ServerTool(relay, "custom"), runners=[elsewhere])
    own = make.tool("add", source_code="def add(): ...")
    await stage.store.write(lambda tx: tools.insert_all(tx, [own]))
    return stage


async def test_a_stored_tool_runs_in_its_runner_and_its_result_is_untrusted(
    stage: Stage, elsewhere: Elsewhere
) -> None:
    agent = await stage.agent(tool_names=("add",))
    elsewhere.gate = Gate()
    stage.lines += [call("add", one=2), "Three."]
    turn = await stage.begin(agent, "Add.")
    await elsewhere.gate.reached()
    # The call is stored before it is run.
    assert roles(await stage.history(agent)) == "system user assistant"
    elsewhere.gate.open()
    await soon(turn.wait())
    history = await stage.history(agent)
    (result,) = history[3].tool_returns
    assert (result.status, result.content, result.is_json, result.stdout) == (
        "success",
        '{"sum":3}',
        True,
        ("added",),
    )
    assert result.is_untrusted
    assert elsewhere.calls == [("add", {"one": 2})]


async def test_a_failed_tool_and_an_unavailable_runner_give_different_errors(stage: Stage) -> None:
    agent = await stage.agent(tool_names=("add",))
    stage.lines += [call("add", fails="its own"), call("add", fails="ours"), "I see."]
    answer = await stage.say(agent, "Add.")
    assert returns(answer) == [
        ("error", "Traceback: line 2"),
        ("error", "No sandbox is installed. Install bubblewrap."),
    ]
    first, second = (part for message in answer.messages for part in message.tool_returns)
    assert (first.stdout, first.stderr) == (("began",), ("line 2",))
    assert second.stderr == (
        "Error executing function add: Unavailable: No sandbox is installed. Install bubblewrap.",
    )


async def test_a_call_is_cancelled_with_its_turn(stage: Stage, elsewhere: Elsewhere) -> None:
    agent = await stage.agent(tool_names=("add",))
    elsewhere.gate = Gate()
    stage.lines.append(call("add"))
    turn = await stage.begin(agent, "Add.")
    await elsewhere.gate.reached()
    await soon(turn.cancel())
    assert elsewhere.was_cancelled
    await stage.require_sound(agent)


async def test_a_tool_may_call_others_as_far_as_the_rules_allow(
    stage: Stage, elsewhere: Elsewhere
) -> None:
    rules = (ToolRule("add", "max_count_per_step", options={"max_count_limit": 1}),)
    agent = await stage.agent(tool_names=("add", "relay"), tool_rules=rules)
    stage.lines += [
        call("relay", tool="add", arguments={"one": 1}),
        call("relay", tool="add", arguments={}),
        "Done.",
    ]
    answer = await stage.say(agent, "Add.")
    (_, first), (_, second) = returns(answer)
    assert first == 'success: {"sum":3}'
    assert second.startswith("error: [ToolConstraintError] Cannot call add, valid tools include: [")
    assert elsewhere.calls == [("add", {"one": 1})]


async def test_a_tool_cannot_call_tools_that_need_approval_or_are_not_attached(
    stage: Stage, elsewhere: Elsewhere
) -> None:
    rules = (ToolRule("add", "requires_approval"),)
    agent = await stage.agent(tool_names=("add", "relay"), tool_rules=rules)
    stage.lines += [call("relay", tool=name, arguments={}) for name in ("add", "nothing")] + [
        "Done."
    ]
    (_, first), (_, second) = returns(await stage.say(agent, "Add."))
    assert (
        first
        == "error: add needs an approval or runs on the client, so code cannot call it. Call it directly."
    )
    assert second.startswith("error: [ToolConstraintError] Cannot call nothing")
    assert elsewhere.calls == []


async def test_memory_edited_by_a_called_tool_is_saved_with_the_step(stage: Stage) -> None:
    agent = await stage.agent(("human", "Her name is Ada."), tool_names=("relay",))
    edit = {"label": "human", "new_string": "Likes tea."}
    stage.lines += [call("relay", tool="memory_insert", arguments=edit), "Noted."]
    assert text_of(await stage.say(agent, "I like tea.")) == "Noted."
    assert await stage.block(agent, "human") == "Her name is Ada.\nLikes tea."


async def test_a_custom_tool_keeps_its_name_and_source_when_the_server_adds_one_of_that_name(
    stage: Stage,
) -> None:
    async def add(context: ToolContext) -> str:
        """Add nothing."""
        return "nothing"

    box = Toolbox([ServerTool(add, "letta_builtin")], [Elsewhere()])
    await stage.store.write(lambda tx: sync_tools(tx, Scope(), box))
    (own,) = (await stage.store.read(lambda tx: tools.by_names(tx, Scope(), ["add"]))).values()
    assert (own.tool_type, own.source_code) == ("custom", "def add(): ...")
    assert isinstance(box.find(own), Elsewhere)
    assert isinstance(
        box.find(replace(own, source_code=None, tool_type="letta_builtin")), ServerTool
    )


async def test_two_runners_of_one_type_are_refused_and_a_runner_is_closed(
    elsewhere: Elsewhere,
) -> None:
    with pytest.raises(ValueError, match='Two plugins run tools of the type "custom"'):
        Toolbox([], [elsewhere, Elsewhere()])
    await Toolbox([], [elsewhere]).close()
    assert elsewhere.is_closed
