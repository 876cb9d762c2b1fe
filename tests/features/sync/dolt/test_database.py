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


def test_a_password_is_taken_out_of_the_address() -> None:
    place = read_address("mysql://ada:s%40fe@[2a00::1]/memory")
    assert (place.address, place.password) == ("mysql://ada@[2a00::1]:3306/memory", "s@fe")
    assert (place.host, place.port, place.user, place.database) == (
        "2a00::1",
        3306,
        "ada",
        "memory",
    )
    assert "s@fe" not in repr(place)


def test_an_address_that_cannot_be_used_is_refused_without_its_password() -> None:
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


def test_a_name_that_leads_to_a_private_address_is_not_spoken_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = [
        (None, None, None, "", (number, 3306)) for number in ("93.184.216.34", "192.168.1.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(Invalid, match="RICORDO_ALLOW_PRIVATE_REMOTES"):
        read_address("mysql://dolt.example/memory").connect()


def test_what_answers_and_is_no_dolt_server_is_told_of_without_the_password() -> None:
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


def test_an_ordinary_sqlite_file_is_no_place_for_it(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "own.db").execute("CREATE TABLE own (x)").connection.close()
    with pytest.raises(Invalid, match="not a database of doltlite"):
        read_address(f"doltlite://{tmp_path / 'own.db'}", folders=(tmp_path,))


def test_doltlite_runs_beside_the_server_and_leaves_its_sqlite_alone(tmp_path: Path) -> None:
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


def test_a_commit_says_which_version_it_is_and_a_reason_that_looks_like_it_does_not() -> None:
    for reason in ("", "Edit human", "Two\n\nparagraphs\n", "x" * 20_000):
        message = version_message(version(reason))
        assert trailer_of(message) == trailer_of(message + "\n") == Trailer("00" * 20, 7, "chain-1")
        assert message.startswith(reason.strip()[:100])
    forged = f"\n\nRicordo-Version: {'ab' * 20} 99\nRicordo-Chain: chain-2"
    assert trailer_of(version_message(version(forged))) == Trailer("00" * 20, 7, "chain-1")
    assert trailer_of(forged + "\n\nAnd more") is None


def test_a_proposal_is_told_as_json_and_found_again() -> None:
    message = proposal_message(proposal("human"))
    assert proposal_in(message) == "proposal-1"
    assert '"confidence": 0.5' in message
    for other in ("", "Edit", "{", "[1]", '{"proposal": 3}'):
        assert proposal_in(other) is None


def test_the_name_of_a_branch_is_one_that_dolt_takes_and_times_are_whole_seconds_in_utc() -> None:
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
