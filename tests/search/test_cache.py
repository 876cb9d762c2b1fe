"""Caches stay within their limits."""

from operator import itemgetter

from ricordo.search.reader import SizedCache


def test_the_least_recently_used_are_dropped_where_there_are_too_many() -> None:
    cache = SizedCache(600)
    for number in range(8):
        cache.put(("agent", f"word {number}"), number, 100)
        cache.get(("agent", "word 0"))
    left = [number for number in range(8) if cache.get(("agent", f"word {number}")) is not None]
    assert left == [0, 3, 4, 5, 6, 7]
    cache.put(("agent", "word 7"), 70, 550)
    assert [cache.get(("agent", f"word {number}")) for number in (0, 7)] == [None, 70]


def test_what_is_used_together_is_never_dropped_for_its_own() -> None:
    cache = SizedCache(100, group=itemgetter(1))
    cache.put(("vectors", 1), "one", 60)
    cache.put(("documents", 2), "two", 60)
    assert cache.get(("vectors", 1)) is None
    cache.put(("view", 2), "view", 90)
    assert (cache.get(("documents", 2)), cache.get(("view", 2))) == ("two", "view")
