"""Deletions of objects that a running turn needs.

The turn ends with a clear result, and leaves no rows.
"""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ricordo.agents import deletion
from ricordo.domain.scope import Scope
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.campaigns.sizes import short_and_long
from tests.seams.server import LIMIT, MODEL, Gate

GONE = "NOT_FOUND: The agent or the conversation was deleted during the answer."
HOW: dict[str, dict[str, bool]] = {
    "whole": {"streaming": False},
    "stream": {"streaming": True},
    "background": {"streaming": True, "background": True},
}


def new_agent(api: Api) -> str:
    # The agent has no blocks, since blocks stay when their agent is deleted.
    return str(
        api.http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": []}).json()["id"]
    )


def during_a_turn(api: Api, path: str, how: str, line: Any, delete: Callable[[], Any]) -> Any:
    """Return the answer to a message whose model waits until `delete` is done."""
    gate = Gate(api.server, line)
    api.server.answers_with(gate)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(
            lambda: api.http.post(path, json={"input": "Hi."} | HOW[how], timeout=LIMIT)
        )
        gate.wait()
        try:
            delete()
        finally:
            api.server.forget()
            gate.open()
        return asking.result(LIMIT)


def nothing_is_left(api: Api, before: dict[str, int]) -> bool:
    """Check that no run is open and no new row is left.

    Deletions may continue for a moment.
    """
    end = time.monotonic() + LIMIT
    while api.http.get("/v1/runs/", params={"active": True}).json() or new_rows(api, before):
        assert time.monotonic() < end, new_rows(api, before)
        time.sleep(0.05)
    return True


def new_rows(api: Api, before: dict[str, int]) -> dict[str, int]:
    """Return the tables with new rows. The tokens of an answer stay in the ledger."""
    return {
        name: count
        for name, count in api.server.rows().items()
        if count > before[name] and name != "expenses"
    }


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("by", ["its own server", "another server"])
@pytest.mark.parametrize("what", ["agent", "conversation"])
def test_a_turn_whose_agent_or_conversation_is_deleted_ends(
    api: Api, what: str, by: str, how: str
) -> None:
    keeper = new_agent(api)
    api.http.post(f"/v1/agents/{keeper}/messages", json={"input": "Hi."})
    # This creates the rows that a server creates only once.
    api.http.delete(f"/v1/agents/{new_agent(api)}")
    before = api.server.rows()
    agent = new_agent(api) if what == "agent" else keeper
    path, id = f"/v1/agents/{agent}", agent
    if what == "conversation":
        id = api.http.post("/v1/conversations/", params={"agent_id": agent}, json={}).json()["id"]
        path = f"/v1/conversations/{id}"

    def delete() -> None:
        if by == "its own server":
            assert api.http.delete(path).status_code == 200
            return
        remove = deletion.delete_agent if what == "agent" else deletion.delete_conversation
        api.server.run(remove(api.server.runtime, Scope(), id))

    answer = during_a_turn(api, f"{path}/messages", how, "Too late.", delete)

    if how != "whole":
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        # A reader of a stored stream may find it purged before its end.
        reasons = {"cancelled" if by == "its own server" else "error"} | (
            {"error"} if how == "background" else set()
        )
        assert any(f'"stop_reason":"{reason}"' in answer.text for reason in reasons)
    elif by == "its own server":
        assert (answer.status_code, answer.json()["stop_reason"]["stop_reason"]) == (
            200,
            "cancelled",
        )
    else:
        assert (answer.status_code, answer.json()) == (404, {"detail": GONE})
    assert nothing_is_left(api, before)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("what", ["block", "archive", "tool", "user"])
def test_a_turn_ends_when_a_block_archive_tool_or_user_it_uses_is_deleted(
    api: Api, what: str, how: str
) -> None:
    http, agent = api.http, new_agent(api)
    path = f"/v1/agents/{agent}"
    line: Any = "Too late."
    if what == "block":
        made = http.post("/v1/blocks/", json={"label": "human", "value": "Ada."}).json()
        http.patch(f"{path}/core-memory/blocks/attach/{made['id']}")
        away, line = (
            f"/v1/blocks/{made['id']}",
            (call("memory_insert", label="human", new_string="tea"),),
        )
    elif what == "archive":
        made = http.post("/v1/archives/", json={"name": "facts"}).json()
        http.patch(f"{path}/archives/attach/{made['id']}")
        away, line = f"/v1/archives/{made['id']}", (call("archival_memory_insert", content="tea"),)
    elif what == "tool":
        made = next(
            one
            for one in http.get(f"{path}/tools").json()
            if one["name"] == "archival_memory_insert"
        )
        away, line = (
            f"{path}/tools/detach/{made['id']}",
            (call("archival_memory_insert", content="tea"),),
        )
    else:
        made = http.post("/v1/users/", json={"name": f"Ada {how}"}).json()
        away = f"/v1/users/{made['id']}"
        path = (
            "/v1/conversations/"
            + http.post(
                f"/v1/conversations/?agent_id={agent}&user_id={made['id']}", json={}
            ).json()["id"]
        )

    def delete() -> None:
        removed = http.patch(away) if what == "tool" else http.delete(away)
        assert removed.status_code in (200, 202, 204), removed.text

    answer = during_a_turn(api, f"{path}/messages", how, line, delete)

    assert answer.status_code == 200
    reason = "cancelled" if what == "user" else "end_turn"
    is_purged = (what, how) == ("user", "background") and '"stop_reason":"error"' in answer.text
    assert is_purged or f'"stop_reason":"{reason}"' in answer.text
    assert how == "whole" or answer.text.endswith("data: [DONE]\n\n")
    if what == "block":
        assert "was deleted while you edited it" in answer.text
    assert not http.get("/v1/runs/", params={"active": True}).json()


@pytest.mark.parametrize("rounds", short_and_long(6, 200))
def test_deleting_agents_at_any_moment_causes_no_server_error(api: Api, rounds: int) -> None:
    """Deletions of agents race with messages to these agents.

    Each message is answered, cancelled, or refused because its agent is gone.
    """
    luck = random.Random(14)  # noqa: S311
    api.server.answers_with(lambda _request: (call("archival_memory_insert", content="tea"),))
    for _ in range(rounds):
        agent, how = new_agent(api), luck.choice(list(HOW))
        with ThreadPoolExecutor(4) as pool:
            body = {"input": "Hi.", "max_steps": 4} | HOW[how]
            path = f"/v1/agents/{agent}"
            asking = [
                pool.submit(api.http.post, f"{path}/messages", json=body, timeout=LIMIT)
                for _ in range(2)
            ]
            time.sleep(luck.uniform(0, 0.03))
            removing = [pool.submit(api.http.delete, path, timeout=LIMIT) for _ in range(2)]
        statuses = {one.result().status_code for one in asking}
        assert statuses <= {200, 404, 409}, [one.result().text for one in asking]
        assert sorted(one.result().status_code for one in removing) in ([200, 200], [200, 404])
        assert all(
            one.result().status_code != 200 or "stop_reason" in one.result().text for one in asking
        )
    api.server.forget()
    assert not api.http.get("/v1/runs/", params={"active": True}).json()
