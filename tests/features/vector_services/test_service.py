"""What the adapters share: batches, names, and sentences."""

import asyncio

import pytest

from ricordo.errors import Unavailable
from ricordo.features.vector_services.adapters import QdrantIndex
from ricordo.features.vector_services.service import by_size


def test_batches_keep_order_and_both_limits_and_what_is_too_large_goes_alone() -> None:
    items = ["a", "b" * 50, "c" * 500, "d", "e", "f", "g"]
    batches = list(by_size(items, 3, 60))
    assert [item for batch in batches for item in batch] == items
    assert [[item[0] for item in batch] for batch in batches] == [["a", "b"], ["c"], ["d", "e", "f"], ["g"]]
    assert list(by_size([], 3, 60)) == []


def test_a_service_is_shown_without_its_key_and_without_a_password_in_its_address() -> None:
    service = QdrantIndex("https://ada:hidden@host:6333/x?y=hidden", "hidden")
    for error in (service.unreachable(), service.refused(400, "hidden"), service.failed("hidden")):
        assert "hidden" not in str(error)
    assert str(service.unreachable()).startswith("Qdrant (host:6333) cannot be reached.")


async def test_a_failure_of_our_own_is_not_blamed_on_the_service() -> None:
    with pytest.raises(ZeroDivisionError):
        async with QdrantIndex("http://host")._request(1):
            raise ZeroDivisionError


class OneClient(QdrantIndex):
    """An adapter whose first client cannot be opened."""

    opened = closed = 0

    async def _open(self) -> "OneClient":
        await asyncio.sleep(0)
        self.opened += 1
        if self.opened == 1:
            raise Unavailable("away.")
        return self

    async def _run(self, _close: object) -> None:  # type: ignore[override]
        self.closed += 1


async def test_a_client_is_opened_once_for_all_and_again_after_a_failure() -> None:
    index = OneClient("http://host")
    with pytest.raises(Unavailable, match="away"):
        await index._opened()
    assert await asyncio.gather(*(index._opened() for _ in range(5))) == [index] * 5
    await index.close()
    await index.close()
    assert (index.opened, index.closed) == (2, 1)
    with pytest.raises(Unavailable, match="is closed"):
        await index._opened()
