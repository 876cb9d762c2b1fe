"""A server's background work: handlers that are built in and those of plugins, from the start to the stop."""

from pathlib import Path

import pytest

from ricordo.background.postgres_worker import background_work
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.errors import Invalid
from ricordo.plugins import Plugins
from ricordo.runtime import Runtime
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams.jobs import add, address_of, runtime_on, until

DATABASES = ("sqlite", "postgresql")


class Fetching:
    """A plugin that brings one handler."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def jobs(self) -> list[JobHandler]:
        return [JobHandler("weather.fetch", self.fetch)]

    async def fetch(self, _runtime: Runtime, job: Job, _report: Report) -> None:
        self.ran.append(job.id)


def runtime_with(store: SqliteStore | PostgresStore, folder: Path, plugin: object) -> Runtime:
    runtime = runtime_on(store, folder)
    runtime.plugins = Plugins([("weather", plugin)])
    return runtime


async def test_the_jobs_of_a_plugin_run_while_the_server_does(
    store: SqliteStore | PostgresStore, tmp_path: Path
) -> None:
    plugin = Fetching()
    address = address_of(store) if isinstance(store, PostgresStore) else None
    async with background_work(runtime_with(store, tmp_path, plugin), address=address):
        job = await add(store, "weather.fetch")
        assert (await until(store, job)).status == "done"
    await add(store, "weather.fetch")
    assert plugin.ran == [job.id]


async def test_two_handlers_of_one_kind_stop_the_start(store: SqliteStore | PostgresStore, tmp_path: Path) -> None:
    plugin = Fetching()
    with pytest.raises(Invalid, match=r'"weather\.fetch" have two handlers'):
        async with background_work(runtime_with(store, tmp_path, plugin), plugin.jobs()):
            pass
