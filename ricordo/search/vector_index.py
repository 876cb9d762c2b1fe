"""The protocol of an external vector service, with its records and filters.

The feature `vector_services` implements it for services, and `pgvector.py` for PostgreSQL. Other
partitions store their vectors in the tables of the search index. Vectors are a cache of stored
texts, so a service's vectors may be dropped and sent again at any time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VectorRecord:
    """A message or passage with its vector, and the fields by which searches filter.

    Attributes:
        document: The number (`seq`) of the message or passage.
        created_at: Its time in microseconds UTC.
        role: The role of a message; "" for a passage.
        conversation: The conversation of a message; "" for a passage.
        user_id: The user that it is about; "" for none.
        part: The number of a part of a long text, which only the index of this folder has (see
            `text_parts.py`).
    """

    document: int
    vector: Sequence[float]
    created_at: int
    role: str = ""
    conversation: str = ""
    user_id: str = ""
    tags: tuple[str, ...] = ()
    part: int = 0

    def fields(self) -> dict[str, Any]:
        return {
            "created_at": self.created_at,
            "role": self.role,
            "conversation": self.conversation,
            "user_id": self.user_id,
            "tags": list(self.tags),
        }


@dataclass(frozen=True, slots=True)
class VectorFilter:
    """The conditions of a search; an empty filter admits all documents.

    Attributes:
        users: The users that documents may be about; "" is for documents about no user.
        tags: A document must have one of these tags; () admits all documents.
        all_tags: A document must have all of `tags`.
        start: The earliest time in microseconds UTC.
        end: The latest time in microseconds UTC.
    """

    roles: tuple[str, ...] = ()
    conversation: str | None = None
    users: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    start: int | None = None
    end: int | None = None


@runtime_checkable
class VectorIndex(Protocol):
    """Vectors by partition and model; those of different models are stored separately.

    A partition is named by the id of its owner: an agent, an archive or a folder of files. Every
    method may be repeated. A method that fails raises Unavailable with a sentence.
    """

    @property
    def name(self) -> str:
        """The name in an archive's `vector_db_provider`: tpuf, pinecone, qdrant or pgvector."""
        ...

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Store these records; a stored document is replaced.

        After an error some may be stored, so all should be sent again.

        Args:
            partition: The id of the owner.
            model: The handle of the model that made the vectors.
            records: Records with vectors of one size.
        """
        ...

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        """Remove these documents.

        Args:
            partition: The id of the owner.
            model: The handle of a model; vectors of other models stay.
            documents: The numbers (`seq`) of the documents. Missing ones are no error.
        """
        ...

    async def drop(self, partition: str, model: str) -> None:
        """Remove the partition's vectors of this model, if there are any."""
        ...

    async def search(
        self,
        partition: str,
        model: str,
        vector: Sequence[float],
        limit: int,
        conditions: VectorFilter,
    ) -> list[tuple[int, float]]:
        """Return the nearest documents that the filter admits, the best first.

        Args:
            partition: The id of the owner.
            model: The handle of the model that made `vector`.
            vector: The query's vector.
            limit: The most documents.
            conditions: The filter.

        Returns:
            The numbers of the documents, each with its cosine similarity.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def portions(sequence: Sequence[T], limit: int) -> Iterator[Sequence[T]]:
    """Cut a sequence into portions of at most `limit`."""
    return (sequence[start : start + limit] for start in range(0, len(sequence), limit))
