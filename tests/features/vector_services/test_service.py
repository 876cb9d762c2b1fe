"""What the adapters share: batches, names, and sentences."""

import asyncio

import pytest

from ricordo.errors import Unavailable
from ricordo.features.vector_services.service import ServiceIndex, VectorService, by_size, latest, ranked, slices
from ricordo.search.vector_index import VectorRecord


def test_batches_keep_order_and_both_limits_and_what_is_too_large_goes_alone() -> None:
    items = ["a", "b" * 50, "c" * 500, "d", "e", "f", "g"]
    batches = list(by_size(items, 3, 60))
    assert [item for batch in batches for item in batch] == items
    assert [[item[0] for item in batch] for batch in batches] == [["a", "b"], ["c"], ["d", "e", "f"], ["g"]]
    assert list(by_size([], 3, 60)) == []
    assert list(slices([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]


def test_the_later_record_of_a_document_counts() -> None:
    first, second, other = VectorRecord(1, [1.0], 1), VectorRecord(1, [1.0], 2), VectorRecord(2, [1.0], 3)
    assert latest([first, other, second]) == [second, other]


def test_of_equally_near_documents_the_older_comes_first() -> None:
    assert ranked([(9, 0.5), (3, 0.5), (1, 0.7)]) == [(1, 0.7), (3, 0.5), (9, 0.5)]


def test_a_service_is_shown_without_its_key_and_without_a_password_in_its_address() -> None:
    service = VectorService("Qdrant", "https://ada:hidden@host:6333/x?y=hidden", "KEY", "PLACE", "hidden")
    assert "hidden" not in str(service.unreachable()) + str(service.refused(400, "hidden")) + str(
        service.failed("hidden")
    )
    assert str(service.unreachable()).startswith("Qdrant (host:6333) cannot be reached.")
    assert "api" not in repr(VectorService("Qdrant", "host", "K", "P", "secret-api"))


async def test_a_failure_of_our_own_is_not_blamed_on_the_service() -> None:
    service = VectorService("Qdrant", "host", "KEY", "PLACE")
    with pytest.raises(ZeroDivisionError):
        async with service.request(1, lambda _error: None):
            raise ZeroDivisionError


class OneClient(ServiceIndex):
    """An adapter whose client is a number; the first one cannot be opened."""

    def __init__(self) -> None:
        super().__init__(VectorService("Qdrant", "host", "KEY", "ADDRESS"), "ricordo", None)
        self.opened: list[int] = []
        self.closed: list[int] = []

    async def _open(self) -> int:
        await asyncio.sleep(0)
        self.opened.append(len(self.opened))
        if len(self.opened) == 1:
            raise Unavailable("away.")
        return self.opened[-1]

    async def _close(self, client: int) -> None:
        self.closed.append(client)

    def _translated(self, _error: Exception) -> None:
        return None


async def test_a_client_is_opened_once_for_all_and_again_after_a_failure() -> None:
    index = OneClient()
    with pytest.raises(Unavailable, match="away"):
        await index._opened()
    assert await asyncio.gather(*(index._opened() for _ in range(5))) == [1] * 5
    await index.close()
    await index.close()
    assert index.closed == [1]
    with pytest.raises(Unavailable, match="is closed"):
        await index._opened()
