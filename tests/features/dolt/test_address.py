"""Addresses of Dolt databases: read, checked, and never shown with their passwords."""

import socket
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from ricordo.errors import Invalid, Unavailable
from ricordo.features.dolt.engines import Doltlite, EngineError, open_engine, read_address


def test_a_password_is_taken_out_of_the_address() -> None:
    place = read_address("mysql://ada:s%40fe@[2a00::1]/memory")
    assert (place.address, place.password) == ("mysql://ada@[2a00::1]:3306/memory", "s@fe")
    assert (place.host, place.port, place.user, place.database) == ("2a00::1", 3306, "ada", "memory")
    assert "s@fe" not in repr(place)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "memory.db",
        "https://example.org/memory",
        "mysql://example.org",
        "mysql://example.org:99999/memory",
        "mysql://example.org/memory?ssl=off",
        "doltlite://memory.db",
        "doltlite:///nowhere/at/all/memory.db",
        "doltlite:///nowhere/a%00b.db",
        "mysql://10.0.0.7/memory",
        "mysql://u:secret@169.254.169.254/memory",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(Invalid) as raised:
        read_address(address)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("host", ["10.0.0.7", "127.0.0.1", "localhost"])
def test_a_private_server_is_spoken_to_where_the_operator_allows_it(host: str) -> None:
    assert read_address(f"mysql://{host}/memory", allow_private=True).host == host
    with pytest.raises(Invalid, match="RICORDO_ALLOW_PRIVATE_REMOTES"):
        read_address(f"mysql://{host}/memory")


def test_a_name_that_leads_to_a_private_address_is_not_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = [(None, None, None, "", (number, 3306)) for number in ("93.184.216.34", "192.168.1.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(Invalid, match="RICORDO_ALLOW_PRIVATE_REMOTES"):
        read_address("mysql://dolt.example/memory").connect()


def test_a_server_that_is_not_there_is_told_of() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable, match="cannot be reached"):
        read_address(f"mysql://127.0.0.1:{port}/memory", allow_private=True).connect()


def test_what_answers_and_is_no_dolt_server_is_told_of_without_the_password() -> None:
    def hang_up(listening: socket.socket) -> None:
        taken, _ = listening.accept()
        taken.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=hang_up, args=(listening,))
        thread.start()
        place = read_address(f"mysql://ada:s3cret@127.0.0.1:{listening.getsockname()[1]}/memory", allow_private=True)
        with pytest.raises(Unavailable, match="refused the connection") as raised:
            open_engine(place)
        thread.join()
    assert "s3cret" not in str(raised.value)


def test_an_ordinary_sqlite_file_is_no_place_for_it(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "own.db").execute("CREATE TABLE own (x)").connection.close()
    with pytest.raises(Invalid, match="no database of doltlite"):
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


def test_a_child_that_was_killed_is_told_of_and_ended(tmp_path: Path) -> None:
    engine = Doltlite(read_address(f"doltlite://{tmp_path / 'memory.db'}", folders=(tmp_path,)))
    engine.process.kill()
    engine.process.wait()
    with pytest.raises(Unavailable, match="doltlite has stopped"):
        engine.run("SELECT 1")
    engine.close()
