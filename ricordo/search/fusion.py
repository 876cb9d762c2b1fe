"""The joint score of words, vectors, speaker and time; and the selection of the best documents.

It is pure numpy, without SQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ricordo.search import scoring
from ricordo.search.scoring import (
    Bools,
    DocumentColumns,
    FarNeighbours,
    Floats,
    Integers,
    Posting,
    SlotLayout,
)

# `bench/ranking.py` fits these numbers on two sets of conversations.
#
# The weight of the similarity in a document's score; the words have the rest. A document without a
# similarity is scored by words alone.
SIMILARITY_SHARE = 0.42
# Bonuses for a document whose speaker or time the question names. OWN_BONUS is for a user's
# document, if the question is about the user who asks. For comparison, the best score by words and
# similarity is 1.
SPEAKER_BONUS = 0.2
TIME_BONUS = 0.36
OWN_BONUS = 0.38
# A turn's similarity gets these shares of its neighbours' similarities: 0.3 from one slot away,
# 0.15 from two. An answer is about its question. So the turns right before and after a long turn
# also count 0.3, although they are more slots away.
NEARBY = (0.3, 0.15)
# The common directions of a partition are computed from a sample of its vectors, of at most
# MOST_SAMPLE. With fewer vectors than LEAST_SAMPLE there are no common directions.
LEAST_SAMPLE = 100
MOST_SAMPLE = 2048
DIRECTIONS = 3
_ROUNDS = 8
# Top-k search: split the scores into groups, and search only the best of each group. The number of
# groups depends on k, and their size is limited.
GROUPS = 4
LARGEST_GROUP = 64
# Ranks are counted from the lowest score up. Once fewer than one in this many scores is better,
# only the better ones are kept for the next counts.
FEW_AHEAD = 8


# The decimal places of a similarity. Later digits depend on the machine, and on how many products
# are computed at once.
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class CommonDirections:
    """The common part of vectors: their `mean` (d,) and main `directions` (3, d).

    In these directions the vectors differ most, but the directions seldom express a subject.
    """

    mean: Floats
    directions: Floats


@dataclass(frozen=True, slots=True)
class Similarities:
    """Similarities (m,) of the documents at these ascending, unique positions (m,).

    Similarities of all other documents are unknown.
    """

    positions: Integers
    values: Floats

    def __len__(self) -> int:
        return len(self.positions)

    def rounded(self) -> "Similarities":
        """Return the similarities without their last digits.

        The last digits depend on the number of vectors that are compared at once. That number
        would tell a user about texts that the user may not see.
        """
        return Similarities(self.positions, np.round(self.values, _DIGITS))

    def of_texts(self, documents: DocumentColumns) -> "Similarities":
        """Return the similarity of each text, computed from its parts, at its first position.

        Args:
            documents: The documents of the searched view, which know the parts of texts.
        """
        if documents.starts is None or not len(self):
            return self
        firsts = documents.first_of(self.positions)
        begins = np.flatnonzero(np.append(True, firsts[1:] != firsts[:-1]))
        counts = np.diff(np.append(begins, len(firsts)))
        mean = np.add.reduceat(self.values, begins) / counts
        best = np.maximum.reduceat(self.values, begins)
        values = mean * np.float32(scoring.MEAN_SHARE) + best * np.float32(1 - scoring.MEAN_SHARE)
        return Similarities(firsts[begins], values.astype(np.float32))

    def where(self, mask: Bools) -> "Similarities":
        """Return the similarities of the documents for which the mask is true.

        Args:
            mask: One value for each document, (n,).
        """
        is_kept = mask[self.positions]
        return Similarities(self.positions[is_kept], self.values[is_kept])

    def at(self, positions: Integers) -> Floats:
        """Return the similarities at these positions (k,); -inf if unknown.

        Args:
            positions: Positions of documents.
        """
        if not len(self):
            return np.full(len(positions), -np.inf, dtype=np.float32)
        indexes = np.searchsorted(self.positions, positions)
        indexes[indexes == len(self)] = 0
        return np.where(
            self.positions[indexes] == positions, self.values[indexes], np.float32(-np.inf)
        )


NO_SIMILARITIES = Similarities(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))


def joined(parts: Sequence[Similarities]) -> Similarities:
    """Join the similarities of several partitions, whose positions follow one another.

    Args:
        parts: The similarities of each partition, in the order of the partitions.
    """
    if len(parts) < 2:
        return parts[0] if parts else NO_SIMILARITIES
    return Similarities(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def common_of(vectors: npt.NDArray[Any]) -> CommonDirections | None:
    """Return the common part of vectors (m, d); None if there are too few of them.

    Equal vectors always give the same result.

    Args:
        vectors: Vectors of documents, of one embedding.
    """
    count, dimensions = vectors.shape
    if count < LEAST_SAMPLE or dimensions <= DIRECTIONS:
        return None
    sample = vectors[:: -(-count // MOST_SAMPLE)].astype(np.float32)
    mean = sample.mean(axis=0)
    centred = sample - mean
    # Subspace iteration: a few narrow products. A full decomposition of 1,536 dimensions would take
    # seconds.
    basis = np.linalg.qr(centred[:: max(len(centred) // (2 * DIRECTIONS), 1)][: 2 * DIRECTIONS].T)[
        0
    ]
    for _ in range(_ROUNDS):
        basis = np.linalg.qr(centred.T @ (centred @ basis))[0]
    _, _, rotation = np.linalg.svd(centred @ basis, full_matrices=False)
    return CommonDirections(
        mean, np.ascontiguousarray((basis @ rotation.T).T[:DIRECTIONS], dtype=np.float32)
    )


def focus(query: Floats, common: CommonDirections | None) -> Floats:
    """Return the query's vector without the vectors' common part.

    The product of a document's vector and the result tells how similar their subjects are.

    Args:
        query: The query's vector (d,), of length 1.
        common: The common part of the vectors to compare; None returns `query` itself.
    """
    if common is None:
        return query
    rest = query - common.mean
    return np.asarray(rest - (common.directions @ rest) @ common.directions, dtype=np.float32)


def speaks(documents: DocumentColumns, postings: Sequence[Posting]) -> Bools | None:
    """Mark the documents whose speaker these terms name, (n,); None if no speaker is named.

    Args:
        documents: The documents.
        postings: The postings of the query's terms.
    """
    spreads = [
        posting.spread.is_named
        for posting in postings
        if posting.spread and posting.spread.is_named is not None
    ]
    name_postings = [posting for posting in postings if not posting.spread and posting.named.any()]
    if len(spreads) == 1 and not name_postings:
        return spreads[0]
    if not (spreads or name_postings):
        return None
    spoken: Bools = np.zeros(len(documents), dtype=np.bool_)
    for others in spreads:
        spoken |= others
    for posting in name_postings:
        spoken[posting.positions[posting.named]] = True
    return spoken


def fuse(
    documents: DocumentColumns,
    lexical: Floats,
    similar: Similarities | None = None,
    times: Sequence[tuple[int, int]] = (),
    spoken: Bools | None = None,
    may: Bools | None = None,
    bonuses: Floats | None = None,
) -> Floats:
    """Return the score of each document (n,): about 1 for the best, plus bonuses.

    The score of a text in parts is at its first position; the other positions have 0.

    Args:
        documents: The n documents of the searched view.
        lexical: Scores by words (n,), as `scoring.lexical` returns them.
        similar: Similarities of some documents; None if nothing is embedded.
        times: Ranges [start, end) in microseconds UTC that the query names.
        spoken: Marks the documents of a speaker whom the query names (n,); None: no speaker is
            named.
        may: Marks the documents that the filters allow (n,). The best scores are sought among these
            only. None allows all that are not deleted.
        bonuses: Further bonuses by document (n,), which only hits get.
    """
    if may is None and not documents.is_whole:
        may = documents.alive
    lexical = documents.text_scores(lexical)
    best = float(lexical.max(initial=0) if may is None else lexical.max(where=may, initial=0))
    if similar is None:
        compared = None
    else:
        compared = scaled(documents, similar, may)
    score: Floats = lexical * np.float32(1 / (best or 1))
    is_hit = score > 0
    if compared is not None:
        is_hit[compared.positions] = True
        # A new document has no vector yet, so its score by words keeps its full weight.
        score[compared.positions] *= np.float32(1 - SIMILARITY_SHARE)
    if spoken is not None:
        score += np.float32(SPEAKER_BONUS) * spoken
    if times:
        score[within(documents.created_at, times)] += np.float32(TIME_BONUS)
    if bonuses is not None:
        # A document that has only such a bonus is no hit.
        score += bonuses * is_hit
    if compared is not None:
        # If no document matches by words, only similarity counts; the bonuses do not change.
        score[compared.positions] += np.float32(SIMILARITY_SHARE if best else 1) * compared.values
    score *= documents.worth
    if documents.starts is not None:
        scores_of_texts = np.zeros_like(score)
        scores_of_texts[documents.starts] = score[documents.starts]
        return scores_of_texts
    return score


def within(created_at: Integers, times: Sequence[tuple[int, int]]) -> Bools:
    """Mark the documents whose times lie in one of the ranges, (n,).

    Args:
        created_at: The times of the documents in microseconds UTC (n,).
        times: Ranges [start, end) in microseconds UTC; without any, nothing is marked.
    """
    within: Bools = np.zeros(len(created_at), dtype=np.bool_)
    for start, end in times:
        within |= (created_at >= start) & (created_at < end)
    return within


def scaled(
    documents: DocumentColumns, similar: Similarities, may: Bools | None
) -> Similarities | None:
    """Return the similarities of texts with shares of their neighbours, scaled to 0..1.

    Args:
        documents: The n documents of the searched view.
        similar: The similarities of some documents, or of parts of texts.
        may: Marks the documents that the filters allow (n,); None allows all.

    Returns:
        The similarities at the first positions of the allowed texts; None if there are none.
    """
    visible = similar if may is None else similar.where(may)
    if not len(visible):
        return None
    compared = len(documents) if may is None else np.count_nonzero(may)
    # `usual` is the similarity that is assumed for documents that were not compared. If only the
    # most similar ones were compared, the others are at most as similar as the last of these.
    if 2 * len(visible) >= compared:
        usual = visible.values.mean()
    else:
        usual = visible.values.min()
    smoothed = _smooth(documents.layout, visible.positions, visible.values - usual)
    whole = Similarities(visible.positions, smoothed).of_texts(documents)
    smoothed = whole.values
    if documents.far is not None:
        alone = Similarities(visible.positions, visible.values - usual).of_texts(documents)
        smoothed = smoothed + np.float32(NEARBY[0]) * _of_far_neighbours(documents.far, alone)
    low = smoothed.min()
    high = smoothed.max()
    if high == low:
        return Similarities(whole.positions, np.ones(len(whole), dtype=np.float32))
    # The least similar document gets slightly more than 0, so that it is still a hit, as the last.
    return Similarities(
        whole.positions, np.maximum((smoothed - low) / (high - low), np.float32(1e-6))
    )


def _of_far_neighbours(far: FarNeighbours, similarities: Similarities) -> Floats:
    """Return the sum of the similarities of each text's far neighbours; unknown ones count 0."""
    # NO_NEIGHBOUR is -1, so a missing neighbour reads the last number, which stays 0.
    known: Floats = np.zeros(len(far.before) + 1, dtype=np.float32)
    known[similarities.positions] = similarities.values
    positions = similarities.positions
    return known[far.before[positions]] + known[far.after[positions]]


