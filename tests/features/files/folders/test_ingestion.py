"""Reading a file with an interruption at every write.

It continues, and nothing is doubled or half stored. If the file is deleted meanwhile, nothing is
left.
"""

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from ricordo.agents import deletion
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.features.files.folders import ingestion, queries, service
from ricordo.features.files.folders.records import File, Folder
from ricordo.features.files.folders.service import Upload
from ricordo.features.files.folders.tables import TABLES
from ricordo.features.files.folders.texts import chunks_of
from ricordo.storage import deletion as storage_deletion
from ricordo.storage import jobs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import passages
from tests.conftest import BOTH
from tests.features.files.folders.test_formats import READ
from tests.seams.stage import Stage
from tests.seams.stores import broken, count_statements, killed_after, mended
from tests.support.attacked_server import LIMIT, AttackedServer, attacked_server
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

DATABASES = BOTH
SCOPE = Scope()
TEXT = "".join(f"Paragraph {number} tells of bees. {'x' * 900}\n\n" for number in range(500))
CHUNKS = 500


async def uploaded(stage: Stage, text: str = TEXT) -> File:
    def write(tx: Transaction) -> File:
        folder = service.create_folder(tx, SCOPE, Folder("", LOCAL_ORGANIZATION, "", "Shelf"))
        return service.add_file(tx, SCOPE, folder.id, Upload("bees.txt", text.encode()))

    return await stage.store.write(write)


def job_of(file: File) -> Job:
    return Job(ingestion.INGEST, LOCAL_ORGANIZATION, {"file_id": file.id}, key=file.id)


async def ingest(stage: Stage, file: File) -> None:
    await ingestion.ingest(stage.runtime, job_of(file), lambda _done, _total: None)


async def count(stage: Stage) -> int:
    return int(
        (await stage.store.read(lambda tx: tx.all(select(func.count()).select_from(passages))))[0][
            0
        ]
    )


async def test_ingestion_killed_at_any_write_continues_without_duplicates(stage: Stage) -> None:
    assert len(list(chunks_of(TEXT))) == CHUNKS
    file = await uploaded(stage)
    kills = 0
    for _ in range(10):
        with killed_after(stage.runtime, 1):
            try:
                await ingest(stage, file)
            except asyncio.CancelledError:
                kills += 1
                continue
        break
    # Only the last of three portions ends without a kill.
    assert kills == 2
    read = await stage.store.read(lambda tx: queries.get_file(tx, SCOPE, file.id))
    assert (read.status, read.total_chunks, read.chunks_done, read.lines) == (
        "completed",
        CHUNKS,
        CHUNKS,
        1000,
    )
    assert await count(stage) == CHUNKS
    pieces = await stage.store.read(lambda tx: queries.pieces_of(tx, [file.id]))
    assert "".join(piece.text for piece in pieces) == TEXT
    assert [pieces[0].first_line, pieces[-1].last_line] == [0, 999]
    assert await stage.store.read(lambda tx: queries.read_upload(tx, file.id)) == b""
    await ingest(stage, file)  # A second run changes nothing.
    assert await count(stage) == CHUNKS


@pytest.mark.parametrize("writes", range(4))
async def test_a_file_deleted_during_ingestion_leaves_nothing(stage: Stage, writes: int) -> None:
    file = await uploaded(stage)
    with killed_after(stage.runtime, writes), suppress(asyncio.CancelledError):
        await ingest(stage, file)
    await stage.store.write(lambda tx: service.remove_file(tx, SCOPE, file.folder_id, file.id))
    await ingest(stage, file)
    purge = replace(job_of(file), kind=ingestion.PURGE)
    with killed_after(stage.runtime, 2), suppress(asyncio.CancelledError):
        await ingestion.purge(stage.runtime, purge, lambda _done, _total: None)
    await ingestion.purge(stage.runtime, purge, lambda _done, _total: None)
    assert await count(stage) == 0
    for table in TABLES:
        left = await stage.store.read(
            lambda tx, table=table: tx.all(select(func.count()).select_from(table))
        )
        assert left[0][0] == (1 if table.name == "folders" else 0), table.name


async def test_a_deleted_folder_leaves_no_rows(stage: Stage) -> None:
    file = await uploaded(stage)
    await ingest(stage, file)
    await stage.store.write(lambda tx: service.delete_folder(tx, SCOPE, file.folder_id))
    await ingest(stage, file)
    await deletion.purge(stage.runtime, "archive", file.folder_id)
    for table in (passages, *TABLES):
        left = await stage.store.read(
            lambda tx, table=table: tx.all(select(func.count()).select_from(table))
        )
        assert left[0][0] == 0, table.name


