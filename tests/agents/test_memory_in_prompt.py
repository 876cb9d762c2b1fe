"""The memory in the prompt is rendered again before each step, at the next turn, or lazily."""

import contextlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ricordo.agents.agent_types import MEMORY_IN_PROMPT, memory_in_prompt
from ricordo.agents.request import Approval, TurnRequest
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.agent import AgentState, CompactionSettings
from ricordo.domain.model import MemoryInPromptChoice, ModelInfo, ModelRequest
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.errors import ModelError
from ricordo.llm.openai_dialect import OPENAI_ADDRESS
from ricordo.prompt.system_prompt import key_after_edits, system_prompt
from ricordo.storage import blocks
from tests.seams import make
from tests.seams.stage import Stage, call, soon
from tests.seams.stores import ManualClock

EDIT = call("memory_insert", label="human", new_string="Likes tea.")
DAY = 24 * 3600


async def agent_with(stage: Stage, mode: MemoryInPromptChoice, **spec: Any) -> str:
    settings = {MEMORY_IN_PROMPT: mode, **spec.pop("settings", {})}
    return await stage.agent(("human", "Ada."), ("persona", "Kind."), settings=settings, **spec)


async def turn(stage: Stage, agent: str, *lines: Any) -> list[ModelRequest]:
    """Take a turn in which the model follows these lines of a script; return its requests."""
    before = len(stage.model.requests)
    stage.lines += lines or ["Here."]
    await stage.say(agent)
    return stage.model.requests[before:]


def shows_tea(request: ModelRequest) -> bool:
    return "Likes tea." in request.messages[0].text


def has_call_about_tea(request: ModelRequest) -> bool:
    calls = [part for message in request.messages for part in message.tool_calls]
    return any("Likes tea." in part.arguments for part in calls)


async def edit_elsewhere(stage: Stage, agent: str, label: str, value: str) -> None:
    """Change a block as its owner does on a page."""
    held = await stage.store.read(lambda tx: blocks.of_agent(tx, agent))
    block = next(block for block in held if block.label == label)
    changed = replace(block, value=value)
    await stage.store.write(lambda tx: blocks.update(tx, block, changed, make.change_metadata()))


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("step", [False, True, True]),
        ("turn", [False, False, True]),
        ("lazy", [False, False, False]),
    ],
)
async def test_the_mode_decides_when_the_prompt_shows_an_agents_edit(
    stage: Stage, mode: MemoryInPromptChoice, shown: list[bool]
) -> None:
    agent = await agent_with(stage, mode)
    requests = await turn(stage, agent, EDIT, "Noted.") + await turn(stage, agent)
    assert [shows_tea(request) for request in requests] == shown
    assert has_call_about_tea(requests[1])
    assert has_call_about_tea(requests[2])


@pytest.mark.parametrize("mode", ["step", "turn", "lazy"])
async def test_the_tool_result_says_whether_the_prompt_shows_the_change(
    stage: Stage, mode: MemoryInPromptChoice
) -> None:
    create = call("memory", command="create", path="/memories/pets", file_text="A cat.")
    patch = call("memory_apply_patch", patch="*** Delete Block: pets")
    agent = await agent_with(stage, mode, tool_names=("memory", "memory_apply_patch"))
    _, *requests = await turn(stage, agent, create, patch, "Noted.")
    for request in requests:
        (result,) = request.messages[-1].tool_returns
        told = result.content
        assert "Successfully" in told
        is_active = "recompiled" in told
        assert is_active == (mode == "step")
    assert ("A cat." in requests[0].messages[0].text) == (mode == "step")


async def test_in_lazy_mode_edits_only_append_to_the_prompt(
    stage: Stage,
) -> None:
    agent = await agent_with(stage, "lazy")
    requests: list[ModelRequest] = []
    for number in range(6):
        edit = call("memory_insert", label="human", new_string=f"Fact {number}.")
        requests += await turn(stage, agent, edit, "Noted.")
    for earlier, later in pairwise(requests):
        beginning = later.messages[: len(earlier.messages)]
        assert [message.parts for message in beginning] == [
            message.parts for message in earlier.messages
        ]


async def test_an_edit_by_others_and_the_agents_own_are_in_the_next_turns_prompt(
    stage: Stage,
) -> None:
    agent = await agent_with(stage, "lazy")
    await turn(stage, agent, EDIT, "Noted.")
    await edit_elsewhere(stage, agent, "persona", "Strict.")
    (request,) = await turn(stage, agent)
    assert shows_tea(request)
    assert "Strict." in request.messages[0].text


async def test_an_edit_by_others_during_a_turn_is_in_the_next_turns_prompt(
    stage: Stage,
) -> None:
    agent = await agent_with(stage, "lazy")

    async def edit_meanwhile(_request: ModelRequest) -> Any:
        await edit_elsewhere(stage, agent, "persona", "Strict.")
        return EDIT

    requests = await turn(stage, agent, edit_meanwhile, "Noted.") + await turn(stage, agent)
    assert "Strict." in requests[-1].messages[0].text
    assert shows_tea(requests[-1])


async def test_a_new_day_renders_the_memory_again(stage: Stage, clock: ManualClock) -> None:
    agent = await agent_with(stage, "lazy")
    await turn(stage, agent, EDIT, "Noted.")
    clock.advance(DAY)
    (request,) = await turn(stage, agent)
    assert shows_tea(request)


