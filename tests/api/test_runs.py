from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from letta_client import NotFoundError
from letta_client.types import AgentState

from ricordo.api.models.runs import RunMetricsResponse
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.api.fits import require_fits
from tests.support.serving import LIMIT, Gate, ServerInThread, StrictLetta


def test_a_run_tells_what_became_of_a_turn(client: StrictLetta, agent: AgentState) -> None:
    answer = client.agents.messages.create(agent.id, input="Hello.", assistant_message_tool_name="speak")

    run = client.runs.retrieve(answer.messages[0].run_id or "")

    assert is_id(run.id, "run")
    assert (run.agent_id, run.status, run.stop_reason, run.background) == (agent.id, "completed", "end_turn", False)
    assert is_id(run.conversation_id or "", "conv")
    assert run.metadata == {"run_type": "send_message"}
    assert run.request_config is not None
    assert run.request_config.to_dict() == {
        "use_assistant_message": True,
        "assistant_message_tool_name": "speak",
        "assistant_message_tool_kwarg": "message",
        "include_return_message_types": None,
        "include_compaction_messages": False,
    }
    assert run.created_at is not None
    assert run.completed_at is not None
    assert (run.completed_at - run.created_at).total_seconds() * 1e9 == pytest.approx(run.total_duration_ns)
    assert 0 < (run.ttft_ns or 0) <= (run.total_duration_ns or 0)


def test_a_run_shows_its_messages_steps_and_usage(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    insert = call("memory_insert", label="human", new_string="x")
    server.says(
        ModelReply((TextPart("Noted."), insert), Usage(10, 2, 4, 1, None), "tool_calls"),
        ModelReply((TextPart("Done."),), Usage(20, 3, 5, None, 2)),
    )
    answer = client.agents.messages.create(agent.id, input="Hello.")
    run_id = answer.messages[0].run_id or ""

    messages = client.runs.messages.list(run_id).items
    assert [message.message_type for message in messages] == [
        "user_message",
        "assistant_message",
        "tool_call_message",
        "tool_return_message",
        "assistant_message",
    ]
    newest_first = client.runs.messages.list(run_id, order="desc").items
    assert [message.otid for message in newest_first] == [message.otid for message in messages][::-1]
    usage = client.runs.usage.retrieve(run_id)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 5, 35)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.to_dict() == {"cached_tokens": 9, "cache_creation_tokens": 1}
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.to_dict() == {"reasoning_tokens": 2}
    steps = client.runs.steps.list(run_id, order="asc").items
    assert [(step.prompt_tokens, step.completion_tokens, step.stop_reason) for step in steps] == [
        (10, 2, None),
        (20, 3, "end_turn"),
    ]
    assert [step.id for step in client.runs.steps.list(run_id)] == [step.id for step in reversed(steps)]


def test_a_failed_run_keeps_its_error(client: StrictLetta, server: ServerInThread, agent: AgentState) -> None:
    server.says(ModelError("llm_rate_limit", "Slow down."))
    with pytest.raises(Exception, match="Slow down"):
        client.agents.messages.create(agent.id, input="Hello.")

    (run,) = client.runs.list(agent_id=agent.id).items

    assert (run.status, run.stop_reason) == ("failed", "llm_api_error")
    assert run.metadata == {"run_type": "send_message", "error": {"type": "llm_rate_limit", "message": "Slow down."}}
    assert run.completed_at is not None
    assert client.runs.usage.retrieve(run.id).total_tokens == 0
    assert [message.message_type for message in client.runs.messages.list(run.id)] == ["user_message"]


def test_runs_are_found_by_agent_status_thread_and_reason(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    other = client.agents.create(model=agent.model)
    theirs = (client.agents.messages.create(other.id, input="Hello.").usage.run_ids or [])[0]
    first = (client.agents.messages.create(agent.id, input="Hello.").usage.run_ids or [])[0]
    gate = Gate(server)
    server.answers_with(gate)

    def ids(**query: object) -> list[str]:
        return [run.id for run in client.runs.list(**query)]  # type: ignore[arg-type]

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: client.agents.messages.create(agent.id, input="Wait."))
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
        assert ids(conversation_id=client.runs.retrieve(theirs).conversation_id) == [theirs]
        running = client.runs.retrieve(second)
        assert (running.status, running.stop_reason, running.completed_at) == ("running", None, None)
        gate.open()
        asking.result(LIMIT)
    assert client.runs.retrieve(second).status == "completed"


