"""What a service that keeps vectors must do, and the values it is given.

The feature `vector_services` implements it; the index of our own does not go through it. Text is the truth and
vectors are a cache, so whatever an implementation holds may be dropped and sent again at any time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VectorRecord:
    """A message, passage or chunk by number, with its vector and filters; `conversation` is a message's, or a chunk's file."""

    document: int
    vector: Sequence[float]
    created_at: int
    role: str = ""
    conversation: str = ""
    user_id: str = ""
    tags: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        filtered = {
            name: getattr(self, name) for name in ("created_at", "role", "conversation", "user_id")
        }
        return {**filtered, "tags": list(self.tags)}


@dataclass(frozen=True, slots=True)
class VectorFilter:
    """What may be found; empty means any. Times are inclusive, `users` has "" for no user, any of `tags` or `all_tags` count."""

    roles: tuple[str, ...] = ()
    conversation: str | None = None
    users: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    start: int | None = None
    end: int | None = None


@runtime_checkable
class VectorIndex(Protocol):
    """Vectors by partition and model, which never mix. Every method may be repeated, and raises Unavailable with a sentence."""

    @property
    def name(self) -> str:
        """How an archive names it in `vector_db_provider`: tpuf, pinecone, qdrant."""
        ...

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these; a document that is there already is replaced. After an error some may be kept: send them all again."""
        ...

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        """Forget these documents; those that are not there are no error."""
        ...

    async def drop(self, partition: str, model: str) -> None:
        """Forget the partition's vectors of this model; nothing there is no error."""
        ...

    async def search(
        self, partition: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents that the filter admits, as (document, cosine similarity), best first; [] where none is kept."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


def portions(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Cut the items into sequences of at most so many."""
    return (items[start : start + most] for start in range(0, len(items), most))
