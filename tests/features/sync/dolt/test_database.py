"""Requests to Dolt: addresses, engines, and the content of commits and branches."""

import re
import socket
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.scope import Actor
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import Invalid, Unavailable
from ricordo.features.sync.dolt.database import (
    Trailer,
    branch_of,
    branches_of,
    date_of,
    proposal_in,
    proposal_message,
    trailer_of,
    version_message,
)
from ricordo.features.sync.dolt.engines import Doltlite, EngineError, open_engine, read_address
from tests.seams.stores import START


def test_the_password_is_removed_from_the_address() -> None:
    place = read_address("mysql://ada:s%40fe@[2a00::1]/memory")
    assert (place.address, place.password) == ("mysql://ada@[2a00::1]:3306/memory", "s@fe")
    assert (place.host, place.port, place.user, place.database) == (
        "2a00::1",
        3306,
        "ada",
        "memory",
    )
    assert "s@fe" not in repr(place)


def test_an_invalid_address_is_refused_without_showing_its_password() -> None:
    for address in (
        *(
            "",
            "memory.db",
            "https://example.org/memory",
            "mysql://example.org",
            "mysql://example.org:99999/memory",
        ),
        *(
            "mysql://example.org/memory?ssl=off",
            "doltlite://memory.db",
            "doltlite:///nowhere/at/all/memory.db",
        ),
        *(
            "doltlite:///nowhere/a%00b.db",
            "mysql://10.0.0.7/memory",
            "mysql://u:secret@169.254.169.254/memory",
        ),
    ):
        with pytest.raises(Invalid) as raised:
            read_address(address)
        assert "secret" not in str(raised.value)
    for host in ("10.0.0.7", "127.0.0.1", "localhost"):
        assert read_address(f"mysql://{host}/memory", allow_private=True).host == host
        with pytest.raises(Invalid, match="RICORDO_ALLOW_PRIVATE_REMOTES"):
            read_address(f"mysql://{host}/memory")


def test_a_host_with_a_private_address_is_not_contacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = [
        (None, None, None, "", (number, 3306)) for number in ("93.184.216.34", "192.168.1.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(Invalid, match="RICORDO_ALLOW_PRIVATE_REMOTES"):
        read_address("mysql://dolt.example/memory").connect()


def test_a_server_that_is_not_dolt_is_reported_without_the_password() -> None:
    def hang_up(listening: socket.socket) -> None:
        taken, _ = listening.accept()
        taken.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=hang_up, args=(listening,))
        thread.start()
        place = read_address(
            f"mysql://ada:s3cret@127.0.0.1:{listening.getsockname()[1]}/memory", allow_private=True
        )
        with pytest.raises(Unavailable, match="refused the connection") as raised:
            open_engine(place)
        thread.join()
    with pytest.raises(Unavailable, match="cannot be reached"):
        place.connect()
    assert "s3cret" not in str(raised.value)


def test_an_ordinary_sqlite_file_is_refused_as_a_remote(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "own.db").execute("CREATE TABLE own (x)").connection.close()
    with pytest.raises(Invalid, match="not a database of doltlite"):
        read_address(f"doltlite://{tmp_path / 'own.db'}", folders=(tmp_path,))


def test_doltlite_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    engine = open_engine(read_address(f"doltlite://{tmp_path / 'memory.db'}", folders=(tmp_path,)))
    assert isinstance(engine, Doltlite)
    assert engine.run("SELECT dolt_version() LIKE 'v%'") == [[1]]
    assert engine.run("SELECT ?, ?", "é'\n", None) == [["é'\n", None]]
    with pytest.raises(EngineError, match="no such table"):
        engine.run("SELECT * FROM nowhere")
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(":memory:").execute("SELECT dolt_version()")
    assert (tmp_path / "memory.db").stat().st_mode & 0o077 == 0
    engine.close()
    assert engine.process.returncode == 0
    engine = Doltlite(read_address(f"doltlite://{tmp_path / 'memory.db'}", folders=(tmp_path,)))
    engine.process.kill()  # the next call reports this
    engine.process.wait()
    with pytest.raises(Unavailable, match="doltlite has stopped"):
        engine.run("SELECT 1")
    engine.close()


ADA = Actor("user", "user-1", "Ada")


def version(reason: str) -> BlockVersion:
    return BlockVersion(bytes(20), "chain-1", 7, "human", None, ADA, reason, START)


def proposal(label: str) -> Proposal:
    return Proposal(
        "proposal-1",
        "org",
        "chain-1",
        label,
        None,
        None,
        "x",
        ADA,
        'Say "so".',
        START,
        confidence=0.5,
    )


def test_a_commit_message_names_its_version_and_cannot_be_forged_by_a_reason() -> None:
    for reason in ("", "Edit human", "Two\n\nparagraphs\n", "x" * 20_000):
        message = version_message(version(reason))
        assert trailer_of(message) == trailer_of(message + "\n") == Trailer("00" * 20, 7, "chain-1")
        assert message.startswith(reason.strip()[:100])
    forged = f"\n\nRicordo-Version: {'ab' * 20} 99\nRicordo-Chain: chain-2"
    assert trailer_of(version_message(version(forged))) == Trailer("00" * 20, 7, "chain-1")
    assert trailer_of(forged + "\n\nAnd more") is None


def test_a_proposal_message_is_json_and_can_be_parsed_back() -> None:
    message = proposal_message(proposal("human"))
    assert proposal_in(message) == "proposal-1"
    assert '"confidence": 0.5' in message
    for other in ("", "Edit", "{", "[1]", '{"proposal": 3}'):
        assert proposal_in(other) is None


def test_branch_names_are_valid_in_dolt_and_times_are_utc_seconds() -> None:
    for label in (
        *(
            "human",
            "goals/near",
            "a b",
            "..x",
            "a~^:?*[\\",
            "é",
            "x.lock",
            "@{",
            ".hidden",
            "x" * 255,
            "é" * 255,
            "-",
        ),
    ):
        name = branch_of("ada@example.org", proposal(label))
        assert name.startswith(branches_of("ada@example.org"))
        assert name.endswith("/proposal-1")
        assert re.fullmatch(r"[A-Za-z0-9_./%-]+", name)
        assert not re.search(r"\.\.|//|/\.|\.lock(/|$)|\./", name)
        assert len(name) < 400
    assert date_of(START + 999_999) == "2026-01-01T00:00:00"


def test_users_with_similar_long_names_have_different_branches() -> None:
    names = ("田中" * 20, "田中" * 20 + "花子", "x" * 121, "x" * 122, "x" * 120, "ada", "-ada")
    # A user cannot choose the shortened form of another user's name.
    short_forms = tuple(branches_of(name).split("/")[1] for name in names)
    prefixes = [branches_of(name) for name in dict.fromkeys((*names, *short_forms))]
    for prefix in prefixes:
        assert [other for other in prefixes if other.startswith(prefix)] == [prefix]
    # Names that need no cut keep their branches.
    assert branches_of("x" * 120) == f"agent/{'x' * 120}/"
