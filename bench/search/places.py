"""The databases that are measured, with their servers.

SQLite in a folder, and a PostgreSQL from the wheel that carries one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.search.database_cpu import database_cpu
from bench.search.filling import Filled, Wanted
from bench.servers import Server, ricordo
from tests.support import postgres


@dataclass(frozen=True)
class Place:
    """A database, as the environment of a server names it.

    `database` is the PostgreSQL that it is on, if it is.
    """

    name: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    database: postgres.Server | None = None

    def server(self, model_url: str, **environment: str) -> AbstractContextManager[Server]:
        """A server on it."""
        return ricordo(model_url, self.folder, **self.environment, **environment)

    def fill(self, wanted: Wanted) -> Filled:
        """Fill it in a process of its own, while no server runs."""
        return Filled(**self.run("bench.search.filling", asdict(wanted), stderr=subprocess.DEVNULL))

    def run(self, module: str, task: dict[str, Any], stderr: int | None = None) -> dict[str, Any]:
        """Let a process of its own do this to the database; what it says is returned."""
        command = [sys.executable, "-m", module, json.dumps(task)]
        variables = {**os.environ, "RICORDO_DATA_DIR": str(self.folder), **self.environment}
        done = subprocess.run(
            command, env=variables, check=True, stdout=subprocess.PIPE, stderr=stderr
        )
        self.clear()
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def clear(self) -> None:
        """What PostgreSQL does by itself after so many changes.

        Here it is told not to, for the tests' sake.
        """
        self.ask("VACUUM ANALYZE")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that PostgreSQL answers to one statement; none on SQLite."""
        if self.database is None:
            return []
        return self.database.run(sql, postgres.name_in(self.environment["RICORDO_DATABASE_URL"]))

    def cpu(self, server: Server) -> float:
        """Processor seconds of the server and of its database so far."""
        return server.cpu() + (database_cpu(psutil.Process()) if self.environment else 0.0)


@contextmanager
def place(name: str, settings: Mapping[str, str] | None = None) -> Iterator[Place]:
    """A new database of this kind, "sqlite" or "postgres", gone at the end.

    PostgreSQL has the tests' settings and these.
    """
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        if name == "sqlite":
            yield Place("SQLite", Path(folder))
            return
        database = postgres.Server(settings) if settings else postgres.Server()
        try:
            url = database.new_database(empty=True)
            yield Place("PostgreSQL", Path(folder), {"RICORDO_DATABASE_URL": url}, database)
        finally:
            database.stop()
