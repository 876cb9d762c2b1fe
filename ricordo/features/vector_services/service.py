"""What the adapters to vector services share: namespaces, request sizes, filters, timeouts and errors.

A client's error may quote the request, its headers or a body that repeats the key. So none is ever shown or chained: each
becomes one sentence here that says what happened and what to do.
"""

import asyncio
import hashlib
import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson

from ricordo.errors import Unavailable
from ricordo.search.vector_index import VectorFilter, VectorRecord, portions

T = TypeVar("T")
Condition = tuple[str, str, Any]  # field, operator, value
DEFAULT_PREFIX = "ricordo"
MOST_RESULTS = 10_000  # the most that Turbopuffer and Pinecone return for one query

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_SAID = 200
# What a client fails with on an answer that is no JSON, or without what it counts on.
_UNREADABLE = (AssertionError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class ServiceTimeouts:
    """Seconds that one request may take, with the client's own retries; a user waits for a search, a job for a write."""

    search: float = 8
    write: float = 60


def namespace_of(prefix: str, partition: str, model: str) -> str:
    """The namespace of a partition and a model: letters, digits, - and _, 122 at most; the hash keeps any two apart."""
    digest = hashlib.sha256("\0".join((prefix, partition, model)).encode()).hexdigest()[:24]
    return "-".join((_UNSAFE.sub("_", prefix)[:32], _UNSAFE.sub("_", partition)[:64], digest))


def conditions(wanted: VectorFilter) -> list[Condition]:
    """The filter as conditions (field, operator, value), all of which must hold; the operators are in, eq, any, gte and lte."""
    tags = [[tag] for tag in wanted.tags] if wanted.all_tags else [list(wanted.tags)]
    asked: list[Condition] = [
        ("role", "in", list(wanted.roles) or None),
        ("conversation", "eq", wanted.conversation),
        ("user_id", "in", list(wanted.users) or None),
        *(("tags", "any", some or None) for some in tags),
        ("created_at", "gte", wanted.start),
        ("created_at", "lte", wanted.end),
    ]
    return [condition for condition in asked if condition[2] is not None]


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


def floats(vector: Sequence[float]) -> list[float]:
    return [float(value) for value in vector]


def library(module: str, title: str) -> Any:
    """The service's client library; raises Unavailable with what to install. Slow, so call it in a thread."""
    try:
        return importlib.import_module(module)
    except ImportError:
        extra = title.lower()
        raise Unavailable(
            f'{title} needs its library. Install it with: pip install "ricordo[{extra}]"'
        ) from None


class ServiceIndex(ABC):
    """A vector index at a service, in requests of so many items and bytes, with a client that is opened at its first use.

    Errors name the service by its title and the variables that configure it; none shows the key.
    """

    TITLE: str
    KEY_VARIABLE: str
    ADDRESS_VARIABLE: str
    MOST_ITEMS: int
    MOST_BYTES: int

    def __init__(
        self,
        key: str,
        address: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeouts: ServiceTimeouts | None = None,
    ) -> None:
        self._key, self._address, self._prefix = key, address, prefix
        self._timeouts = timeouts or ServiceTimeouts()
        self._client: Any = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these, in as many requests as the service's limits need."""
        # Services refuse two records of one document in one request: the later one replaces the other.
        latest = {record.document: record for record in records}.values()
        namespace = namespace_of(self._prefix, partition, model)
        for items in by_size(map(self._item, latest), self.MOST_ITEMS, self.MOST_BYTES):
            await self._ask(
                partial(self._write, namespace=namespace, items=items), may_be_absent=False
            )

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        namespace = namespace_of(self._prefix, partition, model)
        for numbers in portions(documents, self.MOST_ITEMS):
            await self._ask(partial(self._delete, namespace=namespace, documents=list(numbers)))

    async def drop(self, partition: str, model: str) -> None:
        await self._ask(partial(self._drop, namespace=namespace_of(self._prefix, partition, model)))

    async def search(
        self, partition: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents, 10,000 at most; of equally near ones the older first."""
        if limit < 1:
            return []
        namespace, most = namespace_of(self._prefix, partition, model), min(limit, MOST_RESULTS)

        async def query(client: Any) -> list[tuple[int, float]]:
            found = await self._query(client, namespace, floats(vector), most, conditions(wanted))
            return [(int(number), float(similarity)) for number, similarity in found]

        found = await self._ask(query, seconds=self._timeouts.search) or []
        return sorted(found, key=lambda one: (-one[1], one[0]))

    async def close(self) -> None:
        """Close the client if it is open; a second call does nothing."""
        async with self._lock:
            client, self._client, self._is_closed = self._client, None, True
            if client is not None:
                await self._run(client.close)

    async def _ask(
        self,
        work: Callable[[Any], Awaitable[Any]],
        *,
        seconds: float | None = None,
        may_be_absent: bool = True,
    ) -> Any:
        """The answer to a request; None for a namespace that is not there, where that may be."""
        client = await self._opened()
        async with self._request(seconds or self._timeouts.write):
            try:
                return await self._run(partial(work, client))
            except Exception as error:
                if may_be_absent and self._is_absent(error):
                    return None
                raise

    async def _opened(self) -> Any:
        """The client, opened once for all callers; after a failure the next call tries again."""
        async with self._lock:
            if self._is_closed:
                raise Unavailable(f"{self.TITLE} is closed, because the server stops.")
            if self._client is None:
                self._client = await self._open()
            return self._client

    @property
    def _where(self) -> str:
        if "://" not in self._address:
            return f"{self.TITLE} ({self._address})"
        parts = urlsplit(self._address)  # an address may hold a password, its host does not
        return f"{self.TITLE} ({parts.hostname}{f':{parts.port}' if parts.port else ''})"

    def refused(self, status: int, said: str = "") -> Unavailable:
        """The error for an answer with this status; what the service said is quoted where it cannot be about the key."""
        what = f"refused the request (status {status}){self._quoted(said)}."
        if status in (401, 403):
            what = f"did not accept the key (status {status}). Check {self.KEY_VARIABLE}."
        elif status == 429:
            what = "gets more requests than it allows (status 429). Try again later."
        elif status >= 500:
            what = f"has a fault (status {status}). Try again later."
        return Unavailable(f"{self._where} {what}")

    def failed(self, said: str) -> Unavailable:
        return Unavailable(f"{self._where} failed{self._quoted(said)}.")

    def unreachable(self) -> Unavailable:
        return Unavailable(
            f"{self._where} cannot be reached. Check {self.ADDRESS_VARIABLE} and the network."
        )

    def unexpected_answer(self) -> Unavailable:
        return Unavailable(
            f"{self._where} gave an answer that is not {self.TITLE}'s. Check {self.ADDRESS_VARIABLE}."
        )

    def _quoted(self, said: str) -> str:
        words = " ".join(said.split())
        if self._key:
            words = words.replace(self._key, "…")
        return f': "{words[:_MOST_SAID]}"' if words else ""

    @asynccontextmanager
    async def _request(self, seconds: float) -> AsyncIterator[None]:
        """Wait so long at most, and translate the client's errors; those that have no translation are faults of our own."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise Unavailable(
                f"{self._where} did not answer within {seconds:g} seconds. Try again later."
            ) from None
        except Unavailable:
            raise
        except Exception as error:
            answer = self._translated(error)
            if answer is None and isinstance(error, _UNREADABLE):
                answer = self.unexpected_answer()
            if answer is None:
                raise
            raise answer from None

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()

    @abstractmethod
    async def _open(self) -> Any: ...

    @abstractmethod
    def _item(self, record: VectorRecord) -> dict[str, Any]: ...

    @abstractmethod
    async def _write(self, client: Any, namespace: str, items: list[dict[str, Any]]) -> None: ...

    @abstractmethod
    async def _delete(self, client: Any, namespace: str, documents: list[int]) -> None: ...

    @abstractmethod
    async def _drop(self, client: Any, namespace: str) -> None: ...

    @abstractmethod
    async def _query(
        self, client: Any, namespace: str, vector: list[float], limit: int, wanted: list[Condition]
    ) -> list[tuple[Any, Any]]:
        """Documents and similarities."""

    def _is_absent(self, _error: Exception) -> bool:
        """Whether the service says with this that it has no such namespace."""
        return False

    @abstractmethod
    def _translated(self, error: Exception) -> Unavailable | None: ...
