"""Messages to agents without waiting.

They are sent with the sender's step and delivered once, even after kills, to busy agents, and while
agents are deleted.
"""

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import text, update

from ricordo.agents.request import NewMessage, TurnRequest
from ricordo.domain.job import Job
from ricordo.domain.message import TextPart
from ricordo.domain.scope import Scope
from ricordo.errors import Busy
from ricordo.features.groups import agent_jobs
from ricordo.llm.scripted import call
from ricordo.storage import jobs
from ricordo.storage.schema.core_tables import jobs as job_rows
from tests.features.groups.cast import ASYNC, WAITS, Cast
from tests.seams.http import ok
from tests.seams.server import LIMIT, ServerInThread, serving
from tests.seams.waiting import wait_for


def deliveries(server: ServerInThread, *statuses: str) -> list[Job]:
    query = jobs.ROWS.select.where(job_rows.c.kind == agent_jobs.KIND).order_by(job_rows.c.seq)
    rows = server.read(lambda tx: jobs.ROWS.all(tx, query, {}))
    return [job for job in rows if not statuses or job.status in statuses]


def deliver(server: ServerInThread, job: Job) -> None:
    server.run(agent_jobs.deliver(server.runtime, job, lambda _done, _all: None))


def test_an_async_message_ends_the_turn_and_is_delivered_once(cast: Cast) -> None:
    ben = cast.agent("Ben")
    ann = cast.agent("Ann", ASYNC, include_base_tool_rules=True)
    cast.says("Ann", call(ASYNC, message="Buy tea.", other_agent_id=ben), "Never said.")
    answer = cast.send("Ann")
    (result,) = [one for one in answer["messages"] if one["message_type"] == "tool_return_message"]
    assert (result["status"], result["tool_return"]) == ("success", "Successfully sent message")
    assert answer["messages"][-1] == result
    assert len(cast.requests["Ann"]) == 1
    (message,) = wait_for(lambda: cast.incoming("Ben"))
    assert message.startswith(f"[Incoming message from agent with ID '{ann}' - ")
    assert message.endswith("] Buy tea.")
    (job,) = wait_for(lambda: deliveries(cast.server, "done"))
    for _ in range(3):  # the job runs again, as if it was killed at its end
        deliver(cast.server, job)
    assert len(cast.incoming("Ben")) == len(cast.requests["Ben"]) == 1
    (run,) = ok(cast.http.get("/v1/runs/", params={"agent_id": ben}))
    assert run["status"] == "completed"
    assert cast.incoming("Ann") == []


def test_several_messages_of_one_step_are_delivered_in_order(cast: Cast) -> None:
    ben = cast.agent("Ben")
    cast.agent("Ann", ASYNC)
    calls = [call(ASYNC, message=f"Number {number}.", other_agent_id=ben) for number in range(4)]
    cast.says("Ann", calls, "Sent.")
    cast.send("Ann")
    results = [
        result for message in cast.requests["Ann"][-1].messages for result in message.tool_returns
    ]
    assert ["Successfully sent message" in result.content for result in results] == [True] * 4
    wait_for(lambda: len(cast.incoming("Ben")) == 4)
    assert [text[-9:] for text in cast.incoming("Ben")] == [
        f"Number {number}."[-9:] for number in range(4)
    ]


def test_a_step_that_was_not_saved_sends_nothing(cast: Cast) -> None:
    ben = cast.agent("Ben")
    cast.agent("Ann", ASYNC)
    trigger = "CREATE TRIGGER broken BEFORE INSERT ON steps BEGIN SELECT RAISE(ABORT, 'no'); END"
    cast.server.write(lambda tx: tx.run(text(trigger)))
    cast.says("Ann", call(ASYNC, message="Buy tea.", other_agent_id=ben))
    body = {"messages": [{"role": "user", "content": "Go."}]}
    cast.http.post(f"/v1/agents/{cast.ids['Ann']}/messages", json=body)
    cast.server.write(lambda tx: tx.run(text("DROP TRIGGER broken")))
    cast.server.provoked()
    ann = [job for job in deliveries(cast.server) if job.payload["sender_id"] == cast.ids["Ann"]]
    assert ann == []
    assert cast.incoming("Ben") == []


def test_a_message_waits_for_a_busy_agent_and_for_its_approval(
    cast: Cast,
) -> None:
    rules = [{"type": "requires_approval", "tool_name": "archival_memory_insert"}]
    ben = cast.agent("Ben", "archival_memory_insert", tool_rules=rules)
    cast.agent("Ann", ASYNC)
    cast.says("Ben", call("archival_memory_insert", content="Tea.", tags=[]), "Noted.")
    (asked,) = [
        one
        for one in cast.send("Ben")["messages"]
        if one["message_type"] == "approval_request_message"
    ]
    cast.says("Ann", call(ASYNC, message="Buy tea.", other_agent_id=ben), "Sent.")
    cast.send("Ann")
    # However long the approval waits, the message uses up no attempts of a job.
    make_due = update(job_rows).where(
        job_rows.c.kind == agent_jobs.KIND, job_rows.c.status == "waiting"
    )

    def looks() -> int:
        cast.server.write(lambda tx: tx.run(make_due.values(not_before=0)))
        return max((job.payload.get("look", 0) for job in deliveries(cast.server)), default=0)

    wait_for(lambda: looks() >= 3)
    assert [job.error for job in deliveries(cast.server) if job.error] == []
    assert {job.attempts for job in deliveries(cast.server)} <= {0, 1}
    assert cast.incoming("Ben") == []
    opened = asyncio.Event()

    async def wait(_request: object) -> str:
        await opened.wait()
        return "Noted."

    cast._lines["Ben"].clear()
    cast.says("Ben", wait, "Bought.")
    approval = {
        "type": "approval",
        "approvals": [{"type": "approval", "tool_call_id": "", "approve": True}],
    }
    approval["approvals"][0]["tool_call_id"] = asked["tool_call"]["tool_call_id"]  # type: ignore[index]
    run = ok(cast.http.post(f"/v1/agents/{ben}/messages/async", json={"messages": [approval]}))[
        "id"
    ]
    looks()
    cast.server.loop.call_soon_threadsafe(opened.set)
    wait_for(lambda: ok(cast.http.get(f"/v1/runs/{run}"))["status"] == "completed")
    wait_for(lambda: cast.incoming("Ben"))


