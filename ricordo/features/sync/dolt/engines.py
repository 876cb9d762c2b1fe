"""Dolt databases by their addresses, and the two engines: a Dolt server, and doltlite.

An address is `mysql://user@host:3306/database`, or a file of doltlite at
`doltlite:///path/file.db`. A server must have only public IP addresses, unless the operator allows
private ones. The connection uses the IP address that was checked. A file must be in one of the
folders that the operator named. All differences between the engines are in this module.
"""

import json
import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ricordo.errors import Invalid, RicordoError, TooLong, Unavailable
from ricordo.features.sync.remotes.service import PRIVATE, FolderMarker, require_folder
from ricordo.llm.addresses import connect, require_public_host

Row = Sequence[Any]
CHILD = Path(__file__).with_name("child.py")
_TIMEOUT = 60.0  # seconds for one statement
MOST_BYTES = 64 * 1024 * 1024  # bytes of the texts in one answer
# The child process gets only these variables of the server's environment, which it needs to start.
_CHILD_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS memory_blocks ("
    "user_id VARCHAR(255) NOT NULL, label VARCHAR(255) NOT NULL, title VARCHAR(255), body {text}, "
    "schema_ref VARCHAR(255), updated_at TIMESTAMP{null}, PRIMARY KEY (user_id, label))"
)
_UNQUOTED = "/!$&'()*+,:;=@~"
_PORT = 3306
_CONNECT = 10.0  # seconds
_ORDINARY = b"SQLite format 3\0"
_HOW = (
    "Give a Dolt server as mysql://user@host:3306/database, or a file as "
    "doltlite:///folder/memory.db."
)


@dataclass(frozen=True, slots=True)
class DoltAddress:
    """The address of a database, and its parts.

    It is a file of doltlite at `path`, or a server. The text `address` does not contain the
    password. `allow_private` and `folders` are the operator's permissions.
    """

    address: str
    path: Path | None = None
    host: str = ""
    port: int = _PORT
    user: str = ""
    password: str | None = field(default=None, repr=False)
    database: str = ""
    allow_private: bool = False
    folders: tuple[Path, ...] = ()

    def require_usable(self) -> None:
        """Raise Invalid if it cannot be a remote; do not connect to it."""
        path = self.path
        if path is None:
            if not self.allow_private:
                require_public_host(self.host, setting=PRIVATE)
            return
        if self.host or not path.is_absolute() or not path.name:
            raise Invalid(f"The path of the file must be absolute. {_HOW}")
        require_folder(path, self.folders)
        if path.parent not in self.folders and not path.parent.is_dir():
            raise Invalid(f"There is no folder {path.parent}. Create it first.")
        try:
            with path.open("rb") as file:
                is_ordinary = file.read(len(_ORDINARY)) == _ORDINARY
        except FileNotFoundError:
            return
        except OSError as error:
            raise Invalid(
                f"{path} cannot be read: {error.strerror}. Choose another file."
            ) from error
        if is_ordinary:
            raise Invalid(
                f"{path} is not a database of doltlite. Choose a file that does not exist yet."
            )

    def connect(self) -> socket.socket:
        """Open a connection to the server.

        Raises Invalid if the address is not allowed, Unavailable if no server answers.
        """
        return connect(
            self.host, self.port, _CONNECT, allow_private=self.allow_private, setting=PRIVATE
        )


def _mysql_address(parts: SplitResult, hostname: str, port: int) -> DoltAddress:
    """Return the address of a server, without the password."""
    if ":" in hostname:
        host = f"[{hostname}]"
    else:
        host = hostname
    user = unquote(parts.username or "root")
    database = unquote(parts.path.strip("/"))
    plain = f"mysql://{quote(user, safe='')}@{host}:{port}/{quote(database, safe='')}"
    return DoltAddress(plain, host=hostname, port=port, user=user, database=database)


