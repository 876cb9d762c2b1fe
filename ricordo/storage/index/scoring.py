"""How well documents answer a question by its words: pure numpy, no SQL; similarities and the final order are `fusion.py`'s.

A word found in one turn of a talk also speaks for the turns around it: an answer seldom repeats the words of its question.
So each hit is spread to its neighbours when a question is asked, and nothing about neighbours is stored. For that, documents
are laid out in slots, the turns of a session side by side and a few empty slots between two sessions: spreading is then a
sum of shifted arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

# A longer pause (microseconds) between two turns begins another session: what is said after it seldom answers what stands before.
PAUSE = 3 * 60 * 60 * 1_000_000
NO_THREAD = 0
# How far a hit reaches, in turns. It counts 10 tenths for its own turn and 4, 3, 2, 1 for those before and after.
REACH = 4
TENTHS = 10
MOST_TIMES = 8  # more repeats of a word say nothing more; with it all sums below stay under 256
# BM25's: how fast repeats stop counting, and how much longer surroundings weaken a hit.
SATURATION = 1.2
LENGTH_SHARE = 0.4
LENGTH_REACH = 2
# Rarity without this factor silences words that stand in half of a small space's documents.
RARITY = 10.0
# Below this share of all slots, touching only the slots around the hits is quicker than going over all.
FEW_HITS = 1 / 128


@dataclass(frozen=True, slots=True)
class Layout:
    """Where documents stand: `slot` (n, int64) by position, all below `size`; from `alone` on nobody has neighbours.

    `weakening` (size, float32) is the part of a hit's denominator that depends on how long its surroundings are, in tenths.
    """

    slot: Integers
    size: int
    alone: int
    weakening: Floats


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a space by position, n of them: seq, microseconds UTC, whether each is still there, and whether it asks."""

    number: Integers
    created_at: Integers
    alive: Bools
    asks: Bools
    layout: Layout

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class Posting:
    """Where a term stands: positions, each once; how often each text holds it (0 allowed), and whether the speaker's name does."""

    positions: npt.NDArray[Any]
    times: npt.NDArray[np.uint8]
    named: Bools
    weight: float = 1.0


def documents_of(records: npt.NDArray[np.void], alive: Bools) -> Documents:
    """From records with the fields number, created_at, thread, length (in words) and asks; dead ones are nobody's neighbours."""
    number = records["number"].astype(np.int64)
    created_at = records["created_at"].astype(np.int64)
    asks = records["asks"] == 1
    layout = arrange(records["thread"].astype(np.uint64), created_at, number, records["length"], alive)
    return Documents(number, created_at, alive, asks, layout)


def arrange(
    thread: npt.NDArray[np.uint64], created_at: Integers, number: Integers, length: npt.NDArray[Any], alive: Bools
) -> Layout:
    """Lay documents out: those of one thread in the order of (created_at, number), sessions apart; thread 0 is none at all."""
    order = _in_order(thread, created_at, number)
    if not alive.all():
        order = np.flatnonzero(alive) if order is None else order[alive[order]]
    threads, times = (thread, created_at) if order is None else (thread[order], created_at[order])
    begins = np.ones(len(threads) + 1, dtype=np.bool_)
    begins[1:-1] = (threads[1:] != threads[:-1]) | (times[1:] - times[:-1] > PAUSE) | (threads[1:] == NO_THREAD)
    is_linked = ~(begins[1:] & begins[:-1])
    sessions = np.flatnonzero(begins[:-1][is_linked])
    count = int(np.count_nonzero(is_linked))
    linked_slots: Integers = np.repeat(np.arange(1, len(sessions) + 1) * REACH, np.diff(sessions, append=count))
    linked_slots += np.arange(count)
    alone = int(linked_slots[-1]) + REACH + 1 if count else 0
    size = alone + len(number) - count
    slot = linked_slots
    if count < len(number):
        linked = np.flatnonzero(is_linked) if order is None else order[is_linked]
        others = np.ones(len(number), dtype=np.bool_)
        others[linked] = False
        slot = np.empty(len(number), dtype=np.int64)
        slot[linked] = linked_slots
        slot[others] = np.arange(alone, size)
    elif order is not None:
        slot = np.empty(len(number), dtype=np.int64)
        slot[order] = linked_slots
    return Layout(slot, size, alone, _weakening(slot, size, alone, length, alive))


