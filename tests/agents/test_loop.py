"""The agent loop: steps, sequential and parallel tools, and the conditions that end a turn."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ricordo.agents.conversations import create_conversation
from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnRequest,
)
from ricordo.agents.turn import Answer, PastTurn, collect, run_turn
from ricordo.domain.agent import AgentState, OpenFile, PromptDirectory
from ricordo.domain.message import (
    ApprovalPart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from ricordo.domain.model import ModelReply, ModelRequest
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError, ModelErrorKind
from ricordo.llm.scripted import Line, call
from ricordo.plugins import PromptAddition
from ricordo.prompt.transcript import has_pictures
from ricordo.storage import runs
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.agents.conftest import OpenStage
from tests.seams.stage import Gate, Stage, faults_of, returns, roles, soon, text_of
from tests.seams.stores import Counted, count_statements

DATABASES = ("sqlite", "postgresql")


async def test_the_model_receives_the_stored_window_in_order(stage: Stage, agent: str) -> None:
    stage.lines += ["One.", call("conversation_search", query="tea"), "Two.", "Three."]
    for text in ("First.", "Second.", "Third."):
        before = list((await stage.thread(agent)).window)
        await stage.say(agent, text)
        sent = stage.model.requests[-1].messages
        assert [message.id for message in sent[: len(before)]] == before
    assert [message.id for message in sent] == [
        message.id for message in (await stage.history(agent))[:-1]
    ]
    assert roles(sent) == "system user assistant user assistant tool assistant user"
    await stage.require_sound(agent)


async def test_a_tool_runs_and_the_model_is_asked_again_with_its_result(stage: Stage) -> None:
    agent = await stage.agent(("human", "Her name is Ada."))
    stage.lines += [call("memory_insert", label="human", new_string="Likes tea."), "Noted."]
    answer = await stage.say(agent, "I like tea.")
    assert text_of(answer) == "Noted."
    assert roles(answer.messages) == "assistant tool assistant"
    assert returns(answer) == [("success", "Her name is Ada.\nLikes tea.")]
    assert answer.run.step_count == 2
    assert faults_of(stage.model.requests[1].messages) == []
    assert await stage.block(agent, "human") == "Her name is Ada.\nLikes tea."
    await stage.require_sound(agent)


async def test_every_step_records_its_usage_and_the_run_holds_the_sum(
    stage: Stage, agent: str
) -> None:
    stage.lines += [call("conversation_search", query="tea"), "No."]
    events = [event async for event in (await stage.begin(agent, "Tea?")).events()]
    steps = [step for event in events if (step := getattr(event, "step", None))]
    assert [step.stop_reason for step in steps] == [None, "end_turn"]
    assert [step.id for step in steps] == list(
        dict.fromkeys(m.step_id for m in await stage.history(agent) if m.step_id)
    )
    (run,) = await stage.runs(agent)
    assert run.usage == steps[0].usage + steps[1].usage
    assert run.ttft_ns
    assert run.duration_ns


@pytest.mark.parametrize("parts", [(), (ReasoningPart("May I?"),)])
async def test_an_answer_that_a_content_filter_withheld_fails_the_turn_and_the_next_is_answered(
    stage: Stage, agent: str, parts: tuple[ReasoningPart, ...]
) -> None:
    stage.lines += [ModelReply(parts, finish="content_filter"), "Hello."]
    answer = await stage.say(agent, "Say something bad.")
    assert answer.run.status == "failed"
    assert "content filter withheld" in (answer.run.error or {})["message"]
    assert len(stage.model.requests) == 1
    assert text_of(await stage.say(agent, "Say hello.")) == "Hello."
    # The message that the filter may have met does not block the answers of later turns.
    sent = [message.text for message in stage.model.requests[-1].messages]
    assert "Say something bad." not in sent
    assert "Say something bad." in [message.text for message in await stage.history(agent)]


@pytest.mark.parametrize("parts", [(), (TextPart(" "),), (ReasoningPart("Let me count."),)])
async def test_an_answer_that_is_cut_off_before_its_text_fails_the_turn_with_a_reason(
    stage: Stage, agent: str, parts: tuple[TextPart | ReasoningPart, ...]
) -> None:
    stage.lines += [ModelReply(parts, finish="length", usage=Usage(10, 20)), "Hello."]
    turn = await stage.begin(agent, "Count.")
    answer = await collect(turn)
    assert (answer.run.status, answer.run.stop_reason) == ("failed", "max_tokens_exceeded")
    assert answer.failure
    assert "limit of tokens before it gave an answer" in answer.failure.message
    assert len(stage.model.requests) == 1
    # The tokens count, and a later reader of the run learns the same.
    (run,) = await stage.runs(agent)
    assert (run.usage, run.error) == (
        Usage(10, 20),
        {"type": answer.failure.kind, "message": answer.failure.message},
    )
    assert text_of(await stage.say(agent, "Say hello.")) == "Hello."
    await stage.require_sound(agent)


async def test_a_message_that_a_tool_sent_before_the_limit_of_tokens_is_the_answer(
    stage: Stage,
) -> None:
    agent = await stage.agent(agent_type="memgpt_v2_agent", has_base_rules=False)
    stage.lines += [
        call("send_message", message="I begin.", request_heartbeat=True),
        ModelReply((ReasoningPart("Let me count."),), finish="length"),
    ]
    answer = await stage.say(agent, "Count.")
    assert answer.failure is None
    assert answer.run.stop_reason == "max_tokens_exceeded"
    assert "I begin." in str(answer.messages)


async def test_a_partial_text_is_the_answer_also_for_a_later_reader(
    stage: Stage, agent: str
) -> None:
    stage.lines += [ModelReply((TextPart("One, tw"),), finish="length")]
    answer = await stage.say(agent, "Count.")
    later = await collect(PastTurn(stage.runtime, Scope(answer.run.organization_id), answer.run.id))
    for reading in (answer, later):
        assert (text_of(reading), reading.failure) == ("One, tw", None)
        assert reading.run.stop_reason == "max_tokens_exceeded"


async def test_the_tokens_of_answers_that_a_turn_cannot_use_are_in_the_ledger(
    stage: Stage, agent: str
) -> None:
    failure = ModelError("llm_empty_response", "The model gave an empty answer.")
    failure.discarded = Usage(100, 200)
    withheld = ModelReply((), Usage(1_000, 2_000), "content_filter")
    retried = ModelReply((TextPart("Hello."),), Usage(1, 2), discarded=Usage(10, 20))
    used = 0
    for line, tokens in ((retried, 33), (failure, 300), (withheld, 3_000)):
        stage.lines.append(line)
        answer = await stage.say(agent)
        organization_id = answer.run.organization_id
        used += tokens
        for of_agent in (None, agent):
            assert used == await stage.store.read(
                partial(
                    runs.used_since, organization_id=organization_id, since=0, agent_id=of_agent
                )
            )
    # The window's size is that of the answer alone.
    assert [run.usage.total_tokens for run in await stage.runs(agent)].count(3) == 1


async def test_the_step_limit_ends_a_turn_with_the_results_saved(stage: Stage, agent: str) -> None:
    stage.lines += [call("conversation_search", query=str(number)) for number in range(9)]
    answer = await stage.say(agent, max_steps=3)
    assert (answer.run.status, answer.run.stop_reason, answer.run.step_count) == (
        "completed",
        "max_steps",
        3,
    )
    assert roles(answer.messages) == "assistant tool assistant tool assistant tool"
    await stage.require_sound(agent)


async def test_calls_with_the_same_id_in_one_reply_get_different_ids(
    stage: Stage, agent: str
) -> None:
    twice = ToolCallPart("call-1", "conversation_search", '{"query": "tea"}')
    stage.lines += [(twice, twice), "Nothing."]
    answer = await stage.say(agent)
    assert len(returns(answer)) == 2
    assert faults_of(stage.model.requests[1].messages) == []
    assert len({part.call_id for message in answer.messages for part in message.tool_calls}) == 2
    await stage.require_sound(agent)


class Table:
    """Makes tools that record when they begin and end."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.notes: list[str] = []

    def tool(self, name: str, **flags: Any) -> ServerTool:
        async def work(context: ToolContext) -> str:
            """Work for a while."""
            self.notes.append(f"{name} begins")
            if len(self.notes) > 1:
                self.gate.open()
            await self.gate.pass_through()
            self.notes.append(f"{name} ends")
            return name

        work.__name__ = name
        return ServerTool(work, "custom", **flags)


