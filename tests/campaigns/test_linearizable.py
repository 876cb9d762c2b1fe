"""Concurrent reads, edits, proposals and approvals of one block have one order, over HTTP.

Each client records its requests, their times and the responses. The checker searches for an order
of all requests that explains every response. On PostgreSQL the clients use two servers.
"""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Barrier

import httpx2
import pytest

from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.seams.http import put
from tests.seams.server import ServerInThread, serving
from tests.support import postgres
from tests.support.linearizable import Operation, State, is_linearizable

_BLOCK = "/users/ada/blocks"
_SLOTS, _CLIENTS, _EACH = 3, 4, 6
_FIRST = tuple(f"line {slot}" for slot in range(_SLOTS))
_DONE, _REFUSED = (200, 202), (400, 404, 409)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[ServerInThread]]:
    """One server on SQLite, or two on one PostgreSQL."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield [stack.enter_context(serving(tmp_path))]
            return
        url = postgres.server().new_database()
        stack.callback(postgres.server().drop, url)
        folders = [tmp_path / name for name in ("one", "two")]
        yield [stack.enter_context(serving(folder, database_url=url)) for folder in folders]


class Client:
    """A client that makes random requests about one block, and records them."""

    def __init__(self, http: httpx2.Client, label: str, seed: int, texts: Iterator[int]) -> None:
        self.history: list[Operation] = []
        self._http = http
        self._path = f"{_BLOCK}/{label}"
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._texts = texts

    def run(self, shared: list[Operation]) -> None:
        """Make the requests; each proposal in `shared` may be decided."""
        seldom = (self._read, self._write, self._edit)
        asks = (*seldom, self._propose, self._propose, self._decide, self._decide, self._decide)
        for _ in range(_EACH):
            self._chance.choice(asks)(shared)

    def _note(self, asked: Operation, answer: httpx2.Response, called: int) -> Operation:
        assert answer.status_code in (*_DONE, *_REFUSED), answer.text
        is_done = answer.status_code in _DONE
        self.history.append(replaced(asked, called, time.monotonic_ns(), is_done))
        return self.history[-1]

    def _new(self) -> str:
        # All texts have the same length. So none contains another, although a proposal looks for
        # its text anywhere in the block.
        return f"text {next(self._texts):04}"

    def _now(self) -> tuple[str, ...]:
        return self._read([]).lines

    def _read(self, _shared: list[Operation]) -> Operation:
        called = time.monotonic_ns()
        answer = self._http.get(self._path)
        lines = lines_of(answer.json()["body"])
        return self._note(Operation("read", 0, 0, lines=lines), answer, called)

    def _write(self, _shared: list[Operation]) -> None:
        lines = tuple(self._new() for _ in range(_SLOTS))
        called = time.monotonic_ns()
        answer = self._http.put(self._path, json={"body": body_of(lines)})
        self._note(Operation("write", 0, 0, lines=lines), answer, called)

    def _edit(self, _shared: list[Operation]) -> None:
        """Change one line of the version that was read."""
        read = self._http.get(self._path).json()
        lines = lines_of(read["body"])
        slot, new = self._chance.randrange(_SLOTS), self._new()
        body = {
            "body": body_of((*lines[:slot], new, *lines[slot + 1 :])),
            "version": read["version"],
        }
        called = time.monotonic_ns()
        answer = self._http.put(self._path, json=body)
        self._note(Operation("edit", 0, 0, slot=slot, old=lines[slot], new=new), answer, called)

    def _propose(self, shared: list[Operation]) -> None:
        slot, new = self._chance.randrange(_SLOTS), self._new()
        old = self._now()[slot]
        edit = {"old_string": old, "new_string": new, "reasoning": "She said so."}
        called = time.monotonic_ns()
        answer = self._http.post(f"{self._path}/propose", json={**edit, "agent_id": new})
        id = str(answer.json().get("id", ""))
        asked = Operation("propose", 0, 0, slot=slot, old=old, new=new, proposal=id)
        noted = self._note(asked, answer, called)
        if noted.done:
            shared.append(noted)

    def _decide(self, shared: list[Operation]) -> None:
        if not shared:
            return
        # The lines of recent proposals may still be in the block.
        chosen = self._chance.choice(shared[-_CLIENTS:])
        kind = self._chance.choice(("approve", "approve", "reject"))
        body = {"json": {"reason": "No."}} if kind == "reject" else {}
        called = time.monotonic_ns()
        answer = self._http.post(f"{self._path}/diffs/{chosen.proposal}/{kind}", **body)
        asked = Operation(
            "approve" if kind == "approve" else "reject",
            0,
            0,
            slot=chosen.slot,
            old=chosen.old,
            new=chosen.new,
            proposal=chosen.proposal,
        )
        self._note(asked, answer, called)


def replaced(asked: Operation, called: int, answered: int, is_done: bool) -> Operation:
    values = {name: getattr(asked, name) for name in ("kind", "lines", "slot", "old", "new")}
    return Operation(
        **values, called=called, answered=answered, done=is_done, proposal=asked.proposal
    )


def body_of(lines: tuple[str, ...]) -> str:
    return "\n\n".join(lines)


def lines_of(body: str) -> tuple[str, ...]:
    return tuple(body.split("\n\n"))


def history_of(servers: list[ServerInThread], label: str, seed: int) -> list[Operation]:
    """Let clients use a new block at the same time; return all requests and responses."""
    texts = count()
    shared: list[Operation] = []
    together = Barrier(_CLIENTS)
    with ExitStack() as stack:
        https = [
            stack.enter_context(servers[number % len(servers)].http()) for number in range(_CLIENTS)
        ]
        put(https[0], "ada", label, body_of(_FIRST))
        clients = [
            Client(http, label, seed * _CLIENTS + number, texts)
            for number, http in enumerate(https)
        ]

        def run(client: Client) -> None:
            together.wait()
            client.run(shared)

        with ThreadPoolExecutor(_CLIENTS) as threads:
            list(threads.map(run, clients))
        clients[0]._read(shared)
    return [operation for client in clients for operation in client.history]


@pytest.mark.campaign
@pytest.mark.parametrize("rounds", short_and_long(6, 150))
def test_requests_about_one_block_have_one_order(
    rounds: int, servers: list[ServerInThread], record_property: RecordProperty
) -> None:
    seed = random.randrange(2**31)  # noqa: S311 - no secret
    record_property("seed", seed)
    requests = approvals = 0
    for number in range(rounds):
        history = history_of(servers, f"block-{number}", seed + number)
        requests += len(history)
        approvals += sum(one.kind == "approve" and one.done for one in history)
        assert is_linearizable(State(_FIRST), history), (seed + number, history)
    record_property("requests", requests)
    record_property("approvals", approvals)


def test_the_checker_finds_what_no_order_explains() -> None:
    first = State(("a", "b"))
    write = Operation("write", 0, 10, lines=("c", "d"))
    late, early = (Operation("read", 20, 30, lines=lines) for lines in (("c", "d"), ("a", "b")))
    assert is_linearizable(first, [write, late])
    assert not is_linearizable(first, [write, early]), "the write was answered before"
    beside = Operation("read", 5, 30, lines=("a", "b"))
    assert is_linearizable(first, [write, beside]), "the read may have come first"
    mixed = Operation("read", 20, 30, lines=("c", "b"))
    assert not is_linearizable(first, [write, mixed])
    proposed = Operation("propose", 0, 1, slot=0, old="a", new="x", proposal="1")
    approved = Operation("approve", 2, 3, slot=0, old="a", new="x", proposal="1")
    rejected = Operation("reject", 2, 3, proposal="1")
    assert is_linearizable(first, [proposed, approved])
    assert not is_linearizable(first, [proposed, approved, rejected]), (
        "Only the first decision counts"
    )
    lost = Operation("edit", 2, 3, slot=0, old="a", new="y")
    assert not is_linearizable(first, [proposed, approved, lost]), "one of two edits is lost"