def _in_order(thread: npt.NDArray[np.uint64], created_at: Integers, number: Integers) -> Integers | None:
    """Positions by (thread, created_at, number), None: as they are. Most spaces need no sorting, or only by thread."""
    if (number[1:] > number[:-1]).all() and (created_at[1:] >= created_at[:-1]).all():
        return None if (thread[1:] == thread[:-1]).all() else np.argsort(thread, kind="stable")
    return np.lexsort((number, created_at, thread))


def _weakening(slot: Integers, size: int, alone: int, length: npt.NDArray[Any], alive: Bools) -> Floats:
    lengths: Floats = np.zeros(size, dtype=np.float32)
    lengths[slot] = length
    if not alive.all():
        lengths[slot[~alive]] = 0
    around = lengths + 1
    for offset in range(1, LENGTH_REACH + 1):
        around[offset:alone] += lengths[: max(alone - offset, 0)]
        around[: max(alone - offset, 0)] += lengths[offset:alone]
    mean = float(around.take(slot)[alive].mean()) if alive.any() else 1.0
    around *= np.float32(TENTHS * SATURATION * LENGTH_SHARE / mean)
    around += np.float32(TENTHS * SATURATION * (1 - LENGTH_SHARE))
    return around


def lexical(documents: Documents, postings: Sequence[Posting]) -> Floats:
    """The score of each document, (n,): 0 without a hit in itself or in its neighbours, without an upper bound."""
    layout = documents.layout
    total: Floats = np.zeros(layout.size, dtype=np.float32)
    count = int(np.count_nonzero(documents.alive))
    hits = np.zeros(layout.size, dtype=np.uint8)
    scratch = np.empty((2, layout.size), dtype=np.float32)
    for posting in postings:
        found = len(posting.positions)
        if not found:
            continue
        rarity = np.log1p(RARITY * max(count - found + 0.5, 0.5) / (found + 0.5))
        weight = np.float32(posting.weight * rarity * (SATURATION + 1))
        slots = layout.slot[posting.positions]
        if found < FEW_HITS * layout.size:
            _add_few(total, hits, layout, posting, slots, weight)
        else:
            _add_many(total, hits, layout, posting, slots, weight, scratch)
    return total.take(layout.slot)


def _add_many(
    total: Floats,
    hits: npt.NDArray[np.uint8],
    layout: Layout,
    posting: Posting,
    slots: Integers,
    weight: np.float32,
    scratch: Floats,
) -> None:
    times = np.minimum(posting.times, MOST_TIMES)
    hits[:] = 0
    hits[slots] = times
    spread = _triangle(hits[: layout.alone])
    hits *= TENTHS // 2
    hits[: layout.alone] += spread
    hits[layout.alone :] *= 2
    if posting.named.any():
        hits[slots[posting.named]] += np.uint8(TENTHS)
    gain, divisor = scratch
    np.copyto(gain, hits, casting="unsafe")
    np.add(gain, layout.weakening, out=divisor)
    gain /= divisor
    gain *= weight
    total += gain
    hits[:] = 0


def _triangle(hits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Each hit as 5 where it stands and 4, 3, 2, 1 on both sides: a run of five ones over a run of five ones."""
    spread = np.zeros_like(hits)
    spread[:-REACH] = _fives(_fives(hits))[REACH:]
    return spread


def _fives(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The sum of each value and the four before it."""
    pairs = values.copy()
    pairs[1:] += values[:-1]
    sums = pairs.copy()
    sums[2:] += pairs[:-2]
    sums[4:] += values[:-4]
    return sums


_OFFSETS = np.arange(-REACH, REACH + 1)
_SHARES = np.array([1, 2, 3, 4, TENTHS, 4, 3, 2, 1], dtype=np.uint8)


def _add_few(
    total: Floats,
    hits: npt.NDArray[np.uint8],
    layout: Layout,
    posting: Posting,
    slots: Integers,
    weight: np.float32,
) -> None:
    times = np.minimum(posting.times, MOST_TIMES)
    linked = slots < layout.alone
    around = (slots[linked, None] + _OFFSETS).ravel()
    np.add.at(hits, around, (times[linked, None] * _SHARES).ravel())
    touched = np.concatenate([around, slots[~linked]])
    hits[slots[~linked]] = times[~linked] * np.uint8(TENTHS)
    if posting.named.any():
        hits[slots[posting.named]] += np.uint8(TENTHS)
    counted = hits[touched].astype(np.float32)
    # A slot touched twice gets the same value twice: assigned, not added.
    total[touched] = total[touched] + weight * counted / (counted + layout.weakening[touched])
    hits[touched] = 0