async def test_a_full_disk_leaves_no_partial_file(stage: Stage) -> None:
    file = await uploaded(stage)
    await broken(stage.store, "INSERT ON passages")
    with pytest.raises(Exception, match="disk is full"):
        await ingest(stage, file)
    await mended(stage.store)
    read = await stage.store.read(lambda tx: queries.get_file(tx, SCOPE, file.id))
    assert (read.status, read.chunks_done, await count(stage)) == ("parsing", 0, 0)
    await ingest(stage, file)
    assert await count(stage) == CHUNKS


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.soak)])
async def test_a_kill_of_the_server_leaves_no_half_file_and_the_next_server_goes_on(
    kills: int, tmp_path: Path, helper: Helper
) -> None:
    async with attacked_server(helper, tmp_path) as server:
        for number in range(kills):
            await kill_while_files_are_read(server, number)


async def kill_while_files_are_read(server: AttackedServer, number: int) -> None:
    """Upload a text and a document, delete a file, and kill the server meanwhile.

    Then check the files on the next server.
    """
    made = await server.http.post("/v1/folders/", json={"name": f"folder {number}"})
    home = f"/v1/folders/{made.json()['id']}"
    sent = {
        "bees.txt": TEXT.encode(),
        "bees.docx": READ["a.docx"][0],
        "gone.txt": b"Gone.\n" * 10_000,
    }
    files = {}
    for name, data in sent.items():
        files[name] = (
            await server.http.post(f"{home}/upload", files={"file": (name, data)})
        ).json()["id"]
    assert (await server.http.delete(f"{home}/{files['gone.txt']}")).status_code == 204
    await asyncio.sleep(random.uniform(0, 0.6))  # noqa: S311
    await asyncio.to_thread(server.process.kill)
    await asyncio.to_thread(server.process.start)
    end = time.monotonic() + LIMIT
    while True:
        listed = (await server.http.get(f"{home}/files", params={"include_content": True})).json()
        if all(file["processing_status"] in ("completed", "error") for file in listed):
            break
        assert time.monotonic() < end, listed
        await asyncio.sleep(0.05)
    assert {file["file_name"]: file["content"] for file in listed} == {
        "bees.txt": TEXT,
        "bees.docx": READ["a.docx"][1],
    }
    found = (await server.http.get(f"{home}/passages", params={"limit": 1000})).json()
    assert len(found) == sum(file["total_chunks"] for file in listed) == CHUNKS + 1
    assert len({one["id"] for one in found}) == CHUNKS + 1
    assert (await server.http.delete(home)).status_code == 200


async def test_a_folder_of_many_agents_is_deleted_in_portions_that_a_kill_may_interrupt(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DETACHED_AT_ONCE", 2)
    agent_ids = [await stage.agent(name=f"Agent {number}") for number in range(7)]

    def attach(tx: Transaction) -> tuple[str, str]:
        folder_id, other_id = new_folder(tx, "Shelf"), new_folder(tx, "Other")
        for number, agent_id in enumerate(agent_ids):
            folder_ids = [folder_id, other_id] if number == 6 else [folder_id]
            service.attach_folders(tx, SCOPE, agent_id, folder_ids)
        return folder_id, other_id

    folder_id, other_id = await stage.store.write(attach)
    with count_statements(stage.store) as counted:
        await stage.store.write(lambda tx: service.delete_folder(tx, SCOPE, folder_id))
    assert len(counted.statements) < 40

    # No agent shows the folder any more, whatever was detached.
    def shown(tx: Transaction) -> list[str]:
        attached = queries.folders_of_agents(tx, agent_ids)
        return [folder.id for folders in attached.values() for folder in folders]

    assert await stage.store.read(shown) == [other_id]
    kills = 0
    (job,) = await waiting_jobs(stage, service.DETACH)
    while True:
        with suppress(asyncio.CancelledError), killed_after(stage.runtime, 1):
            await service.detach_from_agents(stage.runtime, job, lambda _done, _all: None)
            break
        kills += 1
    assert kills >= 2
    marked = [
        agent_id
        for agent_id in agent_ids
        if service.MARK in (await stage.state(agent_id)).agent.settings
    ]
    assert marked == agent_ids[6:]
    assert len(await waiting_jobs(stage, storage_deletion.JOB)) == 1


async def waiting_jobs(stage: Stage, kind: str) -> list[Job]:
    def read(tx: Transaction) -> list[Job]:
        return [job for job in jobs.page(tx, SCOPE, Page()) if job.kind == kind]

    return await stage.store.read(read)


def new_folder(tx: Transaction, name: str) -> str:
    return service.create_folder(tx, SCOPE, Folder("", LOCAL_ORGANIZATION, "", name)).id
