"""Calls over real sockets: what a server may do with a connection, and what the caller hears of it; on both event loops."""

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ricordo.llm.transport import DirectTransport

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Servers run on uvloop where it is, tests and other systems on asyncio's own."""

    @pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**given))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    own = inspect.signature(run).parameters["new_loop"]
    run.__signature__ = inspect.Signature([own, *inspect.signature(test).parameters.values()])  # type: ignore[attr-defined]
    return run


class Place:
    """A server that says what it is told to, and a client on it."""

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self.client, self.url = client, url
        self.opened = self.closed = 0
        self.seen: list[bytes] = []

    async def post(self, body: bytes = b"{}") -> httpx2.Response:
        return await self.client.post(self.url, content=body)

    async def until(self, is_so: Callable[["Place"], bool]) -> None:
        async with asyncio.timeout(5):
            while not is_so(self):  # noqa: ASYNC110 - the other side says nothing when it is so
                await asyncio.sleep(0.001)


async def request_in(reader: asyncio.StreamReader) -> bytes:
    """The next whole request of a connection; empty where the caller hung up."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


def saying(*pieces: bytes, hangs_up: bool = False) -> Talk:
    """A server that answers each request by these pieces, one packet each."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request_in(reader):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.005)
            if hangs_up:
                return

    return talk


