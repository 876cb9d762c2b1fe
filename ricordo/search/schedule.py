"""When the buffer of a partition is flushed: at once when it is long, else a while after its first row."""

from dataclasses import dataclass

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.storage import jobs
from ricordo.storage.store import Transaction

FLUSH = "search.flush"
# So many rows cost a search about a millisecond more.
LONG_BUFFER = 256
FLUSH_DELAY = 30 * SECOND


@dataclass(slots=True)
class _Noted:
    """What this process wrote to a buffer since it last asked for a flush: too few is harmless, a sweep finds what was missed."""

    rows: int = 0
    asked_at: int = 0


def note(tx: Transaction, kind: str, owner_id: str, organization_id: str, rows: int) -> None:
    """So many rows were added to a buffer: ask for a flush where it is time."""
    noted: dict[str, _Noted] = tx.cache.setdefault(_Noted, {})
    known = noted.get(owner_id) or _Noted()
    now = tx.clock.now()
    is_long = known.rows + rows >= LONG_BUFFER
    is_first = now - known.asked_at >= FLUSH_DELAY
    asked = known if is_long else _Noted(known.rows + rows, known.asked_at)
    if is_long or is_first:
        is_new = ask(tx, kind, owner_id, organization_id, not_before=now if is_long else now + FLUSH_DELAY)
        # Rows that come after a flush which comes sooner than in that while must ask again.
        asked = _Noted(0 if is_long else known.rows + rows, now if is_new and not is_long else 0)
    tx.after_commit.append(lambda: noted.__setitem__(owner_id, asked))


def ask(tx: Transaction, kind: str, owner_id: str, organization_id: str, *, not_before: int = 0) -> bool:
    """Ask for a flush of this partition, unless one waits already; that one comes sooner, where it would come later."""
    added = jobs.add(
        tx,
        Job(
            FLUSH,
            organization_id,
            {"kind": kind, "owner_id": owner_id},
            owner_id,
            is_single=True,
            not_before=not_before,
        ),
    )
    if added is None and not_before <= tx.clock.now():
        jobs.make_due(tx, FLUSH, owner_id)
    return added is not None
