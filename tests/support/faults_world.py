"""A server's runtime that can be killed at any await of a turn, and opened again.

A kill is given by the number of a suspension. After it no task of the process continues, so the
rest of the turn never runs. The database stays, with all committed changes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ricordo.agents.run_end import close_all, close_expired
from ricordo.api.wire import ApiFormat
from ricordo.domain.scope import Scope
from ricordo.errors import Unavailable
from ricordo.llm.policy import CallPolicy
from ricordo.llm.registry.models import Models
from ricordo.plugins import Plugins
from ricordo.runtime import Runtime
from ricordo.sandbox.service import Sandbox
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, Toolbox, sync_tools
from tests.seams.stage import BUILTIN, Hooks
from tests.seams.stores import ManualClock
from tests.support.faults_model import TIME_OUT
from tests.support.postgres import name_in, server

T = TypeVar("T")
_BURIALS = 1000


@dataclass
class Life:
    """The tasks of one process.

    At the suspension `at` (None: never) `happens` is called, once.
    """

    count: int = 0
    at: int | None = None
    happens: Callable[[], None] | None = None
    is_frozen: bool = False
    is_buried: bool = False
    froze: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any
    ) -> asyncio.Task[Any]:
        """Make a task of this process. The task of the model server belongs to no process."""
        if "_send_slowly" in getattr(coroutine, "__qualname__", ""):
            return asyncio.Task(coroutine, loop=loop, **named)
        made: asyncio.Task[Any] = asyncio.Task(_Mortal(self, coroutine), loop=loop, **named)
        self.tasks.add(made)
        made.add_done_callback(self.tasks.discard)
        return made

    def arm(self, at: int, happens: Callable[[], None]) -> None:
        """Count suspensions from now on, and call this at the one with that number."""
        self.count, self.at, self.happens = 0, at, happens

    def disarm(self) -> None:
        self.at = self.happens = None

    def suspended(self) -> None:
        self.count += 1
        if self.count == self.at and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()

    def freeze(self) -> None:
        """Stop all tasks, which looks like a kill from outside."""
        self.is_frozen = True
        self.froze.set()

    async def bury(self) -> None:
        """End all tasks.

        The database takes nothing from them any more, whatever they do.
        """
        self.is_frozen = self.is_buried = True
        for _ in range(_BURIALS):
            left = [task for task in self.tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.05)
        raise AssertionError(f"These tasks do not end: {self.tasks}")


class _Mortal(Coroutine[Any, Any, Any]):
    """A coroutine that continues only while its process lives."""

    def __init__(self, life: Life, inner: Coroutine[Any, Any, Any]) -> None:
        self._life = life
        self._inner = inner
        self.__qualname__ = getattr(inner, "__qualname__", "task")
        self.__name__ = self.__qualname__

    def send(self, value: Any) -> Any:
        return self._advance(self._inner.send, value)

    def throw(self, *what: Any) -> Any:
        return self._advance(self._inner.throw, *what)

    def _advance(self, step: Callable[..., Any], *given: Any) -> Any:
        if self._life.is_frozen and not self._life.is_buried:
            never = asyncio.get_running_loop().create_future()
            never._asyncio_future_blocking = True
            return never
        yielded = step(*given)
        self._life.suspended()
        return yielded

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("Tasks drive this.")


class MortalStore:
    """The database as one process sees it.

    Dead processes write nothing, and a unit may fail as on a full disk. `fails` is the number of
    next units that fail. With `commits` the open transaction is committed at a kill.
    """

    def __init__(self, inner: SqliteStore | PostgresStore, life: Life) -> None:
        self.inner = inner
        self.clock = inner.clock
        self.statements = inner.statements
        self.engine = inner.engine
        self.fails = 0
        self.commits = True
        self._life = life

    async def read(self, work: Callable[[Transaction], T]) -> T:
        return await self.inner.read(self._guarded(work, is_write=False))

    async def write(self, work: Callable[[Transaction], T]) -> T:
        return await self.inner.write(self._guarded(work, is_write=True))

    async def close(self) -> None:
        await self.inner.close()

    def _guarded(
        self, work: Callable[[Transaction], T], *, is_write: bool
    ) -> Callable[[Transaction], T]:
        self._require_alive()
        if self.fails:
            self.fails -= 1
            raise Unavailable("The disk is full.")

        def guarded(tx: Transaction) -> T:
            if not self.commits:
                self._require_alive()
            result = work(tx)
            if is_write and not self.commits:
                self._require_alive()
            return result

        return guarded

    def _require_alive(self) -> None:
        if self._life.is_frozen:
            raise Unavailable("This process is dead.")


class World:
    """A database with a runtime on it; `restart` opens it again after a kill.

    `database` is the address of a PostgreSQL, which other servers may use too. Without it the
    database is a file in the folder.
    """

    def __init__(
        self, folder: Path, address: str, tools: tuple[ServerTool, ...], database: str | None = None
    ) -> None:
        self.clock = ManualClock()
        self.life = Life()
        self.runtime: Runtime
        self.store: MortalStore
        self.restarts = 0
        self._folder = folder
        self._tools = tools
        self._database = database
        self._others: list[asyncio.Task[Any]] = []
        self._providers = ProviderSettings(
            openai_api_key="campaign",
            openai_base_url=f"{address}/v1",
            anthropic_api_key="campaign",
            anthropic_base_url=address,
        )

    async def open(self) -> None:
        """Open the database as at a server's start.

        Runs that nobody can be working on are closed.
        """
        settings = Settings(
            data_dir=self._folder, find_local_models=False, database_url=self._database
        )
        self.life = Life()
        asyncio.get_running_loop().set_task_factory(self.life.task)
        inner = await asyncio.to_thread(self._open)
        self.store = MortalStore(inner, self.life)
        models = Models(
            settings,
            self._providers,
            policy=CallPolicy(retries=1, timeout=TIME_OUT, sleep=lambda _seconds: asyncio.sleep(0)),
        )
        plugins = Plugins([("builtin", BUILTIN), ("campaign", Hooks(self._tools))])
        self.runtime = Runtime(
            settings,
            self.store,
            models,
            Toolbox(plugins.tools()),
            plugins,
            Sandbox(settings),
            wire=ApiFormat(),
        )
        await self.store.write(close_expired if self._database else close_all)
        await self.store.write(lambda tx: sync_tools(tx, Scope(), self.runtime.toolbox))

    async def close(self) -> None:
        asyncio.get_running_loop().set_task_factory(None)
        await self.life.bury()
        await self.runtime.models.close()
        await self.store.close()

    async def restart(self) -> None:
        self.restarts += 1
        await self.close()
        await self.open()

    def cut(self) -> None:
        """Cut every connection to PostgreSQL at once, whatever runs on it."""
        name = name_in(self._database or "")
        server().run(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608 - our own name
        )

    def overtake(self) -> None:
        """Let another server close the runs of expired leases while this one continues."""
        loop = asyncio.get_running_loop()
        self._others.append(asyncio.Task(asyncio.to_thread(self._close_expired), loop=loop))

    async def others(self) -> None:
        await asyncio.gather(*self._others)
        self._others.clear()

    def _open(self) -> SqliteStore | PostgresStore:
        if self._database is None:
            return open_sqlite(self._folder / "ricordo.db", clock=self.clock)
        return open_postgres(self._database, connections=3, clock=self.clock, backups=self._folder)

    def _close_expired(self) -> None:
        other = open_postgres(
            self._database or "", connections=1, clock=self.clock, backups=self._folder
        )
        try:
            other._write(close_expired)
        finally:
            other._close()


@asynccontextmanager
async def opened(
    folder: Path, address: str, tools: tuple[ServerTool, ...], *, is_shared: bool
) -> AsyncIterator[World]:
    """Open a world until the block ends; if it is shared, on a separate PostgreSQL database."""
    database = server().new_database() if is_shared else None
    world = World(folder, address, tools, database)
    try:
        await world.open()
        yield world
        await world.close()
    finally:
        if database:
            server().drop(database)