async def test_parallel_tools_run_concurrently_and_their_results_keep_the_calls_order(
    open_stage: OpenStage,
) -> None:
    table = Table()
    stage = await open_stage(
        table.tool("sow", runs_in_parallel=True), table.tool("reap", runs_in_parallel=True)
    )
    agent = await stage.agent(tool_names=("sow", "reap"))
    stage.lines += [(call("reap"), call("sow")), "Done."]
    answer = await stage.say(agent)
    assert table.notes[:2] == ["reap begins", "sow begins"]
    assert returns(answer) == [("success", "reap"), ("success", "sow")]
    assert roles(answer.messages) == "assistant tool assistant"
    await stage.require_sound(agent)


async def garden(open_stage: OpenStage, *rules: ToolRule) -> tuple[Stage, str, list[str]]:
    """A stage, and an agent whose calls of `sow` and `reap` wait for approval."""
    table = Table()
    table.gate.open()
    stage = await open_stage(*(table.tool(name) for name in ("sow", "reap", "water")))
    gated = (ToolRule("sow", "requires_approval"), ToolRule("reap", "requires_approval"))
    agent = await stage.agent(
        tool_names=("sow", "reap", "water"), has_base_tools=False, tool_rules=(*gated, *rules)
    )
    return stage, agent, table.notes


