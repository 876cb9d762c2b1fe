"""A server whose PostgreSQL goes away: its responses during the outage, and its recovery."""

import io
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx2
import pytest
from pydantic import SecretStr

from ricordo.agents import step_save
from ricordo.agents.turn_start import LEASE
from ricordo.api.call import ID_PREFIXES
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import DatabaseFailed
from ricordo.logs import TextFormatter
from ricordo.storage import agents, jobs
from ricordo.storage.engine.store import Transaction
from tests.seams.http import bearer
from tests.seams.routes import cells_of
from tests.seams.server import LIMIT, MODEL, Gate, ServerInThread, events_of, serving
from tests.seams.waiting import wait_for
from tests.support import postgres
from tests.support.postgres import name_in

LIVING = ("/v1/health/live", "/v1/health", "/v1/health/", "/health")
KEY = f"ricordo_key_{'x' * 43}"
# Paths of the API, of OpenAI's routes, of pages, of memory, of git, and one that does not exist.
PATHS = (
    *(
        "/v1/agents/",
        "/v1/agents/{agent_id}",
        "/v1/runs/{run_id}",
        "/v1/models",
        "/v1/models/",
        "/v1/blocks/",
    ),
    *(
        "/ui/agents",
        "/ui/memory",
        "/users/ada/blocks",
        "/users/ada/memory.git/info/refs",
        "/metrics",
        "/nowhere",
    ),
)


class Database:
    """A separate database on the tests' PostgreSQL, which can be cut off and restored."""

    def __init__(self) -> None:
        self.url = postgres.server().new_database()
        self._name = name_in(self.url)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Cut the database off; restore it at the end, also of a test that fails."""
        try:
            postgres.server().run(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
            postgres.server().run(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'"  # noqa: S608
            )
            yield
        finally:
            postgres.server().run(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    @contextmanager
    def without_tables(self) -> Iterator[None]:
        """Let new sessions look for their tables in another schema, and end the old sessions."""
        try:
            self._look_in("SET search_path = elsewhere")
            yield
        finally:
            self._look_in("RESET search_path")

    def _look_in(self, setting: str) -> None:
        postgres.server().run(f"ALTER DATABASE {self._name} {setting}")
        self.end_sessions()

    def end_sessions(self) -> None:
        postgres.server().run(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{self._name}'"  # noqa: S608
        )


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    made = Database()
    yield made
    postgres.server().drop(made.url)


@pytest.fixture(scope="module")
def server(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerInThread]:
    url = SecretStr(database.url)
    with serving(
        tmp_path_factory.mktemp("outages"), database_url=url, database_connections=3
    ) as running:
        yield running


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[io.StringIO]:
    """The log of the test as a server writes it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(TextFormatter())
    logging.getLogger().addHandler(handler)
    yield written
    logging.getLogger().removeHandler(handler)
    caplog.clear()


def wait_until_ready(http: httpx2.Client) -> None:
    wait_for(lambda: http.get("/v1/health/ready").status_code == 200, "the server did not recover")


def require_quiet(log: io.StringIO) -> None:
    text = log.getvalue()
    assert "Traceback" not in text
    assert 'File "' not in text, text


def ask(http: httpx2.Client, path: str) -> httpx2.Response:
    """GET a path, with ids of the right form for its parameters."""
    ids = {name: new_id(prefix) for name, prefix in ID_PREFIXES.items()}
    return http.get(re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: ids.get(match[1], "x"), path))


def require_not_now(server: ServerInThread, database: Database, paths: Iterable[str]) -> None:
    """Cut the database off, and require that requests are refused with 503.

    Each path is requested without a key. One path is also requested with a key, with a page's token
    and with another method.
    """
    with server.http() as http:
        with database.outage():
            for path in LIVING:
                assert http.get(path, headers={"cookie": "ricordo_session=x"}).status_code == 200
            ready = http.get("/v1/health/ready")
            assert (ready.status_code, "does not answer" in ready.json()["detail"]) == (503, True)
            answers = {path: ask(http, path) for path in paths}
            answers["with a key"] = http.get("/v1/agents/", headers=bearer(KEY))
            answers["with a page's token"] = http.get(
                "/v1/agents/", headers={"authorization": "Bearer ricordo_token_x"}
            )
            answers["POST"] = http.post("/v1/agents/", json={"model": MODEL})
        statuses = {path: answer.status_code for path, answer in answers.items()}
        # Each request is refused with 503, whatever else is wrong with it.
        assert {path: status for path, status in statuses.items() if status != 503} == {}
        assert [
            path for path, answer in answers.items() if "retry-after" not in answer.headers
        ] == []
        wait_until_ready(http)
        assert http.get("/v1/agents/").status_code == 200
    server.provoked()


def test_a_server_without_its_database_answers_503(
    server: ServerInThread, database: Database, log: io.StringIO
) -> None:
    require_not_now(server, database, PATHS)
    require_quiet(log)


