"""Archives and passages on the wire, and why they were found."""

from typing import Any

from ricordo.api.wire.models import embedding_config_to_wire
from ricordo.api.wire.times import date, stamp
from ricordo.domain.model import EmbeddingInfo
from ricordo.domain.passage import Archive, Passage, Relevance


def archive_to_wire(archive: Archive, embedding: EmbeddingInfo | None) -> dict[str, Any]:
    """An archive, with the model its texts are embedded with, if they are."""
    return {
        "id": archive.id,
        "name": archive.name,
        "description": archive.description,
        "metadata": archive.metadata,
        "embedding": embedding.handle if embedding else None,
        "embedding_config": embedding_config_to_wire(embedding) if embedding else None,
        "vector_db_provider": archive.vector_db,
        "created_at": stamp(archive.created_at),
        "updated_at": stamp(archive.updated_at),
        "created_by_id": archive.created_by,
        "last_updated_by_id": None,
    }


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


def hit_to_wire(passage: Passage, relevance: Relevance) -> dict[str, Any]:
    """A passage as an agent's search gives it."""
    return {
        "id": passage.id,
        "timestamp": date(passage.created_at),
        "content": passage.text,
        "tags": list(passage.tags),
        "relevance": relevance_to_wire(relevance),
    }


def found_passage_to_wire(passage: Passage, relevance: Relevance) -> dict[str, Any]:
    """A passage as a search of several archives gives it."""
    return {
        "passage": passage_to_wire(passage),
        "score": relevance.score,
        "metadata": relevance_to_wire(relevance),
    }


def relevance_to_wire(relevance: Relevance) -> dict[str, Any]:
    """Why something was found."""
    return {
        "search_mode": relevance.mode,
        "rrf_score": relevance.score,
        "vector_rank": relevance.vector_rank,
        "fts_rank": relevance.fts_rank,
    }
