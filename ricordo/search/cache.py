"""What a process caches of the index, so that a search reads only what changed.

All of it goes by the number and the generation of a partition, and by how many documents were flushed: within a generation, flushes
only append. So what another process flushed, deleted or rebuilt is noticed by the partition's row, which every search reads.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ricordo.search.scoring import Posting
from ricordo.storage.engine.store import Transaction

# Bytes of memory for partitions and for the postings of terms in them, and how many words of vocabularies, at some 100 bytes each.
PARTITIONS_LIMIT = 224 * 1024 * 1024
TERMS_LIMIT = 32 * 1024 * 1024
WORDS_LIMIT = 100_000


class SizedCache:
    """Values by key, up to a total size; the least recently used are dropped first. A value is replaced, never changed.

    Values whose keys have the same `group` are used together, so none of them is dropped for another.
    """

    def __init__(self, limit: int, group: Callable[[Any], Any] = lambda key: key) -> None:
        self._limit = limit
        self._group = group
        self._values: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """The value of this key, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Any, value: Any, size: int) -> None:
        """Cache this value of so many bytes."""
        with self._lock:
            self._size += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = (value, size)
            group = self._group(key)
            while self._size > self._limit:
                oldest = next((other for other in self._values if self._group(other) != group), None)
                if oldest is None:
                    return
                self._size -= self._values.pop(oldest)[1]


class IndexCache:
    """The caches of one database's index: of partitions, of terms by owner and term, and of vocabularies by partition."""

    def __init__(self) -> None:
        self.partitions = SizedCache(PARTITIONS_LIMIT, group=itemgetter(1))
        self.terms = SizedCache(TERMS_LIMIT)
        self.words = SizedCache(WORDS_LIMIT)


@dataclass(frozen=True, slots=True)
class CachedPosting:
    """The posting of a term in the flushed documents of a partition, when there were so many of them in this generation."""

    partition: int
    generation: int
    documents: int
    posting: Posting

    def is_of(self, partition: Any) -> bool:
        state = (partition.seq, partition.generation, partition.documents)
        return (self.partition, self.generation, self.documents) == state

    @property
    def nbytes(self) -> int:
        """The memory it takes, with 600 bytes beside its arrays."""
        posting = self.posting
        return 600 + posting.positions.nbytes + posting.times.nbytes + posting.named.nbytes


def shared_cache(tx: Transaction) -> IndexCache:
    cache: IndexCache = tx.cache.setdefault(IndexCache, IndexCache())
    return cache


def cache_of(tx: Transaction) -> IndexCache:
    """The same; an empty one where the transaction has written, and so sees what may be rolled back."""
    return IndexCache() if tx.has_written else shared_cache(tx)
