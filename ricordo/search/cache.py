"""What this process remembers of the index, so that a search reads only what changed: within bounds, and never the truth.

All of it goes by the number and the generation of a partition, and by how many documents were flushed: within a generation
flushes only append. So what another process flushed, took out or rebuilt is noticed by the row of the partition, which every
search reads.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ricordo.search.scoring import Posting
from ricordo.storage.store import Transaction

# Bytes that a process spends on what it remembers: of all partitions, and of the terms in them.
MEMORY = 224 * 1024 * 1024
TERMS_MEMORY = 32 * 1024 * 1024
# What an entry takes beside its arrays.
_ENTRY = 600


class Memory:
    """What this process remembers of partitions, the least used forgotten first. What is in it never changes, it is replaced."""

    def __init__(self, most: int = MEMORY, most_of_terms: int = TERMS_MEMORY) -> None:
        self.terms = Terms(most_of_terms)
        self._most = most
        self._held: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """What is remembered under this key, or None."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Any, value: Any, size: int) -> None:
        """Remember this, which takes so many bytes."""
        with self._lock:
            self._size += size - self._held.pop(key, (None, 0))[1]
            self._held[key] = (value, size)
            # What is known of one partition is used together, so a part of it never makes room for another.
            others = [other for other in self._held if other[1] != key[1]] if self._size > self._most else []
            for other in others:
                if self._size > self._most:
                    self._size -= self._held.pop(other)[1]


@dataclass(frozen=True, slots=True)
class Known:
    """Where a term stood in the flushed documents of a partition, when there were so many of them in this generation."""

    partition: int
    generation: int
    documents: int
    posting: Posting


class Terms:
    """Where the terms of recent questions stand, by owner and term; the least used are forgotten first."""

    def __init__(self, most: int = TERMS_MEMORY) -> None:
        self._most = most
        self._held: OrderedDict[tuple[str, str], Known] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def known(self, owners: Sequence[str], terms: Iterable[str]) -> dict[tuple[str, str], Known]:
        """What is remembered of these terms with these owners."""
        found: dict[tuple[str, str], Known] = {}
        with self._lock:
            for term in terms:
                for owner in owners:
                    if known := self._held.get((owner, term)):
                        self._held.move_to_end((owner, term))
                        found[owner, term] = known
        return found

    def keep(self, new: dict[tuple[str, str], Known]) -> None:
        """Remember these."""
        with self._lock:
            for key, known in new.items():
                before = self._held.pop(key, None)
                self._size += _size(known) - (_size(before) if before else 0)
                self._held[key] = known
            while self._size > self._most and self._held:
                self._size -= _size(self._held.popitem(last=False)[1])


def memory_of(tx: Transaction) -> Memory:
    """This process's memory of the database's partitions; an empty one where the transaction sees what may be rolled back."""
    if tx.has_written:
        return Memory()
    memory: Memory = tx.cache.setdefault(Memory, Memory())
    return memory


def _size(known: Known) -> int:
    posting = known.posting
    return _ENTRY + posting.positions.nbytes + posting.times.nbytes + posting.named.nbytes
