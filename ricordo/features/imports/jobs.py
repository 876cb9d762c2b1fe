"""The job that takes in an upload. It may be killed anywhere and run again; the upload is deleted when it ends."""

from dataclasses import replace
from io import BytesIO
from typing import Any

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.imports import queries
from ricordo.features.imports.queries import Import
from ricordo.features.imports.service import Target, import_chats
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore

UPLOAD = "imports.upload"


def add_upload(tx: Transaction, target: Target, data: bytes) -> tuple[Import, Job]:
    """Store an upload, and add the job that takes it in; two of one source never overlap."""
    scope = target.scope
    payload = {"agent_id": target.agent_id, "author": scope.user_id}
    job = Job(UPLOAD, scope.organization_id, payload, key=target.source, user_id=scope.subject)
    made = Import(job.id, scope.organization_id, target.kind, target.source, target.agent_id, scope.subject)
    made = replace(made, created_at=tx.clock.now())
    job = jobs.add(tx, job) or job
    queries.insert_import(tx, made)
    queries.insert_parts(tx, made.id, data)
    return made, job


async def take_upload(runtime: Runtime, job: Job, report: Report) -> None:
    """Take in what was uploaded, and keep the report."""
    store = FencedStore(runtime.store, job)
    scope = Scope(job.organization_id, str(job.payload["author"]), job.user_id)
    one, data = await store.read(lambda tx: (queries.get_import(tx, scope, job.id), queries.read_upload(tx, job.id)))
    target = Target(scope, one.kind, str(one.agent_id), one.source)

    def finish(tx: Transaction, made: dict[str, Any]) -> None:
        queries.save_report(tx, replace(one, report=made))
        queries.delete_upload(tx, one.id)

    try:
        made = await import_chats(replace(runtime, store=store), target, BytesIO(data), report)
    except Exception as error:
        if isinstance(error, Invalid | NotFound) or job.attempts >= job.most_attempts:
            so_far = await store.read(lambda tx: queries.report_of(tx, one.organization_id, one.source))
            await store.write(lambda tx: finish(tx, so_far))
        raise
    await store.write(lambda tx: finish(tx, made))


HANDLERS = (JobHandler(UPLOAD, take_upload),)
