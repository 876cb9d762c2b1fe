"""Files of an agent's folders that one-off agents read into memory blocks.

Each folder of an agent with sleeptime agents gets one block for all its files, whose label is the
folder's name if that can be a label. Folders of users are not read. A pass every half minute finds
changes: new files, detached folders, deleted files. Each file is read by its own one-off agent.
Jobs create this agent, send it the text in portions, and delete it at the end; a long file takes
several jobs. A killed job continues with the same portion. After the deletion of a file, the
folder's other files are read again. Files are untrusted, and so are the resulting runs and texts.
Policies of blocks apply.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ricordo.agents.budgets import put_off
from ricordo.agents.lifecycle import BlockSpec, delete_agent, insert_agent, new_block, prepare
from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.turn import collect_for_job, run_turn
from ricordo.domain.agent import Agent
from ricordo.domain.block import DEFAULT_LIMIT, Block, Chain, require_label
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import TextPart
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Invalid, ModelError, NotFound
from ricordo.features.files.folders import queries as files
from ricordo.features.files.folders.records import Folder
from ricordo.features.groups import document_queries as queries
from ricordo.features.groups.document_queries import DocumentBlock, Reading
from ricordo.features.groups.pairs import spec_beside
from ricordo.offload import offload
from ricordo.prompt.system_prompt import disarm
from ricordo.prompt.texts import text
from ricordo.runtime import Runtime
from ricordo.storage import agents, blocks, jobs, versions
from ricordo.storage.budgets import DAILY_TOKENS
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
LOOK = "documents.look"
READ = "documents.read"
PURPOSE = "sleeptime"
_SECONDS = 30.0
_MOST_STEPS = 10
_ATTEMPTS = 3  # of one portion
# The most characters of one portion. In a small window a portion takes a quarter of the window, at
# three characters for a token.
_CHARACTERS = 16_000
# A job reads at most this many portions, and then adds a job for the rest, which checks the budget.
_PORTIONS_AT_ONCE = 100
_RESERVED = ("persona", "instructions")  # labels of the one-off agent's blocks
_RICORDO = Actor("system", "ricordo", "Ricordo")


@dataclass(frozen=True, slots=True)
class Source:
    """The agent, the folder, the file name and the block of a reading."""

    agent: Agent
    folder: Folder
    file_name: str
    block: Block


async def look(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Undo readings of detached folders and deleted files, and add jobs for unread files.

    Args:
        runtime: The running server.
    """
    await _undo_readings(runtime)

    def plan(tx: Transaction) -> None:
        has_sleeptime: dict[str, bool] = {}
        new = []
        for organization_id, agent_id, folder_id, file_id in queries.unread(tx):
            if agent_id not in has_sleeptime:
                agent = agents.find(tx, Scope(organization_id), agent_id)
                has_sleeptime[agent_id] = agent is not None and agent.has_sleeptime
            if has_sleeptime[agent_id]:
                new.append(
                    Reading(
                        id=new_id("reading"),
                        organization_id=organization_id,
                        agent_id=agent_id,
                        folder_id=folder_id,
                        file_id=file_id,
                        reader_id=new_id("agent"),
                        created_at=tx.clock.now(),
                    )
                )
        queries.add(tx, new)
        _add_jobs(tx)

    await runtime.store.write(plan)


def _add_jobs(tx: Transaction) -> None:
    """For each folder of an agent, add the job of the oldest waiting file.

    Only one job is added for each folder, since two jobs at once would write the same block.
    """
    first: dict[tuple[str, str], Reading] = {}
    for reading in queries.waiting(tx):
        first.setdefault((reading.agent_id, reading.folder_id), reading)
    for reading in first.values():
        payload = {"reading_id": reading.id}
        jobs.add(tx, Job(READ, reading.organization_id, payload, key=reading.id, is_single=True))


async def _undo_readings(runtime: Runtime) -> None:
    # Deleting a reading can make other ones stale.
    while readings := await runtime.store.read(queries.gone):
        for reading in readings:
            await _delete_reader(runtime, reading)
            await runtime.store.write(lambda tx, reading=reading: _delete_reading(tx, reading))  # type: ignore[misc]
    for document_block in await runtime.store.read(queries.blocks_left):

        def remove(tx: Transaction, document_block: DocumentBlock = document_block) -> None:
            block = _block(tx, document_block.organization_id, document_block.block_id)
            queries.forget_block(tx, document_block)
            if block is not None:
                blocks.remove(tx, block, ChangeMetadata(_RICORDO, "Its folder was detached"))

        try:
            await runtime.store.write(remove)
        # the block's policy forbids the deletion, or another writer is changing the block
        except (Forbidden, Conflict):
            log.info(
                "a block of a detached folder stays for now",
                extra={"block": document_block.block_id},
            )


