"""The databases that are measured, with their servers: SQLite in a folder, and a PostgreSQL from the wheel that carries one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.search.database_cpu import database_cpu
from bench.search.filling import Filled, Wanted
from bench.servers import Server, ricordo
from tests.support import postgres


@dataclass(frozen=True)
class Place:
    """A database, as the environment of a server names it."""

    name: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def server(self, model_url: str, **environment: str) -> AbstractContextManager[Server]:
        """A server on it."""
        return ricordo(model_url, self.folder, **self.environment, **environment)

    def fill(self, wanted: Wanted) -> Filled:
        """Fill it in a process of its own, while no server runs."""
        command = [sys.executable, "-m", "bench.search.filling", json.dumps(asdict(wanted))]
        variables = {**os.environ, "RICORDO_DATA_DIR": str(self.folder), **self.environment}
        done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.clear()
        return Filled(**json.loads(done.stdout))

    def clear(self) -> None:
        """What PostgreSQL does by itself after so many changes; here it is told not to, for the tests' sake."""
        if self.environment:
            postgres.server().run("VACUUM ANALYZE", postgres.name_in(self.environment["RICORDO_DATABASE_URL"]))

    def cpu(self, server: Server) -> float:
        """Processor seconds of the server and of its database so far."""
        return server.cpu() + (database_cpu(psutil.Process()) if self.environment else 0.0)


@contextmanager
def place(name: str) -> Iterator[Place]:
    """A new database of this kind, "sqlite" or "postgres", gone at the end."""
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        if name == "sqlite":
            yield Place("SQLite", Path(folder))
            return
        url = postgres.server().new_database(empty=True)
        try:
            yield Place("PostgreSQL", Path(folder), {"RICORDO_DATABASE_URL": url})
        finally:
            postgres.stop_server()