def read_address(
    address: str,
    password: str | None = None,
    *,
    allow_private: bool = False,
    folders: tuple[Path, ...] = (),
) -> DoltAddress:
    """Parse an address, and separate the password from it.

    Args:
        address: The address of a server or a file, in a form that this module's docstring names. A
            password in it replaces `password`.
        password: The password of a server; None if it is in the address, or if there is none.
        allow_private: Whether a server may have a private IP address.
        folders: The folders in which files of doltlite may be.

    Raises:
        Invalid: if the address cannot be a remote. The text quotes no password.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise Invalid(f"The address cannot be read. {_HOW}") from None
    if (
        any(sign.isspace() or not sign.isprintable() for sign in address)
        or parts.query
        or parts.fragment
    ):
        raise Invalid(f"The address cannot be read. {_HOW}")
    if parts.scheme == "doltlite":
        path = Path(unquote(parts.path))
        if path.is_absolute() and not parts.netloc:
            # Resolve links, so that each file has only one address.
            path = require_folder(path, folders)
        plain = f"doltlite://{parts.netloc}{quote(str(path), safe=_UNQUOTED)}"
        dolt_address = DoltAddress(plain, path, host=parts.netloc, folders=folders)
    elif parts.scheme not in ("mysql", "dolt") or not parts.hostname or not parts.path.strip("/"):
        raise Invalid(f"This is not an address of a Dolt database. {_HOW}")
    else:
        dolt_address = _mysql_address(parts, parts.hostname, port or _PORT)
        if parts.password is not None:
            password = unquote(parts.password)
        dolt_address = replace(dolt_address, password=password, allow_private=allow_private)
    dolt_address.require_usable()
    return dolt_address


def marker_of(address: str) -> FolderMarker | None:
    """Return the marker file, which names the organization of a doltlite file.

    It is next to the doltlite file. The rows of the doltlite file name only their users.

    Args:
        address: The address in its normal form.

    Returns:
        The marker; None for the address of a server.
    """
    parts = urlsplit(address)
    if parts.scheme != "doltlite":
        return None
    path = Path(unquote(parts.path)).resolve()
    return FolderMarker(path.with_name(f".{path.name}-owner"), path)


def claim(address: str, organization_id: str) -> None:
    """Record the organization of a doltlite file.

    Args:
        address: The address in its normal form. A server needs no record.
        organization_id: The organization that uses the file.

    Raises:
        Conflict: if the file belongs to another organization.
        Unavailable: if the record cannot be read or written.
    """
    if marker := marker_of(address):
        marker.claim(organization_id)


class EngineError(Unavailable):
    """The engine refused a statement; the message is the engine's."""


class Engine(ABC):
    """One connection to a Dolt database, with one statement at a time.

    In all statements, `?` is the placeholder of a value.
    """

    begin: str
    make_table: str
    call_sql: str
    table_at: str  # for use after FROM; the commit is the next value

    @abstractmethod
    def run(self, sql: str, *values: object) -> list[Row]:
        """Return the rows of a statement.

        Args:
            sql: The statement, with a `?` for each value.
            *values: The values.

        Raises:
            EngineError: if the statement is refused.
            Unavailable: if the engine has stopped.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection; uncommitted changes are rolled back."""

    def call(self, procedure: str, *values: str) -> list[Row]:
        """Call a procedure of Dolt, and return its rows.

        Args:
            procedure: The name, such as "dolt_commit".
            *values: Its arguments, as for a command of Dolt.

        Raises:
            EngineError: The procedure failed.
            Unavailable: The engine has stopped.
        """
        return self.run(self.call_sql.format(procedure, ", ".join("?" for _ in values)), *values)


class DoltServer(Engine):
    """A Dolt server, which speaks the protocol of MySQL."""

    begin = "START TRANSACTION"
    make_table = (
        _TABLE.format(text="LONGTEXT", null=" NULL")
        + " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin"
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
            if error.args:
                number = error.args[0]
            else:
                number = type(error).__name__
            raise Unavailable(
                f"The Dolt server refused the connection ({number}). Check the name and password."
            ) from None

    def run(self, sql: str, *values: object) -> list[Row]:
        """Return the rows of a statement.

        Args:
            sql: The statement, with a `?` for each value. It has no other `?`.
            *values: The values.

        Raises:
            EngineError: The server refused the statement.
            Unavailable: The connection was lost.
        """
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql.replace("%", "%%").replace("?", "%s"), values)
                return list(cursor.fetchall())
        except (self._driver.Error, OSError) as error:
            if not self._connection.open:
                raise Unavailable(
                    "The Dolt server does not answer. The sync is tried again."
                ) from None
            if error.args:
                message = str(error.args[-1])
            else:
                message = str(error)
            raise EngineError(message[:300]) from None

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