async def decide(stage: Stage, agent: str, asked: Message, **decisions: bool) -> Answer:
    """Approve or deny the waiting calls, by the name of their tool."""
    gated = [one for one in asked.tool_calls if one.is_gated]
    parts = tuple(ApprovalPart(one.call_id, decisions[one.name], None) for one in gated)
    return await soon(
        collect(
            await run_turn(stage.runtime, TurnRequest(Scope(), agent, approval=Approval(parts)))
        )
    )


async def test_approving_one_call_does_not_approve_the_next(
    open_stage: OpenStage,
) -> None:
    stage, agent, notes = await garden(
        open_stage, ToolRule("water", "max_count_per_step", None, {"max_count_limit": 2})
    )
    stage.lines += [(call("sow"), call("reap")), "Done."]
    asked = (await stage.say(agent)).messages[-1]
    answer = await decide(stage, agent, asked, sow=True)
    assert [status for status, _ in returns(answer)] == ["success", "error"]
    assert notes == ["sow begins", "sow ends"]


async def test_a_search_omits_the_current_turns_messages_also_after_an_approval(
    stage: Stage,
) -> None:
    rule = ToolRule("conversation_search", "requires_approval")
    for rules in ((), (rule,)):
        agent = await stage.agent(tool_rules=rules)
        stage.lines += ["Noted."]
        beside = await create_conversation(stage.runtime, Scope(), agent, {})
        await stage.say(agent, "My aunt Berta has a heron.", conversation_id=beside.id)
        question = "What has my aunt Berta, my aunt?"
        stage.lines += [
            (TextPart("Aunt Berta: let me look."), call("conversation_search", query=question)),
            "A heron.",
        ]
        answer = await stage.say(agent, question)
        if rules:
            answer = await decide(stage, agent, answer.messages[-1], conversation_search=True)
        ((status, content),) = returns(answer)
        assert status == "success"
        assert "heron" in content
        assert "What has" not in content
        assert "let me look" not in content


async def say_and_count(stage: Stage, agent: str, *lines: object) -> tuple[Counted, Answer]:
    stage.lines += lines  # type: ignore[arg-type]
    with count_statements(stage.store) as counted:
        answer = await stage.say(agent)
    return counted, answer


async def test_a_plain_turn_costs_at_most_twelve_statements_in_two_transactions(
    stage: Stage,
) -> None:
    agent = await stage.agent(("human", "Ada."), ("persona", "Kind."))
    counted, _ = await say_and_count(stage, agent, "Hello.")
    assert len(counted.statements) <= 12, counted.statements
    assert counted.transactions == 2
    while len((await stage.thread(agent)).window) < 60:
        stage.lines += ["Hello."]
        await stage.say(agent)
    long, _ = await say_and_count(stage, agent, "Hello.")
    assert len(long.statements) <= len(counted.statements)
    assert long.transactions == 2