def _delete_reading(tx: Transaction, reading: Reading) -> None:
    """Delete a reading.

    If its file was read, at least in part, and then deleted, the folder's block is emptied and the
    other files are read again. A block that a person created, or that may not be written, stays.
    """
    queries.remove(tx, reading.id)
    is_unread = reading.portions_done == 0
    is_file_deleted = files.find_file(tx, reading.file_id) is None
    is_attached = queries.is_attached(tx, reading.agent_id, reading.folder_id)
    if is_unread or not is_file_deleted or not is_attached:
        return
    block_id = queries.block_of(tx, reading.agent_id, reading.folder_id)
    change = ChangeMetadata(_RICORDO, "A file of its folder was deleted")
    with suppress(Forbidden):
        while block := _block(tx, reading.organization_id, block_id):
            if blocks.write(tx, block, "", change):
                queries.restart(tx, reading.agent_id, reading.folder_id)
                break
            # Another transaction wrote or erased the block meanwhile, so read it again.


def _block(tx: Transaction, organization_id: str, block_id: str | None) -> Block | None:
    with suppress(NotFound):
        if block_id:
            return blocks.get(tx, Scope(organization_id), block_id)
        return None
    return None


async def read(runtime: Runtime, job: Job, report: Report) -> None:
    """Let a one-off agent read a file.

    After a kill, the job continues with the current portion.

    Args:
        runtime: The running server.
        job: A job with the reading's id as `reading_id`.
        report: Counts the portions.

    Raises:
        ModelError: if a portion has to be sent again.
        Unavailable: if the server stops.
    """
    reading = await runtime.store.write(lambda tx: queries.lock(tx, job.payload["reading_id"]))
    if reading is None or reading.status not in ("waiting", "read"):
        return
    if reading.status == "waiting" and reading.attempts < _ATTEMPTS:
        if await put_off(runtime, job, reading.agent_id):
            return
        reading = await _read_on(runtime, reading, report)
        if reading is None:
            return
        if reading.status == "waiting" and reading.attempts < _ATTEMPTS:
            await runtime.store.write(_add_jobs)
            return
    await _delete_reader(runtime, reading)
    ended_reading = replace(reading, status="done" if reading.status == "read" else "failed")

    def end(tx: Transaction) -> None:
        queries.save(tx, ended_reading)
        _add_jobs(tx)

    await runtime.store.write(end)


async def _read_on(runtime: Runtime, reading: Reading, report: Report) -> Reading | None:
    """Send the next portions, and return the reading after that.

    It is still "waiting" if portions are left. Returns None if the file need not be read any more,
    for example after the folder was detached (see `_source`).
    """
    source = await runtime.store.write(lambda tx: _source(tx, reading))
    if source is None:
        return None
    await _make_reader(runtime, reading, source)
    content = await runtime.store.read(lambda tx: files.text_of(tx, reading.file_id))
    portions = await offload(
        lambda: portions_of(content, source.agent.context_window), len(content)
    )
    end = min(reading.portions_done + _PORTIONS_AT_ONCE, len(portions))
    while reading.portions_done < end and reading.attempts < _ATTEMPTS:
        reading = await _send(runtime, reading, source, portions)
        report(reading.portions_done, len(portions))
    if reading.portions_done >= len(portions):
        read_reading = replace(reading, status="read")
        await runtime.store.write(lambda tx: queries.save(tx, read_reading))
        return read_reading
    return reading


