"""Searches that find nothing new.

The tests check when search tools are offered, what they leave out, and how repeated searches end.
"""

import pytest

from ricordo.agents.conversations import create_conversation
from ricordo.agents.turn_context import (
    NOTICE,
    RepeatedReads,
)
from ricordo.domain.message import TextPart, ToolCallPart
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from ricordo.tools.toolbox import failed_result
from tests.seams.stage import Stage, returns, roles, text_of

SEARCHES = {"conversation_search", "archival_memory_search"}


async def other_conversation(stage: Stage, agent: str) -> str:
    return (await create_conversation(stage.runtime, Scope(), agent, {})).id


def offered(stage: Stage, number: int = -1) -> set[str]:
    return {tool.name for tool in stage.model.requests[number].tools}


async def test_searches_are_offered_once_there_is_something_outside_the_window(
    stage: Stage,
) -> None:
    agent = await stage.agent()
    stage.lines += [
        "Hello.",
        call("archival_memory_insert", content="Ada has a heron."),
        "Kept.",
        "Hello.",
        "Hello.",
    ]
    await stage.say(agent)
    assert not offered(stage) & SEARCHES
    assert "archival_memory_insert" in offered(stage)
    await stage.say(agent)
    await stage.say(agent)
    assert offered(stage) & SEARCHES == {"archival_memory_search"}
    await stage.say(agent, conversation_id=await other_conversation(stage, agent))
    assert offered(stage) & SEARCHES == SEARCHES
    names = {tool.name for tool in (await stage.state(agent)).tools}
    assert names >= SEARCHES


async def test_a_search_is_offered_for_messages_of_another_conversation(stage: Stage) -> None:
    agent = await stage.agent()
    beside = await other_conversation(stage, agent)
    stage.lines += ["Noted.", call("conversation_search", query="heron"), "A heron."]
    await stage.say(agent, "My aunt has a heron.", conversation_id=beside)
    answer = await stage.say(agent, "What has my aunt?")
    assert "conversation_search" in offered(stage)
    assert "My aunt has a heron." in returns(answer)[0][1]


@pytest.mark.parametrize("kind", ["run_first", "max_count_per_step", "requires_approval"])
async def test_a_search_named_in_a_rule_is_always_offered(stage: Stage, kind: str) -> None:
    options = {"max_count_limit": 2} if kind == "max_count_per_step" else {}
    agent = await stage.agent(tool_rules=(ToolRule("conversation_search", kind, None, options),))  # type: ignore[arg-type]
    stage.lines += ["Hello."]
    await stage.say(agent)
    assert "conversation_search" in offered(stage)


async def test_a_search_that_was_not_offered_runs_and_omits_the_messages_in_the_window(
    stage: Stage,
) -> None:
    agent = await stage.agent()
    stage.lines += ["Noted.", call("conversation_search", query="heron"), "A heron."]
    await stage.say(agent, "My aunt has a heron.")
    answer = await stage.say(agent, "What has my aunt?")
    ((status, content),) = returns(answer)
    assert status == "success"
    assert content.startswith("No results found.")
    assert "heron" not in content


async def test_a_repeated_search_gets_a_notice_and_then_tools_are_switched_off(
    stage: Stage,
) -> None:
    agent = await stage.agent()
    searches = [
        call("conversation_search", query="tea"),
        call("conversation_search", query="tea", limit=None),
    ]
    stage.lines += [*searches, call("conversation_search", query="tea"), "I do not know."]
    answer = await stage.say(agent, "Tea?")
    assert [content.startswith("No results") for _, content in returns(answer)] == [
        True,
        False,
        False,
    ]
    assert [content for _, content in returns(answer)][1:] == [NOTICE, NOTICE]
    assert text_of(answer).endswith("I do not know.")
    assert [request.tool_choice for request in stage.model.requests] == [
        "auto",
        "auto",
        "auto",
        "none",
    ]
    stage.lines += ["Hello."]
    await stage.say(agent)
    assert stage.model.requests[-1].tool_choice == "auto"


