"""The two engines that speak Dolt, behind one small class: a Dolt server, and doltlite in a child process.

What differs between them is here and nowhere else: how a procedure is called, how a table is read as it was, and how it is made.
"""

import json
import os
import select
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ricordo.errors import Invalid, RicordoError, Unavailable
from ricordo.features.dolt.address import DoltAddress

Row = Sequence[Any]
_CHILD = Path(__file__).with_name("child.py")
_TIMEOUT = 60.0  # seconds for one statement
_PIECE = 1 << 20
# What the child needs to start; it gets nothing else of the server's environment.
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
_TABLE = """CREATE TABLE IF NOT EXISTS memory_blocks (user_id VARCHAR(255) NOT NULL, label VARCHAR(255) NOT NULL, \
title VARCHAR(255), body {text}, schema_ref VARCHAR(255), updated_at TIMESTAMP{null}, PRIMARY KEY (user_id, label))"""


class EngineError(Unavailable):
    """The engine refused a statement; the message is its own."""


class Engine(ABC):
    """One connection to a Dolt database, with one statement at a time; `?` is the place of a value in all of them."""

    begin: str
    make_table: str
    call_sql: str
    table_at: str  # for a FROM; the commit is the next value

    @abstractmethod
    def run(self, sql: str, *values: object) -> list[Row]:
        """Return the rows of a statement. Raises EngineError where it is refused, Unavailable where the engine has stopped."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; what is not committed is rolled back."""

    def call(self, procedure: str, *values: str) -> list[Row]:
        return self.run(self.call_sql.format(procedure, ", ".join("?" for _ in values)), *values)


class DoltServer(Engine):
    """A Dolt server, which speaks the protocol of MySQL."""

    begin = "START TRANSACTION"
    make_table = (
        _TABLE.format(text="LONGTEXT", null=" NULL") + " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin"
    )
    call_sql = "CALL {}({})"
    table_at = "memory_blocks AS OF ?"

    def __init__(self, address: DoltAddress) -> None:
        if find_spec("pymysql") is None:
            raise Invalid('A Dolt server needs the package pymysql: pip install "ricordo[dolt]"')
        import pymysql  # type: ignore[import-untyped,unused-ignore]  # an extra

        self._driver = pymysql
        self._connection = pymysql.Connection(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password or "",
            database=address.database,
            charset="utf8mb4",
            autocommit=True,
            read_timeout=_TIMEOUT,
            write_timeout=_TIMEOUT,
            defer_connect=True,
        )
        opened = address.connect()
        try:
            self._connection.connect(opened)
        except pymysql.Error as error:
            opened.close()
            number = error.args[0] if error.args else type(error).__name__
            raise Unavailable(f"The Dolt server refused the connection ({number}). Check name, password.") from None

    def run(self, sql: str, *values: object) -> list[Row]:
        """Return the rows of a statement."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql.replace("%", "%%").replace("?", "%s"), values)
                return list(cursor.fetchall())
        except (self._driver.Error, OSError) as error:
            if not self._connection.open:
                raise Unavailable("The Dolt server does not answer any more. This is tried again.") from None
            raise EngineError(str(error.args[-1] if error.args else error)[:300]) from None

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


class Doltlite(Engine):
    """doltlite on a file, in a child process that ends with this one."""

    begin = "BEGIN IMMEDIATE"
    make_table = _TABLE.format(text="TEXT", null="")
    call_sql = "SELECT {}({})"
    table_at = "dolt_at_memory_blocks(?)"

    def __init__(self, address: DoltAddress) -> None:
        if find_spec("doltlite") is None:
            raise Invalid('A file of doltlite needs the package doltlite: pip install "ricordo[dolt]"')
        address.require_usable()
        assert address.path  # noqa: S101 - it is a file
        address.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process = subprocess.Popen(  # noqa: S603 - our own arguments
            [sys.executable, "-I", str(_CHILD), str(address.path)],
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
        """Return the rows of a statement."""
        assert self.process.stdin  # noqa: S101 - it is a pipe
        try:
            self.process.stdin.write(json.dumps({"sql": sql, "values": values}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._stopped() from None
        return self._answer()

    def close(self) -> None:
        """End the child."""
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
        assert self.process.stdout  # noqa: S101 - it is a pipe
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            ready, _, _ = select.select([self.process.stdout], [], [], _TIMEOUT)
            piece = os.read(self.process.stdout.fileno(), _PIECE) if ready else b""
            if not piece:
                raise self._stopped()
            pieces.append(piece)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        rows: list[Row] = answer["rows"]
        return rows

    def _stopped(self) -> Unavailable:
        self.process.kill()
        return Unavailable("doltlite has stopped, or does not answer. This is tried again; check the file's folder.")


def open_engine(address: DoltAddress) -> Engine:
    """A connection to the database there. Raises Invalid, Unavailable."""
    return Doltlite(address) if address.path else DoltServer(address)
