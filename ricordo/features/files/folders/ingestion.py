"""Background jobs that ingest uploaded files and purge deleted files.

Ingestion stores the text together with the first portion of its chunks, then the other portions. A
killed job repeats no portion.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID, uuid5

from ricordo.agents.deletion import before_purge
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.passage import Archive, Passage
from ricordo.errors import Invalid, NotFound, Unavailable
from ricordo.features.files.folders import queries
from ricordo.features.files.folders.records import File, FilePiece
from ricordo.features.files.folders.texts import Chunk, chunks_of, lines_in, text_of
from ricordo.offload import offload
from ricordo.runtime import Runtime
from ricordo.search.index import insert_passages
from ricordo.storage import deletion, jobs
from ricordo.storage.engine.store import Transaction

INGEST = "files.ingest"
PURGE = "files.purge"
_PORTION = 200  # chunks of one transaction
_PURGED = 100  # chunks that one transaction purges


def add_ingestion(tx: Transaction, file: File) -> None:
    jobs.add(
        tx,
        Job(INGEST, file.organization_id, {"file_id": file.id}, key=file.id, user_id=file.user_id),
    )


def delete_file(tx: Transaction, file: File) -> None:
    """Hide the file at once; a job purges it."""
    queries.hide_files(tx, [file.id])
    jobs.add(
        tx,
        Job(PURGE, file.organization_id, {"file_id": file.id}, key=file.id, user_id=file.user_id),
    )


async def ingest(runtime: Runtime, job: Job, report: Report) -> None:
    """Bring the file to `completed`, or to `error` with the reason.

    After a kill, the job continues with the next portion. A deleted file ends the job.

    Args:
        runtime: The running server.
        job: A job of `add_ingestion`.
        report: Counts the stored chunks.
    """
    store = runtime.store
    file_id = job.payload["file_id"]
    file = await store.read(lambda tx: queries.find_file(tx, file_id))
    if file is None or file.status in ("completed", "error"):
        return
    if file.status == "embedding":
        text = await store.read(lambda tx: queries.text_of(tx, file_id))
    else:
        content = await store.read(lambda tx: queries.read_upload(tx, file_id))
        try:
            file_text = await text_of(runtime.sandbox, file.name, content)
        except (Invalid, Unavailable) as error:
            failed = replace(file, status="error", error_message=str(error))
            await store.write(lambda tx: _set(tx, failed))
            return
        text = file_text.text
        type, note = file_text.notes_for(file.type)
        file = replace(file, type=type, error_message=note)
        file = replace(file, lines=lines_in(text), characters=len(text))
    chunks = await offload(lambda: list(chunks_of(text)), len(text))
    pieces = None
    if file.status != "embedding":
        pieces = await offload(lambda: queries.pieces_of_text(file_id, text), len(text))
    file = replace(file, status="embedding", total_chunks=len(chunks))
    while file.status != "completed":
        portion = chunks[file.chunks_done : file.chunks_done + _PORTION]
        chunks_done = file.chunks_done + len(portion)
        file = replace(
            file,
            chunks_done=chunks_done,
            status="completed" if chunks_done == len(chunks) else "embedding",
        )
        if not await store.write(partial(_store, file=file, chunks=portion, pieces=pieces)):
            return
        pieces = None
        report(chunks_done, len(chunks))


async def purge(runtime: Runtime, job: Job, _report: Report) -> None:
    """Delete the rows of a hidden file, its chunks first.

    Args:
        runtime: The running server.
        job: A job of `delete_file`.
    """
    file_id = job.payload["file_id"]
    count = await runtime.store.read(lambda tx: queries.chunks_of_hidden(tx, file_id))
    for begin in range(0, count, _PURGED):
        ids = [chunk_id(file_id, number) for number in range(begin, begin + _PURGED)]
        await runtime.store.write(partial(deletion.purge_passages, ids=ids, before=before_purge))
    while await runtime.store.write(
        partial(queries.purge_file, file_id=file_id, before=before_purge)
    ):
        pass


HANDLERS = (JobHandler(INGEST, ingest), JobHandler(PURGE, purge))


def chunk_id(file_id: str, number: int) -> str:
    """Return the id of the passage for this chunk.

    It is always the same, so that no chunk is stored twice.

    Args:
        file_id: The file's id, "file-" and a UUID.
        number: The chunk's number in the file, from 0.
    """
    return f"passage-{uuid5(UUID(file_id.removeprefix('file-')), str(number))}"


def _set(tx: Transaction, file: File) -> None:
    if queries.lock_file(tx, file.id):
        queries.update_file(tx, replace(file, updated_at=tx.clock.now()))
        queries.delete_upload(tx, file.id)


def _store(
    tx: Transaction, file: File, chunks: Sequence[Chunk], pieces: Sequence[FilePiece] | None
) -> bool:
    """Store a portion of the chunks and the file's progress.

    The file's text is stored with the first portion. Returns False if the file or its folder was
    deleted.
    """
    if queries.lock_file(tx, file.id) is None:
        return False
    if pieces is not None:
        queries.replace_text(tx, file.id, pieces)
        queries.delete_upload(tx, file.id)
    now = tx.clock.now()
    label = queries.egress_of(tx, file.folder_id)
    new = [
        Passage(
            id=chunk_id(file.id, chunk.number),
            organization_id=file.organization_id,
            archive_id=file.folder_id,
            text=chunk.text,
            metadata={"file_id": file.id, "line": chunk.line, "number": chunk.number},
            user_id=file.user_id,
            created_by=file.created_by,
            is_untrusted=True,
            egress=label,
            created_at=file.created_at,
            updated_at=now,
        )
        for chunk in chunks
    ]
    try:
        insert_passages(tx, Archive(file.folder_id, file.organization_id, ""), new)
    except NotFound:  # the folder was deleted
        return False
    queries.update_file(tx, replace(file, updated_at=now))
    return True
