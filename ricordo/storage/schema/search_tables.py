"""The tables of the search index, once for every database. A change here is a new numbered migration too.

A partition is all that one search looks through: an agent's messages, or an archive's passages. New documents wait in the write
buffer, which is searched too, until a flush packs them: then each has a dense position within its partition, by which the blobs
are addressed.
"""

from sqlalchemy import BigInteger, Column, Index, LargeBinary, String, Table, Text

from ricordo.storage.schema.columns import metadata, number, seq, string

search_partitions = Table(
    "search_partitions",
    metadata,
    seq(),
    Column("owner_id", String, nullable=False, unique=True),
    string("kind", null=False),
    number("documents"),
    number("deleted"),
    number("generation"),
    string("embedding"),
    number("vectors"),
    # A number is never used again: what a process caches of a partition goes by it.
    sqlite_autoincrement=True,
    info={"erasure": "keep"},
)
search_buffer = Table(
    "search_buffer",
    metadata,
    seq(),
    Column("owner_id", String, nullable=False),
    Column("document", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("search_buffer_by_owner", "owner_id", "seq"),
    sqlite_autoincrement=True,
    info={"erasure": "delete"},
)
search_postings = Table(
    "search_postings",
    metadata,
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("term", Text, primary_key=True),
    Column("chunk", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    info={"erasure": "delete"},
)
search_documents = Table(
    "search_documents",
    metadata,
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("chunk", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    info={"erasure": "delete"},
)
search_vectors = Table(
    "search_vectors",
    metadata,
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("embedding", Text, primary_key=True),
    Column("chunk", BigInteger, primary_key=True, autoincrement=False),
    number("dimensions"),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    info={"erasure": "delete"},
)
search_terms = Table(
    "search_terms",
    metadata,
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("term", Text, primary_key=True),
    sqlite_with_rowid=False,
    info={"erasure": "delete"},
)