async def test_calling_a_tool_while_none_is_offered_ends_the_turn(stage: Stage) -> None:
    agent = await stage.agent()
    stage.lines += [call("conversation_search", query="tea") for _ in range(4)]
    answer = await stage.say(agent, "Tea?")
    assert answer.run.stop_reason == "invalid_tool_call"
    assert [status for status, _ in returns(answer)] == ["success"] * 3 + ["error"]
    stage.lines += ["Hello."]
    assert text_of(await stage.say(agent)) == "Hello."
    await stage.require_sound(agent)


async def test_different_searches_and_searches_after_a_change_run(stage: Stage) -> None:
    agent = await stage.agent(("human", "Ada."))
    stage.lines += [
        call("conversation_search", query="tea"),
        call("conversation_search", query="rum"),
        call("memory_insert", label="human", new_string="Likes tea."),
        call("conversation_search", query="tea"),
        (
            TextPart("Both."),
            call("conversation_search", query="tea"),
            call("archival_memory_search", query="tea"),
        ),
        "Done.",
    ]
    answer = await stage.say(agent, "Tea?")
    assert [content == NOTICE for _, content in returns(answer)] == [
        False,
        False,
        False,
        False,
        True,
        False,
    ]


def test_a_failed_read_may_be_repeated_until_the_third_failure() -> None:
    reads = RepeatedReads()
    for count in (1, 2, 3):
        part = ToolCallPart(f"call-{count}", "find", '{"query": "tea"}')
        assert not reads.is_over
        assert reads.notices([part], {"find"}) == {}
        reads.allow_again([part], [failed_result(part, "The index is down.")])
    assert reads.is_over


def test_a_read_that_failed_once_counts_from_its_first_success() -> None:
    reads = RepeatedReads()
    failing, good, again = (
        ToolCallPart(f"call-{count}", "find", '{"query": "tea"}') for count in (1, 2, 3)
    )
    reads.notices([failing], {"find"})
    reads.allow_again([failing], [failed_result(failing, "The index is down.")])
    assert reads.notices([good], {"find"}) == {}
    reads.allow_again([good], [ToolReturnPart("call-2", "find", "success", "Tea.")])
    assert list(reads.notices([again], {"find"})) == ["call-3"]
    assert not reads.is_over


async def test_a_search_runs_again_if_a_compaction_removed_its_result(stage: Stage) -> None:
    agent = await stage.agent(context_window=16_000)
    for _ in range(3):
        stage.lines.append("Noted.")
        await stage.say(agent, "I had tea in Turin. " * 20)
    too_long = ModelError("context_window_exceeded", "The maximum context length is 4096 tokens.")
    no_summary = ModelError("llm_bad_request", "No.")
    searches = [call("conversation_search", query="tea") for _ in range(2)]
    stage.lines += [searches[0], too_long, no_summary, searches[1], "Done."]
    answer = await stage.say(agent, "Tea?")
    assert "summary" in roles(await stage.history(agent))
    assert len(returns(answer)) == 2
    assert NOTICE not in [content for _, content in returns(answer)]


async def test_equal_searches_in_one_answer_run_once(stage: Stage) -> None:
    agent = await stage.agent()
    stage.lines += [tuple(call("conversation_search", query="tea") for _ in range(2)), "Done."]
    answer = await stage.say(agent, "Tea?")
    assert [content == NOTICE for _, content in returns(answer)] == [False, True]


@pytest.mark.parametrize("levels", [1, 252, 253, 254, 255, 900, 1_100])
def test_equal_calls_with_deeply_nested_arguments_are_found(levels: int) -> None:
    arguments = '{"query":' + "[" * levels + "]" * levels + "}"
    calls = [ToolCallPart(id, "conversation_search", arguments) for id in ("a", "b")]
    assert list(RepeatedReads().notices(calls, SEARCHES)) == ["b"]


async def test_an_agent_that_answers_by_tools_keeps_its_other_tools(stage: Stage) -> None:
    agent = await stage.agent(agent_type="memgpt_v2_agent")
    searches = [call("conversation_search", query="tea", request_heartbeat=True) for _ in range(3)]
    stage.lines += [*searches, call("send_message", message="I do not know.")]
    await stage.say(agent, "Tea?")
    assert "send_message" in offered(stage)
    assert not offered(stage) & SEARCHES
    assert stage.model.requests[-1].tool_choice == "required"
