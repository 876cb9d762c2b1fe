"""One score of what words, vectors, the speaker and the time say of a document, and the best documents: pure numpy, no SQL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ricordo.search.scoring import Bools, DocumentColumns, Floats, Integers, Posting, SlotLayout

# How much of the score is similarity, where there is any; the words have the rest.
SIMILARITY_SHARE = 0.35
# What the best score by words, 1, is compared with: being said by a speaker that the question names, or in a time it names.
SPEAKER_BONUS = 0.15
TIME_BONUS = 0.4
# What the similarity of the turn before and after, and of those beside them, adds to a turn's own.
NEARBY = (0.3, 0.15)
# What all texts of a space have in common is found from a sample of so many, and not at all from fewer than the least.
LEAST_SAMPLE = 100
MOST_SAMPLE = 2048
DIRECTIONS = 3
_ROUNDS = 8
# The best are looked for among the best of so many groups for each, of at most so many scores.
GROUPS = 4
LARGEST_GROUP = 64
# Less than one in so many is worth being taken out and counted alone.
FEW_AHEAD = 8


# Of a similarity: products of long vectors differ beyond the sixth by the machine and by how many are computed at once.
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class CommonDirections:
    """What vectors share: their `mean` (d,), and the `directions` (3, d) in which they differ most, seldom by subject."""

    mean: Floats
    directions: Floats


@dataclass(frozen=True, slots=True)
class Similarities:
    """Similarities (m,) of the documents at these positions (m, ascending, each once); of all others none is known."""

    positions: Integers
    values: Floats

    def __len__(self) -> int:
        return len(self.positions)

    def rounded(self) -> "Similarities":
        """Return them without their last digits, which depend on how many others were compared with them, also on others' texts."""
        return Similarities(self.positions, np.round(self.values, _DIGITS))

    def where(self, mask: Bools) -> "Similarities":
        kept = mask[self.positions]
        return Similarities(self.positions[kept], self.values[kept])

    def at(self, positions: Integers) -> Floats:
        """Those of these documents, (k,); less than any number where none is known."""
        if not len(self):
            return np.full(len(positions), -np.inf, dtype=np.float32)
        places = np.searchsorted(self.positions, positions)
        places[places == len(self)] = 0
        return np.where(
            self.positions[places] == positions, self.values[places], np.float32(-np.inf)
        )


NO_SIMILARITIES = Similarities(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))


