"""A space as one search sees it: its merged documents and its tail as one row of arrays, with postings for a query's terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ricordo.storage.index import scoring
from ricordo.storage.index.packing import POSTING, Documents, Postings, document_records, occurrences, read_documents
from ricordo.storage.index.reading import Memory, SpaceRow
from ricordo.storage.index.tail import unpack

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class View:
    """All documents of a space that may be found, by position; `tail` holds the postings of those that are not merged yet."""

    records: Documents
    alive: Bools
    documents: scoring.Documents
    tail: Mapping[str, Postings]

    def postings(self, merged: Mapping[str, Postings], term: str) -> Postings:
        """Where the term stands, in ascending position as far as documents were merged in order."""
        found = [postings for postings in (merged.get(term), self.tail.get(term)) if postings is not None]
        if not found:
            return _NO_POSTINGS
        together = found[0] if len(found) == 1 else np.concatenate(found)
        # Postings of documents that are gone leave the blobs with the next merge; until then they are passed over here.
        return together if self.alive.all() else together[self.alive[together["position"]]]


_NO_POSTINGS = np.empty(0, dtype=POSTING)


def view_of(memory: Memory, space: SpaceRow | None, records: Documents, tail: Sequence[Any]) -> View:
    """The view of one space; the last one is kept, since most searches find nothing changed."""
    key = (space.generation if space else 0, len(records), tuple(row.space for row in tail))
    place = ("view", space.seq if space else tail[0].name)
    known = memory.get(place)
    if known and known[0] == key:
        view: View = known[1]
        return view
    view = _make(records, tail)
    memory.put(place, (key, view), view.records.nbytes + 64 * len(view.records))
    return view


def _make(merged: Documents, tail: Sequence[Any]) -> View:
    rows = [unpack(row.space, row.number, row.data) for row in tail]
    came: dict[int, Any] = {}
    gone: set[int] = set()
    for row in rows:
        if not row.is_gone:
            came[row.document] = row
        elif came.pop(row.document, None) is None:
            gone.add(row.document)
    added = list(came.values())
    records = np.concatenate([merged, document_records(added)]) if added else merged
    alive = records["alive"] == 1
    if gone:
        alive[: len(merged)] &= ~np.isin(merged["number"], list(gone))
    postings: dict[str, list[tuple[int, int]]] = {}
    for position, row in enumerate(added, len(merged)):
        for term, times in occurrences(row).items():
            postings.setdefault(term, []).append((position, times))
    by_term = {term: np.array(found, dtype=POSTING) for term, found in postings.items()}
    return View(records, alive, scoring.documents_of(records, alive), by_term)


def join_views(views: Sequence[View]) -> View:
    """Several spaces as one, in their order: searched together, they share what makes a word rare."""
    if len(views) == 1:
        return views[0]
    starts = np.cumsum([0, *(len(view.records) for view in views)])
    records = np.concatenate([read_documents(b""), *(view.records for view in views)])
    alive = records["alive"] == 1
    tail: dict[str, Postings] = {}
    for view, start in zip(views, starts, strict=False):
        alive[start : start + len(view.alive)] = view.alive
        for term, postings in view.tail.items():
            placed = moved(postings, start)
            tail[term] = np.concatenate([tail[term], placed]) if term in tail else placed
    return View(records, alive, scoring.documents_of(records, alive), tail)


def moved(postings: Postings, start: int) -> Postings:
    """The postings of a space whose documents begin at this position of a joined view."""
    placed = postings.copy()
    placed["position"] += np.uint32(start)
    return placed
