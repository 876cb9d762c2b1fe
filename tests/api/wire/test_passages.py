from ricordo.api.wire.passages import hit_to_wire, passage_to_wire
from ricordo.api.wire.schemas import PassageHitShape, PassageShape
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


def test_a_hit_has_a_timestamp_with_an_offset() -> None:
    passage = make.passage(make.archive(), "Tea.", tags=("a",))

    wire = hit_to_wire(passage)

    require_fits(PassageHitShape, wire)
    assert wire == {
        "id": passage.id,
        "timestamp": "2026-01-01T00:00:00+00:00",
        "content": "Tea.",
        "tags": ["a"],
    }
