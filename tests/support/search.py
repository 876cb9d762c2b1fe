"""The index brought up to date in one transaction, as its jobs do it in several."""

from ricordo.search import flush as flushing
from ricordo.search.deletion import next_deletion
from ricordo.storage.engine.store import Transaction


def delete_documents(tx: Transaction, owner_id: str) -> None:
    """Take out of the partition what its buffer says was deleted."""
    while deletion := next_deletion(tx, owner_id, 4096):
        for step in deletion.steps():
            prepared = deletion.prepare(tx, step)
            assert prepared is not None
            state, writes = prepared
            for write in writes:
                after = deletion.write(tx, state, write)
                assert after is not None
                state = after


def flush(tx: Transaction, kind: str, owner_id: str, most: int = flushing.FLUSHED_AT_ONCE) -> int:
    """The same, then flush the oldest rows of the buffer, at most so many; returns how many were flushed."""
    delete_documents(tx, owner_id)
    return flushing.flush(tx, kind, owner_id, most)
