"""The cost of checking a stored key.

A look-up is valid for less than a second, on each server separately.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from ricordo.api import authentication
from ricordo.api.authentication import _SESSION as SESSION
from ricordo.api.authentication import DELAY, LONG_SESSION_SECONDS, MOST_FAILURES
from ricordo.domain import clock as clocks
from ricordo.storage import keys
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import api_keys
from tests.seams.people import OPERATOR, People, bearer
from tests.seams.server import MODEL, serving
from tests.seams.stores import Counted, count_statements
from tests.support import postgres

SECOND = 1.0
DAY = 24 * 3600
HOUR = 3600 * clocks.SECOND  # microseconds


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with (
        serving(tmp_path_factory.mktemp("keys"), api_key=OPERATOR) as server,
        server.http() as http,
    ):
        yield People(server, http)


def counted_turn(people: People, key: str, path: str, *, is_fresh: bool = False) -> Counted:
    """Return the cost of a plain turn with this key.

    With `is_fresh` the server looks the key up again.
    """
    caller_check = people.server.app.state.authentication
    said = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
    # The first turn records the use of the key, and loads everything that is loaded once.
    for _ in range(2):
        people.ask(key, "POST", path, json=said)
    costs = []
    for _ in range(3):
        if is_fresh:
            caller_check.forget()
        else:
            # This request looks the key up, so the measured request need not.
            people.ask(key, "GET", "/v1/tools/count")
        with count_statements(people.server.runtime.store) as counted:
            people.ask(key, "POST", path, json=said)
        costs.append(counted)
    # Background work, such as that of a server that has just begun, can only add to a cost.
    return min(costs, key=lambda cost: len(cost.statements))


def test_a_users_key_costs_one_look_up_a_second(
    people: People,
) -> None:
    agent = people.ask(
        OPERATOR, "POST", "/v1/agents/", json={"model": MODEL, "include_base_tools": False}
    )["id"]
    key = people.key("ada")
    turns = {}
    for who in (OPERATOR, key):
        made = people.ask(who, "POST", "/v1/conversations/", params={"agent_id": agent}, json={})
        path = f"/v1/conversations/{made['id']}/messages"
        turns[who] = counted_turn(people, who, path)
        fresh = counted_turn(people, who, path, is_fresh=True)
        more = (
            len(fresh.statements) - len(turns[who].statements),
            fresh.transactions - turns[who].transactions,
        )
        assert more == ((0, 0) if who == OPERATOR else (1, 1)), fresh.statements
    assert len(turns[key].statements) <= len(turns[OPERATOR].statements), turns[key].statements
    assert turns[key].transactions == turns[OPERATOR].transactions


def test_an_unknown_key_costs_one_look_up_and_a_malformed_key_none(people: People) -> None:
    people.server.app.state.authentication.forget()
    with count_statements(people.server.runtime.store) as counted:
        for _ in range(3):
            assert people.send("ricordo_unknown", "GET", "/v1/agents/").status_code == 401
        assert people.send("unknown", "GET", "/v1/agents/").status_code == 401
    # The server may have started a moment ago, and may still be indexing.
    assert len([one for one in counted.statements if "api_keys" in one]) == 1, counted.statements


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock for the validity of look-ups; only the test moves it."""
    now = [time.monotonic()]
    monkeypatch.setattr(
        authentication, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    )
    return now


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record each delay because of unknown keys, without waiting."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float, *given: Any) -> Any:
        if seconds == DELAY:
            waits.append(seconds)
        return await sleep(0 if seconds == DELAY else seconds, *given)

    monkeypatch.setattr(asyncio, "sleep", note)
    return waits


def test_after_many_unknown_keys_from_an_address_each_further_one_is_delayed(
    people: People, waits: list[float], now: list[float]
) -> None:
    def ask(key: str, address: str = "192.0.2.7", **more: Any) -> int:
        headers = {**bearer(key), "x-forwarded-for": address}
        return people.http.get("/v1/agents/", headers=headers, **more).status_code

    def guess(number: int, address: str = "192.0.2.7") -> None:
        assert ask(f"ricordo_guess-{number}", address) == 401

    known, new = people.key("ada"), people.key("bea")
    assert ask(known) == 200
    for number in range(MOST_FAILURES):
        guess(number)
    assert waits == []
    for number in range(3):
        guess(number)
    assert len(waits) == 3
    # A request without a key is not a guess.
    people.http.get("/v1/agents/", headers={"x-forwarded-for": "192.0.2.7"})
    people.http.get("/v1/health/", headers={"x-forwarded-for": "192.0.2.7"})
    assert ask(known) == ask(OPERATOR) == 200
    assert len(waits) == 3
    now[0] += SECOND  # the server has to look the key up again
    assert ask(known) == 200
    assert len(waits) == 3
    assert ask(new) == ask(new) == 200
    assert len(waits) == 4
    guess(0, "192.0.2.8")
    assert len(waits) == 4
    for number in range(MOST_FAILURES + 1):  # One client may own a whole IPv6 network.
        guess(number, f"2001:db8::{number:x}")
    assert len(waits) == 5


