"""What is Turbopuffer's alone."""

from collections.abc import Callable
from typing import Any

import pytest

from ricordo.errors import Unavailable
from ricordo.features.vector_services.service import ServiceTimeouts
from ricordo.features.vector_services.turbopuffer import TurbopufferIndex
from ricordo.search.vector_index import VectorFilter
from tests.features.vector_services.test_vector_indexes import record, unit
from tests.support.json_server import KEY


async def test_the_clients_telemetry_stays_off_whatever_the_environment_says(
    start: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves the machine unasked: its client would report the times of earlier requests with later ones."""
    monkeypatch.setenv("TURBOPUFFER_TELEMETRY", "1")
    server = start("turbopuffer")
    index = TurbopufferIndex(KEY, server.url)
    for _ in range(3):
        await index.upsert("agent-1", "model", [record(1)])
        await index.search("agent-1", "model", unit(1), 1, VectorFilter())
    await index.close()
    assert len(server.seen) == 6
    assert not [name for seen in server.seen for name in seen.headers if "telemetry" in name or name == "x-request-id"]


async def test_a_service_that_asks_to_wait_for_long_is_not_waited_for(start: Callable[[str], Any]) -> None:
    """Its client obeys for up to half an hour, and someone waits for this search."""
    server = start("turbopuffer")
    index = TurbopufferIndex(KEY, server.url, timeouts=ServiceTimeouts(search=0.2, write=0.2))
    server.fails(429, 1, retry_after="1000")
    with pytest.raises(Unavailable, match=r"did not answer within 0\.2 seconds"):
        await index.search("agent-1", "model", unit(1), 1, VectorFilter())
    await index.close()


async def test_a_region_is_an_address() -> None:
    assert TurbopufferIndex.address("aws-us-east-1") == "https://aws-us-east-1.turbopuffer.com"
