"""Lexical scores of documents in pure numpy, without SQL.

Similarities and the final order are in `fusion.py`. A word in one turn also counts for the turns
around it, because an answer seldom repeats the words of its question. So a search spreads each hit
to the neighbouring turns, and the index stores nothing about neighbours. The share of a neighbour
depends on the distance in words. A short turn usually answers the turn before it, but a page of
text is understood alone. To measure distances, documents are laid out in slots of `SLOT_WORDS`
words. The turns of a session follow each other; a few empty slots separate sessions and surround a
long text. With this layout, spreading is a sum of shifted arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

# The `form` of a record. Its lowest bit is set if the text ends with a question. The other bits are
# the number of the part, counted from 1, or 0 for an uncut text. The parts of a text have
# consecutive positions.
ASKS = 1
PART_SHIFT = 1
# A longer pause (microseconds) between two turns begins another session. A turn after it seldom
# answers a turn before it.
PAUSE = 3 * 60 * 60 * 1_000_000
NO_CONVERSATION = 0
# The words in a slot, which is about a short turn. Distances are measured between the middles of
# two turns.
SLOT_WORDS = 35
# The reach of a hit, in slots. A hit counts fully for its turn. For turns that are one, two, three
# or four slots away it counts 0.4, 0.3, 0.2 or 0.1. Counts are stored in tenths.
REACH = 4
TENTHS = 10
# The most repeats of a word that raise the score. With this limit, the sums of hits in this module
# fit into a byte.
MOST_TIMES = 8
# Parameters of BM25: how soon repeats stop counting, and how much length weakens a hit.
SATURATION = 1.2
LENGTH_SHARE = 0.75
# The bit that marks a hit in the speaker's name.
_NAMED = 128
# A term may have fewer hits than this share of all slots. Then it is faster to update only the
# slots around its hits.
FEW_HITS = 1 / 256
# A question is seldom the answer to another question. So the score of a text that ends with a
# question mark is lowered by this share. For a text of more than QUESTION_WORDS words, the share
# shrinks in proportion to the length.
QUESTION_MALUS = 0.17
QUESTION_WORDS = 20
# The score of a long text is a mixture: this share of the mean of its parts, and the rest of its
# best part. This holds by words and by similarity. The best part alone would favour long texts,
# since one of many parts is more likely to be good by chance.
MEAN_SHARE = 0.5
# A text's similarity gets shares from this many slots on both sides.
SIMILARITY_REACH = 2
NO_NEIGHBOUR = -1


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The positions of documents in slots.

    `slot` holds the slot of each position. There are `size` slots. From `alone` on, slots have no
    neighbours. `weakening` holds the length term of BM25 for each slot.
    """

    slot: Integers
    size: int
    alone: int
    weakening: Floats


@dataclass(frozen=True, slots=True)
class FarNeighbours:
    """Turns that follow each other in a session, but are too far apart for neighbouring slots.

    `before` and `after` (n,) map the first position of a text to that of its neighbour. They hold
    NO_NEIGHBOUR where there is none.
    """

    before: Integers
    after: Integers


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """A partition's documents by position.

    `count` of them are `alive`. `worth` is a factor for a document's score. If any text is in
    parts, `starts` has the first positions of all texts. `far` has the neighbours that are far
    apart. If no text is in parts, both are None.
    """

    number: Integers
    created_at: Integers
    alive: Bools
    worth: Floats
    count: int
    layout: SlotLayout
    starts: Integers | None = None
    far: FarNeighbours | None = None

    def __len__(self) -> int:
        return len(self.number)

    @property
    def is_whole(self) -> bool:
        """Return True if none of the documents is deleted."""
        return self.count == len(self.number)

    def first_of(self, positions: Integers) -> Integers:
        """Return the first position of the text at each position.

        Args:
            positions: Positions of any parts (m,). The result has the same order.
        """
        if self.starts is None:
            return positions
        return self.starts[np.searchsorted(self.starts, positions, side="right") - 1]

    def end_of(self, start: int) -> int:
        """Return the position after the last part of the text that starts here.

        Args:
            start: The position of a text's first part.
        """
        if self.starts is None:
            return start + 1
        index = int(np.searchsorted(self.starts, start, side="right"))
        return int(self.starts[index]) if index < len(self.starts) else len(self)

    def best_parts(self, scores: Floats) -> Floats:
        """Return the best score of each text's parts at its first position, elsewhere 0.

        Args:
            scores: The scores of all positions (n,).
        """
        if self.starts is None:
            return scores
        best: Floats = np.zeros(len(self), dtype=np.float32)
        best[self.starts] = np.maximum.reduceat(scores, self.starts)
        return best

    def text_scores(self, scores: Floats) -> Floats:
        """Return the score of each text at its first position, elsewhere 0.

        It combines the best and the mean score of the parts.

        Args:
            scores: A score for each part, (n,).
        """
        if self.starts is None:
            return scores
        of_texts: Floats = np.zeros(len(self), dtype=np.float32)
        best = np.maximum.reduceat(scores, self.starts)
        counts = np.diff(np.append(self.starts, len(self))).astype(np.float32)
        mean = np.add.reduceat(scores, self.starts) / counts
        of_texts[self.starts] = best * np.float32(1 - MEAN_SHARE) + mean * np.float32(MEAN_SHARE)
        return of_texts


