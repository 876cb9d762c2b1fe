"""How the index packs into blobs: a document's record, a posting's record, and which chunk holds which position."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ricordo.search.write_buffer import BufferRow

DOCUMENT = np.dtype(
    [
        ("number", "<i8"),  # seq of the message or passage
        ("created_at", "<i8"),  # microseconds UTC
        ("conversation", "<u8"),
        ("user", "<u8"),
        ("length", "<u4"),  # words of the text
        ("role", "u1"),
        ("alive", "u1"),
        ("asks", "u1"),  # the text ends with a question
    ]
)
# `times`: how often the text holds the term, at most 127; the highest bit says that the speaker's name holds it.
POSTING = np.dtype([("position", "<u4"), ("times", "u1")])
NAMED = 0x80
MOST_TIMES = 0x7F
# A chunk is what one update rewrites, and what one row holds.
DOCUMENT_CHUNK = 1024
POSTING_CHUNK = 8192
VECTOR_CHUNK = 256

Documents = npt.NDArray[np.void]
Postings = npt.NDArray[np.void]


def document_records(rows: list[BufferRow]) -> Documents:
    """The records of these rows, in their order."""
    values = [
        (row.document, row.created_at, row.conversation, row.user, row.length, row.role, 1, row.asks) for row in rows
    ]
    return np.array(values, dtype=DOCUMENT)


def occurrences(row: BufferRow) -> dict[str, int]:
    """The terms of a row, labels among them, each with its `times`."""
    counts: dict[str, int] = dict(Counter(row.text))
    if len(row.text) > MOST_TIMES:
        counts = {term: min(times, MOST_TIMES) for term, times in counts.items()}
    for term in row.speaker:
        counts[term] = counts.get(term, 0) | NAMED
    return counts | dict.fromkeys(row.labels, 1) if row.labels else counts


def chunks_of(rows: npt.NDArray[Any], position: int, size: int) -> list[dict[str, Any]]:
    """Rows, the first of them at this position, cut where a chunk ends: the number and data of each chunk's part."""
    end = position + len(rows)
    cuts = [position, *range((position // size + 1) * size, end, size), end]
    return [
        {"chunk": start // size, "data": rows[start - position : stop - position].tobytes()}
        for start, stop in pairwise(cuts)
        if stop > start
    ]


def read_documents(data: bytes) -> Documents:
    return np.frombuffer(data, dtype=DOCUMENT)


def read_postings(data: bytes) -> Postings:
    return np.frombuffer(data, dtype=POSTING)