def start_child(path: Path, pipe: int) -> "subprocess.Popen[bytes]":
    """Start the process of doltlite on this file.

    Args:
        path: The database file.
        pipe: The file descriptor of the pipe on which the process gets statements and answers.
    """
    return subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-I", str(CHILD), str(path), str(pipe)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _CHILD_VARIABLES if name in os.environ},
        pass_fds=[pipe],
    )


class Doltlite(Engine):
    """doltlite on a file, in a child process that ends with this process."""

    begin = "BEGIN IMMEDIATE"
    make_table = _TABLE.format(text="TEXT", null="")
    call_sql = "SELECT {}({})"
    table_at = "dolt_at_memory_blocks(?)"

    def __init__(self, address: DoltAddress) -> None:
        if find_spec("doltlite") is None:
            raise Invalid(
                'A file of doltlite needs the package doltlite: pip install "ricordo[doltlite]"'
            )
        address.require_usable()
        assert address.path  # noqa: S101 - it is a file
        address.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._pipe, child_end = Pipe()
        with child_end:
            self.process = start_child(address.path, child_end.fileno())
        try:
            self._answer()
        except RicordoError:
            self.close()
            raise

    def run(self, sql: str, *values: object) -> list[Row]:
        """Return the rows of a statement.

        Args:
            sql: The statement, with a `?` for each value.
            *values: The values, as JSON can hold them.

        Raises:
            EngineError: doltlite refused the statement.
            Unavailable: The child has stopped, or did not answer for a minute.
        """
        with suppress(OSError):  # the child has ended; `_answer` reports that
            self._pipe.send_bytes(json.dumps({"sql": sql, "values": values}).encode())
        return self._answer()

    def close(self) -> None:
        """End the child."""
        self._pipe.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answer(self) -> list[Row]:
        try:
            if self._pipe.poll(_TIMEOUT):
                answer = json.loads(self._pipe.recv_bytes())
            else:
                answer = None
        except (EOFError, OSError):
            answer = None
        if answer is None:
            self.process.kill()
            raise Unavailable(
                "doltlite has stopped, or does not answer. Check the file's folder; the sync is "
                "tried again."
            )
        if "error" in answer:
            raise EngineError(answer["error"])
        rows: list[Row] = answer["rows"]
        return rows


def open_engine(address: DoltAddress) -> Engine:
    """Open a connection to the database at an address.

    Args:
        address: The address of a server, or of a file of doltlite.

    Raises:
        Invalid: The package for it is missing, or the address is not allowed.
        Unavailable: The server refuses, or doltlite does not start.
    """
    if address.path:
        return Doltlite(address)
    return DoltServer(address)


def require_few(
    engine: Engine, source: str, values: Sequence[object], limit: int, *texts: str
) -> None:
    """Raise TooLong if a table has too many rows or bytes.

    Other programs write these tables, so they may have any size.

    Args:
        engine: The connection.
        source: The SQL after FROM, with a `?` for each value. It must not contain text of users.
        values: The values of `source`.
        limit: The most rows.
        *texts: The columns whose bytes are counted; doltlite counts characters instead.
    """
    size = " + ".join(f"LENGTH(COALESCE({text}, ''))" for text in texts)
    ((count, length),) = engine.run(
        f"SELECT COUNT(*), COALESCE(SUM({size}), 0) FROM {source}",  # noqa: S608
        *values,
    )
    if int(count) > limit or int(length) > MOST_BYTES:
        raise TooLong(
            f"The remote holds {count} rows with {int(length)} characters in one table, and "
            f"{limit} and {MOST_BYTES} are allowed. Use a smaller database, or squash its "
            "history."
        )
