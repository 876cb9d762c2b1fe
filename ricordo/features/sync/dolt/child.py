"""The process in which doltlite runs.

doltlite replaces SQLite in its whole process, so it must not run in the server's process. Start it
as `python -I child.py <file> <descriptor of a pipe>`; it imports nothing of Ricordo. It receives
`{"sql", "values"}` as JSON, and sends `{"rows"}` or `{"error"}`. It ends when the pipe is closed;
uncommitted changes are then rolled back.
"""

# Import it before sqlite3, which it replaces.
import doltlite  # type: ignore[import-untyped,unused-ignore]  # isort: skip  # noqa: F401

import contextlib
import json
import os
import sqlite3
import sys
from multiprocessing.connection import Connection
from typing import Any

_PATIENCE = 30.0  # seconds to wait for another process that writes the file


def main() -> None:
    """Answer statements on the file until the pipe is closed."""
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
            request = json.loads(server.recv_bytes())
            try:
                answer = {"rows": connection.execute(request["sql"], request["values"]).fetchall()}
            except sqlite3.Error as error:
                answer = {"error": str(error)}


if __name__ == "__main__":
    main()
