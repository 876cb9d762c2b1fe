"""Pages that agents read: allowed addresses, results, and hostile pages."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ricordo.errors import Invalid, RicordoError, Unavailable
from ricordo.features.custom_tools.web import sessions
from ricordo.features.custom_tools.web.pages import markdown_of
from ricordo.features.custom_tools.web.sessions import WebPage, fetch
from ricordo.sandbox.service import Sandbox
from ricordo.settings import Settings
from tests.support.sandboxes import bubblewrap

ARTICLE = (
    "<html><head><title>Bees &amp; honey</title></head><body><nav>Menu</nav><article><h1>Bees</h1>"
    + "".join(
        f"<p>Bees make honey, number {number}. <a href='/x'>More</a></p>" for number in range(12)
    )
)


class Site(BaseHTTPRequestHandler):
    """A site that answers each path as `pages` says: status, headers, pieces of the body."""

    pages: ClassVar[dict[str, tuple[int, dict[str, str], list[bytes]]]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, headers, pieces = self.pages[self.path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for piece in pieces:
                self.wfile.write(piece)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serving() as url:
        yield url


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


HTML = {"content-type": "text/html; charset=utf-8"}
# Ways to write an address of this machine or of a private network, and addresses of no web page.
# {port} is the port of a server that must never be called.
PRIVATE = """
http://127.0.0.1:{port}/ http://127.1:{port}/ http://2130706433:{port}/ http://0x7f000001:{port}/ http://0x7f.1:{port}/
http://0177.0.0.1:{port}/ http://017700000001:{port}/ http://0:{port}/ http://0.0.0.0:{port}/ http://localhost:{port}/
http://LOCALHOST:{port}/ http://localhost.:{port}/ http://[::1]:{port}/ http://[::]:{port}/ http://[0:0:0:0:0:0:0:1]:{port}/
http://[::ffff:127.0.0.1]:{port}/ http://[::ffff:7f00:1]:{port}/ http://[::127.0.0.1]:{port}/ http://[64:ff9b::7f00:1]:{port}/
http://[2002:7f00:1::]:{port}/ http://[fe80::1]/ http://[fc00::1]/ http://[fd00:ec2::254]/ http://[ff02::1]/ http://10.0.0.1/
http://172.16.0.1/ http://192.168.1.1/ http://169.254.169.254/latest/meta-data/ http://100.64.0.1/ http://100.100.100.200/
http://168.63.129.16/ http://224.0.0.1/ http://240.0.0.1/ http://255.255.255.255/ http://192.0.2.1/ file:///etc/passwd
ftp://127.0.0.1/ gopher://127.0.0.1:{port}/ //127.0.0.1:{port}/ http:///etc/passwd http://user:pass@127.0.0.1:{port}/
http://example.com@127.0.0.1:{port}/ http://127.0.0.1:{port}#@example.com/ http://127.0.0.1:{port}\\@example.com/
http://%31%32%37.0.0.1:{port}/ http://①②⑦.⓪.⓪.①:{port}/ http://127。0。0。1:{port}/ http://169.254.169.254.:80/ javascript:alert(1)
data:text/html,x http://127.0.0.1:99999/ http://[::1%25lo]:{port}/ http://127.0.0.1:{port}/\r\nHost:x about:blank
""".split()


@pytest.mark.parametrize("url", PRIVATE, ids=range(len(PRIVATE)))
async def test_no_private_address_is_contacted_in_any_notation(site: str, url: str) -> None:
    Site.asked.clear()
    with pytest.raises(RicordoError):
        await fetch(url.replace("{port}", site.rpartition(":")[2]))
    assert Site.asked == []


def test_more_than_fifty_private_addresses_are_tested() -> None:
    assert len(PRIVATE) > 50


async def names(*numbers: str) -> list[str]:
    return list(numbers)


@pytest.mark.parametrize(
    "numbers", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["169.254.169.254"], []]
)
async def test_a_host_that_resolves_to_a_private_address_is_refused(
    site: str, numbers: list[str]
) -> None:
    Site.asked.clear()
    with pytest.raises(RicordoError):
        await fetch(
            f"http://rebind.example:{site.rpartition(':')[2]}/", lookup=lambda *_: names(*numbers)
        )
    assert Site.asked == []


async def test_a_host_is_resolved_once_for_check_and_connection(site: str) -> None:
    """The check and the connection use the same look-up."""
    port, looked_up = site.rpartition(":")[2], []

    async def rebinding(host: str, _port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"]

    Site.pages["/once"] = (200, HTML, [b"<p>Once.</p>"])
    page = await fetch(f"http://rebind.example:{port}/once", allow_private=True, lookup=rebinding)
    assert (page.body, looked_up) == (b"<p>Once.</p>", ["rebind.example"])


REDIRECTS = [
    "http://127.0.0.1:{port}/secret",
    "//127.0.0.1:{port}/secret",
    "http://169.254.169.254/latest/meta-data/",
    "file:///etc/passwd",
    "http://user:pass@127.0.0.1:{port}/secret",
    "http://0x7f000001:{port}/secret",
    "/secret",
]


@pytest.mark.parametrize("target", REDIRECTS)
async def test_each_redirect_is_checked(
    site: str, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """The first address counts as public here; the target of the redirect is checked again."""
    port = site.rpartition(":")[2]
    Site.pages |= {
        "/go": (302, {"location": target.replace("{port}", port)}, []),
        "/secret": (200, HTML, [b"secret"]),
    }
    looked_up: list[str] = []
    is_public = sessions.PinnedTransport.__init__.__globals__["is_public"]

    async def lookup(host: str, _port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if looked_up == ["public.example"] else [host]

    def first_is_public(number: str) -> bool:
        return looked_up == ["public.example"] or is_public(number)

    monkeypatch.setitem(sessions.PinnedTransport.__init__.__globals__, "is_public", first_is_public)
    Site.asked.clear()
    with pytest.raises(RicordoError):
        await fetch(f"http://public.example:{port}/go", lookup=lookup)
    assert Site.asked == ["/go"]


async def test_too_many_redirects_are_refused(site: str) -> None:
    Site.pages["/loop"] = (301, {"location": "/loop"}, [])
    with pytest.raises(Unavailable, match="redirects more than 5 times"):
        await fetch(f"{site}/loop", allow_private=True)


PACKED = gzip.compress(b"0" * 20_000_000)
HOSTILE: dict[str, tuple[tuple[int, dict[str, str], list[bytes]], str]] = {
    "/endless": ((200, HTML, [b"x" * 100_000] * 1_000), "more than 5 MB"),
    "/bomb": ((200, {**HTML, "content-encoding": "gzip"}, [PACKED]), "more than 5 MB"),
    "/no-gzip": ((200, {**HTML, "content-encoding": "gzip"}, [b"plain"]), "cannot be decompressed"),
    "/brotli": ((200, {**HTML, "content-encoding": "br"}, [b"x"]), "packed as br"),
    "/picture": ((200, {"content-type": "image/png"}, [b"x"]), "is image/png"),
    "/missing": ((404, HTML, [b"x"]), "answered 404"),
    "/broken": ((200, {**HTML, "content-length": "100"}, [b"x"]), "could not be reached"),
}


@pytest.mark.parametrize("path", HOSTILE)
async def test_hostile_responses_are_reported_as_errors(site: str, path: str) -> None:
    answer, words = HOSTILE[path]
    Site.pages[path] = answer
    with pytest.raises(RicordoError, match=words):
        await fetch(f"{site}{path}", allow_private=True)


async def test_a_slowly_sent_page_ends_at_the_timeout(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_SECONDS", 0.3)
    gate = threading.Event()

    class Drip(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            while not gate.wait(0.05):
                yield b"x"

    Site.pages["/drip"] = (200, HTML, Drip())
    with pytest.raises(Unavailable, match=r"within 0\.3 seconds"):
        await fetch(f"{site}/drip", allow_private=True)
    gate.set()


TEXTS: list[tuple[str, bytes, str]] = [
    ("text/html", ARTICLE.encode(), "Bees make honey, number 11. [More](/x)"),
    ("text/html; charset=iso-8859-1", "<p>Perché no?</p>".encode("latin-1"), "Perché no?"),
    ("text/html", '<meta charset="windows-1252"><p>It’s</p>'.encode("cp1252"), "It’s"),
    ("text/html; charset=nonsense", "<p>Perché</p>".encode(), "Perché"),
    ("text/plain", b"  Plain <b>text</b>.", "Plain <b>text</b>."),
    ("application/json", b'{"a": 1}', '{"a": 1}'),
    ("text/html", b"<p>" + b"long " * 200_000, "long long"),
    ("text/html", b"<script>alert(1)</script><p>Said.</p>", "Said."),
]


async def test_fetched_pages_are_converted_to_text(tmp_path: Path) -> None:
    bubblewrap()
    sandbox = Sandbox(Settings(data_dir=tmp_path))
    try:
        for kind, body, words in TEXTS:
            title, text = await markdown_of(sandbox, WebPage("https://x.example/", kind, body))
            assert words in text, (kind, body[:60], text[:200])
            assert "alert(1)" not in text
            assert title == ("Bees & honey" if body == ARTICLE.encode() else title)
        for body in (
            b"<a>" * 6_000,
            b"<!--" * 90_000,
            b"&#x41;" * 90_000,
            b"\0" * 1000,
            b"",
            b"<div>" * 9_000 + b"x",
        ):
            try:
                _, text = await markdown_of(
                    sandbox, WebPage("https://x.example/", "text/html", body)
                )
            except Unavailable as error:
                text = str(error)
            assert len(text) < 1_000_000
    finally:
        await sandbox.close()


async def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(Invalid, match="http://"):
        await fetch("example.com")
