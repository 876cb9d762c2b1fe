"""What the adapters to vector services share: namespaces, request sizes, filters, timeouts and errors.

A client's error may quote the request, its headers or a body that repeats the key. So none is ever shown or chained: each
becomes one sentence here that says what happened and what to do.
"""

import asyncio
import hashlib
import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson

from ricordo.errors import Unavailable
from ricordo.search.vector_index import VectorFilter, VectorRecord

T = TypeVar("T")
DEFAULT_PREFIX = "ricordo"
MOST_RESULTS = 10_000  # the most that Turbopuffer and Pinecone return for one query

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_SAID = 200


@dataclass(frozen=True, slots=True)
class ServiceTimeouts:
    """Seconds that one request may take, with the client's own retries; a user waits for a search, a job for a write."""

    search: float = 8
    write: float = 60


def namespace_of(prefix: str, partition: str, model: str) -> str:
    """The namespace of a partition and a model: letters, digits, - and _, 122 at most; the hash keeps any two apart."""
    digest = hashlib.sha256("\0".join((prefix, partition, model)).encode()).hexdigest()[:24]
    return "-".join((_UNSAFE.sub("_", prefix)[:32], _UNSAFE.sub("_", partition)[:64], digest))


def latest(records: Sequence[VectorRecord]) -> list[VectorRecord]:
    """The records without those that a later one of the same document replaces: services refuse two in one request."""
    return list({record.document: record for record in records}.values())


def conditions(wanted: VectorFilter) -> list[tuple[str, str, Any]]:
    """The filter as conditions (field, operator, value), all of which must hold; the operators are in, eq, any, gte and lte."""
    tags = [[tag] for tag in wanted.tags] if wanted.all_tags else [list(wanted.tags)]
    return [
        *([("role", "in", list(wanted.roles))] if wanted.roles else []),
        *([("conversation", "eq", wanted.conversation)] if wanted.conversation is not None else []),
        *([("user_id", "eq", wanted.user_id)] if wanted.user_id is not None else []),
        *(("tags", "any", some) for some in tags if some),
        *([("created_at", "gte", wanted.start)] if wanted.start is not None else []),
        *([("created_at", "lte", wanted.end)] if wanted.end is not None else []),
    ]


def by_size(items: Iterable[T], most: int, most_bytes: int) -> Iterator[list[T]]:
    """The items in batches of at most so many, and so many bytes as JSON; one that is larger by itself goes alone."""
    batch: list[T] = []
    filled = 0
    for item in items:
        size = len(orjson.dumps(item)) + 1
        if batch and (len(batch) == most or filled + size > most_bytes):
            yield batch
            batch, filled = [], 0
        batch.append(item)
        filled += size
    if batch:
        yield batch


def slices(items: Sequence[T], most: int) -> Iterator[list[T]]:
    """Cut the items into lists of at most so many."""
    return (list(items[start : start + most]) for start in range(0, len(items), most))


def floats(vector: Sequence[float]) -> list[float]:
    return [float(value) for value in vector]


def ranked(found: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Best first; of equals the older document."""
    return sorted(found, key=lambda one: (-one[1], one[0]))


def library(module: str, title: str) -> Any:
    """The service's client library; raises Unavailable with what to install. Slow, so call it in a thread."""
    try:
        return importlib.import_module(module)
    except ImportError:
        extra = title.lower()
        raise Unavailable(f'{title} needs its library. Install it with: pip install "ricordo[{extra}]"') from None


@dataclass(frozen=True, slots=True)
class VectorService:
    """A service as its errors name it: title, address, the variables that configure it, and the key, which no error shows."""

    title: str
    address: str
    key_variable: str
    address_variable: str
    key: str = field(default="", repr=False)

    @property
    def _where(self) -> str:
        if "://" not in self.address:
            return f"{self.title} ({self.address})"
        parts = urlsplit(self.address)  # an address may hold a password, its host does not
        return f"{self.title} ({parts.hostname}{f':{parts.port}' if parts.port else ''})"

    def refused(self, status: int, said: str = "") -> Unavailable:
        """The error for an answer with this status; what the service said is quoted where it cannot be about the key."""
        what = f"refused the request (status {status}){self._quoted(said)}."
        if status in (401, 403):
            what = f"did not accept the key (status {status}). Check {self.key_variable}."
        elif status == 429:
            what = "gets more requests than it allows (status 429). Try again later."
        elif status >= 500:
            what = f"has a fault (status {status}). Try again later."
        return Unavailable(f"{self._where} {what}")

    def failed(self, said: str) -> Unavailable:
        return Unavailable(f"{self._where} failed{self._quoted(said)}.")

    def unreachable(self) -> Unavailable:
        return Unavailable(f"{self._where} cannot be reached. Check {self.address_variable} and the network.")

    def unexpected_answer(self) -> Unavailable:
        return Unavailable(f"{self._where} gave an answer that is not {self.title}'s. Check {self.address_variable}.")

    @asynccontextmanager
    async def request(
        self, seconds: float, translate: Callable[[Exception], Unavailable | None]
    ) -> AsyncIterator[None]:
        """Wait so long at most, and translate the client's errors; those that have no translation are faults of our own."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise Unavailable(f"{self._where} did not answer within {seconds:g} seconds. Try again later.") from None
        except Unavailable:
            raise
        except Exception as error:
            if answer := translate(error):
                raise answer from None
            raise

    def _quoted(self, said: str) -> str:
        words = " ".join(said.split())
        if self.key:
            words = words.replace(self.key, "…")
        return f': "{words[:_MOST_SAID]}"' if words else ""


class ServiceIndex(ABC):
    """The part of an adapter that does not depend on its service: namespaces, requests, and a client opened at its first use."""

    def __init__(self, service: VectorService, prefix: str, timeouts: ServiceTimeouts | None) -> None:
        self._service, self._prefix, self._timeouts = service, prefix, timeouts or ServiceTimeouts()
        self._client: Any = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the client if it is open; a second call does nothing."""
        async with self._lock:
            client, self._client, self._is_closed = self._client, None, True
            if client is not None:
                await self._close(client)

    async def _opened(self) -> Any:
        """The client, opened once for all callers; after a failure the next call tries again."""
        async with self._lock:
            if self._is_closed:
                raise Unavailable(f"{self._service.title} is closed, because the server stops.")
            if self._client is None:
                self._client = await self._open()
            return self._client

    def _namespace_of(self, partition: str, model: str) -> str:
        return namespace_of(self._prefix, partition, model)

    def _request(self, seconds: float) -> AbstractAsyncContextManager[None]:
        return self._service.request(seconds, self._translated)

    @abstractmethod
    async def _open(self) -> Any: ...

    async def _close(self, client: Any) -> None:
        await client.close()

    @abstractmethod
    def _translated(self, error: Exception) -> Unavailable | None: ...