async def test_a_compaction_renders_the_memory_again(stage: Stage) -> None:
    agent = await agent_with(stage, "lazy")
    await turn(stage, agent, EDIT, "Noted.")
    for _ in range(6):
        await turn(stage, agent, "An answer. " * 30)
    stage.lines += ["They talked."]
    request = TurnRequest(Scope(), agent, compaction=CompactionSettings())
    await soon(collect(await run_turn(stage.runtime, request)))
    (after,) = await turn(stage, agent)
    assert shows_tea(after)


@pytest.mark.parametrize(
    "spec", [{"clears_buffer": True}, {"settings": {"message_buffer": [4, 2]}}]
)
async def test_edits_whose_messages_leave_the_window_are_in_the_next_prompt(
    stage: Stage, spec: dict[str, Any]
) -> None:
    agent = await agent_with(stage, "lazy", **spec)
    await turn(stage, agent, EDIT, "Noted.")
    requests = await turn(stage, agent) + await turn(stage, agent)
    assert all(shows_tea(request) or has_call_about_tea(request) for request in requests)
    assert shows_tea(requests[-1])


async def test_an_edit_of_a_failed_turn_that_left_the_window_is_in_the_next_prompt(
    stage: Stage,
) -> None:
    agent = await agent_with(stage, "lazy", clears_buffer=True)
    with contextlib.suppress(ModelError):
        await turn(stage, agent, EDIT, ModelError("llm_error", "It is gone."))
    (request,) = await turn(stage, agent)
    assert shows_tea(request)


async def test_an_edit_by_others_while_a_call_waits_is_in_the_next_prompt(stage: Stage) -> None:
    rules = (ToolRule("memory_insert", "requires_approval"),)
    agent = await agent_with(stage, "lazy", tool_rules=rules)
    stage.lines.append(EDIT)
    await stage.say(agent)
    await edit_elsewhere(stage, agent, "persona", "Strict.")
    stage.lines.append("Noted.")
    request = TurnRequest(Scope(), agent, approval=Approval(approves=True))
    await soon(collect(await run_turn(stage.runtime, request)))
    (later,) = await turn(stage, agent)
    for shown in (stage.model.requests[-2], later):
        assert "Strict." in shown.messages[0].text
        assert shows_tea(shown)


async def test_a_change_by_others_while_an_agent_creates_a_block_is_in_the_next_prompt(
    stage: Stage,
) -> None:
    agent = await agent_with(stage, "lazy", tool_names=("memory",))

    async def describe_meanwhile(_request: ModelRequest) -> Any:
        stored = await stage.store.read(lambda tx: blocks.of_agent(tx, agent))
        block = next(block for block in stored if block.label == "persona")
        changed = replace(block, description="How you are.")
        await stage.store.write(
            lambda tx: blocks.update(tx, block, changed, make.change_metadata())
        )
        return call("memory", command="create", path="tea", description="Tea.", file_text="Green.")

    requests = await turn(stage, agent, describe_meanwhile, "Noted.")
    assert "How you are." in requests[-1].messages[0].text


def test_a_prompt_key_after_edits_does_not_match_memory_that_others_restored() -> None:
    agent = make.agent()
    state = AgentState(agent, make.conversation(agent), blocks=(make.block("human"),))
    before = system_prompt(state, "openai", 0, recall_count=0)
    edited = replace(state, blocks=(make.block("human", "Likes tea."),))
    key = key_after_edits(before.key, system_prompt(edited, "openai", 0, recall_count=0).memory)
    assert not before.is_current(key, first_step=True, mode="lazy")


async def test_an_agents_own_mode_is_kept_and_others_follow_the_changed_setting(
    stage: Stage,
) -> None:
    agent = await agent_with(stage, "lazy")
    await turn(stage, agent, EDIT, "Noted.")
    stage.runtime.settings.memory_in_prompt = "step"
    (lazy,) = await turn(stage, agent)
    assert not shows_tea(lazy), "the agent's setting overrides the server's"
    other = await stage.agent(("human", "Ada."))
    requests = await turn(stage, other, EDIT, "Noted.")
    assert shows_tea(requests[1])


LOCAL = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("kind", "address", "mode"),
    [
        ("ollama", LOCAL, "lazy"),
        ("lmstudio", LOCAL, "lazy"),
        ("vllm", LOCAL, "lazy"),
        ("llamacpp", LOCAL, "lazy"),
        ("openai", OPENAI_ADDRESS, "lazy"),
        ("azure", "https://school.openai.azure.com", "lazy"),
        ("anthropic", "https://api.anthropic.com", "lazy"),
        ("openai", LOCAL, "step"),
        ("groq", "https://api.groq.com/openai/v1", "step"),
        ("a kind of tomorrow", LOCAL, "step"),
    ],
)
def test_the_default_mode_depends_on_the_models_server(kind: str, address: str, mode: str) -> None:
    info = ModelInfo("local/m", "local", "m", kind, endpoint=address)
    agent = make.agent()
    assert memory_in_prompt(agent, info, "auto") == mode
    assert memory_in_prompt(agent, info, "turn") == "turn"


def test_lines_are_numbered_only_on_request() -> None:
    agent = make.agent()
    state = AgentState(agent, make.conversation(agent), blocks=(make.block("human"),))
    shown = [
        system_prompt(state, "anthropic", 0, recall_count=0, has_line_numbers=is_numbered).text
        for is_numbered in (True, False)
    ]
    assert ["1→" in text for text in shown] == [True, False]
