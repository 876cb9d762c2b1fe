"""A step is saved as a whole or not at all, also when others change the memory meanwhile."""

from typing import Any

import pytest

from ricordo.agents.request import Approval, TurnRequest
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.event import Failed
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.llm.scripted import call
from ricordo.prompt.transcript import FAILED
from ricordo.storage import archives, jobs, runs
from ricordo.storage.engine.repository import Page
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.agents.conftest import OpenStage
from tests.seams.stage import Gate, Stage, all_events, returns, roles, saved, soon, text_of
from tests.seams.stores import broken, count_statements, mended

DATABASES = ("sqlite", "postgresql")
EVERYTHING = (
    call("memory_insert", label="human", new_string="Likes tea."),
    call("archival_memory_insert", content="She likes tea.", tags=["tea"]),
)


async def passages(stage: Stage, agent: str) -> list[str]:
    held = [archive.id for archive in (await stage.state(agent)).archives]
    found = await stage.store.read(
        lambda tx: archives.page_of_passages(tx, held, Page(limit=100, order="asc"))
    )
    return [passage.text for passage in found]


async def test_a_step_is_saved_with_its_edits_and_passages(stage: Stage) -> None:
    agent = await stage.agent(("human", "Ada."))
    stage.lines += [EVERYTHING, "Noted."]
    answer = await stage.say(agent)
    assert [status for status, _ in returns(answer)] == ["success", "success"]
    assert await stage.block(agent, "human") == "Ada.\nLikes tea."
    assert await passages(stage, agent) == ["She likes tea."]
    (block,) = (await stage.state(agent)).blocks
    assert block.updated_by == agent
    await stage.require_sound(agent)


@pytest.mark.parametrize(
    "what",
    [
        "UPDATE OF value ON blocks",
        "INSERT ON archives",
        "INSERT ON passages",
        "INSERT ON messages WHEN new.role = 'assistant'",
        "INSERT ON messages WHEN new.role = 'tool'",
        'UPDATE OF "window" ON conversations WHEN CAST(new."window" AS TEXT) LIKE \'%,%,%,%\'',
        "INSERT ON steps",
    ],
)
async def test_a_step_whose_save_fails_leaves_nothing_behind(stage: Stage, what: str) -> None:
    agent = await stage.agent(("human", "Ada."))
    stage.lines += [EVERYTHING, "Never asked."]
    await broken(stage.store, what)
    events = await all_events(await stage.begin(agent, "I like tea."))
    await mended(stage.store)
    assert isinstance(events[-1], Failed)
    assert saved(events) == []
    (run,) = await stage.runs(agent)
    assert (run.status, run.stop_reason, run.step_count, run.usage.total_tokens) == (
        "failed",
        "error",
        0,
        0,
    )
    assert roles(await stage.history(agent)) == "system user"
    assert await stage.block(agent, "human") == "Ada."
    assert await passages(stage, agent) == []
    assert (
        await stage.store.read(lambda tx: runs.page_of_steps(tx, Scope(), Page(), run_id=run.id))
        == []
    )
    await stage.require_sound(agent)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_job_added_by_a_tool_is_saved_with_its_step_or_not_at_all(
    open_stage: OpenStage, fails: bool
) -> None:
    def promise(context: ToolContext) -> str:
        """Promise something."""
        context.step.jobs.append(
            Job("promise", context.state.agent.organization_id, {"step": context.step.id})
        )
        return "Promised."

    stage = await open_stage(ServerTool(promise, "custom"))
    agent = await stage.agent(tool_names=("promise",))
    stage.lines += [call("promise"), "Done."]
    await broken(stage.store, "INSERT ON steps" if fails else "DELETE ON agents")
    await all_events(await stage.begin(agent))
    await mended(stage.store)
    steps = await stage.store.read(lambda tx: runs.page_of_steps(tx, Scope(), Page(order="asc")))
    added = await stage.store.write(lambda tx: jobs.claim(tx, "worker", 10))
    assert [job.payload["step"] for job in added] == [step.id for step in steps][:1]
    assert len(added) == (not fails)