def _smooth(layout: SlotLayout, positions: Integers, similarities: Floats) -> Floats:
    """Add shares of the neighbours to the known similarities."""
    slots: Floats = np.zeros(layout.size, dtype=np.float32)
    slot = layout.slot[positions]
    slots[slot] = similarities
    smoothed = similarities.copy()
    is_linked = slot < layout.alone
    linked = slot[is_linked]
    for offset, share in enumerate(NEARBY, 1):
        smoothed[is_linked] += (slots[linked - offset] + slots[linked + offset]) * np.float32(share)
    return smoothed


def top(documents: DocumentColumns, scores: Floats, mask: Bools | None, k: int) -> Integers:
    """Return the positions of the k best scores above 0, best first.

    Among equal scores the newest document comes first.

    Args:
        documents: The n documents of the searched view.
        scores: Their scores (n,).
        mask: Marks the documents that are allowed (n,); None allows all.
        k: The most positions.
    """
    if mask is not None:
        allowed = np.flatnonzero(mask)
        best = allowed[_best(scores[allowed], k)]
    else:
        best = _best(scores, k)
    order = np.lexsort((-documents.number[best], -documents.created_at[best], -scores[best]))
    return best[order[:k]]


def _best(scores: Floats, k: int) -> Integers:
    """Return the positions of the k best scores above 0, including ties and perhaps a few more."""
    threshold = bar(scores, k) if 0 < k < len(scores) else 0
    return np.flatnonzero(scores >= threshold if threshold > 0 else scores > 0)