@dataclass(frozen=True, slots=True)
class Spread:
    """The scores of a frequent term for all documents.

    `gain` is the score of each slot. `is_named` marks documents whose speaker's name contains the
    term (None: no document).
    """

    gain: Floats
    is_named: Bools | None


@dataclass(frozen=True, slots=True)
class Posting:
    """A term's documents: positions, counts in the text, and hits in the speaker's name.

    A frequent term may have a `spread`. For its rarity, the term counts as occurring in at least
    `least_count` documents. With that, a related word never weighs more than the query's word.
    """

    positions: npt.NDArray[Any]
    times: npt.NDArray[np.uint8]
    named: Bools
    weight: float = 1.0
    spread: Spread | None = None
    least_count: int = 0


def documents_of(records: npt.NDArray[np.void], alive: Bools) -> DocumentColumns:
    """Return the columns of records, with the layout of their turns.

    Deleted documents have no neighbours.

    Args:
        records: The records (n,), in the order of their positions. Each has number, created_at,
            conversation, length (in words) and form.
        alive: False for deleted documents, (n,).
    """
    number = records["number"].astype(np.int64)
    created_at = records["created_at"].astype(np.int64)
    length = records["length"].astype(np.float32)
    asks = (records["form"] & ASKS).astype(np.bool_)
    worth: Floats = np.ones(len(records), dtype=np.float32)
    worth[asks] -= np.float32(QUESTION_MALUS) * np.minimum(
        np.float32(1), QUESTION_WORDS / np.maximum(length[asks], 1)
    )
    count = int(np.count_nonzero(alive))
    conversation = records["conversation"].astype(np.uint64)
    order = _order(conversation, created_at, number)
    slot, alone, size = _arrange(order, conversation, created_at, length=length, alive=alive)
    starts = _starts(number, records["form"] >> np.uint8(PART_SHIFT))
    weakening = _weakening(slot, size, alone, length=length, alive=alive)
    return DocumentColumns(
        number=number,
        created_at=created_at,
        alive=alive,
        worth=worth,
        count=count,
        layout=SlotLayout(slot, size, alone, weakening),
        starts=starts,
        far=_far_neighbours(order, conversation, created_at, starts=starts, slot=slot, alive=alive),
    )


def _far_neighbours(
    order: Integers | None,
    conversation: npt.NDArray[np.uint64],
    created_at: Integers,
    *,
    starts: Integers | None,
    slot: Integers,
    alive: Bools,
) -> FarNeighbours | None:
    """Find turns of a session that follow each other, but more than `SIMILARITY_REACH` apart."""
    if starts is None:
        return None
    if order is None:
        order = np.arange(len(slot))
    order = order[alive[order]]
    first = starts[np.searchsorted(starts, order, side="right") - 1]
    conversations = conversation[order]
    is_pair = (
        (first[1:] != first[:-1])
        & (conversations[1:] == conversations[:-1])
        & (conversations[1:] != NO_CONVERSATION)
        & (np.diff(created_at[order]) <= PAUSE)
        & (np.abs(np.diff(slot[order])) > SIMILARITY_REACH)
    )
    earlier = first[:-1][is_pair]
    later = first[1:][is_pair]
    before = np.full(len(slot), NO_NEIGHBOUR, dtype=np.int64)
    after = before.copy()
    before[later] = earlier
    after[earlier] = later
    return FarNeighbours(before, after)


