"""What a stored key costs: a look-up that counts for less than a second, on each server by itself."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams.people import OPERATOR, People, bearer
from tests.seams.server import MODEL, ServerInThread, serving
from tests.seams.stores import Counted, count_statements
from tests.support import postgres

SECOND = 1.0


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with serving(tmp_path_factory.mktemp("keys"), api_key=OPERATOR) as server, server.http() as http:
        yield People(server, http)


def counted_turn(people: People, key: str, path: str, *, is_fresh: bool = False) -> Counted:
    """What a plain turn with this key costs; `is_fresh` where the server looks the key up anew."""
    authentication = people.server.app.state.authentication
    said = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
    for _ in range(2):  # the first notes the use of the key, and loads what is loaded once
        people.ask(key, "POST", path, json=said)
    if is_fresh:
        authentication.forget()
    else:  # however long it took to come here
        people.ask(key, "GET", "/v1/tools/count")
    with count_statements(people.server.runtime.store) as counted:
        people.ask(key, "POST", path, json=said)
    return counted


def test_a_turn_with_a_users_key_costs_what_the_operators_costs_and_a_look_up_a_second(people: People) -> None:
    agent = people.ask(OPERATOR, "POST", "/v1/agents/", json={"model": MODEL, "include_base_tools": False})["id"]
    key = people.key("ada")
    turns = {}
    for who in (OPERATOR, key):
        made = people.ask(who, "POST", "/v1/conversations/", params={"agent_id": agent}, json={})
        path = f"/v1/conversations/{made['id']}/messages"
        turns[who] = counted_turn(people, who, path)
        fresh = counted_turn(people, who, path, is_fresh=True)
        more = (len(fresh.statements) - len(turns[who].statements), fresh.transactions - turns[who].transactions)
        assert more == ((0, 0) if who == OPERATOR else (1, 1)), fresh.statements
    assert len(turns[key].statements) <= len(turns[OPERATOR].statements), turns[key].statements
    assert turns[key].transactions == turns[OPERATOR].transactions


def test_an_unknown_key_costs_one_look_up_and_garbage_none(people: People) -> None:
    with count_statements(people.server.runtime.store) as counted:
        for _ in range(3):
            assert people.send("ricordo_unknown", "GET", "/v1/agents/").status_code == 401
        assert len(counted.statements) == 3
        assert people.send("unknown", "GET", "/v1/agents/").status_code == 401
        assert len(counted.statements) == 3


def test_a_key_of_an_erased_user_ends_at_once(people: People) -> None:
    key = people.key("gone")
    assert people.send(key, "GET", "/users/gone/blocks").status_code == 200
    assert people.send(OPERATOR, "DELETE", "/users/gone").status_code == 202
    assert people.send(key, "GET", "/v1/agents/").status_code == 401


def seconds_until_refused(server: ServerInThread, key: str) -> float:
    """How long the key still works at a server that is asked all the time."""
    began = time.monotonic()
    with server.http(headers=bearer(key)) as http:
        while http.get("/v1/agents/").status_code == 200:
            assert time.monotonic() - began < 10 * SECOND
            time.sleep(0.02)
    return time.monotonic() - began


def test_a_second_server_refuses_a_revoked_key_within_a_second(tmp_path: Path) -> None:
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
            assert people.send(key, "GET", "/v1/agents/").status_code == 401  # where it was revoked at once
            assert seconds_until_refused(two, key) < SECOND + 0.5  # a busy machine may take its time to ask
    finally:
        postgres.server().drop(url)