def portions_of(content: str, window: int) -> list[str]:
    """Return the text in portions of whole lines that fit the window.

    A line that does not fit is cut.

    Args:
        content: The file's text.
        window: The size of the agent's context window in tokens.
    """
    limit = max(min(_CHARACTERS, window * 3 // 4), 500)
    portions = []
    portion = ""
    for line in content.splitlines(keepends=True):
        if portion and len(portion) + len(line) > limit:
            portions.append(portion)
            portion = ""
        portion += line
        while len(portion) > limit:
            portions.append(portion[:limit])
            portion = portion[limit:]
    portions.append(portion)
    return [part for part in portions if part.strip()]


def _source(tx: Transaction, reading: Reading) -> Source | None:
    """Return the agent, the folder, the file and the block of a reading; create a missing block.

    Returns None if the file or the agent no longer exists, if the folder was detached, or if
    sleeptime is switched off.
    """
    scope = Scope(reading.organization_id)
    agent = agents.find(tx, scope, reading.agent_id)
    file = files.find_file(tx, reading.file_id)
    if agent is None or not agent.has_sleeptime or file is None:
        return None
    agents.lock(tx, scope, agent.id)
    folders = files.folders_of_agent(tx, scope, agent.id)
    folder = next((folder for folder in folders if folder.id == reading.folder_id), None)
    if folder is None:
        return None
    block_id = queries.block_of(tx, agent.id, folder.id)
    block = _block(tx, reading.organization_id, block_id) or _make_block(tx, scope, agent, folder)
    return Source(agent, folder, file.name, block)


def _make_block(tx: Transaction, scope: Scope, agent: Agent, folder: Folder) -> Block:
    """Return the agent's block with the folder's label; create it if it is missing.

    A block that a person created is used too, and is never removed.
    """
    label = label_of(folder)
    attached = next(
        (block for block in blocks.attached(tx, agent.id) if block.label == label), None
    )
    if attached is not None:
        return attached
    chain = versions.of_owner(tx, scope, "agent", agent.id)
    if chain:
        new_chains = []
    else:
        new_chains = [Chain(new_id("chain"), scope.organization_id, "agent", agent.id)]
    about = (
        folder.description
        or f'The content of the files of the folder "{folder.name}", with the places in the files.'
    )
    spec = BlockSpec(label, description=about[:2000], policy="direct")
    block = new_block(tx, scope, spec, chain or new_chains[0])
    (block,) = blocks.insert_all(
        tx, [block], new_chains, ChangeMetadata(_RICORDO, "Make a block for a folder")
    )
    blocks.attach(tx, agent.id, [block])
    queries.note_block(tx, DocumentBlock(scope.organization_id, agent.id, folder.id, block.id))
    return block


def label_of(folder: Folder) -> str:
    """Return the folder's name as a block label.

    If the name cannot be a label, or a block of the one-off agent has it, the label is made from
    the folder's id.
    """
    try:
        label = require_label(folder.name)
    except Invalid:
        label = ""
    if label and label not in _RESERVED:
        return label
    return f"folder {folder.id.rpartition('-')[2]}"


async def _make_reader(runtime: Runtime, reading: Reading, source: Source) -> None:
    """Create the one-off agent if it does not exist."""
    scope = Scope(reading.organization_id)
    agent = source.agent
    if await runtime.store.read(lambda tx: agents.find(tx, scope, reading.reader_id)):
        return
    own_blocks = [BlockSpec("persona", value=text("sleep_persona"), read_only=True)]
    if instructions := (source.folder.instructions or "").strip():
        limit = max(DEFAULT_LIMIT, len(instructions))
        own_blocks.append(
            BlockSpec("instructions", value=instructions, limit=limit, read_only=True)
        )
    spec = spec_beside(
        runtime,
        agent,
        "sleeptime_agent",
        "sleeptime_doc_ingest",
        id=reading.reader_id,
        name=f"{agent.name}-doc-sleeptime",
        hidden=True,
        settings={name: agent.settings[name] for name in (DAILY_TOKENS,) if name in agent.settings},
        blocks=tuple(own_blocks),
        block_ids=(source.block.id,),
    )
    spec, model_info = await prepare(runtime, scope, spec)

    def insert(tx: Transaction) -> None:
        if agents.find(tx, scope, reading.reader_id) is None:
            insert_agent(tx, runtime, scope, spec, model_info)

    await runtime.store.write(insert)


async def _send(
    runtime: Runtime, reading: Reading, source: Source, portions: Sequence[str]
) -> Reading:
    """Send the next portion, and return the changed reading.

    Raises ModelError if the portion has to be sent again.
    """
    number = reading.portions_done
    document = disarm(portions[number], "document")
    prompt = (
        f'Part {number + 1} of {len(portions)} of the file "{source.file_name}" of the source '
        f'"{source.folder.name}". Work it into the block labelled "{source.block.label}".\n\n'
        f"<document>\n{document}\n</document>"
    )
    message = NewMessage(
        "user",
        (TextPart(prompt),),
        otid=f"{reading.id}:{number}:{reading.attempts}",
        is_untrusted=True,
        egress=source.folder.egress,
    )
    request = TurnRequest(
        scope=Scope(reading.organization_id),
        agent_id=reading.reader_id,
        messages=(message,),
        overrides=TurnOverrides(max_steps=_MOST_STEPS),
        delivery=TurnDelivery(is_background=True, purpose=PURPOSE),
    )
    answer = await collect_for_job(await run_turn(runtime, request), "this document")
    if answer.run.status != "failed":
        advanced = replace(reading, portions_done=number + 1, attempts=0)
        await runtime.store.write(lambda tx: queries.save(tx, advanced))
        return advanced
    failed = replace(reading, attempts=reading.attempts + 1)
    await runtime.store.write(lambda tx: queries.save(tx, failed))
    if failed.attempts >= _ATTEMPTS:
        return failed
    raise ModelError(
        "llm_error",
        answer.failure.message[:500] if answer.failure else "The reading of a file failed.",
    )


async def _delete_reader(runtime: Runtime, reading: Reading) -> None:
    with suppress(NotFound):
        await delete_agent(runtime, Scope(reading.organization_id), reading.reader_id)


HANDLERS = (JobHandler(LOOK, look, every_seconds=_SECONDS), JobHandler(READ, read))
