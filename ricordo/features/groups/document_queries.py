"""Rows for documents that one-off agents read, and for the blocks of these documents.

A one-off agent is created to read one file, and is deleted after that. Each file that an agent with
sleeptime agents can read gets one row, which contains the progress of the reading. Files in a
user's folder get none.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from sqlalchemy import Index, UniqueConstraint, and_, delete, insert, or_, select, update

from ricordo.features.files.folders.tables import files, folders, folders_agents
from ricordo.features.groups.queries import groups
from ricordo.features.groups.records import ASLEEP
from ricordo.storage.engine.repository import Missing, Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import numbers, reference, root, seq, strings, table, timestamps

# In the state "read", the whole file is read, but the one-off agent may still exist. In the state
# "done", it is deleted. Its id is never used for another agent. In the state "stale", the block was
# emptied during the reading: a pass then deletes the reading, and its file is read again.
ReadingStatus = Literal["waiting", "read", "done", "failed", "stale"]
_MOST = 500  # new files found in one pass

readings = table(
    "document_readings",
    *root(),
    reference("agent_id", "agents"),
    *strings("folder_id", "file_id", "reader_id", null=False, erasure="keep"),
    *strings("status", null=False, erasure="keep"),
    *numbers("portions_done", "attempts"),
    *timestamps("created_at"),
    UniqueConstraint("agent_id", "file_id"),
    Index("document_readings_by_file", "file_id"),
    erasure="delete",
)
document_blocks = table(
    "document_blocks",
    seq(),
    reference("agent_id", "agents"),
    *strings("organization_id", "folder_id", null=False, erasure="keep"),
    reference("block_id", "blocks"),
    UniqueConstraint("agent_id", "folder_id"),
    Index("document_blocks_by_block", "block_id"),
    erasure="delete",
)
TABLES = (readings, document_blocks)


@dataclass(frozen=True, slots=True)
class Reading:
    """A file that the one-off agent `reader_id` reads for an agent.

    `portions_done` counts the portions that it has read, `attempts` the failures of the next one.
    """

    id: str
    organization_id: str
    agent_id: str
    folder_id: str
    file_id: str
    reader_id: str
    status: ReadingStatus = "waiting"
    portions_done: int = 0
    attempts: int = 0
    created_at: int = 0


@dataclass(frozen=True, slots=True)
class DocumentBlock:
    """A block that was created for one of an agent's folders."""

    organization_id: str
    agent_id: str
    folder_id: str
    block_id: str


_READINGS = Repository(Reading, readings)
_ADD = Missing(readings)
_ADD_BLOCK = insert(document_blocks)
_LOCK = _READINGS.select.where(equal(readings, "id")).with_for_update()
_IS_ATTACHED = and_(
    folders_agents.c.agent_id == readings.c.agent_id,
    folders_agents.c.folder_id == readings.c.folder_id,
)
_EXISTS = and_(files.c.id == readings.c.file_id, files.c.deleted_at.is_(None))
_NEW = (
    select(groups.c.organization_id, groups.c.manager_agent_id, files.c.folder_id, files.c.id)
    .join(folders_agents, folders_agents.c.agent_id == groups.c.manager_agent_id)
    .join(folders, folders.c.id == folders_agents.c.folder_id)
    .join(files, files.c.folder_id == folders.c.id)
    .outerjoin(
        readings,
        and_(readings.c.agent_id == groups.c.manager_agent_id, readings.c.file_id == files.c.id),
    )
    # A user's folder is left out. It is only for that user's turns, so its text must not enter a
    # block that others see.
    .where(groups.c.manager_type.in_(ASLEEP), folders.c.user_id.is_(None), readings.c.id.is_(None))
    .where(files.c.status == "completed", files.c.deleted_at.is_(None))
    .order_by(files.c.seq)
    .limit(_MOST)
)
_IS_STALE = readings.c.status == "stale"
_GONE = (
    _READINGS.select.outerjoin(folders_agents, _IS_ATTACHED)
    .outerjoin(files, _EXISTS)
    .where(or_(folders_agents.c.seq.is_(None), files.c.seq.is_(None), _IS_STALE))
    .order_by(readings.c.seq)
)
_OPEN = readings.c.status.in_(("waiting", "read"))
_WAITING = _READINGS.select.where(_OPEN).order_by(readings.c.seq)
_FOLDER = select(folders_agents.c.seq).where(equal(folders_agents, "agent_id", "folder_id"))
_BLOCK = select(document_blocks.c.block_id).where(equal(document_blocks, "agent_id", "folder_id"))
_BLOCKS_LEFT = (
    select(document_blocks)
    .outerjoin(
        folders_agents,
        and_(
            folders_agents.c.agent_id == document_blocks.c.agent_id,
            folders_agents.c.folder_id == document_blocks.c.folder_id,
        ),
    )
    .where(folders_agents.c.seq.is_(None))
)
# Only the job that reads the file writes these columns, unless the reading became stale.
save = _READINGS.updates("status", "portions_done", "attempts", where=~_IS_STALE)