class Bell:
    """A tool that acts outside the server, and that a test can pause."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.rung = 0

    def tool(self) -> ServerTool:
        async def ring(context: ToolContext) -> str:
            """Ring a bell."""
            self.rung += 1
            await self.gate.pass_through()
            return "Rang."

        return ServerTool(ring, "custom", acts_outside=True)


async def test_a_call_that_acts_outside_is_saved_before_it_runs_in_one_more_transaction(
    open_stage: OpenStage,
) -> None:
    bell = Bell()
    stage = await open_stage(bell.tool())
    agent = await stage.agent(("human", "Ada."), tool_names=("ring",))
    stage.lines += [
        (call("memory_insert", label="human", new_string="Tea."), call("ring")),
        "Done.",
    ]
    with count_statements(stage.store) as counted:
        turn = await stage.begin(agent)
        await bell.gate.reached()
        assert counted.transactions == 2
        bell.gate.open()
        answer = await soon(collect(turn))
    assert counted.transactions == 4
    assert roles(answer.messages) == "assistant tool assistant"
    assert [status for status, _ in returns(answer)] == ["success", "success"]
    first, result, _ = answer.messages
    assert first.step_id == result.step_id
    assert await stage.block(agent, "human") == "Ada.\nTea."
    await stage.require_sound(agent)


async def test_an_outside_call_whose_results_cannot_be_saved_is_recorded_as_failed(
    open_stage: OpenStage,
) -> None:
    bell = Bell()
    stage = await open_stage(bell.tool())
    agent = await stage.agent(("human", "Ada."), tool_names=("ring",))
    stage.lines += [(call("memory_insert", label="human", new_string="Tea."), call("ring"))]
    turn = await stage.begin(agent)
    await bell.gate.reached()
    await broken(stage.store, "INSERT ON steps")
    bell.gate.open()
    events = await all_events(turn)
    await mended(stage.store)
    assert isinstance(events[-1], Failed)
    history = await stage.history(agent)
    assert roles(history) == "system user assistant tool"
    assert [part.content for part in history[-1].tool_returns] == [FAILED] * 2
    assert await stage.block(agent, "human") == "Ada."
    assert saved(events) == [message.id for message in history][2:]
    await stage.require_sound(agent)


async def test_an_outside_call_that_cannot_be_saved_first_does_not_run(
    open_stage: OpenStage,
) -> None:
    bell = Bell()
    stage = await open_stage(bell.tool())
    agent = await stage.agent(tool_names=("ring",))
    stage.lines += [call("ring")]
    await broken(stage.store, "INSERT ON messages WHEN new.role = 'assistant'")
    answer = await stage.say(agent)
    await mended(stage.store)
    assert answer.failure
    assert bell.rung == 0
    assert roles(await stage.history(agent)) == "system user"
    await stage.require_sound(agent)


# Two agents that share a block.


async def pair(stage: Stage, value: str) -> tuple[str, str]:
    one = await stage.agent(("team", value))
    shared = (await stage.state(one)).blocks[0]
    return one, await stage.agent(block_ids=(shared.id,))


def swap(old: str, new: str) -> Any:
    return call("memory_replace", label="team", old_string=old, new_string=new)


async def both(stage: Stage, one: str, other: str, first: Any, second: Any) -> tuple[Any, Any]:
    """Let both agents read the block, and then save one edit each.

    `one` saves `first`, then `other` saves `second`.
    """
    gate = Gate()
    stage.lines += [gate.line(second), first, "One is done."]
    late = await stage.begin(other)
    await gate.reached()
    early = await stage.say(one)
    stage.lines += ["Other is done."]
    gate.open()
    return early, await soon(collect(late))


async def test_a_secret_removed_from_memory_is_also_removed_from_the_agents_messages(
    stage: Stage,
) -> None:
    agent = await stage.agent(("human", "Ada."))
    secret = "Tr0ub4dor\\é3"
    stage.lines += [
        (
            call("memory_insert", label="human", new_string=f"The wifi password: {secret}"),
            call("archival_memory_insert", content=f"The wifi password: {secret}"),
        ),
        f"I keep {secret} for you.",
        f"You said {secret}.",
    ]
    answer = await stage.say(agent, f"My password is {secret}, keep it.")
    assert text_of(answer) == "I keep [secret removed: password] for you."
    asked = stage.model.requests[1].messages
    history = await stage.history(agent)
    for message in (*asked, *history):
        assert (secret[:9] in str(message.parts)) == (message.role == "user"), message
    assert sum("[secret removed: password]" in str(message.parts) for message in history) == 4
    # A message of a later turn is stored unchanged.
    assert text_of(await stage.say(agent, "Which?")) == f"You said {secret}."
    await stage.require_sound(agent)


@pytest.mark.parametrize("is_gated", [False, True])
async def test_a_secret_removed_from_memory_leaves_a_message_that_was_saved_before_its_calls(
    open_stage: OpenStage, is_gated: bool
) -> None:
    bell = Bell()
    bell.gate.open()
    stage = await open_stage(bell.tool())
    rules = (ToolRule("memory_insert", "requires_approval"),) if is_gated else ()
    agent = await stage.agent(("human", "Ada."), tool_names=("ring",), tool_rules=rules)
    secret = "Tr0ub4dor\\é3"
    noted = call("memory_insert", label="human", new_string=f"The wifi password: {secret}")
    stage.lines += [(noted, call("ring")), "Done."]
    answer = await stage.say(agent, "Keep my password, and ring.")
    if is_gated:
        request = TurnRequest(Scope(), agent, approval=Approval(approves=True))
        answer = await soon(collect(await run_turn(stage.runtime, request)))
    assert bell.rung == 1
    assert text_of(answer) == "Done."
    history = await stage.history(agent)
    for message in (*stage.model.requests[-1].messages, *history):
        assert secret[:9] not in str(message.parts), message
    assert sum("[secret removed: password]" in str(message.parts) for message in history) >= 1
    await stage.require_sound(agent)


async def test_edits_of_different_lines_of_a_shared_block_are_both_kept(stage: Stage) -> None:
    one, other = await pair(stage, "tea\nmilk\nsugar")
    early, late = await both(stage, one, other, swap("tea", "green tea"), swap("sugar", "no sugar"))
    assert returns(early) == [("success", "green tea\nmilk\nsugar")]
    assert returns(late) == [("success", "green tea\nmilk\nno sugar")]
    assert await stage.block(one, "team") == "green tea\nmilk\nno sugar"
    prompt = stage.model.requests[-1].messages[0].text
    assert "green tea" in prompt
    assert "no sugar" in prompt
    for agent in (one, other):
        await stage.require_sound(agent)


async def test_an_edit_of_a_line_that_another_agent_changed_fails_and_can_be_repeated(
    stage: Stage,
) -> None:
    one, other = await pair(stage, "tea")
    early, late = await both(stage, one, other, swap("tea", "green tea"), swap("tea", "black tea"))
    assert returns(early) == [("success", "green tea")]
    ((status, told),) = returns(late)
    assert status == "error"
    assert "changed by someone else" in told
    assert text_of(late) == "Other is done."
    assert await stage.block(other, "team") == "green tea"
    assert "green tea" in stage.model.requests[-1].messages[0].text
    stage.lines += [swap("green tea", "both"), "Done."]
    assert returns(await stage.say(other)) == [("success", "both")]
    for agent in (one, other):
        await stage.require_sound(agent)