def _starts(number: Integers, part: npt.NDArray[np.uint8]) -> Integers | None:
    """Return the first positions of all texts; None if each text has only one position.

    While the parts of a text are being deleted, its first remaining part may be a later one.
    """
    if not part.any():
        return None
    begins = part <= 1
    begins[1:] |= number[1:] != number[:-1]
    begins[:1] = True
    return np.flatnonzero(begins)


def _arrange(
    order: Integers | None,
    conversation: npt.NDArray[np.uint64],
    created_at: Integers,
    *,
    length: Floats,
    alive: Bools,
) -> tuple[Integers, int, int]:
    """Lay out documents by conversation, time and number; `order` is this order.

    Returns the slot of each position, the first slot without neighbours, and the number of slots.
    """
    if order is None:
        order = np.arange(len(conversation))
    if not alive.all():
        order = order[alive[order]]
    conversations = conversation[order]
    times = created_at[order]
    lengths = length[order]
    # The distances in slots, from the middle of one text to the middle of the next.
    steps = np.rint((lengths[1:] + lengths[:-1]) / np.float32(2 * SLOT_WORDS)).astype(np.int64)
    begins = np.ones(len(order) + 1, dtype=np.bool_)
    begins[1:-1] = (
        (conversations[1:] != conversations[:-1])
        | (times[1:] - times[:-1] > PAUSE)
        | (conversations[1:] == NO_CONVERSATION)
        | (steps > REACH)
    )
    is_linked = ~(begins[1:] & begins[:-1])
    linked = order[is_linked]
    gaps = np.full(len(order), REACH + 1, dtype=np.int64)
    gaps[1:][~begins[1:-1]] = np.maximum(steps, 1)[~begins[1:-1]]
    linked_gaps = gaps[is_linked]
    linked_gaps[:1] = REACH
    linked_slots = np.cumsum(linked_gaps)
    alone = int(linked_slots[-1]) + 1 + REACH if len(linked) else REACH
    size = alone + len(conversation) - len(linked)
    if len(linked) == len(conversation) and (linked[1:] > linked[:-1]).all():
        return linked_slots, alone, size
    others = np.ones(len(conversation), dtype=np.bool_)
    others[linked] = False
    slot = np.empty(len(conversation), dtype=np.int64)
    slot[linked] = linked_slots
    slot[others] = np.arange(alone, size)
    return slot, alone, size


def _order(
    conversation: npt.NDArray[np.uint64], created_at: Integers, number: Integers
) -> Integers | None:
    """Return the positions sorted by (conversation, created_at, number).

    Most partitions need no sorting, or only by conversation. Returns None if all documents have one
    conversation and are in this order already.
    """
    is_by_time = (number[1:] > number[:-1]).all() and (created_at[1:] >= created_at[:-1]).all()
    if not is_by_time:
        return np.lexsort((number, created_at, conversation))
    if (conversation[1:] == conversation[:-1]).all():
        return None
    return np.argsort(conversation, kind="stable")


def _weakening(
    slot: Integers, size: int, alone: int, *, length: npt.NDArray[Any], alive: Bools
) -> Floats:
    """Return the length term of BM25 for each slot.

    It compares the words of a document and of its neighbours with the mean. The neighbours' words
    count with the same shares as their hits.
    """
    lengths: Floats = np.zeros(size, dtype=np.float32)
    lengths[slot] = length
    if not alive.all():
        lengths[slot[~alive]] = 0
    around = lengths.copy()
    for offset in range(1, REACH + 1):
        lengths_shared = lengths[:alone] * np.float32((REACH + 1 - offset) / TENTHS)
        around[offset:alone] += lengths_shared[: alone - offset]
        around[: alone - offset] += lengths_shared[offset:]
    around += 1
    word_count = float(around.take(slot).sum(where=alive, dtype=np.float64))
    count = int(np.count_nonzero(alive))
    around *= np.float32(TENTHS * SATURATION * LENGTH_SHARE * max(count, 1) / (word_count or 1))
    around += np.float32(TENTHS * SATURATION * (1 - LENGTH_SHARE))
    return around