def test_a_session_of_a_known_key_is_not_delayed(people: People, waits: list[float]) -> None:
    address = {"x-forwarded-for": "192.0.2.9"}

    def status(key: str) -> int:
        return people.http.get("/v1/agents/", headers={**bearer(key), **address}).status_code

    caller_check = people.server.app.state.authentication
    session = caller_check.open_session(people.key("eve"))
    operators_session = caller_check.open_session(OPERATOR)
    for number in range(MOST_FAILURES):
        assert status(f"ricordo_guess-{number}") == 401
    assert status(session) == 200  # Its key was not looked up before.
    assert len(waits) == 1
    assert status(session) == status(operators_session) == 200
    assert status(caller_check.make_process_key()) == 200
    assert len(waits) == 1
    assert status(f"{session}0") == 401
    assert len(waits) == 2


def test_the_number_of_recorded_failures_is_bounded(people: People) -> None:
    caller_check = people.server.app.state.authentication
    for number in range(10_100):
        caller_check.note_failure(f"address {number}")
    assert len(caller_check._failures) == 10_000


def test_a_key_of_an_erased_user_stops_working_at_once(people: People) -> None:
    key = people.key("gone")
    assert people.send(key, "GET", "/users/gone/blocks").status_code == 200
    assert people.send(OPERATOR, "DELETE", "/users/gone").status_code == 202
    assert people.send(key, "GET", "/v1/agents/").status_code == 401


def test_what_was_read_before_a_change_of_keys_is_not_kept_after_it(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "_FRESH", 600.0)
    caller_check = people.server.app.state.authentication
    key = people.key("ivy")
    read = keys.authenticate

    def read_before_a_change(tx: Transaction, hash: str) -> Any:
        row = read(tx, hash)
        caller_check.forget()
        return row

    def revoke(at: int | None) -> None:
        of_ivy = update(api_keys).where(api_keys.c.name == "ivy").values(revoked_at=at)
        people.server.write(lambda tx: tx.run(of_ivy))

    def status() -> int:
        return people.send(key, "GET", "/v1/agents/").status_code

    monkeypatch.setattr(keys, "authenticate", read_before_a_change)
    assert status() == 200
    revoke(1)
    assert status() == 401
    revoke(None)
    assert status() == 200
    monkeypatch.setattr(keys, "authenticate", read)
    for at, later in ((1, 401), (None, 200)):
        before = status()
        revoke(at)
        assert status() == before  # It is kept.
        caller_check.forget()
        assert status() == later


def test_a_key_ends_in_time_although_its_look_up_is_kept(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "_FRESH", 600.0)
    clock = people.server.runtime.store.clock
    key = people.key("kay", expires_at=clock.now() + HOUR)
    assert people.send(key, "GET", "/v1/agents/").status_code == 200
    later = clock.now() + HOUR
    monkeypatch.setattr(clock, "now", lambda: later)
    assert people.send(key, "GET", "/v1/agents/").status_code == 401


def test_a_session_is_valid_for_its_time_and_only_as_it_was_signed(people: People) -> None:
    caller_check = people.server.app.state.authentication
    session = caller_check.open_session(OPERATOR, 60)
    assert people.send(session, "GET", "/v1/agents/").status_code == 200
    digest, until, signature = session.removeprefix(SESSION).split("_")
    for wrong in (
        caller_check.open_session(OPERATOR, 0),
        caller_check.open_session(OPERATOR, -60),
        # No server gives so much time. A server whose clock was wrong may have given it.
        caller_check.open_session(OPERATOR, LONG_SESSION_SECONDS + 2 * DAY),
        caller_check.open_session("another key", 60),
        f"{SESSION}{digest}_{int(until) + 1}_{signature}",
        f"{SESSION}{digest}_{until}_{signature[:-1]}",
        f"{SESSION}{digest}_{until}_",
    ):
        assert people.send(wrong, "GET", "/v1/agents/").status_code == 401, wrong
    longest = caller_check.open_session(OPERATOR, LONG_SESSION_SECONDS)
    assert people.send(longest, "GET", "/v1/agents/").status_code == 200


def test_a_second_server_refuses_a_revoked_key_within_a_second(
    tmp_path: Path, now: list[float]
) -> None:
    url = postgres.server().new_database()
    try:
        with (
            serving(tmp_path, api_key=OPERATOR, database_url=url) as one,
            serving(tmp_path, api_key=OPERATOR, database_url=url) as two,
            one.http() as http,
            two.http() as other,
        ):
            people = People(one, http)
            key = people.key("ada")
            for client in (http, other):
                assert client.get("/v1/agents/", headers=bearer(key)).status_code == 200
            (stored,) = people.ask(OPERATOR, "GET", "/v1/keys/")
            people.ask(OPERATOR, "DELETE", f"/v1/keys/{stored['id']}")
            # Only this server has revoked the key so far.
            assert people.send(key, "GET", "/v1/agents/").status_code == 401
            assert other.get("/v1/agents/", headers=bearer(key)).status_code == 200
            now[0] += SECOND
            assert other.get("/v1/agents/", headers=bearer(key)).status_code == 401
    finally:
        postgres.server().drop(url)