def bar(scores: Floats, k: int) -> np.float32:
    """Return a threshold that at least k of the scores reach, but not many more.

    It is the k-th best among the best scores of many groups.

    Args:
        scores: More than k scores (n,).
        k: A number above 0.
    """
    size = min(len(scores) // (GROUPS * k), LARGEST_GROUP)
    if size > 1:
        count = len(scores) // size
        scores = np.append(
            scores[: count * size].reshape(size, count).max(axis=0), scores[count * size :]
        )
    return np.float32(np.partition(scores, len(scores) - k)[len(scores) - k])


def ranks(
    best: Integers, may: Bools | None, lexical: Floats, similar: Similarities | None
) -> list[tuple[int | None, int | None]]:
    """Return the ranks of these positions by words and by similarity.

    A rank counts from 1 among the visible documents. It is None if the document was not found by
    words, or by similarity.

    Args:
        best: The positions whose ranks are wanted.
        may: Marks the visible documents (n,); None: all.
        lexical: Scores of texts by words (n,); 0 means no hit.
        similar: Similarities of texts; None if nothing is embedded.
    """
    by_words = _ranks(lexical[best], lexical, may, 0.0)
    if similar is None:
        return [(rank, None) for rank in by_words]
    visible = similar if may is None else similar.where(may)
    return list(zip(by_words, _ranks(visible.at(best), visible.values, None, -np.inf), strict=True))


def _ranks(few_scores: Floats, scores: Floats, may: Bools | None, none: float) -> list[int | None]:
    """Return the rank of each of a few scores among all scores; None for those not above `none`."""
    ranks: dict[float, int] = {}
    # Start with the lowest score. Only the scores above it can be above the next one.
    for score in sorted({score for score in few_scores.tolist() if score > none}):
        better = scores > score
        if may is not None:
            better &= may
        count = int(np.count_nonzero(better))
        ranks[score] = 1 + count
        if FEW_AHEAD * count < len(scores):
            scores = scores[better]
            may = None
    return [ranks.get(score) for score in few_scores.tolist()]
