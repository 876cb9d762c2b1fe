"""Passages on the wire."""

from typing import Any

from ricordo.api.wire.times import date, stamp
from ricordo.domain.passage import Passage


def passage_to_wire(passage: Passage) -> dict[str, Any]:
    """A passage. Vectors are a cache of ours and never shown."""
    return {
        "id": passage.id,
        "text": passage.text,
        "archive_id": passage.archive_id,
        "tags": list(passage.tags),
        "metadata": passage.metadata,
        "embedding": None,
        "embedding_config": None,
        "source_id": None,
        "file_id": None,
        "file_name": None,
        "is_deleted": False,
        "organization_id": passage.organization_id,
        "created_at": stamp(passage.created_at),
        "updated_at": stamp(passage.updated_at),
        "created_by_id": passage.created_by,
        "last_updated_by_id": None,
    }


def hit_to_wire(passage: Passage) -> dict[str, Any]:
    """A passage as an agent's search gives it."""
    return {
        "id": passage.id,
        "timestamp": date(passage.created_at),
        "content": passage.text,
        "tags": list(passage.tags),
    }
