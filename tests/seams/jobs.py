"""A worker on a store, with handlers that a test writes, and jobs for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ricordo.api.wire import ApiFormat
from ricordo.background import worker as working_jobs
from ricordo.background.postgres_worker import PostgresWorker
from ricordo.background.worker import Pace, Worker
from ricordo.domain.clock import Backoff
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.llm.registry.models import Models
from ricordo.plugins import Plugins
from ricordo.runtime import Runtime
from ricordo.sandbox.service import Sandbox
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import jobs
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.store import Store
from ricordo.tools.toolbox import Toolbox

QUICK = Pace(poll=0.02, beat=0.02, sweep=0.05, prune=0.05)
LIMIT = 60
Work = Callable[[Runtime, Job, Report], Awaitable[None]]


@pytest.fixture(scope="package", autouse=True)
def quick_jobs() -> Iterator[None]:
    """Let the servers of a folder check often for due jobs, and retry failed jobs at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(working_jobs, "Pace", partial(Pace, poll=0.05, beat=0.2))
        patch.setattr(working_jobs, "BACKOFF", Backoff(0.1, 2, 1))
        yield


def runtime_on(store: Store, folder: Path) -> Runtime:
    settings = Settings(data_dir=folder, find_local_models=False)
    models = Models(settings, ProviderSettings.model_construct(), [])
    return Runtime(
        settings, store, models, Toolbox([]), Plugins([]), Sandbox(settings), wire=ApiFormat()
    )


@asynccontextmanager
async def working(
    store: Store, folder: Path, *handlers: JobHandler, is_alone: bool = True, pace: Pace = QUICK
) -> AsyncIterator[Worker]:
    """A running worker, which is notified in the way of its database, and stopped at the end."""
    worker = Worker(runtime_on(store, folder), handlers, is_alone=is_alone, pace=pace)
    served = (
        PostgresWorker(worker, store, address_of(store))
        if isinstance(store, PostgresStore)
        else worker
    )
    await served.start()
    try:
        yield worker
    finally:
        await served.stop()


def address_of(store: PostgresStore) -> str:
    return store.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


async def add(
    store: Store, kind: str = "work", payload: dict[str, Any] | None = None, **fields: Any
) -> Job:
    added = await store.write(
        lambda tx: jobs.add(tx, Job(kind, LOCAL_ORGANIZATION, payload or {}, **fields))
    )
    assert added
    return added


async def get(store: Store, job: Job) -> Job:
    return await store.read(lambda tx: jobs.get(tx, Scope(), job.id))


async def until(store: Store, job: Job, *statuses: str) -> Job:
    """Wait until the job has one of these statuses (by default: has ended), and return it."""
    wanted = statuses or ("done", "failed", "cancelled")
    deadline = time.monotonic() + LIMIT
    while (now := await get(store, job)).status not in wanted:
        assert time.monotonic() < deadline, f"{job.kind} is {now.status}: {now.error}"
        await asyncio.sleep(0.005)
    return now
