"""The two engines that speak Dolt, behind one small protocol: a Dolt server, and doltlite in a child process.

What differs between them is here and nowhere else: how a procedure is called, how a table is read as it was, and how it is made.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ricordo.errors import Invalid, RicordoError, Unavailable
from ricordo.features.dolt.address import Place

Row = Sequence[Any]
_CHILD = Path(__file__).with_name("child.py")
_TIMEOUT = 60.0  # seconds for one statement
_PIECE = 1 << 20
# What the child needs to start; nothing else of the server's environment is its business.
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
_COLUMNS = """user_id VARCHAR(255) NOT NULL, label VARCHAR(255) NOT NULL, title VARCHAR(255), body {text}, \
schema_ref VARCHAR(255), updated_at TIMESTAMP{null}, PRIMARY KEY (user_id, label)"""


class EngineError(Unavailable):
    """The engine refused a statement; the message is its own."""


class Engine(Protocol):
    """One connection to a Dolt database, on which one statement follows another; `?` stands for a value in all of them."""

    begin: str
    make_table: str

    def run(self, sql: str, *values: object) -> list[Row]:
        """The rows of a statement. Raises EngineError where it is refused, Unavailable where nobody answers any more."""
        ...

    def call(self, procedure: str, *values: str) -> list[Row]:
        """Call a procedure of Dolt: `engine.call("dolt_commit", "-m", "Words")`."""
        ...

    def table_at(self, table: str) -> str:
        """The table as it was at a commit, for a FROM; the commit is the next value."""
        ...

    def close(self) -> None:
        """Let go of it; what is not committed is rolled back."""
        ...


class DoltServer:
    """A Dolt server, which speaks the protocol of MySQL."""

    begin = "START TRANSACTION"
    make_table = (
        "CREATE TABLE IF NOT EXISTS memory_blocks ("
        + _COLUMNS.format(text="LONGTEXT", null=" NULL")
        + ") DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin"
    )

    def __init__(self, place: Place) -> None:
        if find_spec("pymysql") is None:
            raise Invalid('A Dolt server needs the package pymysql: pip install "ricordo[dolt]"')
        import pymysql  # type: ignore[import-untyped,unused-ignore]  # an extra

        self._driver = pymysql
        self._connection = pymysql.Connection(
            host=place.host,
            port=place.port,
            user=place.user,
            password=place.password or "",
            database=place.database,
            charset="utf8mb4",
            autocommit=True,
            read_timeout=_TIMEOUT,
            write_timeout=_TIMEOUT,
            defer_connect=True,
        )
        opened = place.connect()
        try:
            self._connection.connect(opened)
        except pymysql.Error as error:
            opened.close()
            raise Unavailable(
                f"The Dolt server refused the connection ({_number_of(error)}). Check name, password."
            ) from None

    def run(self, sql: str, *values: object) -> list[Row]:
        """As the protocol says."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql.replace("%", "%%").replace("?", "%s"), values)
                return list(cursor.fetchall())
        except (self._driver.OperationalError, self._driver.InterfaceError, OSError) as error:
            if not self._connection.open:
                raise Unavailable("The Dolt server does not answer any more. This is tried again.") from None
            raise EngineError(_message_of(error)) from None
        except self._driver.Error as error:
            raise EngineError(_message_of(error)) from None

    def call(self, procedure: str, *values: str) -> list[Row]:
        """As the protocol says."""
        return self.run(f"CALL {procedure.upper()}({', '.join('?' for _ in values)})", *values)

    def table_at(self, table: str) -> str:
        """As the protocol says."""
        return f"{table} AS OF ?"

    def close(self) -> None:
        """As the protocol says."""
        if self._connection.open:
            self._connection.close()


class Doltlite:
    """doltlite on a file, in a child process that ends with this one."""

    begin = "BEGIN IMMEDIATE"
    make_table = "CREATE TABLE IF NOT EXISTS memory_blocks (" + _COLUMNS.format(text="TEXT", null="") + ")"

    def __init__(self, place: Place) -> None:
        if find_spec("doltlite") is None:
            raise Invalid('A file of doltlite needs the package doltlite: pip install "ricordo[dolt]"')
        place.require_usable()
        place.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process = subprocess.Popen(  # noqa: S603 - our own arguments
            [sys.executable, "-I", str(_CHILD), str(place.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
        )
        self._rest = b""
        try:
            self._answer()
        except RicordoError:
            self.close()
            raise

    def run(self, sql: str, *values: object) -> list[Row]:
        """As the protocol says."""
        assert self.process.stdin  # noqa: S101 - it is a pipe
        try:
            self.process.stdin.write(json.dumps({"sql": sql, "values": values}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._ended() from None
        return self._answer()

    def call(self, procedure: str, *values: str) -> list[Row]:
        """As the protocol says."""
        return self.run(f"SELECT {procedure}({', '.join('?' for _ in values)})", *values)

    def table_at(self, table: str) -> str:
        """As the protocol says."""
        return f"dolt_at_{table}(?)"

    def close(self) -> None:
        """As the protocol says."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe and not pipe.closed:
                with suppress(OSError):  # it has ended, with something unsent
                    pipe.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answer(self) -> list[Row]:
        answer = json.loads(self._line())
        if "error" in answer:
            raise EngineError(answer["error"])
        rows: list[Row] = answer["rows"]
        return rows

    def _line(self) -> bytes:
        assert self.process.stdout  # noqa: S101 - it is a pipe
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            ready, _, _ = select.select([self.process.stdout], [], [], _TIMEOUT)
            piece = os.read(self.process.stdout.fileno(), _PIECE) if ready else b""
            if not piece:
                raise self._ended()
            pieces.append(piece)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return line

    def _ended(self) -> Unavailable:
        self.process.kill()
        return Unavailable("doltlite has stopped, or does not answer. This is tried again; check the file's folder.")


def open_engine(place: Place) -> Engine:
    """A connection to the database there. Raises Invalid, Unavailable."""
    return Doltlite(place) if place.is_file else DoltServer(place)


def _number_of(error: Exception) -> object:
    return error.args[0] if error.args else type(error).__name__


def _message_of(error: Exception) -> str:
    return str(error.args[-1] if error.args else error)[:300]