def lexical(documents: DocumentColumns, postings: Sequence[Posting]) -> Floats:
    """Return the score of each document, (n,).

    It is 0 if neither the document nor its neighbours have a hit. It has no upper bound.

    Args:
        documents: The documents.
        postings: The postings of the query's terms with their weights; each may be cached as a
            spread.
    """
    layout = documents.layout
    total: Floats = np.zeros(layout.size, dtype=np.float32)
    hits = np.zeros(layout.size, dtype=np.uint8)
    scratch = np.empty((2, layout.size), dtype=np.float32)
    for posting in postings:
        hit_count = len(posting.positions)
        if not hit_count:
            continue
        counted = max(hit_count, posting.least_count)
        weight = np.float32(posting.weight * rarity(documents, counted) * (SATURATION + 1))
        if posting.spread:
            total += np.multiply(posting.spread.gain, weight, out=scratch[0])
        elif hit_count < FEW_HITS * layout.size:
            _add_few(total, hits, layout, posting=posting, weight=weight)
        else:
            gain = _gain(layout, posting, hits, scratch)
            gain *= weight
            total += gain
    return total.take(layout.slot)


def rarity(documents: DocumentColumns, hit_count: int) -> float:
    """Return the weight of a term in `hit_count` documents.

    It is roughly the score of a document that contains the term once.

    Args:
        documents: The documents of the searched view.
        hit_count: The number of documents with the term.
    """
    other_count = max(documents.count - hit_count + 0.5, 0.5)
    return float(np.log1p(other_count / (hit_count + 0.5)))


def spread_of(documents: DocumentColumns, posting: Posting) -> Spread:
    """Return the posting's scores for all documents.

    Without caching, a search for a frequent term spends most of its time on this.

    Args:
        documents: The documents.
        posting: The posting of one term, without its weight.
    """
    size = documents.layout.size
    scratch = np.empty((2, size), dtype=np.float32)
    gain = _gain(documents.layout, posting, np.zeros(size, dtype=np.uint8), scratch).copy()
    is_named: Bools | None = None
    if posting.named.any():
        is_named = np.zeros(len(documents), dtype=np.bool_)
        is_named[posting.positions] = posting.named
    return Spread(gain, is_named)


def _gain(
    layout: SlotLayout, posting: Posting, hits: npt.NDArray[np.uint8], scratch: Floats
) -> Floats:
    """Return the term's score for each slot, (size,), if its weight were 1.

    `scratch` (2, size) is used as working memory. `hits` (size,) must contain only zeros, and is
    set back to zeros at the end.
    """
    # Writing by index is the slow part, so the count and the mark of a name share one byte.
    slots = layout.slot.take(posting.positions)
    hits[slots] = np.minimum(posting.times, MOST_TIMES) + posting.named * np.uint8(_NAMED)
    named = (hits >> np.uint8(7)) * np.uint8(TENTHS)
    hits &= _NAMED - 1
    linked = hits[: layout.alone]
    spread = _fives(_fives(linked))
    hits *= TENTHS // 2
    linked[REACH:-REACH] += spread
    hits[layout.alone :] *= 2
    hits += named
    gain: Floats = scratch[0]
    divisor = scratch[1]
    np.copyto(gain, hits, casting="unsafe")
    np.add(gain, layout.weakening, out=divisor)
    gain /= divisor
    hits[:] = 0
    return gain


def _fives(counts: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return, for each number, its sum with the next four.

    Applied twice, a hit counts 5 in its slot, and 4, 3, 2, 1 on both sides.
    """
    pairs = counts[1:] + counts[:-1]
    return (pairs[2:] + pairs[:-2])[1:] + counts[:-REACH]


_OFFSETS = np.arange(-REACH, REACH + 1)
_SHARES = np.array([1, 2, 3, 4, TENTHS, 4, 3, 2, 1], dtype=np.uint8)


def _add_few(
    total: Floats,
    hits: npt.NDArray[np.uint8],
    layout: SlotLayout,
    *,
    posting: Posting,
    weight: np.float32,
) -> None:
    """Add the scores of a term with few hits to `total`, only in the slots that they reach."""
    slots = layout.slot.take(posting.positions)
    times = np.minimum(posting.times, MOST_TIMES)
    linked = slots < layout.alone
    around = (slots[linked, None] + _OFFSETS).ravel()
    np.add.at(hits, around, (times[linked, None] * _SHARES).ravel())
    touched = np.concatenate([around, slots[~linked]])
    hits[slots[~linked]] = times[~linked] * np.uint8(TENTHS)
    if posting.named.any():
        hits[slots[posting.named]] += np.uint8(TENTHS)
    counted = hits[touched].astype(np.float32)
    # A slot that occurs twice gets the same value twice, because it is assigned, not added.
    total[touched] = total[touched] + weight * counted / (counted + layout.weakening[touched])
    hits[touched] = 0
