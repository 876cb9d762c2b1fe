from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from letta_client import BadRequestError, NotFoundError
from letta_client.types import AgentState

from ricordo.domain.ids import is_id, new_id
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.domain.usage import Usage
from ricordo.llm.scripted import call
from tests.support.serving import MODEL, ServerInThread, StrictLetta


def test_a_step_tells_which_model_was_asked_and_what_it_took(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    server.says(ModelReply((TextPart("Hello."),), Usage(10, 2, 4, 1, 0), model="model-2026"))
    answer = client.agents.messages.create(agent.id, input="Hello.")

    step = client.steps.retrieve(answer.messages[0].step_id or "")

    assert is_id(step.id, "step")
    assert (step.agent_id, step.run_id) == (agent.id, answer.messages[0].run_id)
    assert (step.model, step.api_model_handle, step.provider_name) == ("model-2026", MODEL, "scripted")
    assert (step.prompt_tokens, step.completion_tokens, step.total_tokens) == (10, 2, 12)
    assert (step.cached_input_tokens, step.cache_write_tokens, step.reasoning_tokens) == (4, 1, 0)
    assert step.prompt_tokens_details == {"cached_tokens": 4, "cache_creation_tokens": 1}
    assert step.completion_tokens_details == {"reasoning_tokens": 0}
    assert (step.status, step.stop_reason, step.context_window_limit) == ("success", "end_turn", 128_000)
    assert (step.error_type, step.error_data, step.feedback, step.tags) == (None, None, None, [])


def test_a_step_shows_the_messages_it_made(client: StrictLetta, server: ServerInThread, agent: AgentState) -> None:
    server.says((TextPart("Noted."), call("memory_insert", label="human", new_string="x")), "Done.")
    *first, last = client.agents.messages.create(agent.id, input="Hello.").messages
    step_id = first[0].step_id or ""

    made = client.steps.messages.list(step_id).items
    assert [(one.otid, one.message_type) for one in made] == [(one.otid, one.message_type) for one in first]
    assert [one.message_type for one in made] == ["assistant_message", "tool_call_message", "tool_return_message"]
    newest_first = client.steps.messages.list(step_id, order="desc").items
    assert [one.otid for one in newest_first] == [one.otid for one in first][::-1]
    assert [one.id for one in client.steps.messages.list(last.step_id or "")] == [last.id]


def test_the_times_of_a_step_fit_into_each_other(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    server.says(call("memory_insert", label="human", new_string="x"), "Done.")
    before = datetime.now(UTC).timestamp() * 1e9
    first = client.agents.messages.create(agent.id, input="Hello.").messages[0]

    times = client.steps.metrics.retrieve(first.step_id or "")

    assert (times.id, times.run_id, times.agent_id) == (first.step_id, first.run_id, agent.id)
    assert times.to_dict()["organization_id"] == LOCAL_ORGANIZATION
    assert before - 1e6 <= (times.step_start_ns or 0) <= datetime.now(UTC).timestamp() * 1e9
    assert times.llm_request_start_ns == times.step_start_ns
    assert 0 < (times.llm_request_ns or 0) + (times.tool_execution_ns or 0) <= (times.step_ns or 0)


def test_steps_are_found_by_agent_and_by_model(client: StrictLetta, agent: AgentState) -> None:
    step_ids = [client.agents.messages.create(agent.id, input="Hello.").messages[0].step_id for _ in range(2)]

    assert [step.id for step in client.steps.list(agent_id=agent.id)] == step_ids[::-1]
    assert [step.id for step in client.steps.list(agent_id=agent.id, order="asc")] == step_ids
    assert [step.id for step in client.steps.list(agent_id=agent.id, model="model")] == step_ids[::-1]
    assert list(client.steps.list(agent_id=agent.id, model="other")) == []


def test_feedback_and_tags_are_kept_with_a_step(client: StrictLetta, http: httpx2.Client, agent: AgentState) -> None:
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
    assert http.patch(f"/v1/steps/{step_id}/feedback", json={"feedback": "so-so"}).status_code == 422
    assert http.patch(f"/v1/steps/{new_id('step')}/feedback", json={}).status_code == 404


def test_steps_are_found_by_feedback_tags_and_dates(client: StrictLetta, agent: AgentState) -> None:
    good, bad, plain = [
        client.agents.messages.create(agent.id, input="Hello.").messages[0].step_id or "" for _ in range(3)
    ]
    client.steps.feedback.create(good, feedback="positive", tags=["kind", "short"])
    client.steps.feedback.create(bad, feedback="negative", tags=["rude"])

    def ids(**query: object) -> list[str]:
        return [step.id for step in client.steps.list(agent_id=agent.id, order="asc", **query)]  # type: ignore[arg-type]

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


def test_a_step_that_is_not_there_is_told_so(client: StrictLetta) -> None:
    missing = new_id("step")

    for ask in (client.steps.retrieve, client.steps.metrics.retrieve, client.steps.messages.list):
        with pytest.raises(NotFoundError) as caught:
            ask(missing)
        assert caught.value.body == {"detail": f"NOT_FOUND: Step with ID {missing} not found"}
