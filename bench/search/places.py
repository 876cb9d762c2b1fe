"""The measured databases and their servers: SQLite, and PostgreSQL from its wheel."""

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
    """A database, with the environment that names it for a server.

    `database` is the PostgreSQL server; None for SQLite.
    """

    name: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    database: postgres.Server | None = None

    def server(self, model_url: str, **environment: str) -> AbstractContextManager[Server]:
        """Run a server on the database."""
        return ricordo(model_url, self.folder, **self.environment, **environment)

    def fill(self, wanted: Wanted) -> Filled:
        """Fill the database in a separate process, while no server runs."""
        return Filled(**self.run("bench.search.filling", asdict(wanted), stderr=subprocess.DEVNULL))

    def run(self, module: str, task: dict[str, Any], stderr: int | None = None) -> dict[str, Any]:
        """Run a module on the database in a separate process; return its output."""
        command = [sys.executable, "-m", module, json.dumps(task)]
        variables = {**os.environ, "RICORDO_DATA_DIR": str(self.folder), **self.environment}
        done = subprocess.run(
            command, env=variables, check=True, stdout=subprocess.PIPE, stderr=stderr
        )
        self.clear()
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def clear(self) -> None:
        """Vacuum the database, as PostgreSQL does by itself after many changes.

        The settings of the tests turn that off.
        """
        self.ask("VACUUM ANALYZE")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of one statement on PostgreSQL; none on SQLite."""
        if self.database is None:
            return []
        return self.database.run(sql, postgres.name_in(self.environment["RICORDO_DATABASE_URL"]))

    def cpu(self, server: Server) -> float:
        """Return the CPU seconds of the server and of its database so far."""
        return server.cpu() + (database_cpu(psutil.Process()) if self.environment else 0.0)


@contextmanager
def place(name: str, settings: Mapping[str, str] | None = None) -> Iterator[Place]:
    """Make a database of this kind, "sqlite" or "postgres"; remove it at the end.

    PostgreSQL has the settings of the tests, and these in addition.
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
