"""Blocks that were stored before there was a normal form of text get it, each by a version of the system.

A migration adds the job once. Versions keep the ids and texts they have: history is not written anew.
"""

import logging
from typing import Any

from sqlalchemy import bindparam, select

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.text import is_normal_name, is_normal_text
from ricordo.storage import blocks
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.migrations.normal_names import NORMALISE_BLOCKS
from ricordo.storage.schema.memory_tables import blocks as table

log = logging.getLogger(__name__)
_AT_ONCE = 500
_NEXT = (
    select(table.c.seq, table.c.id, table.c.label, table.c.value)
    .where(table.c.seq > bindparam("after"))
    .order_by(table.c.seq)
    .limit(_AT_ONCE)
)


async def normalise_blocks(store: Store) -> int:
    """Bring all blocks into the normal form, each in a transaction of its own; returns how many were not."""
    after = changed = 0
    while rows := await store.read(lambda tx: tx.all(_NEXT, {"after": after})):  # noqa: B023 - awaited here
        for row in rows:
            if not (is_normal_name(row.label) and is_normal_text(row.value)):
                changed += await store.write(lambda tx: _normalise(tx, row.id))  # noqa: B023 - awaited here
        after = rows[-1].seq
    return changed


def _normalise(tx: Transaction, block_id: str) -> bool:
    found = blocks.ROWS.by_ids(tx, [block_id])
    return bool(found) and blocks.normalise(tx, found[0]) is not found[0]


async def _run(runtime: Any, _job: Job, _report: Report) -> None:
    if changed := await normalise_blocks(runtime.store):
        log.info("brought blocks into the normal form of text", extra={"blocks": changed})


HANDLER = JobHandler(NORMALISE_BLOCKS, _run)
