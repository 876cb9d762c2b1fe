"""The tables of the search index, once for every database. A change here is a new numbered migration too.

A partition is all that one search looks through: an agent's messages, or an archive's passages. New documents wait in the write
buffer, which is searched too, until a flush packs them: then each has a dense position within its partition, by which the blobs
are addressed.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Index, LargeBinary, String, Table, Text

from ricordo.storage.schema.columns import numbers, seq, strings, table


def _data() -> Column[bytes]:
    return Column("data", LargeBinary, nullable=False)


def _blobs(name: str, *keys: str, more: tuple[Column[Any], ...] = ()) -> Table:
    """Return a table of a partition's blobs, of which each has a key: a term or an embedding is text, a chunk a number."""
    kinds = {"partition": BigInteger, "chunk": BigInteger}
    columns = [Column(key, kinds.get(key, Text), primary_key=True, autoincrement=False) for key in ("partition", *keys)]
    return table(name, *columns, *more, erasure="delete", sqlite_with_rowid=False)


search_partitions = table(
    "search_partitions",
    seq(),
    Column("owner_id", String, nullable=False, unique=True),
    *strings("kind", null=False),
    *numbers("documents", "deleted", "generation"),
    *strings("embedding"),
    *numbers("vectors"),
    # A number is never used again: what a process caches of a partition goes by it.
    sqlite_autoincrement=True,
    erasure="keep",
)
search_buffer = table(
    "search_buffer",
    seq(),
    Column("owner_id", String, nullable=False),
    Column("document", BigInteger, nullable=False),
    _data(),
    Index("search_buffer_by_owner", "owner_id", "seq"),
    sqlite_autoincrement=True,
    erasure="delete",
)
search_postings = _blobs("search_postings", "term", "chunk", more=(_data(),))
search_documents = _blobs("search_documents", "chunk", more=(_data(),))
search_vectors = _blobs("search_vectors", "embedding", "chunk", more=(*numbers("dimensions"), _data()))
search_terms = _blobs("search_terms", "term")