def test_a_server_that_does_not_find_its_tables_answers_503_with_the_reason(
    server: ServerInThread, database: Database, log: io.StringIO
) -> None:
    with server.http() as http:
        with database.without_tables():
            answer = http.get("/v1/agents/")
            ready = http.get("/v1/health/ready")
            with pytest.raises(DatabaseFailed, match='relation "agents" does not exist') as caught:
                server.read(lambda tx: agents.count(tx, Scope()))
        assert "search_path" in str(caught.value)
        # Before its caller's key is checked, a request gets an answer without names.
        assert re.search("lacks tables of this server|does not exist", answer.json()["detail"])
        assert "lacks tables of this server" in ready.json()["detail"]
        assert (answer.status_code, ready.status_code) == (503, 503)
        assert "retry-after" in answer.headers
        wait_until_ready(http)
        assert http.get("/v1/agents/").status_code == 200
    require_quiet(log)
    server.provoked()


@pytest.mark.soak
def test_every_get_route_answers_503_without_the_database(
    server: ServerInThread, database: Database, log: io.StringIO
) -> None:
    require_not_now(
        server,
        database,
        [cell.path for cell in cells_of(server.app) if cell.method == "GET" and cell.scopes],
    )
    require_quiet(log)


def send_while_it_goes_away(
    server: ServerInThread,
    database: Database,
    path: str,
    *,
    until: Callable[[], bool] = lambda: False,
) -> httpx2.Response:
    """Send a message, and cut the database off while the model answers.

    It is cut off until the answer has arrived, or until `until` returns True.
    """
    gate = Gate(server)
    server.answers_with(gate)
    answers: list[httpx2.Response] = []

    def send() -> None:
        with server.http() as http:
            answers.append(http.post(path, json={"input": "Hello."}))

    sending = threading.Thread(target=send)
    sending.start()
    gate.wait()
    try:
        with database.outage():
            gate.open()
            while sending.is_alive() and not until():
                sending.join(0.05)
        sending.join(LIMIT)
    finally:
        gate.open()
        server.forget()
    return answers[0]


@pytest.mark.parametrize("kind", ["", "/stream"])
def test_a_turn_whose_database_goes_away_says_so_and_the_next_message_is_answered(
    server: ServerInThread,
    database: Database,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(step_save, "LEASE_MARGIN", LEASE)  # as if the lease were about to end
    with server.http() as http:
        agent = http.post("/v1/agents/", json={"model": MODEL}).json()["id"]
        answer = send_while_it_goes_away(server, database, f"/v1/agents/{agent}/messages{kind}")
        assert "The database failed during this turn." in answer.text
        if kind:
            assert [name for name, _ in events_of(answer.text)].count("error") == 1
        else:
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        wait_until_ready(http)
        again = http.post(f"/v1/agents/{agent}/messages", json={"input": "And now?"})
        assert again.status_code == 200, again.text
    require_quiet(log)
    server.provoked()


def test_an_answer_whose_save_the_database_refuses_for_a_while_is_saved_once(
    server: ServerInThread, database: Database, log: io.StringIO
) -> None:
    """The model's answer is paid for."""
    with server.http() as http:
        agent = http.post("/v1/agents/", json={"model": MODEL}).json()["id"]
        answer = send_while_it_goes_away(
            server,
            database,
            f"/v1/agents/{agent}/messages",
            until=lambda: "a step could not be saved; it is tried again" in log.getvalue(),
        )
        assert answer.status_code == 200, answer.text
        assert "Here I am." in answer.text
        wait_until_ready(http)
        saved = http.get(f"/v1/agents/{agent}/messages").json()
        assert [one["content"] for one in saved if one["message_type"] == "assistant_message"] == [
            "Here I am."
        ]
    require_quiet(log)
    server.provoked()


def test_jobs_of_before_during_and_after_an_outage_are_done(
    server: ServerInThread, database: Database, log: io.StringIO
) -> None:
    clock = server.runtime.store.clock

    def add(seconds: float = 0) -> Job:
        due = clock.now() + round(seconds * SECOND)
        job = Job("run_events", LOCAL_ORGANIZATION, not_before=due)
        added = server.write(lambda tx: jobs.add(tx, job))
        assert added
        return added

    with server.http() as http:
        added = [add(), add(1)]
        with database.outage():
            assert http.get("/v1/agents/").status_code == 503
            while clock.now() < added[1].not_before:
                time.sleep(0.05)
        wait_until_ready(http)
        added.append(add())
        end = time.monotonic() + LIMIT
        for job in added:
            while (status := server.read(partial(status_of, id=job.id))) != "done":
                assert time.monotonic() < end, status
                time.sleep(0.05)
    require_quiet(log)
    server.provoked()


def status_of(tx: Transaction, id: str) -> str:
    return jobs.get(tx, Scope(), id).status
