"""The size of a chain's history, counted from its rows.

`storage/history_size.py` keeps it in the chain's row.
"""

from typing import Any

from sqlalchemy import BigInteger, Text, cast, func, literal, select

from ricordo.storage.schema.functions import byte_length
from ricordo.storage.schema.memory_tables import (
    blobs,
    blocks_log,
    chains,
    commits,
    git_objects,
    proposals,
)

# The size of a row's ids, names and indexes; it is added to the content of each row.
ROW_BYTES = 200


def _sum(table: Any, size: Any) -> Any:
    if "chain" in table.c:
        is_own = table.c.chain == chains.c.seq
    else:
        is_own = table.c.chain_id == chains.c.id
    total = func.coalesce(func.sum(cast(size, BigInteger) + ROW_BYTES), literal(0))
    return select(total).where(is_own).correlate(chains).scalar_subquery()


COUNTED = (
    _sum(blobs, func.length(blobs.c.data))
    + _sum(git_objects, func.length(git_objects.c.data))
    + _sum(commits, byte_length(commits.c.reason))
    + _sum(blocks_log, byte_length(cast(blocks_log.c.changed, Text)))
    + _sum(
        proposals,
        byte_length(proposals.c.reasoning)
        + func.coalesce(byte_length(proposals.c.description), literal(0)),
    )
)
"""The size of a chain's history according to its rows."""
