"""The connection to a repository at an address.

The tests cover fetches, pushes, and refused addresses.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from dulwich.protocol import pkt_line
from dulwich.repo import Repo
from dulwich.server import DictBackend
from dulwich.web import make_wsgi_chain

from ricordo.errors import Forbidden, Invalid, TooLong, Unavailable
from ricordo.features.sync.git import transport
from ricordo.features.sync.git.objects import git_object
from ricordo.features.sync.git.transport import GitAddress
from ricordo.features.sync.remotes.service import RemoteMoved
from ricordo.llm import addresses
from tests.support.git import fsck, git

MAIN = b"refs/heads/main"
DROPS = 3_000


class Elsewhere:
    """A git server that records requests, and can send its own responses in place of git's."""

    def __init__(self, repository: Repo) -> None:
        self.asked: list[str] = []
        self.says: str | None = None
        self.drips = False
        self.floods = False
        self.sent = 0
        self.to = ""
        self.chain: Any = make_wsgi_chain(DictBackend({"/ada.git": repository}))  # type: ignore[dict-item]

    def __call__(self, environ: Any, start: Any) -> Any:
        self.asked.append(f"{environ['REQUEST_METHOD']} {environ.get('HTTP_AUTHORIZATION', '')}")
        if self.floods:
            start("200 OK", [("Content-Type", "application/x-git-upload-pack-advertisement")])
            return self._branches()
        if self.drips:
            start("200 OK", [("Content-Type", "application/x-git-upload-pack-advertisement")])
            return self._drip()
        if self.says:
            start(self.says, [("Location", self.to), ("WWW-Authenticate", 'Basic realm="x"')])
            return [b""]
        return self.chain(environ, start)

    def _drip(self) -> Iterator[bytes]:
        """Send a line of 65,535 characters, one character at a time."""
        for number in range(1, DROPS + 1):
            self.sent = number
            time.sleep(0.01)
            yield b"f"

    def _branches(self) -> Iterator[bytes]:
        yield pkt_line(b"# service=git-upload-pack\n") + b"0000"
        for number in range(1, 100_000):
            self.sent = number
            yield pkt_line(b"%040x refs/heads/%d\n" % (number, number))


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "--bare", "there.git")
    return tmp_path / "there.git"


@pytest.fixture
def elsewhere(bare: Path) -> Iterator[tuple[Elsewhere, str]]:
    with closing(Repo(str(bare))) as repository:
        app = Elsewhere(repository)
        server: WSGIServer = make_server("127.0.0.1", 0, app, handler_class=_Quiet)
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        yield app, f"http://127.0.0.1:{server.server_port}/ada.git"
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "here")
    for number in range(2):
        (tmp_path / "here" / "a.md").write_text(f"{number}")
        git(tmp_path / "here", "add", "-A")
        git(tmp_path / "here", "commit", "-q", "-m", f"{number}")
    return tmp_path / "here"


def tip(repository: Path, revision: str = "main") -> bytes:
    return bytes.fromhex(git(repository, "rev-parse", revision))


def test_branches_are_pushed_and_fetched_over_http(
    elsewhere: tuple[Elsewhere, str], bare: Path, here: Path
) -> None:
    app, url = elsewhere
    place = GitAddress(url, "ada", "a-token", allow_private=True)
    assert transport.branches(place) == {}
    transport.push(place, here, {}, {MAIN: tip(here, "main~1"), b"refs/heads/agent/x": tip(here)})
    seen = transport.branches(place)
    assert seen == {MAIN: tip(here, "main~1"), b"refs/heads/agent/x": tip(here)}
    transport.push(place, here, seen, {MAIN: tip(here), b"refs/heads/agent/x": None})
    assert transport.branches(place) == {MAIN: tip(here)}
    assert (fsck(bare), tip(bare)) == ("", tip(here))
    git(here, "reset", "-q", "--hard", "HEAD~1")
    assert transport.fetch(place, tip(bare), here)[:4] == b"PACK"
    assert all(asked.endswith(" Basic YWRhOmEtdG9rZW4=") for asked in app.asked)


