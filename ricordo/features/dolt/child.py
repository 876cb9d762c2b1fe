"""The process in which doltlite runs: it takes the place of SQLite in all of its process, so never in the server's.

Started as `python -I child.py <file>`; it knows nothing of Ricordo. Each line in is `{"sql", "values"}` in JSON, each line out
`{"rows"}` or `{"error"}`. It ends with its input, and what was not committed then is rolled back.
"""

import doltlite  # type: ignore[import-untyped,unused-ignore]  # isort: skip - before sqlite3, which it takes the place of

import contextlib
import json
import os
import sqlite3
import sys
from typing import Any, TextIO

_PATIENCE = 30.0  # seconds to wait for another process that writes the file


def main() -> None:
    """Answer statements on the file until there are no more."""
    # A second start by the loader, or a library that prints, must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.umask(0o077)
    with contextlib.closing(sqlite3.connect(sys.argv[1], isolation_level=None, timeout=_PATIENCE)) as connection:
        _say(answers, {"rows": [[doltlite.__version__]]})
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                rows = connection.execute(asked["sql"], asked["values"]).fetchall()
            except sqlite3.Error as error:
                _say(answers, {"error": str(error)})
            else:
                _say(answers, {"rows": rows})


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
