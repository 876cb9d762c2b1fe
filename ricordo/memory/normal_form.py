"""Blocks that were stored before there was a normal form of text get it, each by a version of the system.

A migration adds the job once. Versions keep the ids and texts they have: history is not written anew.
"""

import logging
from functools import partial
from typing import Any

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.storage import blocks
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.migrations.normal_names import NORMALISE_BLOCKS

log = logging.getLogger(__name__)


async def normalise_blocks(store: Store) -> int:
    """Bring all blocks into the normal form, each in a transaction of its own; returns how many were not."""
    after = changed = 0
    while True:
        odd_ids, last = await store.read(partial(blocks.not_normal, after=after))
        for block_id in odd_ids:
            changed += await store.write(partial(_normalise, block_id=block_id))
        if last is None:
            return changed
        after = last


def _normalise(tx: Transaction, block_id: str) -> bool:
    found = blocks.ROWS.by_ids(tx, [block_id])
    return bool(found) and blocks.normalise(tx, found[0]) is not found[0]


async def _run(runtime: Any, _job: Job, _report: Report) -> None:
    if changed := await normalise_blocks(runtime.store):
        log.info("brought blocks into the normal form of text", extra={"blocks": changed})


HANDLER = JobHandler(NORMALISE_BLOCKS, _run)