def test_each_object_of_a_push_is_sent_once(
    elsewhere: tuple[Elsewhere, str], bare: Path, here: Path
) -> None:
    """If an object is sent twice, a server with receive.fsckObjects refuses the whole pack."""
    text, new = git_object("blob", b"1"), git_object("blob", b"2")
    tree = git_object("tree", b"100644 a.md\0" + text.id + b"100644 b.md\0" + new.id)
    who = b"Ada <ada@home> 1767225600 +0000"
    body = b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\nx\n"
    made = git_object("commit", body % (tree.id.hex().encode(), tip(here).hex().encode(), who, who))
    assert git(here, "rev-parse", "main:a.md") == text.id.hex()
    wanted: dict[bytes, bytes | None] = {MAIN: tip(here), b"refs/heads/agent/x": made.id}
    transport.push(
        GitAddress(elsewhere[1], allow_private=True), here, {}, wanted, [text, new, tree, made]
    )
    for pack in (bare / "objects" / "pack").glob("*.pack"):
        git(bare, "index-pack", "--strict", str(pack))
    assert (fsck(bare), git(bare, "show", "agent/x:b.md")) == ("", "2")


def test_a_branch_that_moved_meanwhile_is_not_overwritten(
    elsewhere: tuple[Elsewhere, str], bare: Path, here: Path
) -> None:
    place = GitAddress(elsewhere[1], allow_private=True)
    transport.push(place, here, {}, {MAIN: tip(here, "main~1")})
    with pytest.raises(RemoteMoved):
        transport.push(place, here, {}, {MAIN: tip(here)})
    assert tip(bare) == tip(here, "main~1")


def test_private_addresses_are_not_contacted(
    elsewhere: tuple[Elsewhere, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, url = elsewhere
    with pytest.raises(Invalid, match="not a public address"):
        transport.branches(GitAddress(url))
    # A public name that resolves to this machine.
    monkeypatch.setattr(
        addresses.socket,
        "getaddrinfo",
        lambda *_a, **_o: [(0, 0, 0, "", ("93.184.215.14", 80)), (0, 0, 0, "", ("127.0.0.1", 80))],
    )
    with pytest.raises(Invalid, match="RICORDO_ALLOW_PRIVATE_REMOTES"):
        transport.branches(GitAddress(url.replace("127.0.0.1", "git.example.org")))
    assert app.asked == []


def test_remote_errors_are_reported_and_redirects_not_followed(
    elsewhere: tuple[Elsewhere, str],
) -> None:
    app, url = elsewhere
    app.to = url.replace("127.0.0.1", "localhost")
    for number, (says, error, words) in enumerate(
        (
            ("401 Unauthorized", Forbidden, "another name or token"),
            ("404 Not Found", Unavailable, "no git repository"),
            ("500 Broken", Unavailable, "could not be reached or understood"),
            ("200 OK", Unavailable, "smart protocol"),
            ("302 Found", Unavailable, "could not be"),
            ("307 Temporary Redirect", Unavailable, "could not be"),
        )
    ):
        app.says = says
        with pytest.raises(error, match=words) as raised:
            transport.branches(GitAddress(url, "ada", "a-token", allow_private=True))
        assert "a-token" not in str(raised.value)
        assert len(app.asked) == number + 1


def test_an_endless_slow_response_times_out(
    elsewhere: tuple[Elsewhere, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte resets the time-out.

    A thread that waited for all bytes would delay other work, and the end of the server.
    """
    app, url = elsewhere
    app.drips = True
    monkeypatch.setattr(transport, "_LONGEST", 0.1)

    with pytest.raises(Unavailable, match="took longer than"):
        transport.branches(GitAddress(url, allow_private=True))

    assert 0 < app.sent < DROPS


def test_an_oversized_list_of_branches_is_refused(
    elsewhere: tuple[Elsewhere, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, url = elsewhere
    app.floods = True
    monkeypatch.setattr(transport, "_MOST_ANSWERED", 100_000)
    with pytest.raises(TooLong, match="more than 100000 bytes"):
        transport.branches(GitAddress(url, allow_private=True))
    assert app.sent < 20_000


def test_unreachable_remotes_and_folders_without_a_repository_are_reported(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        transport.branches(GitAddress("http://127.0.0.1:9/x.git", allow_private=True))
    (tmp_path / "folder").mkdir()
    with pytest.raises(Unavailable, match="no git repository"):
        transport.branches(GitAddress(str(tmp_path / "folder"), folders=(tmp_path,)))
