"""Records of calls to models.

Each failed call has a step, and traces are stored if the settings ask for them.
"""

from typing import Any

import orjson
import pytest

from ricordo.agents import tracing
from ricordo.agents.request import (
    NewMessage,
    TurnRequest,
)
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.agent import CompactionSettings
from ricordo.domain.clock import DAY
from ricordo.domain.job import Job
from ricordo.domain.message import ImagePart, TextPart
from ricordo.domain.model import ModelReply, ToolSchema
from ricordo.domain.run import Step, Trace
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from ricordo.storage import runs
from ricordo.storage.engine.repository import Page
from tests.seams.stage import Stage, soon, text_of
from tests.seams.stores import ManualClock, count_statements

DATABASES = ("sqlite", "postgresql")


def set_traces(stage: Stage, which: str, **settings: Any) -> None:
    stage.runtime.settings = stage.runtime.settings.model_copy(update={"traces": which, **settings})


async def steps(stage: Stage, agent: str) -> list[Step]:
    wanted = Page(limit=100, order="asc")
    return await stage.store.read(
        lambda tx: runs.page_of_steps(tx, Scope(), wanted, agent_id=agent)
    )


async def trace(stage: Stage, step: Step) -> Trace | None:
    return await stage.store.read(lambda tx: runs.trace_of_step(tx, Scope(), step.id))


async def stored_traces(stage: Stage, agent: str) -> list[tuple[Any, Any]]:
    found = [one for step in await steps(stage, agent) if (one := await trace(stage, step))]
    return [(orjson.loads(one.request), orjson.loads(one.response or "null")) for one in found]


async def test_a_failed_model_call_leaves_a_step_with_its_error(stage: Stage, agent: str) -> None:
    stage.lines += [
        call("conversation_search", query="tea"),
        ModelError("llm_rate_limit", "Slow down."),
    ]
    answer = await stage.say(agent)
    assert answer.failure is not None
    first, second = await steps(stage, agent)
    assert first.status == "success"
    assert (second.status, second.stop_reason, second.run_id) == (
        "failed",
        "llm_api_error",
        answer.run.id,
    )
    assert second.error == {"type": "llm_rate_limit", "message": "Slow down."}
    assert (second.model_handle, second.usage, second.tools_ns) == ("scripted/model", Usage(), None)
    assert 0 < (second.model_ns or 0) <= (second.step_ns or 0)
    assert answer.run.step_count == 1
    await stage.require_sound(agent)


async def test_a_cancelled_model_call_leaves_a_cancelled_step(stage: Stage, agent: str) -> None:
    turn, _gate = await stage.asked(agent, line="Never said.")
    await soon(turn.cancel())
    (step,) = await steps(stage, agent)
    assert (step.status, step.stop_reason, step.error) == ("cancelled", "cancelled", None)
    await stage.require_sound(agent)


async def traces_of(stage: Stage, run_id: str) -> list[tuple[Any, Any]]:
    found = await stage.store.read(lambda tx: runs.traces_of_run(tx, Scope(), run_id, 100))
    return [(orjson.loads(one.request), orjson.loads(one.response or "null")) for one in found]


@pytest.mark.parametrize(
    ("which", "kinds"), [("off", []), ("errors", ["error"]), ("all", ["error", "parts", "parts"])]
)
async def test_model_calls_for_summaries_are_traced_too(
    stage: Stage, which: str, kinds: list[str]
) -> None:
    set_traces(stage, "off")
    agent = await stage.agent()
    stage.lines += ["One.", "Two."]
    await stage.say(agent)
    await stage.say(agent)
    set_traces(stage, which)
    asked = TurnRequest(Scope(), agent, compaction=CompactionSettings(mode="sliding_window"))
    stage.lines += ["They greeted each other.", "Three.", ModelError("llm_error", "Down.")]
    await soon(collect(await run_turn(stage.runtime, asked)))
    await stage.say(agent)
    # The model fails, so the summary is an outline.
    await soon(collect(await run_turn(stage.runtime, asked)))
    found = [
        one for run in reversed(await stage.runs(agent)) for one in await traces_of(stage, run.id)
    ]
    assert sorted("error" if "error" in response else "parts" for _, response in found) == kinds
    if which == "all":
        texts = [part["text"] for _, response in found for part in response.get("parts", ())]
        assert sorted(texts) == ["They greeted each other.", "Three."]


