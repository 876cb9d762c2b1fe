"""Limits of one connection: headers, time and number.

A connection that makes progress stays open.
"""

import asyncio
import contextlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from ricordo.cli.connections import MOST_HEADERS, MOST_PIPELINED, SLOWEST
from ricordo.cli.serve import Server
from ricordo.llm.scripted import ScriptedModel
from tests.cli.test_serve import running
from tests.seams.waiting import wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="clients at several addresses of this machine"
)
LIMIT = 180
HEALTH = b"GET /v1/health/ HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
POST = b"POST /v1/agents/ HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
# Another address of this machine. It has no exemption, unlike a proxy's address.
CLIENT = "127.0.0.2"


class Line:
    """A connection on which a test sends any bytes."""

    def __init__(self, address: str, client: str = CLIENT) -> None:
        port = int(address.rpartition(":")[2])
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT, (client, 0))

    def send(self, data: bytes) -> "Line":
        with contextlib.suppress(OSError):  # The server may have closed it already.
            self._socket.sendall(data)
        return self

    def read(self, size: int = 65536) -> bytes:
        try:
            return self._socket.recv(size)
        except ConnectionError:
            return b""

    def status(self) -> int:
        """Return the status of the next response; 0 if the server closes without one."""
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := self.read()):
            answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        while length and len(body) < int(length[1]) and (piece := self.read()):
            body += piece
        return int(head.split(b" ")[1]) if head else 0

    def close(self) -> None:
        self._socket.close()


Connect = Callable[..., Line]
LIMITS = {"max_header_kb": 4, "max_connections": 12, "max_client_connections": 6}


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that gives a client half a second."""
    with running(
        tmp_path_factory.mktemp("hasty"), ScriptedModel(()), **LIMITS, client_timeout=0.5
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that gives a client more time than any machine needs."""
    with running(
        tmp_path_factory.mktemp("patient"), ScriptedModel(()), **LIMITS, client_timeout=LIMIT
    ) as opened:
        yield opened


@contextlib.contextmanager
def connecting(server: Server, address: str) -> Iterator[Connect]:
    """Open connections, which are closed at the end."""
    lines: list[Line] = []

    def connect(client: str = CLIENT) -> Line:
        lines.append(Line(address, client))
        return lines[-1]

    yield connect
    for line in lines:
        line.close()
    wait_until_all_are_closed(server)


def wait_until_all_are_closed(server: Server) -> None:
    wait_for(lambda: not server.server_state.connections)


@pytest.fixture
def connect(patient: tuple[Server, str]) -> Iterator[Connect]:
    with connecting(*patient) as connect:
        yield connect


@pytest.fixture
def connect_in_haste(hasty: tuple[Server, str]) -> Iterator[Connect]:
    with connecting(*hasty) as connect:
        yield connect


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 5000,
        b"GET / HTTP/1.1\r\nx: " + b"a" * 300_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200_000,
        b"GET / HTTP/1.1\r\nx: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * (MOST_HEADERS + 1) + b"\r\n",
        POST
        + b"transfer-encoding: chunked\r\n\r\n0\r\n"
        + b"trailer: "
        + b"a" * 5000
        + b"\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n1;" + b"a" * 900_000,
    ],
    ids=[
        "path",
        "endless header",
        "endless headers",
        "long header",
        "many headers",
        "trailer",
        "chunk extension",
    ],
)
def test_too_long_headers_are_refused(connect: Connect, head: bytes) -> None:
    assert connect().send(head).status() == 431


def test_headers_within_the_limits_are_read(connect: Connect) -> None:
    head = (
        HEALTH.removesuffix(b"\r\n")
        + b"x: "
        + b"a" * 3000
        + b"\r\n"
        + b"y: z\r\n" * (MOST_HEADERS - 10)
        + b"\r\n"
    )
    assert connect().send(head).status() == 200


@pytest.mark.parametrize("begun", [b"GET / HT", HEALTH[:-2]], ids=["a word", "headers"])
def test_unfinished_headers_time_out(connect_in_haste: Connect, begun: bytes) -> None:
    assert connect_in_haste().send(begun).status() == 408


def test_a_connection_without_a_request_is_closed_silently(
    connect_in_haste: Connect,
) -> None:
    assert connect_in_haste().status() == 0


def test_an_invalid_path_is_refused(connect: Connect) -> None:
    assert connect().send(b"GET http://[ HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").status() == 400


@contextlib.contextmanager
def sending_repeatedly(line: Line, piece: bytes) -> Iterator[None]:
    """Send this piece again and again, as long as the block runs."""
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(0.1):
            line.send(piece)

    trickle = threading.Thread(target=send)
    trickle.start()
    try:
        yield
    finally:
        is_over.set()
        trickle.join()


def test_headers_sent_letter_by_letter_time_out(connect_in_haste: Connect) -> None:
    line = connect_in_haste().send(b"GET /")
    with sending_repeatedly(line, b"a"):
        assert line.status() == 408