def test_a_failed_call_to_a_model_shows_as_a_failed_step_of_its_run(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    server.says(ModelError("llm_rate_limit", "Slow down."))
    with pytest.raises(Exception, match="Slow down"):
        client.agents.messages.create(agent.id, input="Hello.")
    (run,) = client.runs.list(agent_id=agent.id).items

    (step,) = client.runs.steps.list(run.id).items

    assert (step.status, step.stop_reason, step.error_type) == ("failed", "llm_api_error", "llm_rate_limit")
    assert step.error_data == {"type": "llm_rate_limit", "message": "Slow down."}
    assert step.total_tokens == 0
    assert client.steps.metrics.retrieve(step.id).llm_request_ns
    assert list(client.steps.messages.list(step.id)) == []


def test_a_run_tells_its_times_and_the_tools_it_used(
    client: StrictLetta, server: ServerInThread, http: httpx2.Client, agent: AgentState
) -> None:
    insert = call("memory_insert", label="human", new_string="x")
    server.says(insert, call("unknown_tool"), "Done.")
    run_id = client.agents.messages.create(agent.id, input="Hello.").messages[0].run_id or ""

    metrics = http.get(f"/v1/runs/{run_id}/metrics").json()

    require_fits(RunMetricsResponse, metrics)
    run = client.runs.retrieve(run_id)
    tool_ids = [tool.id for tool in agent.tools if tool.name == "memory_insert"]
    assert (metrics["id"], metrics["agent_id"], metrics["num_steps"]) == (run_id, agent.id, 3)
    assert (metrics["run_ns"], metrics["tools_used"]) == (run.total_duration_ns, tool_ids)
    assert run.created_at is not None
    assert metrics["run_start_ns"] == pytest.approx(run.created_at.timestamp() * 1e9, abs=1e6)


def test_a_run_is_deleted_with_its_steps_and_without_its_messages(
    client: StrictLetta, http: httpx2.Client, agent: AgentState
) -> None:
    said = client.agents.messages.create(agent.id, input="Hello.").messages[0]
    run_id = said.run_id or ""
    history = [message.id for message in client.agents.messages.list(agent.id)]
    spent = http.get("/v1/ledger", params={"agent_id": agent.id}).json()["lines"]

    assert http.delete(f"/v1/runs/{run_id}").json() == {"message": f"{run_id} was deleted."}

    for path in (f"/v1/runs/{run_id}", f"/v1/steps/{said.step_id}"):
        assert http.get(path).status_code == 404
    assert http.delete(f"/v1/runs/{run_id}").status_code == 404
    assert [message.id for message in client.agents.messages.list(agent.id)] == history
    assert http.get("/v1/ledger", params={"agent_id": agent.id}).json()["lines"] == spent
    assert client.agents.messages.create(agent.id, input="Again.").messages


def test_an_open_run_is_not_deleted(
    client: StrictLetta, server: ServerInThread, http: httpx2.Client, agent: AgentState
) -> None:
    gate = Gate(server)
    server.answers_with(gate)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: client.agents.messages.create(agent.id, input="Wait."))
        gate.wait()
        (run,) = client.runs.list(agent_id=agent.id).items
        answer = http.delete(f"/v1/runs/{run.id}")
        gate.open()
        assert asking.result(LIMIT).messages
    assert (answer.status_code, "has not ended" in answer.json()["detail"]) == (409, True)
    assert client.runs.retrieve(run.id).status == "completed"


def test_a_run_that_is_not_there_is_told_so(client: StrictLetta) -> None:
    missing = new_id("run")

    for ask in (client.runs.retrieve, client.runs.messages.list, client.runs.usage.retrieve, client.runs.steps.list):
        with pytest.raises(NotFoundError) as caught:
            ask(missing)
        assert caught.value.body == {"detail": f"NOT_FOUND: Run with ID {missing} not found"}
