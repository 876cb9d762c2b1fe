"""The job that imports an upload.

The job may be killed at any time and is then run again. It deletes its upload when it succeeds or
fails. A job that is cancelled, deleted or killed at its last attempt cannot. Its upload is deleted
within an hour.
"""

from dataclasses import replace
from io import BytesIO

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound
from ricordo.features.documents.imports import queries
from ricordo.features.documents.imports.service import Target, import_chats
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore

UPLOAD = "imports.upload"
_HOUR_SECONDS = 3600.0


def add_upload(tx: Transaction, target: Target, data: bytes) -> Job:
    """Store an upload, and add the job that imports it.

    Two jobs of one source never overlap.
    """
    scope = target.scope
    payload: Json = {
        "kind": target.kind,
        "agent_id": target.agent_id,
        "source": target.source,
        "author": scope.user_id,
        "takes_memories": target.takes_memories,
        "memory_of": target.memory_of,
    }
    job = Job(UPLOAD, scope.organization_id, payload, key=target.source, user_id=scope.subject)
    queries.insert_parts(tx, job, data)
    return jobs.add(tx, job) or job


async def import_upload(runtime: Runtime, job: Job, report: Report) -> None:
    """Import the upload of the job. Raises Invalid, NotFound."""
    store = FencedStore(runtime.store, job)
    payload = job.payload
    upload = await store.read(lambda tx: queries.read_upload(tx, job.id))
    target = Target(
        scope=Scope(job.organization_id, payload["author"], job.user_id),
        kind=payload["kind"],
        agent_id=payload["agent_id"],
        source=payload["source"],
        takes_memories=payload.get("takes_memories", True),
        memory_of=payload.get("memory_of"),
    )
    try:
        await import_chats(replace(runtime, store=store), target, BytesIO(upload), report)
    except Exception as error:
        if isinstance(error, Invalid | NotFound) or job.attempts >= job.most_attempts:
            await store.write(lambda tx: queries.delete_upload(tx, job.id))
        raise
    await store.write(lambda tx: queries.delete_upload(tx, job.id))


async def delete_left_uploads(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Delete uploads whose job was cancelled, deleted or killed for the last time.

    Args:
        runtime: The running server.
        _job: Not used, since one job serves all organizations.
        _report: Not used.
    """
    await runtime.store.write(queries.delete_left_uploads)


HANDLERS = (
    JobHandler(UPLOAD, import_upload),
    JobHandler("imports.left", delete_left_uploads, every_seconds=_HOUR_SECONDS),
)
