"""Context windows that are too long for their model.

The tests check which messages are summarized, which limit is learned from a provider, and that a
conversation never becomes unusable.
"""

from dataclasses import replace

from ricordo.domain.message import CompactionPart, TextPart
from ricordo.domain.model import ModelReply, ModelRequest
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.scripted import Line, ScriptedModel, call
from ricordo.llm.tokens import request_tokens
from ricordo.prompt.texts import text as prompt_text
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.agents.conftest import OpenStage
from tests.agents.test_loop import Table
from tests.seams.stage import Stage, faults_of, text_of

DATABASES = ("sqlite", "postgresql")
TOO_LONG = ModelError("context_window_exceeded", "The maximum context length is 4096 tokens.")


async def test_repeated_false_length_refusals_do_not_lock_the_agent_out(
    stage: Stage,
) -> None:
    agent = await stage.agent(context_window=8000, system="You remember. " * 120)
    stage.lines += ["One.", "Two."]
    await stage.say(agent, "First.")
    await stage.say(agent, "Second.")
    # If max_tokens alone exceeds the window, a server refuses every prompt, however short.
    stage.lines += [TOO_LONG] * 12
    failed = await stage.say(agent, "Third.")
    assert failed.failure
    stage.lines.clear()
    stage.lines += ["Back again.", "Still here."]
    assert text_of(await stage.say(agent, "Fourth.")) == "Back again."
    assert text_of(await stage.say(agent, "Fifth.")) == "Still here."
    assert stage.model.requests[-1].messages[-1].text == "Fifth."


async def test_an_absurd_token_count_from_the_provider_does_not_lock_the_agent_out(
    stage: Stage,
) -> None:
    agent = await stage.agent(context_window=8000, system="You remember. " * 700)
    stage.lines += [
        ModelReply((TextPart("One."),), usage=Usage(prompt_tokens=900_000, completion_tokens=1)),
        "Two.",
    ]
    await stage.say(agent, "First.")
    answer = await stage.say(agent, "Second.")
    assert answer.failure is None
    assert text_of(answer) == "Two."


async def test_messages_summarized_in_a_turn_stay_out_of_the_window_when_it_fails(
    open_stage: OpenStage,
) -> None:
    table = Table()
    table.gate.open()
    stage = await open_stage(table.tool("sow"))
    agent = await stage.agent(tool_names=("sow",), context_window=4000)
    stage.lines += [
        call("sow"),
        (TextPart("word " * 3000), call("sow")),
        call("sow"),
        "The summary.",
        TOO_LONG,
    ]
    stage.lines += [ModelError("llm_error", "Down.")] * 4
    await stage.say(agent, "Begin.")
    thread, history = await stage.thread(agent), await stage.history(agent)
    gone = {
        id
        for one in history
        for part in one.parts
        if hasattr(part, "evicted")
        for id in part.evicted
    }
    assert gone.isdisjoint(thread.window)
    assert thread.message_count == len(history)
    stage.lines.clear()
    # The part that stayed is too long again, so it is summarized first.
    stage.lines += ["Here."] * 6
    assert (await stage.say(agent, "Are you there?")).messages[-1].text == "Here."
    assert faults_of(stage.model.requests[-1].messages) == []


async def _talk(stage: Stage, agent: str, turns: int) -> None:
    for number in range(turns):
        stage.lines.append(f"Answer {number}.")
        await stage.say(agent, f"Part {number}: {'word ' * 300}")


def _small(stage: Stage, *lines: Line) -> ScriptedModel:
    model = ScriptedModel(lines, name="small", context_window=4000)
    stage.runtime.models.add(model)
    return model


async def test_a_smaller_model_for_one_turn_reads_an_outline_and_the_window_is_unchanged(
    stage: Stage,
) -> None:
    small = _small(stage, call("conversation_search", query="Part 0"), "Small.")
    agent = await stage.agent(context_window=32_000, tool_names=("conversation_search",))
    await _talk(stage, agent, 12)
    before = (await stage.thread(agent)).window
    answer = await stage.say(agent, "What now?", model="scripted/small")
    assert text_of(answer) == "Small."
    asked = small.requests[0].messages
    assert "Part 0:" in asked[1].text
    assert asked[-1].text == "What now?"
    assert all(request_tokens(request) <= 3600 for request in small.requests)
    assert all(faults_of(request.messages) == [] for request in small.requests)
    # The smaller model leaves no trace: the agent's model reads everything again.
    assert (await stage.thread(agent)).window[: len(before)] == before
    await stage.require_whole_window(agent)
    stage.lines.append("Large.")
    await stage.say(agent, "And now?")
    words = [message.text for message in stage.model.requests[-1].messages]
    assert [word for word in words if word.startswith("Part 0:")]
    assert "Small." in words


