"""What is remembered of terms stays within its bounds."""

import numpy as np

from ricordo.search.cache import Known, Terms
from ricordo.search.scoring import Posting


def known(count: int) -> Known:
    positions = np.arange(count, dtype=np.int64)
    return Known(1, 0, count, Posting(positions, np.ones(count, dtype=np.uint8), np.zeros(count, dtype=np.bool_)))


def test_the_least_used_terms_are_forgotten_where_there_are_too_many() -> None:
    terms = Terms(10_000)
    for number in range(8):
        terms.keep({("agent", f"word {number}"): known(100)})
        terms.known(["agent"], ["word 0"])
    left = terms.known(["agent"], [f"word {number}" for number in range(8)])
    assert {term for _, term in left} == {"word 0", "word 3", "word 4", "word 5", "word 6", "word 7"}


def test_a_term_larger_than_all_the_room_is_not_kept() -> None:
    terms = Terms(10_000)
    terms.keep({("agent", "the"): known(5_000)})
    assert terms.known(["agent"], ["the"]) == {}
    terms.keep({("agent", "tea"): known(10)})
    assert terms.known(["agent", "other"], ["tea", "rain"]).keys() == {("agent", "tea")}