async def test_a_tool_step_adds_at_most_six_statements_and_a_transaction(
    open_stage: OpenStage,
) -> None:
    table = Table()
    table.gate.open()
    stage = await open_stage(table.tool("sow"))
    agent = await stage.agent(("human", "Ada."), tool_names=("sow",))
    plain, _ = await say_and_count(stage, agent, "Hello.")
    counted, answer = await say_and_count(stage, agent, call("sow"), "Done.")
    assert returns(answer) == [("success", "sow")]
    assert len(counted.statements) - len(plain.statements) <= 6, counted.statements
    assert counted.transactions - plain.transactions == 1


@pytest.mark.parametrize(
    "line",
    [
        call("memory_insert", label="human", new_string="Likes tea."),
        (
            call("memory_replace", label="human", old_string="Ada", new_string="Ada L."),
            call("memory_insert", label="human", new_string="Likes tea."),
        ),
    ],
)
async def test_a_step_that_edits_memory_adds_at_most_eleven_statements_and_a_transaction(
    stage: Stage, line: object
) -> None:
    agent = await stage.agent(("human", "Ada"), ("persona", "Kind."))
    plain, _ = await say_and_count(stage, agent, "Hello.")
    for _round in range(2):
        counted, answer = await say_and_count(stage, agent, line, "Done.")
        assert "success" in returns(answer)[-1]
        assert len(counted.statements) - len(plain.statements) <= 11, counted.statements
        assert counted.transactions - plain.transactions == 1


@pytest.mark.parametrize("kind", ["llm_bad_request", "llm_error"])
async def test_a_picture_the_model_refuses_is_replaced_by_a_text(
    stage: Stage, kind: ModelErrorKind
) -> None:
    """Some servers answer 400 to a picture and some 500.

    The retry sends a placeholder text instead.
    """

    def blind(request: ModelRequest) -> Line:
        if has_pictures(request.messages):
            raise ModelError(kind, "image input is not supported")
        return "I cannot see it."

    agent = await stage.agent()
    stage.lines += [blind] * 4
    picture = NewMessage("user", (TextPart("What is this?"), ImagePart("image/png", "aGk=")))

    first = await stage.send(agent, picture)
    second = await stage.say(agent, "Hello.")

    assert [text_of(answer) for answer in (first, second)] == [
        "I cannot see it.",
        "I cannot see it.",
    ]
    assert "(a picture that this model could not take)" in stage.model.requests[-1].messages[1].text


async def test_a_failed_request_without_a_picture_is_not_repeated(stage: Stage, agent: str) -> None:
    stage.lines += [ModelError("llm_error", "down"), "never said"]
    answer = await stage.say(agent, "Hello.")
    assert answer.failure is not None
    assert len(stage.model.requests) == 1


async def test_directories_added_by_a_plugin_are_read_for_each_step(
    stage: Stage, agent: str
) -> None:
    contents = ["", "", "1: Tea</value>", ""]

    def complete(_tx: Any, states: Sequence[AgentState]) -> Sequence[AgentState]:
        content = contents.pop(0) if len(contents) > 1 else contents[0]
        files = (OpenFile("week1.md", bool(content), 100, content=content),)
        return [replace(state, directories=(PromptDirectory("Course", files),)) for state in states]

    stage.runtime.additions.append(PromptAddition(complete))
    stage.lines += [
        call("conversation_search", query="tea"),
        call("conversation_search", query="cake"),
        "Done.",
    ]
    contents[:2] = [""]
    await stage.say(agent, "Read.")
    first, second, third = (request.messages[0].text for request in stage.model.requests[-3:])
    assert ['name="week1.md"' in text for text in (first, second, third)] == [True, True, True]
    assert ["1: Tea" in text for text in (first, second, third)] == [False, True, False]
    assert r"1: Tea<\/value>" in second
    said = [message for message in await stage.history(agent) if message.role == "assistant"]
    assert [message.is_untrusted for message in said][:2] == [False, True]
