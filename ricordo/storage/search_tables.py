"""The tables of the search index, once for every database. A change here is a new numbered migration too.

A space is all that one search looks through: an agent's messages, an archive's passages. New documents wait in the tail, which is
searched too, until a merge packs them: there each has a dense position within its space, by which the blobs are addressed.
"""

from sqlalchemy import BigInteger, Column, Index, LargeBinary, String, Table, Text

from ricordo.storage.columns import metadata, number, seq, string

search_spaces = Table(
    "search_spaces",
    metadata,
    seq(),
    Column("owner_id", String, nullable=False, unique=True),
    string("kind", null=False),
    number("documents"),
    number("gone"),
    number("generation"),
    string("embedding"),
    number("vectors"),
    # A number is never used again: what a process remembers of a space goes by it.
    sqlite_autoincrement=True,
    info={"erasure": "keep"},
)
search_tail = Table(
    "search_tail",
    metadata,
    seq(),
    Column("owner_id", String, nullable=False),
    Column("document", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("search_tail_by_owner", "owner_id", "seq"),
    sqlite_autoincrement=True,
    info={"erasure": "delete"},
)
search_postings = Table(
    "search_postings",
    metadata,
    Column("space", BigInteger, primary_key=True, autoincrement=False),
    Column("term", Text, primary_key=True),
    Column("chunk", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    info={"erasure": "delete"},
)
search_documents = Table(
    "search_documents",
    metadata,
    Column("space", BigInteger, primary_key=True, autoincrement=False),
    Column("chunk", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    info={"erasure": "delete"},
)
search_vectors = Table(
    "search_vectors",
    metadata,
    Column("space", BigInteger, primary_key=True, autoincrement=False),
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
    Column("space", BigInteger, primary_key=True, autoincrement=False),
    Column("term", Text, primary_key=True),
    sqlite_with_rowid=False,
    info={"erasure": "delete"},
)
