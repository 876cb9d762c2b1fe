"""The contract of a vector index, for each adapter, against a brute-force search."""

import asyncio
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ricordo.features.vector_services.adapters import QdrantIndex
from ricordo.features.vector_services.service import namespace_of
from ricordo.search.vector_index import VectorFilter, VectorIndex, VectorRecord
from tests.features.vector_services.conftest import TIMEOUTS, Kind
from tests.support.json_server import KEY, JsonServer

pytestmark = pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
ANY = VectorFilter()
NOON = 1_790_000_000_000_000  # µs UTC, in 2026


def unit(seed: int) -> list[float]:
    numbers = random.Random(seed)  # noqa: S311 - nothing secret
    values = [numbers.gauss(0, 1) for _ in range(8)]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def record(document: int, **changes: object) -> VectorRecord:
    return replace(VectorRecord(document, unit(document), NOON + document), **changes)  # type: ignore[arg-type]


def admits(wanted: VectorFilter, one: VectorRecord) -> bool:
    """Apply the filter by its definition."""
    has = [tag in one.tags for tag in wanted.tags]
    return (
        (not wanted.roles or one.role in wanted.roles)
        and wanted.conversation in (None, one.conversation)
        and (not wanted.users or one.user_id in wanted.users)
        and (not has or (all(has) if wanted.all_tags else any(has)))
        and (wanted.start is None or one.created_at >= wanted.start)
        and (wanted.end is None or one.created_at <= wanted.end)
    )


def brute_force(
    records: Iterable[VectorRecord], vector: Sequence[float], limit: int, wanted: VectorFilter
) -> list[tuple[int, float]]:
    """Filter and compare every record, and keep the best."""
    scores = [
        (one.document, sum(a * b for a, b in zip(one.vector, vector, strict=True)))
        for one in records
        if admits(wanted, one)
    ]
    return sorted(scores, key=lambda found: -found[1])[:limit]


async def require_brute_force_result(
    index: VectorIndex, records: Iterable[VectorRecord], wanted: VectorFilter = ANY, limit: int = 10
) -> list[int]:
    """Search and compare with brute force; return the documents."""
    question = unit(-1)
    found = await index.search("agent-1", "model", question, limit, wanted)
    expected = brute_force(records, question, limit, wanted)
    assert [document for document, _ in found] == [document for document, _ in expected]
    assert [score for _, score in found] == pytest.approx(
        [score for _, score in expected], abs=1e-4
    )
    return [document for document, _ in found]


async def test_an_unwritten_partition_is_empty_and_can_be_dropped(
    kind: Kind, index: VectorIndex, servers: dict[str, JsonServer]
) -> None:
    await index.upsert("agent-none", "model", [])
    await index.remove("agent-none", "model", [])
    assert await index.search("agent-none", "model", unit(1), 0, ANY) == []
    assert not kind.server or servers[kind.name].seen == []
    assert (
        await index.search("agent-none", "model", unit(1), 10, VectorFilter(roles=("user",))) == []
    )
    await index.remove("agent-none", "model", [1, 2])
    await index.drop("agent-none", "model")
    assert await index.search("agent-none", "model", unit(1), 10, ANY) == []


SPACES = [
    "x" * 300,
    "x" * 301,
    "agent ",
    *"agent-1 agent_1 Agent-1 archive-1 agent/1 agente-è - ..".split(),
]


async def test_partitions_and_models_are_separate_and_dropped_separately(
    index: VectorIndex,
) -> None:
    places = [(space, model) for space in SPACES for model in ("model", "provider/model:2")]
    for number, (space, model) in enumerate(places, start=1):
        await index.upsert(space, model, [record(number)])
    await index.drop("agent-1", "model")
    for number, (space, model) in enumerate(places, start=1):
        found = [
            document for document, _ in await index.search(space, model, unit(number), 10, ANY)
        ]
        assert found == ([] if (space, model) == ("agent-1", "model") else [number])
    await index.upsert("agent-1", "model", [record(77)])
    assert await require_brute_force_result(index, [record(77)]) == [77]


async def test_a_dropped_partition_may_return_with_another_dimension(
    kind: Kind, index: VectorIndex
) -> None:
    if kind.name == "pinecone":
        pytest.skip("a Pinecone index has one dimension")
    await index.upsert("agent-1", "model", [record(1)])
    await index.drop("agent-1", "model")
    await index.upsert("agent-1", "model", [record(1, vector=[0.6, 0.8])])
    assert await index.search("agent-1", "model", [0.6, 0.8], 5, ANY) == [
        (1, pytest.approx(1.0, abs=1e-5))
    ]


async def test_several_servers_may_create_one_partition_simultaneously(
    kind: Kind, index: VectorIndex, servers: dict[str, JsonServer]
) -> None:
    if not kind.server:
        pytest.skip("a folder belongs to one process")
    others = [kind.make(servers[kind.name].url, KEY, TIMEOUTS) for _ in range(4)]
    writers = enumerate([*others, *others], start=1)
    await asyncio.gather(
        *(other.upsert("agent-1", "model", [record(number)]) for number, other in writers)
    )
    assert (
        len(await require_brute_force_result(index, [record(number) for number in range(1, 9)]))
        == 8
    )
    for other in others:
        await other.close()