async def test_a_smaller_models_length_refusals_shorten_only_its_own_requests(stage: Stage) -> None:
    small = _small(stage, TOO_LONG, TOO_LONG, "Small.")
    agent = await stage.agent(context_window=32_000)
    await _talk(stage, agent, 12)
    assert text_of(await stage.say(agent, "What now?", model="scripted/small")) == "Small."
    sizes = [request_tokens(request) for request in small.requests]
    assert sizes[0] > sizes[1] > sizes[2]
    await stage.require_whole_window(agent)
    assert (await stage.thread(agent)).token_percent is None or (
        await stage.thread(agent)
    ).token_percent == 100


async def test_a_window_too_long_for_its_own_model_is_summarized_even_in_another_models_turn(
    stage: Stage,
) -> None:
    small = ScriptedModel(
        lambda request: "Small." if request.messages[-1].text == "What now?" else "The summary.",
        name="small",
        context_window=3000,
    )
    stage.runtime.models.add(small)
    agent = await stage.agent(context_window=32_000)
    await _talk(stage, agent, 12)
    before = await stage.state(agent)
    shrunk = replace(before.agent, context_window=4200)

    def shrink(tx: Transaction) -> None:
        agents.lock(tx, Scope(), agent)
        agents.update(tx, shrunk)

    await stage.store.write(shrink)
    assert text_of(await stage.say(agent, "What now?", model="scripted/small")).endswith("Small.")
    window = (await stage.thread(agent)).window
    assert [
        message.text for message in await stage.history(agent) if message.role == "summary"
    ] == ["The summary."]
    # The part that stays fits the agent's model; the other model's window does not matter.
    kept = [id for id in before.conversation.window if id in window]
    assert 9 < len(kept) < len(before.conversation.window)
    assert request_tokens(small.requests[-1]) <= 2700


async def test_compactions_that_gain_little_soon_stop_asking_the_model_in_a_turn(
    open_stage: OpenStage,
) -> None:
    def dig(_context: ToolContext) -> str:
        """Dig."""
        return "earth " * 40

    stage = await open_stage(ServerTool(dig, "custom"))
    summing: list[int] = []

    def answer(request: ModelRequest) -> Line:
        if request.messages[0].text.startswith(prompt_text("summary_system_prompt")[:40]):
            summing.append(len(request.messages))
            return "They dug. " * 10
        return call("dig")

    stage.lines += [answer] * 200
    agent = await stage.agent(tool_names=("dig",), context_window=4096, has_base_tools=False)
    # The user's message leaves so little room that each result fills the window again.
    ended = await stage.say(agent, "word " * 2600, max_steps=30)
    assert ended.run.stop_reason == "max_steps"
    assert len(summing) <= 4
    summaries = [message for message in await stage.history(agent) if message.role == "summary"]
    parts = [message.parts[-1] for message in summaries]
    assert len(summaries) > 4
    assert all(
        isinstance(part, CompactionPart) and part.tokens_after < part.tokens_before
        for part in parts
    )
    assert summaries[-1].text.startswith("(No model wrote this summary.")


async def test_a_limit_learned_from_a_refusal_holds_for_the_rest_of_the_turn(
    open_stage: OpenStage,
) -> None:
    def dig(_context: ToolContext) -> str:
        """Dig."""
        return "earth " * 400

    stage = await open_stage(ServerTool(dig, "custom"))
    refused: list[int] = []

    def answer(request: ModelRequest) -> Line:
        if request.messages[0].text.startswith(prompt_text("summary_system_prompt")[:40]):
            return "They dug."
        size = request_tokens(request)
        if size > 4000:
            refused.append(size)
            return TOO_LONG
        return ModelReply(
            (call("dig"),),
            finish="tool_calls",
            usage=Usage(prompt_tokens=size, completion_tokens=1),
        )

    stage.lines += [answer] * 200
    # The server was started with an eighth of the window that is known for this model.
    agent = await stage.agent(tool_names=("dig",), context_window=32_000, has_base_tools=False)
    ended = await stage.say(agent, "Begin.", max_steps=30)
    assert ended.run.stop_reason == "max_steps"
    assert len(refused) == 1


async def test_a_failed_summary_model_is_not_asked_again_for_some_minutes(
    stage: Stage,
) -> None:
    asked: list[str] = []

    def write(request: ModelRequest) -> Line:
        asked.append(request.messages[-1].text)
        return ModelError("llm_error", "Down.") if fails else "The summary."

    stage.runtime.models.add(ScriptedModel(write, name="writer"))
    agent = await stage.agent(
        context_window=4000, settings={"compaction": {"mode": "all", "model": "scripted/writer"}}
    )
    other = await stage.agent(
        context_window=4000, settings={"compaction": {"mode": "all", "model": "scripted/writer"}}
    )

    async def summaries(of: str) -> list[str]:
        await _talk(stage, of, 30)
        return [message.text for message in await stage.history(of) if message.role == "summary"]

    fails = True
    outlines = await summaries(agent)
    assert len(outlines) > 1
    assert len(asked) == 1
    assert not any("The summary." in outline for outline in outlines)
    # Possibly only one agent's settings or messages make the model fail.
    await summaries(other)
    assert len(asked) == 2
    fails = False
    stage.store.clock.advance(301)
    assert "The summary." in await summaries(agent)
    assert len(asked) > 2
