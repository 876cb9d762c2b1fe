"""The process in which doltlite runs: it takes the place of SQLite in all of its process, so never in the server's.

Started as `python -I child.py <file> <descriptor of a pipe>`; it knows nothing of Ricordo. It is sent `{"sql", "values"}` in JSON,
and sends `{"rows"}` or `{"error"}`. It ends when the pipe is closed, and what was not committed then is rolled back.
"""

import doltlite  # type: ignore[import-untyped,unused-ignore]  # isort: skip  # noqa: F401 - before sqlite3, whose place it takes

import contextlib
import json
import os
import sqlite3
import sys
from multiprocessing.connection import Connection
from typing import Any

_PATIENCE = 30.0  # seconds to wait for another process that writes the file


def main() -> None:
    """Answer statements on the file until there are no more."""
    os.umask(0o077)
    server: Connection = Connection(int(sys.argv[2]))
    answer: dict[str, Any] = {"rows": []}
    with (
        contextlib.closing(
            sqlite3.connect(sys.argv[1], isolation_level=None, timeout=_PATIENCE)
        ) as connection,
        contextlib.suppress(EOFError, OSError),
    ):
        while True:
            server.send_bytes(json.dumps(answer).encode())
            asked = json.loads(server.recv_bytes())
            try:
                answer = {"rows": connection.execute(asked["sql"], asked["values"]).fetchall()}
            except sqlite3.Error as error:
                answer = {"error": str(error)}


if __name__ == "__main__":
    main()