def joined(parts: Sequence[Similarities]) -> Similarities:
    """Those of several spaces, the positions of each beyond those of the one before."""
    if len(parts) < 2:
        return parts[0] if parts else NO_SIMILARITIES
    return Similarities(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def common_of(vectors: npt.NDArray[Any]) -> CommonDirections | None:
    """What vectors (m, d) have in common; None where there are too few to tell. The same vectors give the same answer."""
    count, dimensions = vectors.shape
    if count < LEAST_SAMPLE or dimensions <= DIRECTIONS:
        return None
    sample = vectors[:: -(-count // MOST_SAMPLE)].astype(np.float32)
    mean = sample.mean(axis=0)
    apart = sample - mean
    # Subspace iteration: a few narrow products, where a full decomposition of 1,536 dimensions would take seconds.
    found = np.linalg.qr(apart[:: max(len(apart) // (2 * DIRECTIONS), 1)][: 2 * DIRECTIONS].T)[0]
    for _ in range(_ROUNDS):
        found = np.linalg.qr(apart.T @ (apart @ found))[0]
    _, _, turned = np.linalg.svd(apart @ found, full_matrices=False)
    return CommonDirections(
        mean, np.ascontiguousarray((found @ turned.T).T[:DIRECTIONS], dtype=np.float32)
    )


def focus(query: Floats, common: CommonDirections | None) -> Floats:
    """The query's vector (d,) without what tells nothing in this space: products with it then order documents by subject."""
    if common is None:
        return query
    rest = query - common.mean
    return np.asarray(rest - (common.directions @ rest) @ common.directions, dtype=np.float32)


def speaks(documents: DocumentColumns, postings: Sequence[Posting]) -> Bools | None:
    """Which documents are said by a speaker that these terms name, (n,); None where none is named."""
    known = [
        posting.spread.spoken
        for posting in postings
        if posting.spread and posting.spread.spoken is not None
    ]
    named = [posting for posting in postings if not posting.spread and posting.named.any()]
    if len(known) == 1 and not named:
        return known[0]
    if not (known or named):
        return None
    spoken: Bools = np.zeros(len(documents), dtype=np.bool_)
    for others in known:
        spoken |= others
    for posting in named:
        spoken[posting.positions[posting.named]] = True
    return spoken


def fuse(
    documents: DocumentColumns,
    lexical: Floats,
    similar: Similarities | None = None,
    times: Sequence[tuple[int, int]] = (),
    spoken: Bools | None = None,
    may: Bools | None = None,
) -> Floats:
    """The score of each document, about 1 for the best, plus bonuses in `times`; only those that `may` be found are compared."""
    if may is None and not documents.is_whole:
        may = documents.alive
    best = float(lexical.max(initial=0) if may is None else lexical.max(where=may, initial=0))
    compared = None if similar is None else _scaled(documents, similar, may)
    share = 1 if compared is None else 1 - SIMILARITY_SHARE
    score: Floats = lexical * np.float32(share / (best or 1))
    if spoken is not None:
        score += np.float32(share * SPEAKER_BONUS) * spoken
    if times:
        score[_within(documents.created_at, times)] += np.float32(share * TIME_BONUS)
    if compared is not None:
        # Without any hit by words the similarity is all there is, and the bonuses stay what they are.
        score[compared.positions] += np.float32(SIMILARITY_SHARE if best else 1) * compared.values
    score *= documents.worth
    return score


def _within(created_at: Integers, times: Sequence[tuple[int, int]]) -> Bools:
    within: Bools = np.zeros(len(created_at), dtype=np.bool_)
    for start, end in times:
        within |= (created_at >= start) & (created_at < end)
    return within


def _scaled(
    documents: DocumentColumns, similar: Similarities, may: Bools | None
) -> Similarities | None:
    """Similarities, helped by their neighbours', as shares of the way from the least to the most; None where there are none."""
    known = similar if may is None else similar.where(may)
    if not len(known):
        return None
    compared = len(documents) if may is None else np.count_nonzero(may)
    # Where only the most similar were compared, the others are at most as similar as the least of those.
    usual = known.values.mean() if 2 * len(known) >= compared else known.values.min()
    smoothed = _smooth(documents.layout, known.positions, known.values - usual)
    low, high = smoothed.min(), smoothed.max()
    if high == low:
        return Similarities(known.positions, np.ones(len(known), dtype=np.float32))
    # Not quite 0 for the least similar: it was found, and comes last.
    return Similarities(
        known.positions, np.maximum((smoothed - low) / (high - low), np.float32(1e-6))
    )


def _smooth(layout: SlotLayout, known: Integers, values: Floats) -> Floats:
    """The value of each known position with shares of its neighbours'; the unknown have none to give."""
    slots: Floats = np.zeros(layout.size, dtype=np.float32)
    slot = layout.slot[known]
    slots[slot] = values
    smoothed = values.copy()
    is_linked = slot < layout.alone
    linked = slot[is_linked]
    for offset, share in enumerate(NEARBY, 1):
        smoothed[is_linked] += (slots[linked - offset] + slots[linked + offset]) * np.float32(share)
    return smoothed


def top(documents: DocumentColumns, scores: Floats, mask: Bools | None, k: int) -> Integers:
    """Positions of the k best above 0 that the mask allows, best first; of equals the newest first. Without a mask, all are."""
    if mask is not None:
        allowed = np.flatnonzero(mask)
        best = allowed[_best(scores[allowed], k)]
    else:
        best = _best(scores, k)
    order = np.lexsort((-documents.number[best], -documents.created_at[best], -scores[best]))
    return best[order[:k]]


def _best(scores: Floats, k: int) -> Integers:
    """Where the k best above 0 are, with all that equal the last of them, and maybe a few more."""
    least = bar(scores, k) if 0 < k < len(scores) else 0
    return np.flatnonzero(scores >= least if least > 0 else scores > 0)


def bar(scores: Floats, k: int) -> np.float32:
    """What at least k of the scores (more than k) reach, and not many more: the k-th best of the best of each of many groups."""
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
    """For each of these positions its rank by words and by similarity among those that may be found: 1 first, None not found so."""
    by_words = _ranks(lexical[best], lexical, may, 0.0)
    if similar is None:
        return [(rank, None) for rank in by_words]
    known = similar if may is None else similar.where(may)
    return list(zip(by_words, _ranks(known.at(best), known.values, None, -np.inf), strict=True))


def _ranks(own: Floats, scores: Floats, may: Bools | None, none: float) -> list[int | None]:
    """For each of a few scores how many of all are better, and 1; None for those that are not above `none`."""
    ranks: dict[float, int] = {}
    # From the least on: what is better than it is most often little, and then all that the others must be compared with.
    for score in sorted({score for score in own.tolist() if score > none}):
        better = scores > score
        if may is not None:
            better &= may
        count = int(np.count_nonzero(better))
        ranks[score] = 1 + count
        if FEW_AHEAD * count < len(scores):
            scores, may = scores[better], None
    return [ranks.get(score) for score in own.tolist()]
