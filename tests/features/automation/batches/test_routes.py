"""Batches over HTTP, as `letta-client` 1.6.5 sends and reads them.

The newest client has no methods for them.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from letta_client import ConflictError, NotFoundError
from sqlalchemy import update

from ricordo.domain.model import ModelRequest
from ricordo.features.automation.batches import jobs as answering
from ricordo.features.automation.batches import service
from ricordo.features.automation.batches.queries import batch_items
from ricordo.storage.schema.core_tables import api_keys
from ricordo.storage.schema.core_tables import jobs as job_rows
from tests.api.conftest import Api
from tests.features.automation.schedules.test_sending import new_agent, sent_otids
from tests.seams.http import bearer, erase, ok, refused
from tests.seams.server import LIMIT, Gate, ServerInThread, StrictLetta, serving
from tests.seams.waiting import wait_for
from tests.support.json_server import JsonServer
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK, ServerProcess

PATH = "/v1/messages/batches"
WORDS = [f"I like the number {number}." for number in range(12)]


class Receiver(JsonServer):
    """The receiver of callbacks."""

    def said_no(self, status: int, words: str) -> Any:
        return [status, words]


def request_to(agent: str, words: str = "Hello.") -> dict[str, Any]:
    return {"agent_id": agent, "messages": [{"role": "user", "content": words}]}


def create_batch(http: Any, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return dict(ok(http.post(PATH, json={"requests": list(requests), **more})))


def wait_for_batch(http: Any, id: str) -> dict[str, Any]:
    """Wait until the batch has ended, and return it."""
    return dict(
        wait_for(
            lambda: (
                (one := ok(http.get(f"{PATH}/{id}")))["status"]
                in ("completed", "failed", "cancelled")
                and one
            )
        )
    )


def words_of(http: Any, id: str, **query: Any) -> list[str]:
    found = ok(http.get(f"{PATH}/{id}/messages", params=query))["messages"]
    return [one["content"][0]["text"] for one in found]


def test_each_request_gets_its_own_turn(api: Api) -> None:
    first, second = new_agent(api.client), new_agent(api.client)
    api.server.answers_with(lambda request: f"You said {request.messages[-1].text}")
    batch = create_batch(
        api.http, request_to(first, "One."), request_to(second, "Two."), request_to(first, "Three.")
    )
    assert (batch["job_type"], batch["status"]) == ("batch", "created")
    assert batch["metadata"] == {"requests": 3, "completed": 0, "failed": 0, "waiting": 3}
    done = wait_for_batch(api.http, batch["id"])
    assert done["status"] == "completed"
    assert done["completed_at"]
    assert done["metadata"] == {
        "requests": 3,
        "completed": 3,
        "failed": 0,
        "waiting": 0,
        "errors": [],
    }
    every = words_of(api.http, batch["id"], order="asc")
    assert sorted(every) == ["You said One.", "You said Three.", "You said Two."]
    assert words_of(api.http, batch["id"]) == every[::-1]
    # Requests to one agent run in their order, in the same conversation.
    assert words_of(api.http, batch["id"], agent_id=first, order="asc") == [
        "You said One.",
        "You said Three.",
    ]
    page = ok(api.http.get(f"{PATH}/{batch['id']}/messages", params={"order": "asc", "limit": 1}))[
        "messages"
    ]
    assert words_of(api.http, batch["id"], order="asc", after=page[0]["id"]) == every[1:]
    assert page[0]["role"] == "assistant"
    assert page[0]["run_id"]
    # The requests are now in the agent's history, and stored nowhere else.
    rows = api.server.read(
        lambda tx: tx.all(batch_items.select().where(batch_items.c.job_id == batch["id"]))
    )
    assert [row.request for row in rows] == [{}] * 3
    newer = create_batch(api.http, request_to(first))
    listed = ok(api.http.get(PATH, params={"limit": 1}))
    assert [one["id"] for one in listed] == [newer["id"]]
    assert ok(api.http.get(PATH, params={"after": newer["id"], "limit": 1}))[0]["id"] == batch["id"]
    wait_for_batch(api.http, newer["id"])


def test_failed_requests_are_reported_and_the_others_complete(api: Api) -> None:
    good, bad, gone = (new_agent(api.client) for _ in range(3))
    gate = Gate(api.server)
    api.server.answers_with(gate)
    batch = create_batch(
        api.http,
        request_to(good),
        {"agent_id": bad, "messages": []},
        request_to(good, "More."),
        request_to(gone),
    )
    gate.wait()
    api.client.agents.delete(gone)
    gate.open()
    done = wait_for_batch(api.http, batch["id"])
    assert done["status"] == "completed"
    counts = done["metadata"]
    assert (counts["requests"], counts["completed"], counts["failed"], counts["waiting"]) == (
        4,
        2,
        1,
        0,
    )
    (error,) = counts["errors"]
    assert (error["number"], error["agent_id"]) == (1, bad)
    assert "no message to answer" in error["problem"]
    nothing = wait_for_batch(
        api.http, create_batch(api.http, {"agent_id": bad, "messages": []})["id"]
    )
    assert nothing["status"] == "failed"
    assert "None of the requests" in nothing["metadata"]["error"]["message"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"requests": []}, "at least 1"),
    ({"requests": [{"agent_id": "agent-1"}]}, "'input' or 'messages'"),
    ({"requests": [{"agent_id": "agent-1", "input": "Hello."}]}, "not found"),
    (
        {"requests": [{"agent_id": "agent-1", "input": "Hello.", "streaming": True}]},
        "streaming is not supported",
    ),
    (
        {
            "requests": [{"agent_id": "agent-1", "input": "Hello."}],
            "callback_url": "http://127.0.0.1/",
        },
        "PRIVATE_CALLBACKS",
    ),
]


@pytest.mark.parametrize(("body", "words"), WRONG, ids=[words for _, words in WRONG])
def test_invalid_batches_are_refused_with_a_reason(
    api: Api, body: dict[str, Any], words: str
) -> None:
    before = len(ok(api.http.get(PATH)))
    answer = api.http.post(PATH, json=body)
    assert 400 <= answer.status_code < 500
    assert words in answer.text
    assert len(ok(api.http.get(PATH))) == before


def test_cancelling_a_batch_stops_its_turn_and_its_remaining_requests(api: Api) -> None:
    agent = new_agent(api.client)
    gate = Gate(api.server)
    api.server.answers_with(gate)
    batch = create_batch(api.http, request_to(agent, "First."), request_to(agent, "Second."))
    gate.wait()
    api.client.patch(f"{PATH}/{batch['id']}/cancel", cast_to=object)
    assert wait_for_batch(api.http, batch["id"])["status"] == "cancelled"
    wait_for(lambda: api.client.runs.list(agent_id=agent).items[0].status == "cancelled")
    ok(api.http.patch(f"{PATH}/{batch['id']}/cancel"))  # The second cancellation changes nothing.
    assert sent_otids(api.client, agent, "First.")
    assert not sent_otids(api.client, agent, "Second.")
    api.server.answers_with(lambda _request: "ok")
    done = create_batch(api.http, request_to(agent, "Third."))["id"]
    wait_for_batch(api.http, done)
    with pytest.raises(ConflictError, match="has already ended"):
        api.client.patch(f"{PATH}/{done}/cancel", cast_to=object)


def test_a_batch_is_visible_to_its_user_only(tmp_path: Path) -> None:
    with serving(tmp_path, api_key="operator") as server:
        agent = new_agent(server.client(api_key="operator"))
        ada, bea = (server.http(headers=bearer(server.key(name))) for name in ("ada", "bea"))
        with ada, bea:
            id = create_batch(ada, request_to(agent, "I am Ada."))["id"]
            wait_for_batch(ada, id)
            assert words_of(ada, id) == ["ok"]
            assert ok(bea.get(PATH)) == []
            for answer in (
                bea.get(f"{PATH}/{id}"),
                bea.get(f"{PATH}/{id}/messages"),
                bea.patch(f"{PATH}/{id}/cancel"),
            ):
                refused(answer, 404)
            with server.http(headers=bearer(server.key("ada", kind="session"))) as login:
                assert "with an API key" in refused(
                    login.post(PATH, json={"requests": [request_to(agent)]}), 403
                )
            gate = Gate(server)
            server.answers_with(gate)
            running = create_batch(
                ada, request_to(agent), request_to(agent, "With a key that is no more.")
            )["id"]
            gate.wait()
            server.write(
                lambda tx: tx.run(
                    update(api_keys).where(api_keys.c.name == "ada's").values(revoked_at=1)
                )
            )
            gate.open()
            with server.http(headers={"authorization": "Bearer operator"}) as boss:
                done = wait_for_batch(boss, running)
                assert "revoked" in done["metadata"]["errors"][0]["problem"]
                erase(boss, "ada")
                refused(boss.get(f"{PATH}/{running}"), 404)
            assert server.read(lambda tx: tx.all(batch_items.select())) == []


def test_a_service_without_a_user_sees_its_own_batches(tmp_path: Path) -> None:
    with serving(tmp_path, api_key="operator") as server:
        agent = new_agent(server.client(api_key="operator"))
        own, other = (server.http(headers=bearer(server.key(role="service"))) for _ in range(2))
        with own, other:
            id = create_batch(own, request_to(agent))["id"]
            assert wait_for_batch(own, id)["status"] == "completed"
            assert [batch["id"] for batch in ok(own.get(PATH))] == [id]
            assert ok(other.get(PATH)) == []
            refused(other.get(f"{PATH}/{id}"), 404)
            refused(other.patch(f"/v1/jobs/{id}/cancel"), 404)


def test_a_retried_request_creates_no_second_batch(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = new_agent(api.client)
    body = {"requests": [request_to(agent, "Only once.")]}
    first = ok(api.http.post(PATH, json=body))
    again = ok(api.http.post(PATH, json=body, headers={"x-stainless-retry-count": "1"}))
    assert again["id"] == first["id"]
    wait_for_batch(api.http, first["id"])
    # Without a sign of a retry the request counts as new.
    other = ok(api.http.post(PATH, json=body))
    assert other["id"] != first["id"]
    wait_for_batch(api.http, other["id"])
    assert len(sent_otids(api.client, agent, "Only once.")) == 2
    monkeypatch.setattr(service, "MAX_OPEN", 0)
    assert "no more are allowed" in refused(api.http.post(PATH, json=body), 409)


def test_a_limited_number_of_agents_answer_at_once_and_busy_agents_are_awaited(api: Api) -> None:
    agents = [new_agent(api.client) for _ in range(answering.AT_ONCE + 2)]
    running = most = 0
    are_several = asyncio.Event()

    async def answer(_request: ModelRequest) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == answering.AT_ONCE:
            are_several.set()
        await are_several.wait()
        await asyncio.sleep(0.05)  # One more would begin in this time if the limit were higher.
        running -= 1
        return "Done."

    api.server.answers_with(answer)
    wait_for_batch(api.http, create_batch(api.http, *map(request_to, agents))["id"])
    assert most == answering.AT_ONCE
    gate = Gate(api.server)
    api.server.answers_with(gate)
    run = api.client.agents.messages.create_async(agents[0], input="Long work.")
    gate.wait()
    batch = create_batch(api.http, request_to(agents[0], "After it."))
    wait_for(lambda: ok(api.http.get(f"{PATH}/{batch['id']}"))["status"] == "running")
    gate.open()
    assert wait_for_batch(api.http, batch["id"])["metadata"]["completed"] == 1
    assert api.client.runs.retrieve(run.id).status == "completed"


def test_the_callback_is_called_once_when_the_batch_ends(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.fails(200, times=5)
    with serving(tmp_path, allow_private_callbacks=True) as server, server.http() as http:
        agent = new_agent(server.client())
        id = create_batch(http, request_to(agent), callback_url=f"{receiver.url}/done")["id"]
        done = wait_for_batch(http, id)
        wait_for(lambda: ok(http.get(f"{PATH}/{id}"))["callback_status_code"] == 200)
        (seen,) = receiver.seen
        assert seen.body == {
            "job_id": id,
            "status": "completed",
            "completed_at": done["completed_at"],
        }
        assert seen.headers["x-ricordo-signature"].startswith("t=")
    receiver.close()


def test_a_batch_continues_after_a_server_restart(tmp_path: Path) -> None:
    with serving(tmp_path, shutdown_grace=0) as first, first.http() as http:
        agent = new_agent(first.client())
        gate = Gate(first)
        first.answers_with(gate)
        id = create_batch(http, request_to(agent, "One."), request_to(agent, "Two."))["id"]
        gate.wait()
    with serving(tmp_path) as second, second.http() as http:
        done = wait_for_batch(http, id)
        assert (done["status"], done["metadata"]["completed"]) == ("completed", 2)
        client = second.client()
        assert (len(sent_otids(client, agent, "One.")), len(sent_otids(client, agent, "Two."))) == (
            1,
            1,
        )
        assert words_of(http, id) == ["ok", "ok"]


def batch_of(client: StrictLetta, id: str) -> dict[str, Any]:
    return client.get(f"{PATH}/{id}", cast_to=dict[str, Any])


def send_many(client: StrictLetta) -> tuple[str, list[str]]:
    """Send a batch to three new agents; return its id and theirs."""
    agents = [client.agents.create(model="ricordo/librarian").id for _ in range(3)]
    requests = [request_to(agents[place % 3], words) for place, words in enumerate(WORDS)]
    batch = client.post(PATH, cast_to=dict[str, Any], body={"requests": requests})
    return batch["id"], agents


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.soak)])
def test_a_kill_at_any_moment_answers_each_request_once(
    kills: int, tmp_path: Path, helper: Helper
) -> None:
    server = ServerProcess(helper, tmp_path, {"RICORDO_EMBEDDING": "none"}, None)
    server.start()
    try:
        with StrictLetta(base_url=server.url, timeout=LIMIT) as client:
            batches: list[tuple[str, list[str]]] = []
            for number in range(kills):
                # Each kill comes while a batch is not done, as far as the machine's speed allows.
                if not batches or batch_of(client, batches[-1][0])["status"] == "completed":
                    batches.append(send_many(client))
                time.sleep(0.05 + number * 0.037 % 0.4)
                server.kill()
                server.start()
            for id, agents in batches:
                wait_for(lambda id=id: batch_of(client, id)["status"] == "completed")  # type: ignore[misc]
                counts = batch_of(client, id)["metadata"]
                assert (counts["completed"], counts["failed"]) == (len(WORDS), 0)
                assert [
                    len(sent_otids(client, agents[place % len(agents)], words))
                    for place, words in enumerate(WORDS)
                ] == [1] * len(WORDS)
    finally:
        server.stop()


def test_an_unknown_batch_and_a_job_of_another_kind_are_not_found(api: Api) -> None:
    other = api.server.read(
        lambda tx: tx.first(job_rows.select().where(job_rows.c.kind != service.RUN))
    )
    for id in ("job-1", other.id if other else "job-2"):
        with pytest.raises(NotFoundError):
            api.client.get(f"{PATH}/{id}", cast_to=object)


def test_the_batch_routes_do_not_shadow_the_message_routes(
    api: Api, server: ServerInThread
) -> None:
    assert "This is not an id" in api.http.get("/v1/messages/other").text
    assert server.read(lambda tx: tx.all(batch_items.select())) is not None
