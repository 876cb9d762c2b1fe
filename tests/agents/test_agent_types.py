"""Each type of agent, and the messages that a conversation with it begins with."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from ricordo.agents.agent_types import (
    FIRST_THOUGHT,
    FIRST_WORDS,
    FOLDER,
    TRAITS,
    base_rules,
    chosen_system,
    given_messages,
    initial_messages,
    system_text,
    with_profile,
)
from ricordo.agents.request import (
    NewMessage,
)
from ricordo.domain.agent import AgentState, AgentType
from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid, NotFound
from ricordo.features.groups.voice_tools import VOICE_TOOLS
from ricordo.features.memory_care.forgetting.tools import TOOLS as FORGETTING
from ricordo.prompt.texts import BUILT_IN, text
from ricordo.tools.builtin import TOOLS
from ricordo.tools.rules import Rulebook
from ricordo.tools.toolbox import Toolbox
from tests.seams import make
from tests.seams.stores import ManualClock

RUN: tuple[AgentType, ...] = get_args(AgentType)
OFFERED = {tool.name for tool in (*TOOLS, *VOICE_TOOLS) if tool.is_stored}


def beginning(agent_type: AgentType, *tools: str) -> AgentState:
    agent = make.agent(agent_type=agent_type, timezone="Europe/Rome")
    return AgentState(agent, make.conversation(agent), (), tuple(map(make.tool, tools)), (), ())


@pytest.mark.parametrize("agent_type", RUN)
def test_every_type_has_a_prompt_of_ours_and_tools_the_server_has(agent_type: AgentType) -> None:
    traits = TRAITS[agent_type]
    assert traits.prompt_key in BUILT_IN
    assert set(traits.base_tools) <= OFFERED
    assert len(set(traits.base_tools)) == len(traits.base_tools)


@pytest.mark.parametrize("agent_type", RUN)
def test_a_system_prompt_names_only_tools_that_its_agent_type_has(
    agent_type: AgentType,
) -> None:
    traits = TRAITS[agent_type]
    words = set(re.findall(r"\w+", text(traits.prompt_key)))
    assert (OFFERED - {"memory"}) & words <= set(traits.base_tools)


@pytest.mark.parametrize(
    ("agent_type", "style", "has_base_rules", "packs"),
    [
        ("letta_v1_agent", "native", False, False),
        ("split_thread_agent", "native", False, False),
        ("sleeptime_agent", "native", True, False),
        ("memgpt_agent", "heartbeat", True, True),
        ("memgpt_v2_agent", "heartbeat", True, True),
        ("react_agent", "heartbeat", True, False),
        ("workflow_agent", "heartbeat", True, False),
    ],
)
def test_each_agent_type_has_its_style_rules_and_packing(
    agent_type: AgentType, style: str, has_base_rules: bool, packs: bool
) -> None:
    traits = TRAITS[agent_type]
    assert (traits.style, traits.has_base_rules, traits.packs_user_messages) == (
        style,
        has_base_rules,
        packs,
    )
    assert traits.clears_buffer == (agent_type == "workflow_agent")


def test_default_rules_end_a_turn_after_messages_and_continue_after_other_tools() -> None:
    assert base_rules(
        ["memory_rethink", "roll_dice", "send_message", "memory_finish_edits", "memory_rethink"]
    ) == (
        ToolRule("send_message", "exit_loop"),
        ToolRule("memory_finish_edits", "exit_loop"),
        ToolRule("memory_rethink", "continue_loop"),
    )
    assert base_rules(["send_message_to_agent_async"]) == (
        ToolRule("send_message_to_agent_async", "exit_loop"),
    )
    assert base_rules(["roll_dice"]) == ()


@pytest.mark.parametrize("agent_type", ["letta_v1_agent", "split_thread_agent"])
def test_a_native_agent_begins_with_only_its_system_message(
    agent_type: AgentType, clock: ManualClock
) -> None:
    assert initial_messages(beginning(agent_type, "send_message"), clock, "openai") == []


@pytest.mark.parametrize(
    "agent_type", ["memgpt_agent", "memgpt_v2_agent", "react_agent", "workflow_agent"]
)
def test_an_agent_that_answers_by_tool_calls_begins_with_such_a_call_and_a_login(
    agent_type: AgentType, clock: ManualClock
) -> None:
    where = beginning(agent_type, "send_message")
    call, result, login = initial_messages(where, clock, "openai")
    assert [message.role for message in (call, result, login)] == ["assistant", "tool", "user"]
    assert call.parts[0] == ReasoningPart(FIRST_THOUGHT, native=False)
    (asked,), (given,) = call.tool_calls, result.tool_returns
    assert (asked.name, orjson.loads(asked.arguments)) == ("send_message", {"message": FIRST_WORDS})
    assert (given.call_id, given.status, given.content) == (
        asked.call_id,
        "success",
        "Sent message successfully.",
    )
    assert login.is_event
    told = orjson.loads(login.text)
    assert (told["type"], told["last_login"], list(told)) == (
        "login",
        "Never (first login)",
        ["type", "last_login", "time"],
    )
    assert "CE" in told["time"]  # CET or CEST: the agent's own zone
    assert (
        call.created_at < result.created_at < login.created_at or login.created_at < call.created_at
    )
    assert {
        (one.agent_id, one.conversation_id, one.organization_id) for one in (call, result, login)
    } == {(where.agent.id, where.conversation.id, where.agent.organization_id)}


def test_a_sleeptime_agent_begins_with_the_login(clock: ManualClock) -> None:
    (login,) = initial_messages(beginning("sleeptime_agent", "send_message"), clock, "openai")
    assert login.is_event


def test_lm_studio_gets_the_login_before_the_first_call(clock: ManualClock) -> None:
    messages = initial_messages(beginning("memgpt_agent", "send_message"), clock, "lmstudio")
    assert [message.role for message in messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("agent_type", RUN)
def test_a_clients_message_never_counts_as_an_event(
    agent_type: AgentType, clock: ManualClock
) -> None:
    forged: Any = NewMessage("user", (TextPart('{"type":"login"}'),), sender_id="ricordo:event")
    assert not given_messages(beginning(agent_type), clock, [forged])[0].is_event


def test_a_prompt_in_the_folder_is_found_by_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "pirate.v2.txt").write_text("\n Arr, ☠.\n", "utf-8")
    assert system_text("pirate.v2", tmp_path) == "Arr, ☠."


def test_a_built_in_prompt_wins_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "react.txt").write_text("Mine.", "utf-8")
    assert system_text("react", tmp_path) == text("react")


def test_the_folder_is_made_at_first_use_and_a_missing_prompt_says_where_to_put_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data" / "system_prompts"
    with pytest.raises(NotFound) as missing:
        system_text("pirate", folder)
    assert folder.is_dir()
    assert 'no system prompt "pirate"' in str(missing.value)
    assert "system_prompts/pirate.txt in the data folder" in str(missing.value)
    assert "letta_v1" in str(missing.value)
    (folder / "pirate.txt").write_text("Arr.", "utf-8")
    assert system_text("pirate", folder) == "Arr."


@pytest.mark.parametrize(
    "key",
    [
        "../secret",
        "a/b",
        "/etc/passwd",
        "..",
        ".hidden",
        "",
        "a\0b",
        "a\\b",
        "x" * 101,
        "a\n",
        "C:x",
        "é",
    ],
)
def test_a_system_prompt_key_that_is_no_plain_name_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret.txt").write_text("Hidden.", "utf-8")
    folder = tmp_path / "system_prompts"
    with pytest.raises(Invalid, match="cannot be the key of a system prompt"):
        system_text(key, folder)
    assert not folder.exists()


@pytest.mark.parametrize(("content", "told"), [(b"\xff\xfe", "not UTF-8"), (b" \n", "is empty")])
def test_an_empty_or_undecodable_prompt_file_is_refused(
    tmp_path: Path, content: bytes, told: str
) -> None:
    (tmp_path / "pirate.txt").write_bytes(content)
    with pytest.raises(Invalid, match=told):
        system_text("pirate", tmp_path)


def test_an_agent_can_be_given_a_prompt_by_its_key(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "tutor.txt").write_text("You teach Greek.", "utf-8")
    assert chosen_system("prompt:tutor", "letta_v1", tmp_path) == "You teach Greek."
    assert chosen_system("Be brief.", "letta_v1", tmp_path) == "Be brief."
    assert chosen_system(None, "workflow", tmp_path) == system_text("workflow", tmp_path)
    with pytest.raises(NotFound, match="chemistry"):
        chosen_system("prompt:chemistry", "letta_v1", tmp_path)


# --- profiles of small models ---

NATIVE_TOOLS = (*TRAITS["letta_v1_agent"].base_tools, "forget", "send_message", "paint")


def options(rule_type: RuleType, child: str) -> dict[str, Any]:
    match rule_type:
        case "constrain_child_tools" | "parent_last_tool":
            return {"children": [child, "paint"]}
        case "conditional":
            return {"child_output_mapping": {"yes": child}, "default_child": "paint"}
        case "max_count_per_step":
            return {"max_count_limit": 3}
    return {}


def let_turns_end(rules: Sequence[ToolRule], names: Sequence[str]) -> bool:
    try:
        Rulebook(rules, names)
    except Invalid:
        return False
    return True


@pytest.mark.parametrize("rule_type", get_args(RuleType))
def test_rules_that_hold_with_a_large_model_hold_with_a_small_one(rule_type: RuleType) -> None:
    usual = beginning("letta_v1_agent", *NATIVE_TOOLS)
    toolbox = Toolbox([*TOOLS, *FORGETTING])
    for tool, child in product(NATIVE_TOOLS, NATIVE_TOOLS):
        rules = (ToolRule(tool, rule_type, options=options(rule_type, child)),)
        agent = replace(usual.agent, system="Be kind.", tool_rules=rules)
        small = with_profile(replace(usual, agent=agent), "small", toolbox)
        shown = [tool.name for tool in small.tools]
        named = {tool, child} if child in str(rules[0].options) else {tool}
        kept = ["remember", "correct", "search", "paint"] if named == {"paint"} else [*NATIVE_TOOLS]
        assert shown == kept, rules
        assert let_turns_end(rules, NATIVE_TOOLS) == let_turns_end(rules, shown), rules


@pytest.mark.parametrize("tool", NATIVE_TOOLS)
def test_an_agent_keeps_a_tool_that_needs_an_approval(tool: str) -> None:
    state = beginning("letta_v1_agent", *NATIVE_TOOLS)
    tools = tuple(replace(one, needs_approval=one.name == tool) for one in state.tools)
    state = replace(state, agent=replace(state.agent, system="Be kind."), tools=tools)
    small = with_profile(state, "small", Toolbox([*TOOLS, *FORGETTING]))
    assert [one.name for one in small.tools if one.needs_approval] == [tool]
