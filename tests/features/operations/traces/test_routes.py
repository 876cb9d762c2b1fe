"""Traces over HTTP: by step, by run and by the older address, if the settings keep them."""

from collections.abc import Iterator

import pytest
from letta_client import NotFoundError
from letta_client.types import AgentState

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.server import MODEL, ServerInThread


@pytest.fixture
def tracing(server: ServerInThread) -> Iterator[None]:
    """All calls are traced."""
    runtime = server.runtime
    before = runtime.settings
    runtime.settings = before.model_copy(update={"traces": "all"})
    yield
    runtime.settings = before


@pytest.mark.usefixtures("tracing")
def test_a_steps_trace_has_the_model_request_and_response(api: Api, agent: AgentState) -> None:
    said = api.client.agents.messages.create(agent.id, input="Good morning.").messages[0]
    step_id = said.step_id or ""

    trace = api.client.steps.trace.retrieve(step_id)

    assert (trace.step_id, trace.run_id, trace.agent_id) == (step_id, said.run_id, agent.id)
    assert trace.id == step_id.replace("step-", "provider_trace-")
    assert (trace.org_id, trace.call_type) == (LOCAL_ORGANIZATION, "agent_step")
    assert trace.request_json["model"] == MODEL
    assert trace.response_json["parts"] == [{"kind": "text", "text": "ok"}]
    assert trace.created_at is not None
    wire = api.http.get(f"/v1/steps/{step_id}/trace").json()
    assert api.http.get(f"/v1/telemetry/{step_id}").json() == wire


@pytest.mark.usefixtures("tracing")
def test_a_run_lists_the_traces_of_its_steps_in_order(api: Api, agent: AgentState) -> None:
    api.server.says(
        call("memory_insert", label="human", new_string="x"), ModelError("llm_bad_request", "No.")
    )
    with pytest.raises(Exception, match="No"):
        api.client.agents.messages.create(agent.id, input="Hello.")
    (run,) = api.client.runs.list(agent_id=agent.id).items

    traces = api.client.runs.trace.retrieve(run.id)

    steps = api.client.runs.steps.list(run.id, order="asc").items
    assert [trace["step_id"] for trace in traces] == [step.id for step in steps]
    assert traces[1]["response_json"] == {"error": {"type": "llm_bad_request", "message": "No."}}
    assert [trace["step_id"] for trace in api.client.runs.trace.retrieve(run.id, limit=1)] == [
        steps[0].id
    ]


@pytest.mark.usefixtures("tracing")
def test_a_summarization_call_is_among_the_traces_of_its_run(api: Api, agent: AgentState) -> None:
    api.server.says("One.", "Two.", "They greeted each other.")
    api.client.agents.messages.create(agent.id, input="Hello.")
    api.client.agents.messages.create(agent.id, input="Hello again.")
    api.client.agents.messages.compact(agent.id)
    newest = api.client.runs.list(agent_id=agent.id).items[0]

    (trace,) = api.client.runs.trace.retrieve(newest.id)

    assert (trace["call_type"], trace["response_json"]["parts"][0]["text"]) == (
        "summarization",
        "They greeted each other.",
    )
    assert api.http.get(f"/v1/steps/{trace['step_id']}/trace").json() == trace


def test_a_missing_trace_is_reported_with_the_setting_that_enables_traces(
    api: Api, agent: AgentState
) -> None:
    said = api.client.agents.messages.create(agent.id, input="Hello.").messages[0]
    with pytest.raises(NotFoundError, match="RICORDO_TRACES"):
        api.client.steps.trace.retrieve(said.step_id or "")
    assert api.client.runs.trace.retrieve(said.run_id or "") == []
    missing = new_id("step")
    for path in (f"/v1/steps/{missing}/trace", f"/v1/telemetry/{missing}"):
        assert api.http.get(path).json() == {
            "detail": f"NOT_FOUND: Step with ID {missing} not found"
        }
    assert api.http.get(f"/v1/runs/{new_id('run')}/trace").status_code == 404
