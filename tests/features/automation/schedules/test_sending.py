"""Messages of schedules.

Each due time is sent once, even after kills, delays, busy agents, revoked keys and deletions.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from letta_client import BadRequestError, Letta
from sqlalchemy import update

from ricordo.agents.deferred import scope_of_sender
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import Busy
from ricordo.features.automation.schedules import jobs as sending
from ricordo.features.automation.schedules import queries, service
from ricordo.features.automation.schedules.queries import schedules
from ricordo.storage import jobs, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.schema.core_tables import api_keys
from ricordo.storage.schema.core_tables import jobs as job_rows
from ricordo.storage.schema.core_tables import users as user_rows
from tests.api.conftest import Api
from tests.features.automation.schedules.conftest import jobs_of, make_due
from tests.seams.http import erase
from tests.seams.server import LIMIT, MODEL, Gate, ServerInThread, StrictLetta, serving
from tests.seams.waiting import wait_for
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK, ServerProcess

WORDS = "Water the plants."
HOURLY: Any = {"type": "recurring", "cron_expression": "0 * * * *"}


def new_agent(client: Letta) -> str:
    return client.agents.create(model=MODEL, include_base_tools=False).id


def sent_otids(client: Letta, agent: str, words: str = WORDS) -> list[str]:
    """Return the otids of the messages with this text."""
    return [
        m.otid or ""
        for m in client.agents.messages.list(agent)
        if getattr(m, "content", "") == words
    ]


def plan(client: Letta, agent: str, schedule: Any = HOURLY, **more: Any) -> str:
    sent: Any = [{"role": "user", "content": WORDS}]
    return client.agents.schedule.create(agent, messages=sent, schedule=schedule, **more).id


def plan_soon(client: Letta, agent: str) -> float:
    """Schedule a message for a time that is still ahead when a busy server reads it."""
    for lead in (0.4, 2, 8):
        due_at = time.time() + lead
        try:
            plan(client, agent, {"scheduled_at": due_at * 1000})
        except BadRequestError as error:
            assert "is in the past" in str(error)  # noqa: PT017 - a later one is next
        else:
            return due_at
    pytest.fail("A request took longer than eight seconds.")


def row_of(server: ServerInThread, id: str) -> queries.ScheduledMessage | None:
    return server.read(lambda tx: queries.lock(tx, id))


def run_now(server: ServerInThread, job: Job) -> None:
    server.run(sending.send(server.runtime, job, lambda _done, _all: None))


def job_at(server: ServerInThread, id: str, due_at: int, **more: Any) -> Job:
    row = row_of(server, id)
    assert row
    return service.job_of(row, due_at, not_before=0, more=more)


def test_a_one_time_schedule_sends_once_with_its_settings(api: Api) -> None:
    agent = new_agent(api.client)
    types: Any = ["assistant_message"]
    at: Any = {"scheduled_at": (time.time() + 3600) * 1000}
    url = "https://example.com/called"
    id = plan(
        api.client, agent, at, callback_url=url, max_steps=3, include_return_message_types=types
    )
    assert not sent_otids(api.client, agent)
    make_due(api.server, id)
    (otid,) = wait_for(lambda: sent_otids(api.client, agent))
    assert otid.startswith(id)
    scope = Scope()
    (run,) = api.server.read(lambda tx: runs.page(tx, scope, Page(), agent_id=agent))
    assert run.callback["url"] == url
    assert run.request_config["include_return_message_types"] == types
    assert run.background
    # One of the jobs checks whether the turn was cut off.
    for job in wait_for(lambda: jobs_of(api.server, id, "waiting")):
        api.server.write(
            lambda tx, job=job: tx.run(
                update(job_rows).where(job_rows.c.id == job.id).values(not_before=0)
            )
        )
    wait_for(lambda: row_of(api.server, id) is None)
    assert len(sent_otids(api.client, agent)) == 1


def test_a_job_that_runs_again_after_a_kill_sends_nothing_twice(api: Api) -> None:
    agent = new_agent(api.client)
    id = plan(api.client, agent)
    due_at = make_due(api.server, id, ago=1)
    wait_for(lambda: sent_otids(api.client, agent))
    again = job_at(api.server, id, due_at)
    for _ in range(3):
        run_now(api.server, again)
    assert len(sent_otids(api.client, agent)) == 1
    row = row_of(api.server, id)
    assert row
    assert row.next_at
    assert row.next_at > due_at


def test_a_schedule_missed_for_days_sends_one_message(api: Api) -> None:
    begin = time.time()
    agent = new_agent(api.client)
    id = plan(api.client, agent, {"type": "recurring", "cron_expression": "* * * * *"})
    make_due(api.server, id, ago=3 * 24 * 3600)
    wait_for(lambda: sent_otids(api.client, agent))
    wait_for(lambda: jobs_of(api.server, id, "waiting") and not jobs_of(api.server, id, "running"))
    row = row_of(api.server, id)
    assert row
    assert row.next_at
    assert begin < row.next_at / 1e6 < time.time() + 61
    assert len(sent_otids(api.client, agent)) <= 2  # a minute may end meanwhile
    # One job is for the next time, and one checks the turn.
    assert len(jobs_of(api.server, id, "waiting")) <= 2


def test_a_scheduled_turn_cut_off_by_a_stop_is_answered_after_the_restart(tmp_path: Path) -> None:
    with serving(tmp_path, shutdown_grace=0) as first:
        client = first.client()
        agent = new_agent(client)
        gate = Gate(first)
        first.answers_with(gate)
        id = plan(client, agent)
        make_due(first, id)
        gate.wait()
        (look,) = wait_for(
            lambda: [job for job in jobs_of(first, id, "waiting") if "run_id" in job.payload]
        )
    with serving(tmp_path) as second:
        client = second.client()
        second.says("I did.")
        due = update(job_rows).where(job_rows.c.id == look.id).values(not_before=0)
        second.write(lambda tx: tx.run(due))
        wait_for(
            lambda: (
                "I did." in [getattr(m, "content", "") for m in client.agents.messages.list(agent)]
            )
        )
        assert len(sent_otids(client, agent)) == 1


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.soak)])
def test_a_kill_at_any_moment_sends_each_message_once(
    kills: int, tmp_path: Path, helper: Helper
) -> None:
    server = ServerProcess(helper, tmp_path, {"RICORDO_EMBEDDING": "none"}, None)
    server.start()
    try:
        with StrictLetta(base_url=server.url, timeout=LIMIT) as client:
            agents = []
            for number in range(kills):
                agents.append(client.agents.create(model="ricordo/librarian").id)
                due_at = plan_soon(client, agents[-1])
                # A server looks once a second.
                time.sleep(max(0, due_at - time.time()) + 0.1 + number * 0.137 % 1)
                server.kill()
                server.start()
            for agent in agents:
                wait_for(lambda agent=agent: sent_otids(client, agent))
            time.sleep(1)
            assert [len(sent_otids(client, agent)) for agent in agents] == [1] * kills
    finally:
        server.stop()


def test_a_message_waits_for_a_busy_agent_and_is_replaced_by_the_next_time(
    api: Api,
) -> None:
    agent = new_agent(api.client)
    gate = Gate(api.server)
    api.server.answers_with(gate)
    id = plan(api.client, agent)
    run = api.client.agents.messages.create_async(agent, input="Long work.")
    gate.wait()
    old = make_due(api.server, id, ago=7200)
    wait_for(lambda: [job for job in jobs_of(api.server, id) if job.not_before > old])
    new = make_due(api.server, id, ago=3600)
    wait_for(lambda: (row := row_of(api.server, id)) and row.due_at == new)
    run_now(api.server, job_at(api.server, id, old))  # the job has nothing left to do
    api.server.answers_with(lambda _request: "ok")
    gate.open()
    wait_for(lambda: api.client.runs.retrieve(run.id).status == "completed")
    (otid,) = wait_for(lambda: sent_otids(api.client, agent))
    assert str(new) in otid


def test_a_busy_agent_delays_a_message_also_at_the_last_attempt(api: Api) -> None:
    agent = new_agent(api.client)
    gate = Gate(api.server)
    api.server.answers_with(gate)
    id = plan(api.client, agent)
    api.client.agents.messages.create_async(agent, input="Long work.")
    gate.wait()
    due_at = make_due(api.server, id)
    wait_for(lambda: (row := row_of(api.server, id)) and row.due_at == due_at)
    job = job_at(api.server, id, due_at)
    with pytest.raises(Busy):
        run_now(api.server, replace(job, attempts=job.most_attempts))
    row = row_of(api.server, id)
    assert row
    assert (row.due_at, row.problem) == (due_at, None)
    api.server.answers_with(lambda _request: "ok")
    gate.open()
    wait_for(lambda: sent_otids(api.client, agent))


def test_schedules_deleted_directly_or_with_their_agent_send_nothing(api: Api) -> None:
    agent, gone = new_agent(api.client), new_agent(api.client)
    ids = [plan(api.client, agent), plan(api.client, gone)]
    waiting = [
        job_at(api.server, id, row.next_at or 0) for id in ids if (row := row_of(api.server, id))
    ]
    api.client.agents.schedule.delete(ids[0], agent_id=agent)
    assert not jobs_of(api.server, ids[0], "waiting")
    api.client.agents.delete(gone)
    assert row_of(api.server, ids[1]) is None
    for job in waiting:
        run_now(api.server, job)
    assert not sent_otids(api.client, agent)
    assert api.server.model.requests == []


def test_a_schedule_runs_as_its_creator_and_stops_when_the_key_is_revoked(tmp_path: Path) -> None:
    with serving(tmp_path, api_key="operator") as server:
        boss = server.client(api_key="operator")
        agent = new_agent(boss)
        ada = server.client(api_key=server.key("ada"))
        bea = server.client(api_key=server.key("bea"))
        id = plan(ada, agent)
        make_due(server, id)
        wait_for(lambda: sent_otids(ada, agent))
        assert not sent_otids(bea, agent)
        assert not sent_otids(boss, agent)  # the message is in Ada's own conversation
        assert bea.agents.schedule.list(agent).scheduled_messages == []
        revoke = update(api_keys).where(api_keys.c.name == "ada's").values(revoked_at=1)
        server.write(lambda tx: tx.run(revoke))
        make_due(server, id)
        wait_for(lambda: (row := row_of(server, id)) and row.problem)
        (shown,) = boss.agents.schedule.list(agent).scheduled_messages
        assert shown.next_scheduled_time
        assert "revoked" in (shown.model_extra or {})["problem"]
        other = plan(bea, agent, {"scheduled_at": time.time() * 1000 + 1e6})
        server.write(
            lambda tx: tx.run(
                update(user_rows).where(user_rows.c.identifier == "bea").values(disabled_at=1)
            )
        )
        make_due(server, other, ago=1)
        wait_for(lambda: (row := row_of(server, other)) and row.problem)
        server.write(
            lambda tx: tx.run(
                update(user_rows).where(user_rows.c.identifier == "bea").values(disabled_at=None)
            )
        )
        assert not sent_otids(bea, agent)
        assert not jobs_of(server, other, "waiting")


def test_erasing_a_user_deletes_their_schedules(tmp_path: Path) -> None:
    with serving(tmp_path, api_key="operator") as server:
        boss, ada = server.client(api_key="operator"), server.client(api_key=server.key("ada"))
        agent = new_agent(boss)
        id = plan(ada, agent)
        with server.http(headers={"authorization": "Bearer operator"}) as http:
            erase(http, "ada")
        assert row_of(server, id) is None
        assert not jobs_of(server, id, "waiting")


def test_a_schedule_created_by_a_tool_has_only_the_tools_scopes(api: Api) -> None:
    agent = new_agent(api.client)
    with api.server.runtime.sandbox.keys.issue(Scope(), "remind") as key:
        id = plan(api.server.client(api_key=key), agent)
    row = row_of(api.server, id)
    assert row
    scope = api.server.read(lambda tx: scope_of_sender(tx, row.sender))
    assert scope.caller == "the tool remind"
    assert scope.scopes < Scope().scopes
    assert not scope.may("memory:approve", "users:write", "admin")


def test_a_schedule_whose_job_was_deleted_gets_a_new_job(api: Api) -> None:
    agent = new_agent(api.client)
    id = plan(api.client, agent)
    at_work = plan(api.client, agent)
    old = update(schedules).where(schedules.c.agent_id == agent).values(next_at=1)
    api.server.write(lambda tx: tx.run(old))
    (job,) = jobs_of(api.server, id)
    api.server.write(lambda tx: jobs.remove(tx, Scope(), job.id))
    api.server.run(sending.take_up(api.server.runtime, Job("x", ""), lambda _done, _all: None))
    row, other = row_of(api.server, id), row_of(api.server, at_work)
    assert row
    assert row.next_at
    assert row.next_at / 1e6 > time.time()
    assert row.problem
    assert len(jobs_of(api.server, id, "waiting")) == 1
    assert other
    assert other.next_at == 1
