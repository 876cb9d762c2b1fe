"""Two servers on one PostgreSQL: a turn ends soon after another server ended or deleted its run."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from ricordo.agents import turn as turns
from tests.seams.http import ok
from tests.seams.server import LIMIT, MODEL, Gate, ServerInThread, serving
from tests.support import postgres

HOUR = 3600.0


@dataclass
class Pair:
    """Two running servers on one database."""

    here: ServerInThread
    there: ServerInThread


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    url = postgres.server().new_database()
    folder: Path = tmp_path_factory.mktemp("pair")
    settings: dict[str, Any] = {"database_url": SecretStr(url), "database_connections": 3}
    with (
        serving(folder / "here", **settings) as here,
        serving(folder / "there", **settings) as there,
    ):
        yield Pair(here, there)
    postgres.server().drop(url)


@pytest.mark.parametrize(
    ("end_there", "status"),
    [
        (lambda http, agent: ok(http.post(f"/v1/agents/{agent}/messages/cancel")), 200),
        (lambda http, agent: ok(http.delete(f"/v1/agents/{agent}")), 404),
    ],
    ids=["cancelled", "deleted"],
)
def test_a_turn_that_another_server_ends_stops_while_its_model_is_asked(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    end_there: Callable[[httpx2.Client, str], object],
    status: int,
) -> None:
    # The renewal of the lease would stop the turn too, after some seconds.
    monkeypatch.setattr(turns, "RENEWAL", HOUR)
    gate = Gate(pair.here)
    pair.here.answers_with(gate)
    answers: list[httpx2.Response] = []
    with pair.here.http() as here, pair.there.http() as there:
        agent = ok(here.post("/v1/agents/", json={"model": MODEL}))["id"]

        def send() -> None:
            answers.append(here.post(f"/v1/agents/{agent}/messages", json={"input": "Hello."}))

        sending = threading.Thread(target=send)
        sending.start()
        try:
            gate.wait()
            end_there(there, agent)
            sending.join(LIMIT)
            assert answers, "the turn still waits for its model"
        finally:
            gate.open()
            sending.join(LIMIT)
            pair.here.forget()
    assert answers[0].status_code == status, answers[0].text
    if status == 200:
        assert answers[0].json()["stop_reason"]["stop_reason"] == "cancelled"