async def test_the_trace_of_a_failed_call_holds_its_error(stage: Stage) -> None:
    set_traces(stage, "errors")
    agent = await stage.agent()
    stage.lines.append(
        ModelError("llm_authentication", "Key sk-proj-8Fa92kLmQ0xZ4bT7cVnR1yWd is wrong.")
    )
    await stage.say(agent, "Hello.")
    ((request, response),) = await stored_traces(stage, agent)
    assert request["messages"][-1]["parts"][0]["text"] == "Hello."
    assert response == {
        "error": {
            "type": "llm_authentication",
            "message": "Key [secret removed: api key] is wrong.",
        }
    }


async def test_a_trace_holds_no_credentials_and_no_pictures(stage: Stage) -> None:
    set_traces(stage, "all")
    agent = await stage.agent()
    stage.lines.append("I see.")
    said = (
        TextPart("Use Bearer abcdefgh12345678 for it."),
        ImagePart("image/png", "aGVsbG8gd29ybGQh" * 1000),
    )
    await stage.send(agent, NewMessage("user", said))
    (step,) = await steps(stage, agent)
    found = await trace(stage, step)
    assert "abcdefgh12345678" not in found.request
    assert "aGVsbG8" not in found.request
    assert orjson.loads(found.request)["messages"][-1]["parts"][1] == {
        "kind": "image",
        "media_type": "image/png",
        "data": "12,000 bytes",
    }


async def test_a_trace_costs_one_statement_and_nothing_when_off(stage: Stage, agent: str) -> None:

    async def statements() -> int:
        stage.lines.append("Fine.")
        with count_statements(stage.store) as counted:
            await stage.say(agent)
        assert counted.transactions == 2
        return len(counted.statements)

    await statements()
    plain = await statements()
    set_traces(stage, "all")
    assert await statements() == plain + 1
    set_traces(stage, "errors")
    assert await statements() == plain


async def test_a_request_that_cannot_be_serialized_leaves_no_trace_and_does_not_fail_the_turn(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    set_traces(stage, "all")
    agent = await stage.agent()
    stage.lines.append(ModelReply((TextPart("Fine."),), Usage(1, 1)))
    schema = ToolSchema("far", "", {"type": "object", "maximum": 2**70})
    assert text_of(await stage.say(agent, client_tools=(schema,))) == "Fine."
    assert await stored_traces(stage, agent) == []
    assert "a trace cannot be written" in caplog.text


@pytest.mark.parametrize(
    "most", [1_000, *(pytest.param(m, marks=pytest.mark.soak) for m in (5_000, 200_000))]
)
@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "parts": [{"text": "long " * 200_000}]}]},
        {
            "messages": [
                {"role": "user", "parts": [{"text": f"word {number}"}]} for number in range(5_000)
            ]
        },
        {"messages": [{"text": "ä" * 3_000} for _ in range(500)], "tools": [{"name": "t"}] * 500},
        {f"field {number}": "x" * 50 for number in range(4_000)},
    ],
)
def test_a_too_large_trace_is_cut_to_its_limit_and_stays_valid_json(
    value: dict[str, Any], most: int
) -> None:
    text = tracing.shortened(value, most)
    assert len(text.encode()) <= most
    note = orjson.loads(text)["note"]
    assert note.startswith("Shortened: this was ")


def test_a_small_trace_is_kept_and_a_long_text_keeps_both_ends() -> None:
    assert orjson.loads(tracing.shortened({"a": ["b" * 100]}, 1_000)) == {"a": ["b" * 100]}
    cut = orjson.loads(tracing.shortened({"a": "first " + "x" * 100_000 + " last"}, 3_000))["a"]
    assert cut.startswith("first ")
    assert cut.endswith(" last")
    assert "characters left out" in cut


async def test_old_and_surplus_traces_are_deleted(stage: Stage, clock: ManualClock) -> None:
    set_traces(stage, "all", trace_days=2, trace_count=2)
    agent = await stage.agent()
    stage.lines += [f"{number}." for number in range(5)]
    for _ in range(4):
        await stage.say(agent)
    told: list[int] = []
    await tracing.HANDLER.run(
        stage.runtime, Job("traces", LOCAL_ORGANIZATION), lambda done, _: told.append(done)
    )
    assert [response["parts"][0]["text"] for _, response in await stored_traces(stage, agent)] == [
        "2.",
        "3.",
    ]
    assert told == [2]
    clock.advance(3 * DAY / 1_000_000)
    await stage.say(agent)
    await tracing.HANDLER.run(stage.runtime, Job("traces", LOCAL_ORGANIZATION), lambda *_: None)
    assert [response["parts"][0]["text"] for _, response in await stored_traces(stage, agent)] == [
        "4."
    ]
    assert len(await steps(stage, agent)) == 5
