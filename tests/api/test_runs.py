"""Runs, their steps, and the memory that an answer was made from."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from letta_client import BadRequestError
from letta_client.types import AgentState

from ricordo.domain.ids import is_id, new_id, unique
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import ok, refused
from tests.seams.server import LIMIT, MODEL, Gate, StrictLetta


def test_a_run_shows_a_turns_messages_steps_usage_and_times(api: Api, agent: AgentState) -> None:
    insert = call("memory_insert", label="human", new_string="x")
    api.server.says(
        ModelReply(
            (TextPart("Noted."), insert), Usage(10, 2, 4, 1, None), "tool_calls", model="model-2026"
        ),
        ModelReply((TextPart("Done."),), Usage(20, 3, 5, None, 2)),
    )
    before = datetime.now(UTC).timestamp() * 1e9
    answer = api.client.agents.messages.create(
        agent.id, input="Hello.", assistant_message_tool_name="speak"
    )
    run_id = answer.messages[0].run_id or ""

    run = api.client.runs.retrieve(run_id)
    assert is_id(run.id, "run")
    assert (run.agent_id, run.status, run.stop_reason, run.background) == (
        agent.id,
        "completed",
        "end_turn",
        False,
    )
    assert is_id(run.conversation_id or "", "conv")
    assert run.metadata == {"run_type": "send_message"}
    assert run.request_config.to_dict() == {
        "use_assistant_message": True,
        "assistant_message_tool_name": "speak",
        "assistant_message_tool_kwarg": "message",
        "include_return_message_types": None,
        "include_compaction_messages": False,
    }
    assert run.created_at is not None
    assert run.completed_at is not None
    assert (run.completed_at - run.created_at).total_seconds() * 1e9 == pytest.approx(
        run.total_duration_ns
    )
    assert 0 < (run.ttft_ns or 0) <= (run.total_duration_ns or 0)
    metrics = ok(api.http.get(f"/v1/runs/{run_id}/metrics"))
    tool_ids = [tool.id for tool in agent.tools if tool.name == "memory_insert"]
    assert (metrics["num_steps"], metrics["run_ns"], metrics["tools_used"]) == (
        2,
        run.total_duration_ns,
        tool_ids,
    )
    assert metrics["run_start_ns"] == pytest.approx(run.created_at.timestamp() * 1e9, abs=1e6)

    messages = api.client.runs.messages.list(run_id).items
    types = [
        f"{type}_message" for type in ("user", "assistant", "tool_call", "tool_return", "assistant")
    ]
    assert [message.message_type for message in messages] == types
    newest_first = api.client.runs.messages.list(run_id, order="desc").items
    assert (
        unique(message.id for message in newest_first)
        == unique(message.id for message in messages)[::-1]
    )
    usage = api.client.runs.usage.retrieve(run_id)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 5, 35)
    assert usage.prompt_tokens_details.to_dict() == {"cached_tokens": 9, "cache_creation_tokens": 1}
    assert usage.completion_tokens_details.to_dict() == {"reasoning_tokens": 2}
    steps = api.client.runs.steps.list(run_id, order="asc").items
    assert [(step.prompt_tokens, step.completion_tokens, step.stop_reason) for step in steps] == [
        (10, 2, None),
        (20, 3, "end_turn"),
    ]
    assert [step.id for step in api.client.runs.steps.list(run_id)] == [
        step.id for step in reversed(steps)
    ]

    step = api.client.steps.retrieve(steps[0].id)
    assert is_id(step.id, "step")
    assert (step.agent_id, step.run_id) == (agent.id, run_id)
    assert (step.model, step.api_model_handle, step.provider_name) == (
        "model-2026",
        MODEL,
        "scripted",
    )
    assert (step.cached_input_tokens, step.cache_write_tokens, step.reasoning_tokens) == (
        4,
        1,
        None,
    )
    assert step.prompt_tokens_details == {"cached_tokens": 4, "cache_creation_tokens": 1}
    assert (step.status, step.stop_reason, step.context_window_limit) == ("success", None, 128_000)
    assert (step.error_type, step.error_data, step.feedback, step.tags) == (None, None, None, [])
    made = api.client.steps.messages.list(step.id).items
    assert [one.otid for one in made] == [one.otid for one in messages[1:4]]
    newest_first = [one.id for one in api.client.steps.messages.list(step.id, order="desc")]
    assert unique(newest_first) == unique(one.id for one in made)[::-1]
    times = api.client.steps.metrics.retrieve(step.id)
    assert (times.id, times.run_id, times.agent_id) == (step.id, run_id, agent.id)
    assert times.to_dict()["organization_id"] == LOCAL_ORGANIZATION
    assert before - 1e6 <= (times.step_start_ns or 0) <= datetime.now(UTC).timestamp() * 1e9
    assert times.llm_request_start_ns == times.step_start_ns
    assert 0 < (times.llm_request_ns or 0) + (times.tool_execution_ns or 0) <= (times.step_ns or 0)


def test_a_failed_run_and_its_step_keep_the_error(api: Api, agent: AgentState) -> None:
    api.server.says(ModelError("llm_rate_limit", "Slow down."))
    with pytest.raises(Exception, match="Slow down"):
        api.client.agents.messages.create(agent.id, input="Hello.")

    (run,) = api.client.runs.list(agent_id=agent.id).items

    assert (run.status, run.stop_reason) == ("failed", "llm_api_error")
    assert run.metadata == {
        "run_type": "send_message",
        "error": {"type": "llm_rate_limit", "message": "Slow down."},
    }
    assert run.completed_at is not None
    assert api.client.runs.usage.retrieve(run.id).total_tokens == 0
    assert [message.message_type for message in api.client.runs.messages.list(run.id)] == [
        "user_message"
    ]
    (step,) = api.client.runs.steps.list(run.id).items
    assert (step.status, step.stop_reason, step.error_type) == (
        "failed",
        "llm_api_error",
        "llm_rate_limit",
    )
    assert step.error_data == {"type": "llm_rate_limit", "message": "Slow down."}
    assert step.total_tokens == 0
    assert api.client.steps.metrics.retrieve(step.id).llm_request_ns
    assert list(api.client.steps.messages.list(step.id)) == []


def test_runs_are_filtered_and_an_open_run_cannot_be_deleted(api: Api, agent: AgentState) -> None:
    other = api.client.agents.create(model=agent.model)
    theirs = (api.client.agents.messages.create(other.id, input="Hello.").usage.run_ids or [])[0]
    first = (api.client.agents.messages.create(agent.id, input="Hello.").usage.run_ids or [])[0]
    gate = Gate(api.server)
    api.server.answers_with(gate)

    def ids(**query: object) -> list[str]:
        return [run.id for run in api.client.runs.list(**query)]  # type: ignore[arg-type]

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: api.client.agents.messages.create(agent.id, input="Wait."))
        gate.wait()
        second = ids(agent_id=agent.id)[0]
        assert ids(agent_id=agent.id) == [second, first]
        assert ids(agent_id=agent.id, ascending=True) == [first, second]
        assert ids(agent_ids=[agent.id, other.id]) == [second, first, theirs]
        assert ids(agent_id=agent.id, active=True) == [second]
        assert ids(agent_id=agent.id, statuses=["completed"]) == [first]
        assert ids(agent_id=agent.id, statuses=["running", "completed"]) == [second, first]
        assert ids(agent_id=agent.id, stop_reason="end_turn") == [first]
        assert ids(agent_id=agent.id, background=True) == []
        assert ids(conversation_id=api.client.runs.retrieve(theirs).conversation_id) == [theirs]
        running = api.client.runs.retrieve(second)
        assert (running.status, running.stop_reason, running.completed_at) == (
            "running",
            None,
            None,
        )
        assert "has not ended" in refused(api.http.delete(f"/v1/runs/{second}"), 409)
        gate.open()
        asking.result(LIMIT)
    assert api.client.runs.retrieve(second).status == "completed"


def test_deleting_a_run_deletes_its_steps_and_keeps_its_messages(
    api: Api, agent: AgentState
) -> None:
    said = api.client.agents.messages.create(agent.id, input="Hello.").messages[0]
    run_id = said.run_id or ""
    history = [message.id for message in api.client.agents.messages.list(agent.id)]

    assert api.http.delete(f"/v1/runs/{run_id}").json() == {"message": f"{run_id} was deleted."}

    for path in (f"/v1/runs/{run_id}", f"/v1/steps/{said.step_id}"):
        assert api.http.get(path).status_code == 404
    assert api.http.delete(f"/v1/runs/{run_id}").status_code == 404
    assert [message.id for message in api.client.agents.messages.list(agent.id)] == history
    assert api.client.agents.messages.create(agent.id, input="Again.").messages


def test_feedback_and_tags_are_stored_with_a_step(
    client: StrictLetta, http: httpx2.Client, agent: AgentState
) -> None:
    step_id = client.agents.messages.create(agent.id, input="Hello.").messages[0].step_id or ""

    client.steps.feedback.create(step_id, feedback="negative", tags=["rude", "long", "rude"])
    step = client.steps.retrieve(step_id)
    assert (step.feedback, step.tags) == ("negative", ["rude", "long"])
    # What is left out stays; null takes it back.
    client.steps.feedback.create(step_id, feedback="positive")
    step = client.steps.retrieve(step_id)
    assert (step.feedback, step.tags) == ("positive", ["rude", "long"])
    client.steps.feedback.create(step_id, tags=[])
    answer = http.patch(f"/v1/steps/{step_id}/feedback", json={"feedback": None})
    assert (answer.json()["feedback"], answer.json()["tags"]) == (None, [])
    assert client.steps.retrieve(step_id).feedback is None
    older = http.patch(f"/v1/steps/{step_id}/feedback", params={"feedback": "positive"})
    assert older.json()["feedback"] == client.steps.retrieve(step_id).feedback == "positive"
    told = refused(http.patch(f"/v1/steps/{step_id}/feedback"), 422)
    assert told == "INVALID_ARGUMENT: Send feedback, tags, or both."
    assert (
        http.patch(f"/v1/steps/{step_id}/feedback", json={"feedback": "so-so"}).status_code == 422
    )
    assert http.patch(f"/v1/steps/{new_id('step')}/feedback", json={}).status_code == 404


def test_steps_are_filtered_by_agent_model_feedback_tags_and_dates(
    client: StrictLetta, agent: AgentState
) -> None:
    good, bad, plain = [
        client.agents.messages.create(agent.id, input="Hello.").messages[0].step_id or ""
        for _ in range(3)
    ]
    client.steps.feedback.create(good, feedback="positive", tags=["kind", "short"])
    client.steps.feedback.create(bad, feedback="negative", tags=["rude"])

    def ids(**query: object) -> list[str]:
        return [step.id for step in client.steps.list(agent_id=agent.id, order="asc", **query)]  # type: ignore[arg-type]

    assert ids() == ids(model="model") == [good, bad, plain]
    assert [step.id for step in client.steps.list(agent_id=agent.id)] == [plain, bad, good]
    assert ids(model="other") == []
    assert ids(has_feedback=True) == [good, bad]
    assert ids(has_feedback=False) == [plain]
    assert ids(feedback="positive") == [good]
    assert ids(tags=["rude"]) == [bad]
    assert ids(tags=["rude", "kind", "other"]) == [good, bad]
    assert ids(tags=["ki"]) == []
    today = datetime.now(UTC).date()
    assert ids(start_date=today.isoformat(), end_date=today.isoformat()) == [good, bad, plain]
    assert ids(start_date=(today + timedelta(days=2)).isoformat()) == []
    assert ids(end_date=(today - timedelta(days=2)).isoformat()) == []
    with pytest.raises(BadRequestError, match="start_date"):
        ids(start_date="soon")


def test_the_memory_of_an_answer_lists_its_block_versions_and_found_passages(
    api: Api, agent: AgentState
) -> None:
    (passage,) = api.client.agents.passages.create(
        agent.id, text="Jasmine tea is her favourite.", tags=["tea"]
    )
    edit = call("memory_insert", label="human", new_string="Likes tea.")
    api.server.says(call("archival_memory_search", query="favourite tea"), edit, "Jasmine.")

    answer = api.client.agents.messages.create(agent.id, input="Which tea do I like?")

    why = ok(api.http.get(f"/v1/messages/{answer.messages[-1].id}/memory"))
    versions = {
        block.label: ok(api.http.get(f"/v1/blocks/{block.id}/history"))[0]
        for block in api.client.agents.blocks.list(agent.id)
    }
    assert {held["label"]: held["version"] for held in why["blocks"]} == versions
    assert {held["label"]: held["sha"] for held in why["blocks"]} == {
        label: version["sha"] for label, version in versions.items()
    }
    assert [(one["id"], one["text"], one["tags"]) for one in why["passages"]] == [
        (passage.id, passage.text, ["tea"])
    ]

    edited = ok(api.http.get(f"/v1/messages/{answer.messages[-2].id}/memory"))
    assert edited["changed"] == [versions["human"]]
    said = api.client.agents.messages.list(agent.id, order="asc").items[0]
    asked = ok(api.http.get(f"/v1/messages/{said.id}/memory"))
    assert (asked["step_id"], asked["blocks"], asked["passages"], asked["changed"]) == (
        None,
        [],
        [],
        [],
    )

    api.client.agents.passages.delete(str(passage.id), agent_id=agent.id)
    later = ok(api.http.get(f"/v1/messages/{answer.messages[-1].id}/memory"))
    assert (later["passages"], later["forgotten_passage_ids"]) == ([], [passage.id])


def test_the_memory_of_an_edit_lists_the_change_and_a_user_message_has_none(
    api: Api, agent: AgentState
) -> None:
    edit = call("memory_replace", label="human", old_string="Ada", new_string="Ada L.")
    api.server.says(edit, "Noted.")

    answer = api.client.agents.messages.create(agent.id, input="My name is Ada L.")

    said = next(
        one
        for one in api.client.agents.messages.list(agent.id)
        if one.message_type == "user_message"
    )
    nothing = ok(api.http.get(f"/v1/messages/{said.id}/memory"))
    assert (nothing["step_id"], nothing["blocks"], nothing["passages"]) == (None, [], [])
    why = ok(api.http.get(f"/v1/messages/{answer.messages[0].id}/memory"))
    (changed,) = why["changed"]
    human = api.client.agents.blocks.retrieve("human", agent_id=agent.id)
    newest, first = ok(api.http.get(f"/v1/blocks/{human.id}/history"))
    assert changed == newest
    # The step read the version before the version that it wrote.
    assert first["sha"] in {held["sha"] for held in why["blocks"]}
