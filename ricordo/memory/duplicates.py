"""Duplicates in an archive: passages with the same words as a new text, or nearly the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ricordo.domain.passage import Archive
from ricordo.memory.recall import Recall
from ricordo.search.index import PassageFilter
from ricordo.search.words import terms

# Of all words of two texts, as many are in both.
NEARLY_THE_SAME = 0.8
_LOOKED_AT = 10


@dataclass(frozen=True, slots=True)
class KnownPassage:
    """A text that is in the archive, or on its way there. `created_at` is None while it waits for its step to be saved."""

    id: str
    text: str
    tags: tuple[str, ...]
    created_at: int | None = None


@dataclass(frozen=True, slots=True)
class Likeness:
    """The existing text that is most like another; `is_same` where they differ in white space at most.

    `is_kept` where it has all the tags of the other besides.
    """

    existing: KnownPassage
    is_same: bool = False
    is_kept: bool = False


async def passages_like(
    recall: Recall, archives: Sequence[Archive], text: str, user_id: str | None = None
) -> list[KnownPassage]:
    """The passages of these archives that may be like the text: those its own words find first.

    With `user_id` only those about this user and those about nobody in particular.
    """
    wanted = PassageFilter(tuple(archive.id for archive in archives), user_id=user_id)
    found = await recall.passages(text, wanted, _LOOKED_AT, "fts") if archives else []
    return [KnownPassage(hit.passage.id, hit.passage.text, hit.passage.tags, hit.passage.created_at) for hit in found]


def most_alike(text: str, tags: Sequence[str], existing: Iterable[KnownPassage]) -> Likeness | None:
    """The text that says the same, or nearly the same in most of its words; None where there is none."""
    words, plain = set(terms(text)), text.split()
    best: tuple[float, Likeness] | None = None
    for other in existing:
        if other.text.split() == plain:
            is_kept = set(tags) <= set(other.tags)
            overlap, likeness = 2.0 + is_kept, Likeness(other, is_same=True, is_kept=is_kept)
        else:
            theirs = set(terms(other.text))
            overlap, likeness = len(words & theirs) / max(len(words | theirs), 1), Likeness(other)
        if overlap >= NEARLY_THE_SAME and (best is None or overlap > best[0]):
            best = overlap, likeness
    return best[1] if best else None