def test_a_message_to_a_deleted_agent_fails_once(cast: Cast) -> None:
    ben = cast.agent("Ben")
    cast.agent("Ann", ASYNC)
    cast.says("Ann", call(ASYNC, message="Buy tea.", other_agent_id=ben), "Sent.")
    cast.send("Ann")
    job = wait_for(
        lambda: [one for one in deliveries(cast.server, "done") if one.payload["agent_id"] == ben]
    )[0]
    ok(cast.http.delete(f"/v1/agents/{ben}"))
    late = Job(agent_jobs.KIND, job.organization_id, job.payload | {"otid": "another"}, job.key)
    cast.server.write(lambda tx: jobs.add(tx, late))
    (failed,) = wait_for(
        lambda: [one for one in deliveries(cast.server, "failed") if one.id == late.id]
    )
    assert failed.attempts == 1
    assert "not found" in (failed.error or {})["message"]


def test_a_delivery_cut_off_by_a_stop_is_answered_after_the_restart(tmp_path: Path) -> None:
    with serving(tmp_path, shutdown_grace=0) as first, first.http() as http:
        cast = Cast(first, http)
        ben = cast.agent("Ben")
        cast.agent("Ann", ASYNC)
        asked = asyncio.Event()

        async def never(_request: object) -> str:
            asked.set()
            await asyncio.Event().wait()
            return ""

        cast.says("Ann", call(ASYNC, message="Buy tea.", other_agent_id=ben), "Sent.")
        cast.says("Ben", never)
        cast.send("Ann")
        wait_for(asked.is_set)
    with serving(tmp_path) as second, second.http() as http:
        again = Cast(second, http)
        again.ids = cast.ids
        again.says("Ben", "Bought.")
        wait_for(lambda: deliveries(second, "done"))
        words = [one.get("content") for one in again.messages("Ben")]
        assert words.count("Bought.") == 1
        assert len(again.incoming("Ben")) == 1


def test_a_long_delivery_turn_is_checked_again_later(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_jobs, "_PATIENCE", 0.05)
    monkeypatch.setattr(agent_jobs, "_LOOK_AGAIN", 0)
    ben = cast.agent("Ben")
    cast.agent("Ann", ASYNC)
    opened = asyncio.Event()

    async def wait(_request: object) -> str:
        await opened.wait()
        return "Bought."

    cast.says("Ann", call(ASYNC, message="Buy tea.", other_agent_id=ben), "Sent.")
    cast.says("Ben", wait)
    cast.send("Ann")
    wait_for(lambda: [job for job in deliveries(cast.server) if job.payload.get("look", 0) >= 2])
    cast.server.loop.call_soon_threadsafe(opened.set)
    own = lambda: [job for job in deliveries(cast.server) if job.payload["agent_id"] == ben]  # noqa: E731
    wait_for(lambda: all(job.status == "done" for job in own()))
    assert len(cast.incoming("Ben")) == len(cast.requests["Ben"]) == 1


def test_a_delivery_that_stops_waiting_for_a_busy_agent_leaves_no_task(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_jobs, "_PATIENCE", 0.01)
    ben = cast.agent("Ben")
    begun, opened = threading.Event(), asyncio.Event()

    async def wait(_request: object) -> str:
        begun.set()
        await opened.wait()
        return "Bought."

    async def tasks_after(tries: int) -> int:
        request = TurnRequest(Scope(), ben, (NewMessage("user", (TextPart("Hello."),)),))
        for _ in range(tries):
            with pytest.raises(Busy):
                await agent_jobs._free_turn(cast.server.runtime, request)
        await asyncio.sleep(0.01)
        return sum("LiveRun.wait" in str(task.get_coro()) for task in asyncio.all_tasks())

    cast.says("Ben", wait)
    body = {"messages": [{"role": "user", "content": "Buy tea."}]}
    run = ok(cast.http.post(f"/v1/agents/{ben}/messages/async", json=body))["id"]
    assert begun.wait(LIMIT)
    before = cast.server.run(tasks_after(0))
    assert cast.server.run(tasks_after(5)) == before
    cast.server.loop.call_soon_threadsafe(opened.set)
    wait_for(lambda: ok(cast.http.get(f"/v1/runs/{run}"))["status"] == "completed")


def test_async_messages_cannot_form_a_cycle(cast: Cast) -> None:
    ann = cast.agent("Ann", ASYNC, WAITS)
    ben = cast.agent("Ben", ASYNC, WAITS)
    for tool in (ASYNC, WAITS):
        cast.says("Ann", call(ASYNC, message="Hi?", other_agent_id=ben), "Sent.")
        cast.says("Ben", call(tool, message="Hi!", other_agent_id=ann), "I could not.")
        before = len(cast.requests["Ben"])
        cast.send("Ann")
        wait_for(lambda before=before: len(cast.requests["Ben"]) == before + 2)
        (refused,) = cast.requests["Ben"][-1].messages[-1].tool_returns
        assert refused.status == "error"
    assert cast.incoming("Ann") == []