@asynccontextmanager
async def place(
    talk: Talk, timeout: float = 5, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[Place]:
    """The server and the client."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.opened += 1
        with suppress(ConnectionError, asyncio.CancelledError):
            await talk(reader, writer)
        here.closed += 1
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    transport = DirectTransport(**{"most": 10, "kept": 5, "kept_seconds": 60.0, **options})
    async with httpx2.AsyncClient(transport=transport, timeout=timeout) as client:
        here = Place(client, f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1")
        try:
            yield here
        finally:
            server.close()


@on_both_loops
async def test_calls_one_after_the_other_share_a_connection() -> None:
    async with place(saying(OK)) as there:
        answers = [await there.post() for _ in range(3)]

        assert [(answer.status_code, answer.text) for answer in answers] == [(200, "ok")] * 3
        assert there.opened == 1


@on_both_loops
async def test_calls_at_once_have_a_connection_each_and_only_some_are_kept() -> None:
    async with place(saying(OK), kept=2) as there:
        await asyncio.gather(*(there.post() for _ in range(4)))
        assert there.opened == 4
        await there.until(lambda there: there.closed == 2)
        await asyncio.gather(there.post(), there.post())
        assert there.opened == 4


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", b"4\r\ndefg\r\n0\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 7\r\n\r\nabcd", b"efg"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nabcdefg"),
    ],
    ids=["chunked", "torn", "after an interim answer"],
)
@on_both_loops
async def test_an_answer_is_read_however_it_comes(pieces: tuple[bytes, ...]) -> None:
    async with place(saying(*pieces)) as there:
        assert [(await there.post()).text for _ in range(2)] == ["abcdefg", "abcdefg"]
        assert there.opened == 1


@on_both_loops
async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with place(saying(b"HTTP/1.1 200 OK\r\n\r\nabc", b"def", hangs_up=True)) as there:
        assert [(await there.post()).text for _ in range(2)] == ["abcdef", "abcdef"]
        assert there.opened == 2


@on_both_loops
async def test_a_server_that_does_not_stay_is_called_anew() -> None:
    async with place(saying(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")) as there:
        assert [(await there.post()).text for _ in range(2)] == ["ok", "ok"]
        assert there.opened == 2


@on_both_loops
async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again() -> None:
    async with place(saying(OK, hangs_up=True)) as there:
        await there.post()
        await there.until(lambda there: there.closed == 1)
        await asyncio.sleep(0.01)
        assert (await there.post()).text == "ok"
        assert there.opened == 2


@on_both_loops
async def test_what_nobody_asked_for_is_no_answer_to_the_next_call() -> None:
    async with place(saying(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")) as there:
        assert [(await there.post()).text for _ in range(2)] == ["ok", "ok"]
        assert there.opened == 2
    async with place(saying(OK, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")) as there:
        assert (await there.post()).text == "ok"
        await asyncio.sleep(0.02)
        assert (await there.post()).text == "ok"
        assert there.opened == 2


@on_both_loops
async def test_an_idle_connection_is_closed_in_time() -> None:
    async with place(saying(OK), kept_seconds=0.02) as there:
        await there.post()
        await there.until(lambda there: there.closed == 1)


@pytest.mark.parametrize(
    ("pieces", "error", "words"),
    [
        ((), httpx2.RemoteProtocolError, "without sending a response"),
        (
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",),
            httpx2.RemoteProtocolError,
            "before the answer had ended",
        ),
        (
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",),
            httpx2.RemoteProtocolError,
            "before the answer had ended",
        ),
        ((b"SSH-2.0-OpenSSH_9.6\r\n",), httpx2.RemoteProtocolError, "HTTP"),
        ((b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,), httpx2.RemoteProtocolError, "too long"),
        (
            (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",),
            httpx2.RemoteProtocolError,
            "changed the protocol",
        ),
    ],
    ids=["nothing", "half a body", "half of the chunks", "another protocol", "endless headers", "an upgrade"],
)
@on_both_loops
async def test_a_broken_answer_is_told(pieces: tuple[bytes, ...], error: type[Exception], words: str) -> None:
    async with place(saying(*pieces, hangs_up=True)) as there:
        with pytest.raises(error, match=words):
            await there.post()
        with pytest.raises(error, match=words):  # and leaves room for the next
            await there.post()


@on_both_loops
async def test_silence_is_told_before_and_within_an_answer() -> None:
    for pieces in ((), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",)):
        async with place(saying(*pieces), timeout=0.05) as there:
            with pytest.raises(httpx2.ReadTimeout):
                await there.post()
            await there.until(lambda there: there.closed == 1)


@on_both_loops
async def test_a_slow_answer_that_is_not_silent_may_take_longer_than_the_limit() -> None:
    slow = (b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n", *(b"x" for _ in range(30)))
    async with place(saying(*slow), timeout=0.1) as there:
        assert len((await there.post()).text) == 30


@on_both_loops
async def test_where_nobody_listens_is_told() -> None:
    async with place(saying(OK)) as there:
        pass
    async with httpx2.AsyncClient(transport=DirectTransport(most=1, kept=1, kept_seconds=1)) as client:
        for _ in range(2):
            with pytest.raises(httpx2.ConnectError):
                await client.get(there.url)
        with pytest.raises(httpx2.UnsupportedProtocol):
            await client.get("ftp://127.0.0.1/")


@on_both_loops
async def test_a_server_that_reads_nothing_is_given_up() -> None:
    async def deaf(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)

    async with place(deaf, timeout=0.05) as there:
        with pytest.raises(httpx2.TimeoutException):
            await there.post(b"x" * 30_000_000)


@on_both_loops
async def test_more_calls_than_there_may_be_wait_for_each_other() -> None:
    async with place(saying(OK), most=1) as there:
        answers = await asyncio.gather(*(there.post() for _ in range(5)))
        assert [answer.text for answer in answers] == ["ok"] * 5
        assert there.opened == 1
    async with place(saying(), timeout=0.05, most=1) as there:
        silent = asyncio.create_task(there.post())
        await asyncio.sleep(0.01)
        with pytest.raises(httpx2.PoolTimeout):
            await there.client.post(there.url, timeout=httpx2.Timeout(5, pool=0.01))
        with pytest.raises(httpx2.ReadTimeout):
            await silent


@on_both_loops
async def test_a_call_that_is_cancelled_hangs_up_and_leaves_room() -> None:
    async with place(saying(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"), most=1) as there:
        for count in (1, 2):
            call = asyncio.create_task(there.post())
            await there.until(lambda there: there.opened == count)  # noqa: B023 - awaited at once
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await there.until(lambda there: there.closed == 2)


@on_both_loops
async def test_a_stream_comes_as_it_is_said_and_leaving_it_hangs_up() -> None:
    async with place(saying(b"HTTP/1.1 200 OK\r\n\r\none", b"two", b"three")) as there:
        async with there.client.stream("POST", there.url) as response:
            pieces = response.aiter_bytes()
            assert await anext(pieces) == b"one"
            assert there.closed == 0
        # The body was not at its end, so its connection is no good to the next call.
        async with there.client.stream("POST", there.url) as response:
            assert (response.status_code, there.opened) == (200, 2)


@on_both_loops
async def test_a_long_answer_waits_at_the_server_until_it_is_read() -> None:
    size, sent = 20_000_000, 0

    async def long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_in(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * 100_000)
            sent += 100_000
            await writer.drain()
        await reader.read()

    async with place(long) as there, there.client.stream("POST", there.url) as response:
        await asyncio.sleep(0.1)
        assert sent < size
        assert sum([len(piece) async for piece in response.aiter_bytes()]) == size


@on_both_loops
async def test_a_header_cannot_end_the_head() -> None:
    async with place(saying(OK)) as there:
        with pytest.raises(httpx2.LocalProtocolError, match="authorization"):
            await there.client.post(there.url, headers={"authorization": b"Bearer x\r\nx-evil: 1"})
        assert there.opened == 0


@on_both_loops
async def test_a_body_of_unknown_length_is_sent_in_a_chunk() -> None:
    seen = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n") + await reader.readuntil(b"0\r\n\r\n"))
        writer.write(OK)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        yield b"defg"

    async with place(read) as there:
        assert (await there.client.post(there.url, content=pieces())).text == "ok"
    assert seen[0].endswith(b"\r\n\r\n7\r\nabcdefg\r\n0\r\n\r\n")


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS with a certificate for 127.0.0.1, and the file of who signed it."""
    signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)

    def signed(name: str, public: ec.EllipticCurvePublicKey, *more: x509.ExtensionType) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "signer")]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )
        for extension in more:
            made = made.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    root, public, secret = folder / "root.pem", folder / "public.pem", folder / "key.pem"
    root.write_bytes(signed("signer", signer.public_key(), x509.BasicConstraints(ca=True, path_length=None)))
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    public.write_bytes(signed("server", key.public_key(), here))
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, secret)
    return context, root


@on_both_loops
async def test_a_call_by_tls_needs_a_certificate_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, root = certificate(tmp_path)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(root)
    async with place(saying(OK), tls=tls) as there:
        with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
            await there.post()
    monkeypatch.setattr(httpx2, "create_ssl_context", lambda: trusting)
    async with place(saying(OK), tls=tls) as there:
        assert [(await there.post()).text for _ in range(2)] == ["ok", "ok"]
        assert there.opened == 1
    async with place(saying(b"HTTP/1.1 200 OK\r\n\r\nabc", hangs_up=True), tls=tls) as there:
        assert (await there.post()).text == "abc"
