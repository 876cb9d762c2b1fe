"""Documents that come one after the other, against all of them laid out at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.search import growing
from ricordo.search.growing import Columns, columns_of, extended
from ricordo.search.records import DOCUMENT
from ricordo.search.scoring import (
    PAUSE,
    REACH,
    Documents,
    Posting,
    documents_of,
    lexical,
)

HOUR = 3_600_000_000
Records = np.ndarray
# Thread, hour, length, whether it asks.
turns = st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 50), st.booleans())
batches = st.lists(st.lists(turns, min_size=1, max_size=5), max_size=12)


def records_of(rows: list[tuple[int, int, int, bool]], number: int = 1) -> Records:
    values = [
        (n, hour * HOUR, thread, 0, length, 2, 1, asks) for n, (thread, hour, length, asks) in enumerate(rows, number)
    ]
    return np.array(values, dtype=DOCUMENT)


def scores(documents: Documents, holders: np.ndarray) -> list[float]:
    """By two words, one that these documents hold and one that a third of them hold twice."""
    found = [
        Posting(places, np.full(len(places), times, dtype=np.uint8), np.arange(len(places)) % 2 == 0)
        for places, times in ((holders, 1), (holders[::3], 2))
    ]
    return lexical(documents, found).tolist()


@given(st.lists(turns, max_size=30), batches, st.lists(st.booleans(), min_size=30, max_size=30), st.integers(1, 7))
def test_documents_that_come_later_score_as_if_they_had_been_there(
    first: list[tuple[int, int, int, bool]],
    later: list[list[tuple[int, int, int, bool]]],
    alive: list[bool],
    every: int,
) -> None:
    records = records_of(first)
    living = np.array(alive[: len(first)], dtype=np.bool_)
    documents = documents_of(records, living)
    columns = columns_of(documents, records)
    for batch in later:
        new = records_of(batch, number=len(records) + 1)
        before, was = documents, documents.layout.slot.copy()
        grown = extended(documents, columns, new)
        records, living = np.concatenate([records, new]), np.append(living, np.ones(len(new), dtype=np.bool_))
        rebuilt = documents_of(records, living)
        if grown is None:
            documents, columns = rebuilt, columns_of(rebuilt, records)
            continue
        documents, columns, held = grown
        assert held.tobytes() == records.tobytes()
        holders = np.flatnonzero(living)[::every]
        assert scores(documents, holders) == pytest.approx(scores(rebuilt, holders), rel=1e-6)
        assert documents.number.tolist() == rebuilt.number.tolist()
        assert documents.worth.tolist() == rebuilt.worth.tolist()
        assert documents.layout.around[documents.layout.slot[living]].tolist() == (
            rebuilt.layout.around[rebuilt.layout.slot[living]].tolist()
        )
        # Who searches the shorter ones meanwhile finds them as they were.
        assert before.layout.slot.tolist() == was.tolist()


def grow(documents: Documents, records: Records, batches: list[list[tuple[int, int, int, bool]]]) -> Documents:
    columns = columns_of(documents, records)
    for batch in batches:
        grown = extended(documents, columns, records_of(batch, number=len(documents) + 1))
        assert grown is not None
        documents, columns, _ = grown
    return documents


def neighbours(documents: Documents, position: int) -> list[int]:
    """Who is reached by a hit on this document, itself included."""
    hit = Posting(np.array([position]), np.array([1], dtype=np.uint8), np.array([False]))
    return np.flatnonzero(lexical(documents, [hit])).tolist()


def alone(count: int, thread: int = 1, apart: int = 5) -> Records:
    return records_of([(thread, n * apart, 10, False) for n in range(count)])


def test_an_older_document_bridges_two_sessions() -> None:
    records = alone(2)
    documents = documents_of(records, np.ones(2, dtype=bool))
    assert neighbours(documents, 0) == [0]
    documents = grow(documents, records, [[(1, 2, 10, False)], [(1, 3, 10, False)]])
    assert neighbours(documents, 0) == [0, 1, 2, 3]


def test_a_document_without_a_thread_and_one_of_another_thread_stay_alone() -> None:
    records = alone(2, apart=1)
    documents = grow(documents_of(records, np.ones(2, dtype=bool)), records, [[(0, 1, 9, False)], [(2, 1, 9, False)]])
    assert neighbours(documents, 0) == [0, 1]
    assert neighbours(documents, 2) == [2]
    assert neighbours(documents, 3) == [3]


def test_a_long_talk_takes_few_rooms_however_it_grows() -> None:
    records = alone(4000)
    documents = documents_of(records, np.ones(4000, dtype=bool))
    rooms = len(documents.layout.rooms)
    grown = grow(documents, records, [[(9, n // 20, 10, False)] for n in range(60)])
    assert len(grown.layout.rooms) - rooms <= 7
    assert grown.layout.free - documents.layout.free <= 4 * (60 + REACH) + 7 * REACH


def test_without_room_left_everything_is_to_be_laid_out_anew() -> None:
    records = records_of([(1, 0, 10, False)] * 200)
    documents = documents_of(records, np.ones(200, dtype=bool))
    assert extended(documents, columns_of(documents, records), records_of([(1, 0, 10, False)], number=201)) is None


def test_too_many_sessions_at_once_are_laid_out_anew() -> None:
    records = alone(3)
    documents = documents_of(records, np.ones(3, dtype=bool))
    new = records_of([(7, n * 9, 1, False) for n in range(growing.MOST_CLUSTERS + 1)], number=4)
    assert extended(documents, columns_of(documents, records), new) is None


def test_a_pause_as_long_as_allowed_links_and_a_longer_one_does_not() -> None:
    records = alone(1)
    documents = documents_of(records, np.ones(1, dtype=bool))
    hours = PAUSE // HOUR
    assert neighbours(grow(documents, records, [[(1, hours, 1, False)]]), 0) == [0, 1]
    assert neighbours(grow(documents, records, [[(1, hours + 1, 1, False)]]), 0) == [0]


def test_two_who_append_to_the_same_columns_do_not_meet() -> None:
    columns, (first,) = Columns([np.arange(3)]).append(3, [np.array([3])])
    one, (longer,) = columns.append(4, [np.array([40])])
    two, (other,) = columns.append(4, [np.array([41])])
    assert one is columns is not two
    assert (first.tolist(), longer.tolist(), other.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3, 40], [0, 1, 2, 3, 41])
    assert longer.base is first.base
