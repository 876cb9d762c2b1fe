"""Bring older blocks into the normal form of text.

Each changed block gets one version by the system. A migration adds the job once. Older versions
keep their ids and texts, since history is not rewritten.
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
    """Bring all blocks into normal form; return the number of changed ones.

    Each block has a separate transaction.
    """
    after = changed = 0
    while True:
        block_ids, last_position = await store.read(partial(blocks.not_normal, after=after))
        for block_id in block_ids:
            changed += await store.write(partial(_normalise, block_id=block_id))
        if last_position is None:
            return changed
        after = last_position


def _normalise(tx: Transaction, block_id: str) -> bool:
    rows = blocks.ROWS.by_ids(tx, [block_id])
    return bool(rows) and blocks.normalise(tx, rows[0]) is not rows[0]


async def _run(runtime: Any, _job: Job, _report: Report) -> None:
    if changed := await normalise_blocks(runtime.store):
        log.info("brought blocks into the normal form of text", extra={"blocks": changed})


HANDLER = JobHandler(NORMALISE_BLOCKS, _run)