def test_empty_lines_do_not_keep_a_connection_open(connect_in_haste: Connect) -> None:
    line = connect_in_haste().send(HEALTH)
    assert line.status() == 200
    with sending_repeatedly(line, b"\r\n"):
        assert line.status() == 408


def test_a_stalled_body_times_out(connect_in_haste: Connect) -> None:
    line = connect_in_haste().send(POST + b"content-length: 1000\r\n\r\n{")
    assert line.status() == 408


def test_a_slow_body_that_makes_progress_is_read(connect_in_haste: Connect) -> None:
    def is_read() -> bool:
        line = connect_in_haste().send(POST + b"content-length: 1200\r\n\r\n")
        for _ in range(12):  # Twice the time after which a stalled body is given up.
            line.send(b" " * 100)
            time.sleep(0.1)
        return line.status() == 422

    assert SLOWEST < 100 / 0.1
    assert any(is_read() for _ in range(5))  # A busy machine may pause by itself.


def test_sending_a_body_after_its_refusal_ends_the_connection(
    connect_in_haste: Connect,
) -> None:
    line = connect_in_haste().send(
        POST.replace(b"/v1/agents/", b"/nowhere") + b"transfer-encoding: chunked\r\n\r\n"
    )
    assert line.status() == 404
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit and line._socket.fileno() != -1:
        try:
            line._socket.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        except OSError:
            break
        time.sleep(0.02)
    assert time.monotonic() < limit


def test_pipelined_requests_on_one_connection_are_bounded(connect: Connect) -> None:
    assert b"Wait for their answers" in connect().send(HEALTH * (MOST_PIPELINED + 3)).read()
    line, answers = connect().send(HEALTH * 3), b""
    while answers.count(b"200 OK") < 3 and (piece := line.read()):
        answers += piece
    assert answers.count(b"200 OK") == 3


def test_a_client_with_many_connections_loses_its_own_and_not_others(
    connect: Connect,
) -> None:
    other = connect("127.0.0.3").send(HEALTH)
    assert other.status() == 200
    lines = [connect() for _ in range(20)]
    assert lines[-1].send(HEALTH).status() == 200
    assert lines[0].read() == b""
    assert other.send(HEALTH).status() == 200


def test_idle_connections_make_room_for_new_ones(connect: Connect) -> None:
    lines = [connect(f"127.0.0.{number + 2}") for number in range(30)]
    assert lines[-1].send(HEALTH).status() == 200
    assert lines[0].read() == b""


def test_busy_connections_are_kept_and_new_ones_refused(connect: Connect) -> None:
    busy = [connect().send(POST + b"content-length: 10\r\n\r\n{") for _ in range(6)]
    time.sleep(0.5)  # until all requests have begun
    assert connect().status() == 503
    assert [line.send(b'"name": 1').status() for line in busy] == [422] * 6


def test_the_server_keeps_idle_connections_longer_than_clients_do(
    patient: tuple[Server, str],
) -> None:
    """If the server closed the connection first, a request at that moment would fail."""
    with httpx2.Client() as client:
        pool = client._transport._pool  # type: ignore[attr-defined]
        assert patient[0].config.timeout_keep_alive > 2 * pool._keepalive_expiry


async def test_a_stream_outlives_every_limit_and_a_reader_that_stops_reading_is_dropped(
    tmp_path: Path,
) -> None:
    limits = {"client_timeout": 0.3, "keepalive": 0.1, "max_block_kb": 4_000}

    async def answer(_request: object) -> str:
        await asyncio.sleep(2 * limits["client_timeout"])
        return "At last."

    with running(tmp_path, ScriptedModel(answer), **limits) as (server, address):
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=LIMIT) as http:
            made = await http.post("/v1/agents/", json={"name": "Nina", "model": "scripted/model"})
            body = {"messages": [{"role": "user", "content": "Hello."}]}
            path = f"/v1/agents/{made.json()['id']}/messages/stream"
            async with http.stream("POST", path, json=body) as response:
                said = b"".join([piece async for piece in response.aiter_bytes()])
            assert b"At last." in said
            # The client also sends the head of another request, which waits for this one.
            sent = json.dumps(body).encode()
            whole = (
                POST.replace(b"/v1/agents/", path.encode())
                + b"content-length: %d\r\n\r\n" % len(sent)
                + sent
            )
            line, said = Line(address).send(whole + HEALTH[:-2]), b""
            while b"[DONE]" not in said and (piece := await asyncio.to_thread(line.read)):
                said += piece
            assert b"At last." in said
            line.close()
            # A response of some megabytes that the client does not read.
            text = "word " * 600_000
            block = await http.post(
                "/v1/blocks/", json={"label": "notes", "value": text, "limit": 4_000_000}
            )
            path = f"/v1/blocks/{block.json()['id']}".encode()
        # The answers are larger than the buffers of the operating system.
        line = Line(address).send(HEALTH.replace(b"/v1/health/", path) * 8)
        taken = b""
        await asyncio.sleep(limits["client_timeout"])
        await asyncio.to_thread(wait_until_all_are_closed, server)
        while piece := await asyncio.to_thread(line.read):
            taken += piece
        line.close()
        assert 0 < len(taken) < 8 * len(text)
