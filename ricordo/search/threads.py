"""Which thread each document of a partition belongs to, as its index says: passages that came together are known only there."""

from typing import Any

from sqlalchemy import bindparam, select

from ricordo.search.records import DOCUMENT, read_documents
from ricordo.search.write_buffer import unpack
from ricordo.storage.search_tables import search_buffer, search_documents, search_partitions
from ricordo.storage.store import Transaction

_DOCUMENTS = (
    select(search_documents.c.data)
    .join(search_partitions, search_partitions.c.seq == search_documents.c.partition)
    .where(search_partitions.c.owner_id == bindparam("owner_id"))
)
_BUFFER = select(search_buffer.c.seq, search_buffer.c.document, search_buffer.c.data).where(
    search_buffer.c.owner_id == bindparam("owner_id")
)


def threads_of(tx: Transaction, owner_id: str) -> dict[int, int]:
    """The fingerprints of threads by document. What cannot be read is left out: an index is built anew when it is damaged, too."""
    found: dict[int, int] = {}
    for row in tx.all(_DOCUMENTS, {"owner_id": owner_id}):
        if len(row.data) % DOCUMENT.itemsize == 0:
            records: Any = read_documents(row.data)
            found |= zip(records["number"].tolist(), records["thread"].tolist(), strict=True)
    for row in tx.all(_BUFFER, {"owner_id": owner_id}):
        try:
            waiting = unpack(row.seq, row.document, row.data)
        except Exception:  # noqa: S112 - whatever damaged bytes lead to
            continue
        if not waiting.is_deleted:
            found[waiting.document] = waiting.thread
    return found
