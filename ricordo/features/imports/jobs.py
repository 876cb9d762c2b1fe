"""The job that takes in an upload. It may be killed anywhere and run again; the upload is deleted when it ends."""

from dataclasses import replace
from io import BytesIO

from ricordo.api.models.base import Json
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.imports import queries
from ricordo.features.imports.service import Target, import_chats
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore

UPLOAD = "imports.upload"


def add_upload(tx: Transaction, target: Target, data: bytes) -> Job:
    """Store an upload, and add the job that takes it in; two of one source never overlap."""
    scope = target.scope
    payload: Json = {
        "kind": target.kind,
        "agent_id": target.agent_id,
        "source": target.source,
        "author": scope.user_id,
    }
    payload["takes_memories"] = target.takes_memories
    job = Job(UPLOAD, scope.organization_id, payload, key=target.source, user_id=scope.subject)
    queries.insert_parts(tx, job, data)
    return jobs.add(tx, job) or job


async def take_upload(runtime: Runtime, job: Job, report: Report) -> None:
    store, given = FencedStore(runtime.store, job), job.payload
    scope = Scope(job.organization_id, given["author"], job.user_id)
    data = await store.read(lambda tx: queries.read_upload(tx, job.id))
    takes_memories = given.get("takes_memories", True)
    target = Target(scope, given["kind"], given["agent_id"], given["source"], takes_memories)
    try:
        await import_chats(replace(runtime, store=store), target, BytesIO(data), report)
    except Exception as error:
        if isinstance(error, Invalid | NotFound) or job.attempts >= job.most_attempts:
            await store.write(lambda tx: queries.delete_upload(tx, job.id))
        raise
    await store.write(lambda tx: queries.delete_upload(tx, job.id))


HANDLERS = (JobHandler(UPLOAD, take_upload),)
