"""A Dolt database for tests, and people who commit to it.

The server is the one that RICORDO_TEST_DOLT_URL names, or doltlite in a child process. On a named
server each test gets a separate database, which is dropped afterwards.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ricordo.features.sync.dolt import engines
from ricordo.features.sync.dolt.engines import (
    DoltAddress,
    DoltServer,
    Engine,
    Row,
    open_engine,
    read_address,
)
from tests.support.dolt_children import fork_child
from tests.support.synced import Killed

URL = os.environ.get("RICORDO_TEST_DOLT_URL", "")
ENGINE = "a Dolt server" if URL else "doltlite in a child process"


class Mortal:
    """An engine that dies at a statement.

    It dies before the statement is executed, or after it without returning the result.
    """

    def __init__(self, engine: Engine, statements: int, *, is_after: bool) -> None:
        self.begin, self.make_table, self.table_at = (
            engine.begin,
            engine.make_table,
            engine.table_at,
        )
        self._engine = engine
        self._left = statements
        self._is_after = is_after

    def run(self, sql: str, *values: object) -> list[Row]:
        return self._live(lambda: self._engine.run(sql, *values))

    def call(self, procedure: str, *values: str) -> list[Row]:
        return self._live(lambda: self._engine.call(procedure, *values))

    def close(self) -> None:
        self._engine.close()

    def _live(self, act: Callable[[], list[Row]]) -> list[Row]:
        self._left -= 1
        if self._left > 0:
            return act()
        if self._left == 0 and self._is_after:
            act()
        if self._left == 0 and (process := getattr(self._engine, "process", None)):
            process.kill()
            process.wait()
        self._engine.close()
        raise Killed


def mortal(place: DoltAddress, chance: Random) -> Mortal:
    return Mortal(open_engine(place), chance.randint(1, 60), is_after=chance.random() < 0.5)


@contextmanager
def forked_children() -> Iterator[None]:
    """Fork doltlite processes from one that has loaded it, if the system can."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "start_child", partial(fork_child, engines.CHILD))
        yield


@contextmanager
def new_place(folder: Path) -> Iterator[DoltAddress]:
    """Return a new, empty location, whose processes are forks."""
    if not URL:
        with forked_children():
            yield read_address(f"doltlite://{folder / 'memory.db'}", folders=(folder,))
        return
    given = read_address(URL, allow_private=True)
    name = f"ricordo_test_{secrets.token_hex(6)}"
    with closing(DoltServer(given)) as server:
        server.run(f"CREATE DATABASE {name}")
        try:
            yield read_address(
                f"{given.address.rpartition('/')[0]}/{name}", given.password, allow_private=True
            )
        finally:
            server.run(f"DROP DATABASE {name}")


@contextmanager
def at(place: DoltAddress) -> Iterator[Engine]:
    with closing(open_engine(place)) as engine:
        engine.call("dolt_checkout", "main")
        yield engine


def commit(engine: Engine, message: str, author: str = "Ada <ada@home>") -> None:
    engine.call("dolt_commit", "-A", "-m", message, "--author", author)
