from ricordo.api.wire.models import embedding_config_to_wire
from ricordo.api.wire.passages import archive_to_wire, found_passage_to_wire, hit_to_wire, passage_to_wire
from ricordo.api.wire.schemas import ArchiveShape, FoundPassageShape, PassageHitShape, PassageShape
from ricordo.domain.model import EmbeddingInfo
from ricordo.domain.passage import Relevance
from ricordo.domain.scope import LOCAL_ORGANIZATION
from tests.api.wire.fits import require_fits
from tests.support import make


def test_a_passage_has_every_field_that_clients_expect() -> None:
    archive = make.archive()
    passage = make.passage(archive, "Tea.", tags=("b", "a"), metadata={"n": 1}, created_by="user-1")

    wire = passage_to_wire(passage)

    require_fits(PassageShape, wire)
    assert wire == {
        "id": passage.id,
        "text": "Tea.",
        "archive_id": archive.id,
        "tags": ["b", "a"],
        "metadata": {"n": 1},
        "embedding": None,
        "embedding_config": None,
        "source_id": None,
        "file_id": None,
        "file_name": None,
        "is_deleted": False,
        "organization_id": LOCAL_ORGANIZATION,
        "created_at": "2026-01-01T00:00:00.000000Z",
        "updated_at": "2026-01-01T00:00:00.000000Z",
        "created_by_id": "user-1",
        "last_updated_by_id": None,
    }


WHY = Relevance(0.5, fts_rank=2, vector_rank=7, mode="hybrid")
WHY_ON_THE_WIRE = {"search_mode": "hybrid", "rrf_score": 0.5, "vector_rank": 7, "fts_rank": 2}


def test_a_hit_has_a_timestamp_with_an_offset_and_the_reason() -> None:
    passage = make.passage(make.archive(), "Tea.", tags=("a",))

    wire = hit_to_wire(passage, WHY)

    require_fits(PassageHitShape, wire)
    assert wire == {
        "id": passage.id,
        "timestamp": "2026-01-01T00:00:00+00:00",
        "content": "Tea.",
        "tags": ["a"],
        "relevance": WHY_ON_THE_WIRE,
    }


def test_a_found_passage_has_its_score_and_the_reason_beside_it() -> None:
    passage = make.passage(make.archive())

    wire = found_passage_to_wire(passage, WHY)

    require_fits(FoundPassageShape, wire)
    assert wire == {"passage": passage_to_wire(passage), "score": 0.5, "metadata": WHY_ON_THE_WIRE}


def test_an_archive_has_every_field_that_clients_expect() -> None:
    archive = make.archive("Notes", description="Of tea", embedding="openai/x", metadata={"n": 1}, created_by="user-1")

    info = EmbeddingInfo("openai/x", "openai", "x", "openai", 1536)

    wire = archive_to_wire(archive, info)

    require_fits(ArchiveShape, wire)
    assert archive_to_wire(archive, None)["embedding_config"] is None
    assert wire == {
        "id": archive.id,
        "name": "Notes",
        "description": "Of tea",
        "metadata": {"n": 1},
        "embedding": "openai/x",
        "embedding_config": embedding_config_to_wire(info),
        "vector_db_provider": "native",
        "created_at": "2026-01-01T00:00:00.000000Z",
        "updated_at": "2026-01-01T00:00:00.000000Z",
        "created_by_id": "user-1",
        "last_updated_by_id": None,
    }
