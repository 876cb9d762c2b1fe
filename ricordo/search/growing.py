"""Documents that are added to a layout: only the sessions that they join are laid out again. Pure numpy, no SQL.

A session that grows out of its room moves to one twice as large, in the slots kept free before those without neighbours. So what
a new document costs does not depend on how long a session is, apart from looking for its neighbours.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ricordo.search.scoring import (
    NO_THREAD,
    PAUSE,
    REACH,
    Documents,
    Floats,
    Integers,
    Layout,
    weakening_of,
    with_neighbours,
    worth_of,
)

Records = npt.NDArray[np.void]
# Beyond so many at once, laying everything out anew is as quick.
MOST_CLUSTERS = 32


class Columns:
    """Arrays of one length that are appended to together.

    They lie in larger ones, so that appending copies nothing. Who holds the shorter arrays keeps them as they are; where two
    append to the same ones, the second gets copies.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], spare: int = 0) -> None:
        self._used = len(arrays[0])
        self._lock = threading.Lock()
        self._held = [np.empty(self._used + spare, dtype=array.dtype) for array in arrays]
        for held, array in zip(self._held, arrays, strict=True):
            _plain(held)[: self._used] = _plain(array)

    def append(self, length: int, new: Sequence[npt.NDArray[Any]]) -> tuple["Columns", list[npt.NDArray[Any]]]:
        """The first `length` rows with new ones behind them, and what to append to next."""
        end = length + len(new[0])
        with self._lock:
            fits = self._used == length and end <= len(self._held[0])
            if fits:
                self._used = end
        if not fits:
            copied = Columns([held[:length] for held in self._held], spare=len(new[0]) + length // 8 + 64)
            return copied.append(length, new)
        for held, values in zip(self._held, new, strict=True):
            held[length:end] = values
        return self, [held[:end] for held in self._held]


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same as bytes: records are copied as a whole then, not field by field."""
    return array.view(np.dtype((np.void, array.dtype.itemsize))) if array.dtype.names else array


def columns_of(documents: Documents, records: Records) -> Columns:
    """What `extended` appends to."""
    return Columns([records, documents.number, documents.created_at, documents.worth])


def extended(documents: Documents, columns: Columns, new: Records) -> tuple[Documents, Columns, Records] | None:
    """The documents with new ones behind them and what `columns` become; None where all must be laid out anew."""
    count = len(documents)
    clusters = _clusters(new)
    if len(clusters) > MOST_CLUSTERS:
        return None
    number, created_at = new["number"].astype(np.int64), new["created_at"].astype(np.int64)
    columns, (records, numbers, times, worth) = columns.append(count, [new, number, created_at, worth_of(new)])
    alive = np.append(documents.alive, np.ones(len(new), dtype=np.bool_))
    sheet = _Sheet(documents, records, times, alive, len(new))
    for cluster in clusters:
        if not sheet.place(cluster + count):
            return None
    layout, words = sheet.layout(documents.count + len(new))
    return Documents(numbers, times, alive, worth, documents.count + len(new), words, layout), columns, records


def _clusters(new: Records) -> list[Integers]:
    """Which of the new ones belong together: those of one thread without a long pause between them."""
    order = np.lexsort((new["number"], new["created_at"], new["thread"]))
    thread, created_at = new["thread"][order], new["created_at"][order]
    parted = (thread[1:] != thread[:-1]) | (created_at[1:] - created_at[:-1] > PAUSE) | (thread[1:] == NO_THREAD)
    return np.split(order, np.flatnonzero(parted) + 1)


class _Sheet:
    """A layout on which documents are placed."""

    def __init__(self, documents: Documents, records: Records, times: Integers, alive: Any, added: int) -> None:
        before = documents.layout
        self._records, self._times, self._alive = records, times, alive
        # New documents have the slots behind all others until they are placed.
        self._slot = np.append(before.slot, np.arange(before.size, before.size + added))
        self._size = before.size + added
        self._alone = before.alone
        self._rooms, self._free = before.rooms, before.free
        self._around = np.append(before.around, (records["length"][-added:] + 1).astype(np.float32))
        self._words = documents.words + float(self._around[before.size :].sum(dtype=np.float64))

    def layout(self, count: int) -> tuple[Layout, float]:
        """What came of it, and how many words all surroundings have."""
        weakening = weakening_of(self._around, self._words, count)
        return (
            Layout(self._slot, self._size, self._alone, self._rooms, self._free, self._around, weakening),
            self._words,
        )

    def place(self, cluster: Integers) -> bool:
        """Put these positions, which belong together, into the session that they join; False where there is no room."""
        near = self._near(cluster)
        if len(near) + len(cluster) == 1 or self._records["thread"][cluster[0]] == NO_THREAD:
            return True
        members = [cluster, near[self._slot[near] >= self._alone]]
        rooms = np.unique(np.searchsorted(self._rooms, self._slot[near[self._slot[near] < self._alone]], "right") - 1)
        if len(rooms) > MOST_CLUSTERS:
            return False
        members += [self._inside(room) for room in rooms]
        together = np.concatenate(members)
        begin = self._room(rooms, len(together))
        if begin is None:
            return False
        order = np.lexsort((self._records["number"][together], self._times[together]))
        self._lay(together[order], begin)
        return True

    def _near(self, cluster: Integers) -> Integers:
        """The positions, placed before, that a cluster has no long pause to."""
        times = self._times[cluster]
        # Most come at the end, with few after them: so the first comparison leaves little to the others.
        near = np.flatnonzero(self._times >= times.min() - PAUSE)
        near = near[self._times[near] <= times.max() + PAUSE]
        near = near[self._alive[near] & (self._records["thread"][near] == self._records["thread"][cluster[0]])]
        return np.setdiff1d(near, cluster, assume_unique=True)

    def _bounds(self, room: int) -> tuple[int, int]:
        end = self._rooms[room + 1] if room + 1 < len(self._rooms) else self._free
        return int(self._rooms[room]), int(end)

    def _inside(self, room: int) -> Integers:
        """The positions that stand in a room."""
        begin, end = self._bounds(room)
        return np.flatnonzero((self._slot >= begin) & (self._slot < end))

    def _room(self, rooms: Integers, count: int) -> int | None:
        """Where so many can stand: one of these rooms, or a new one; None where there is none."""
        for room in rooms:
            begin, end = self._bounds(room)
            if count + REACH <= end - begin:
                return begin
        begin, end = self._free, self._free + 2 * count + REACH
        if end > self._alone:
            return None
        self._rooms, self._free = np.append(self._rooms, begin), end
        return begin

    def _lay(self, members: Integers, begin: int) -> None:
        """Let these, in their order, stand side by side from this slot on."""
        around: Floats = with_neighbours(self._records["length"][members].astype(np.float32)) + 1
        here = np.arange(begin, begin + len(members))
        self._words -= float(self._around[self._slot[members]].sum(dtype=np.float64))
        self._words += float(around.sum(dtype=np.float64))
        self._slot[members] = here
        self._around[here] = around