async def test_a_large_write_is_split_into_requests(
    kind: Kind, index: VectorIndex, servers: dict[str, JsonServer]
) -> None:
    size = 2_501 if kind.server else 501  # a local database accepts any number of records
    records = [record(number) for number in range(1, size + 1)]
    await index.upsert("agent-1", "model", records)
    await require_brute_force_result(index, records, VectorFilter(start=NOON + size - 101))
    await index.remove("agent-1", "model", [one.document for one in records[:-101]])
    await require_brute_force_result(index, records[-101:], limit=200)
    if kind.name == "pinecone":
        # The service refuses more than a thousand vectors in a request.
        assert [seen.path for seen in servers[kind.name].seen].count("/vectors/upsert") == 3
        assert [seen.path for seen in servers[kind.name].seen].count("/vectors/delete") == 3


async def test_a_write_of_long_metadata_is_split_by_size(
    kind: Kind, index: VectorIndex, servers: dict[str, JsonServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.name.startswith("qdrant"):
        monkeypatch.setattr(QdrantIndex, "MOST_BYTES", 2 * 1024 * 1024)
    records = [record(number, tags=(f"{number}-" + "t" * 20_000,)) for number in range(1, 251)]
    await index.upsert("agent-1", "model", records)
    await require_brute_force_result(index, records, VectorFilter(tags=(records[200].tags[0],)))
    if kind.server:
        sizes = [seen.size for seen in servers[kind.name].seen if seen.size > 100_000]
        assert len(sizes) == (5 if kind.name == "turbopuffer" else 3)
        assert max(sizes) < (1 if kind.name == "turbopuffer" else 2) * 1024 * 1024


TAGS = ("red", "blue", 'it\'s "è" $in {x}')
records_strategy = st.lists(
    st.builds(
        VectorRecord,
        document=st.integers(1, 40),
        vector=st.integers(1, 10_000).map(unit),
        created_at=st.integers(NOON, NOON + 10),
        role=st.sampled_from(["user", "assistant", ""]),
        conversation=st.sampled_from(["", "conversation-1"]),
        user_id=st.sampled_from(["", "user-1", "user-2"]),
        tags=st.lists(st.sampled_from(TAGS), unique=True).map(tuple),
    ),
    max_size=25,
)
filters_strategy = st.builds(
    VectorFilter,
    roles=st.lists(
        st.sampled_from(["user", "assistant", "", "other"]), max_size=2, unique=True
    ).map(tuple),
    conversation=st.sampled_from([None, None, "", "conversation-1"]),
    users=st.sampled_from([(), ("",), ("", "user-1"), ("user-1",)]),
    tags=st.lists(st.sampled_from(TAGS), max_size=2, unique=True).map(tuple),
    all_tags=st.booleans(),
    start=st.none() | st.integers(NOON - 1, NOON + 11),
    end=st.none() | st.integers(NOON - 1, NOON + 11),
)


@settings(max_examples=settings().max_examples // 4)
@given(
    kept=records_strategy,
    removed=st.lists(st.integers(1, 40), max_size=5),
    wanted=st.lists(filters_strategy, min_size=1, max_size=4),
    limit=st.integers(1, 12),
)
async def test_filtered_search_agrees_with_brute_force(
    index: VectorIndex,
    kept: list[VectorRecord],
    removed: list[int],
    wanted: list[VectorFilter],
    limit: int,
) -> None:
    """After writes and removals, any filter gives the documents and scores of brute force."""
    await index.drop("agent-1", "model")
    await index.upsert("agent-1", "model", kept[: len(kept) // 2])
    await index.upsert("agent-1", "model", kept[len(kept) // 2 :])
    await index.remove("agent-1", "model", removed)
    left = {one.document: one for one in kept if one.document not in removed}
    for each in wanted:
        found = await index.search("agent-1", "model", unit(-1), limit, each)
        expected = brute_force(left.values(), unit(-1), limit, each)
        # Records with the same vector are equally near, and their order is not defined. So the list
        # of scores is compared, and then the score of each document that was found.
        assert [score for _, score in found] == pytest.approx(
            [score for _, score in expected], abs=1e-4
        )
        own = dict(brute_force(left.values(), unit(-1), len(left), each))
        assert all(own[document] == pytest.approx(score, abs=1e-4) for document, score in found)
        assert len({document for document, _ in found}) == len(found)


async def test_namespace_names_are_safe_short_and_unique() -> None:
    places = [
        (prefix, space, model)
        for prefix in ("a", "a-b", "")
        for space in SPACES
        for model in ("m", "b/m")
    ]
    names = {namespace_of(*place) for place in places}
    assert len(names) == len(places)
    assert all(
        len(name) <= 122 and name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        for name in names
    )
    assert namespace_of("ricordo", "agent-1", "model") == namespace_of(
        "ricordo", "agent-1", "model"
    )