def unread(tx: Transaction) -> list[tuple[str, str, str, str]]:
    """Return organization, agent, folder and file for each file that has no reading.

    Only files of agents with sleeptime agents count. At most 500 files are returned, oldest first.

    Args:
        tx: The transaction, or a read.
    """
    return [tuple(row) for row in tx.all(_NEW)]


def add(tx: Transaction, new: Sequence[Reading]) -> None:
    """Store new readings, except for files that have one already.

    Args:
        tx: The transaction.
        new: The readings; may be empty.
    """
    tx.run(_ADD, [_READINGS.values(reading) for reading in new])


def lock(tx: Transaction, reading_id: str) -> Reading | None:
    """Lock the reading until the transaction ends; return None if it was deleted.

    Args:
        tx: The transaction.
        reading_id: The reading.
    """
    return _READINGS.first(tx, _LOCK, {"id": reading_id})


def waiting(tx: Transaction) -> list[Reading]:
    """Return the open readings, in the state `waiting` or `read`, oldest first.

    Args:
        tx: The transaction, or a read.
    """
    return _READINGS.all(tx, _WAITING)


def gone(tx: Transaction) -> list[Reading]:
    """Return the readings whose folder was detached or whose file was deleted, and stale ones.

    Args:
        tx: The transaction, or a read.
    """
    return _READINGS.all(tx, _GONE)


def remove(tx: Transaction, reading_id: str) -> None:
    """Delete a reading; a file that is still attached is then read again.

    Args:
        tx: The transaction.
        reading_id: The reading.
    """
    tx.run(delete(readings).where(readings.c.id == reading_id))


def restart(tx: Transaction, agent_id: str, folder_id: str) -> None:
    """Delete the ended readings of an agent's folder, and make the open ones stale.

    Its files are then read again.

    Args:
        tx: The transaction.
        agent_id: The agent for which the files were read.
        folder_id: The folder.
    """
    is_of_folder = (readings.c.agent_id == agent_id) & (readings.c.folder_id == folder_id)
    tx.run(delete(readings).where(is_of_folder, readings.c.status.in_(("done", "failed"))))
    tx.run(update(readings).where(is_of_folder, _OPEN).values(status="stale"))


def is_attached(tx: Transaction, agent_id: str, folder_id: str) -> bool:
    """Return True if the agent has the folder attached.

    Args:
        tx: The transaction, or a read.
        agent_id: The agent.
        folder_id: The folder.
    """
    return tx.first(_FOLDER, {"agent_id": agent_id, "folder_id": folder_id}) is not None


def block_of(tx: Transaction, agent_id: str, folder_id: str) -> str | None:
    """Return the id of the block that was created for the folder, or None.

    Returns None also if the folder uses a block that a person created.

    Args:
        tx: The transaction, or a read.
        agent_id: The agent for which the folder's files are read.
        folder_id: The folder.
    """
    row = tx.first(_BLOCK, {"agent_id": agent_id, "folder_id": folder_id})
    return row.block_id if row else None


def note_block(tx: Transaction, block: DocumentBlock) -> None:
    """Record that a block was created for a folder.

    Args:
        tx: The transaction that creates the block.
        block: The agent, the folder and the block; the pair of agent and folder is new.
    """
    tx.run(_ADD_BLOCK, asdict(block))


def blocks_left(tx: Transaction) -> list[DocumentBlock]:
    """Return the blocks whose folders were detached.

    Args:
        tx: The transaction, or a read.
    """
    return [
        DocumentBlock(row.organization_id, row.agent_id, row.folder_id, row.block_id)
        for row in tx.all(_BLOCKS_LEFT)
    ]


def forget_block(tx: Transaction, block: DocumentBlock) -> None:
    """Delete the record of a block; the block itself stays.

    Args:
        tx: The transaction.
        block: A record, from `blocks_left`.
    """
    tx.run(delete(document_blocks).where(document_blocks.c.block_id == block.block_id))
