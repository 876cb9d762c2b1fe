"""The common parts of the adapters to vector services.

They are namespaces, request sizes, filters, timeouts and errors. A client's error may quote the
request, its headers, or a body that contains the key. So a client's error is never shown or
chained. This module turns it into a sentence that says what happened and what to do.
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
_MOST_QUOTED = 200  # characters of a service's message
# Errors of a client for an answer that is not JSON or lacks expected fields.
_UNREADABLE = (AssertionError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class ServiceTimeouts:
    """Seconds that one request may take, including the client's retries.

    A user waits for a search, and a job waits for a write.
    """

    search: float = 8
    write: float = 60


def namespace_of(prefix: str, partition: str, model: str) -> str:
    """Return the namespace of a partition and a model.

    The name has at most 122 letters, digits, - and _. A hash in it makes it unique.

    Args:
        prefix: The beginning of all names of this installation.
        partition: The partition of the search index.
        model: The handle of the embedding model.
    """
    digest = hashlib.sha256("\0".join((prefix, partition, model)).encode()).hexdigest()[:24]
    return "-".join((_UNSAFE.sub("_", prefix)[:32], _UNSAFE.sub("_", partition)[:64], digest))


def conditions(filter_: VectorFilter) -> list[Condition]:
    """Return the filter as conditions (field, operator, value); all of them must hold.

    The operators are in, eq, any, gte and lte.

    Args:
        filter_: The filter. Its empty parts give no condition.
    """
    if filter_.all_tags:
        tags = [[tag] for tag in filter_.tags]
    else:
        tags = [list(filter_.tags)]
    all_conditions: list[Condition] = [
        ("role", "in", list(filter_.roles) or None),
        ("conversation", "eq", filter_.conversation),
        ("user_id", "in", list(filter_.users) or None),
        *(("tags", "any", of_tags or None) for of_tags in tags),
        ("created_at", "gte", filter_.start),
        ("created_at", "lte", filter_.end),
    ]
    return [condition for condition in all_conditions if condition[2] is not None]


def by_size(items: Iterable[T], most_items: int, most_bytes: int) -> Iterator[list[T]]:
    """Yield the items in batches, limited by number and by bytes as JSON.

    A single item that exceeds the limit makes a separate batch.

    Args:
        items: Items that can be written as JSON.
        most_items: The most items of a batch.
        most_bytes: The most bytes of a batch, with a byte for each separator.
    """
    batch: list[T] = []
    filled = 0
    for item in items:
        size = len(orjson.dumps(item)) + 1
        if batch and (len(batch) == most_items or filled + size > most_bytes):
            yield batch
            batch = []
            filled = 0
        batch.append(item)
        filled += size
    if batch:
        yield batch


def floats(vector: Sequence[float]) -> list[float]:
    """Return the numbers of a vector as Python floats, for JSON.

    Args:
        vector: The vector, of any numeric type.
    """
    return [float(value) for value in vector]


def library(module: str, title: str) -> Any:
    """Import the service's client library.

    The import is slow, so call it in a thread.

    Args:
        module: The full name of the library's module.
        title: The service's title. In lower case it is the name of the extra.

    Raises:
        Unavailable: if the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        extra = title.lower()
        raise Unavailable(
            f'{title} needs its library. Install it with: pip install "ricordo[{extra}]"'
        ) from None


class ServiceIndex(ABC):
    """A vector index at a service.

    Requests are limited by number of items and by bytes. The client is opened at its first use.
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
        self._key = key
        self._address = address
        self._prefix = prefix
        self._timeouts = timeouts or ServiceTimeouts()
        self._client: Any = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Store the records, in as many requests as the service's limits need.

        Args:
            partition: The partition of the search index.
            model: The handle of the model that made the vectors.
            records: The records. Of several for one document, the last is stored.

        Raises:
            Unavailable: if the service fails. Some records may be stored then.
        """
        # Services refuse two records for one document in one request, so only the latest is sent.
        latest = {record.document: record for record in records}.values()
        namespace = namespace_of(self._prefix, partition, model)
        for items in by_size(map(self._item, latest), self.MOST_ITEMS, self.MOST_BYTES):
            await self._ask(
                partial(self._write, namespace=namespace, items=items), may_be_absent=False
            )

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        """Remove documents; those that the service lacks are ignored.

        Args:
            partition: The partition of the search index.
            model: The handle of the model that made the vectors.
            documents: The numbers of the documents.

        Raises:
            Unavailable: The service fails. Some documents may be removed then.
        """
        namespace = namespace_of(self._prefix, partition, model)
        for numbers in portions(documents, self.MOST_ITEMS):
            await self._ask(partial(self._delete, namespace=namespace, documents=list(numbers)))

    async def drop(self, partition: str, model: str) -> None:
        """Remove all documents of a partition and a model.

        Args:
            partition: The partition of the search index.
            model: The handle of the model that made the vectors.

        Raises:
            Unavailable: The service fails.
        """
        await self._ask(partial(self._drop, namespace=namespace_of(self._prefix, partition, model)))

    async def search(
        self,
        partition: str,
        model: str,
        vector: Sequence[float],
        limit: int,
        vector_filter: VectorFilter,
    ) -> list[tuple[int, float]]:
        """Return the nearest documents with their similarities.

        Of two equally near documents, the older comes first.

        Args:
            partition: The partition of the search index.
            model: The handle of the model that made the vectors.
            vector: The vector of the query.
            limit: The most documents; at most 10,000 are returned, and none below 1.
            vector_filter: The conditions that documents must meet.

        Raises:
            Unavailable: if the service fails, or does not answer in time.
        """
        if limit < 1:
            return []
        namespace = namespace_of(self._prefix, partition, model)

        async def query(client: Any) -> list[tuple[int, float]]:
            rows = await self._query(
                client,
                namespace,
                floats(vector),
                limit=min(limit, MOST_RESULTS),
                conditions=conditions(vector_filter),
            )
            return [(int(document), float(similarity)) for document, similarity in rows]

        hits = await self._ask(query, seconds=self._timeouts.search) or []
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))

    async def close(self) -> None:
        """Close the client if it is open; a second call does nothing."""
        async with self._lock:
            client = self._client
            self._client = None
            self._is_closed = True
            if client is not None:
                await self._run(client.close)

    async def _ask(
        self,
        work: Callable[[Any], Awaitable[Any]],
        *,
        seconds: float | None = None,
        may_be_absent: bool = True,
    ) -> Any:
        """Return the answer to a request.

        With `may_be_absent`, the result is None for a missing namespace.
        """
        client = await self._opened()
        async with self._request(seconds or self._timeouts.write):
            try:
                return await self._run(partial(work, client))
            except Exception as error:
                if may_be_absent and self._is_absent(error):
                    return None
                raise

    async def _opened(self) -> Any:
        """Return the client; it is opened once for all callers.

        After a failure, the next call tries again.
        """
        async with self._lock:
            if self._is_closed:
                raise Unavailable(f"{self.TITLE} is closed, because the server stops.")
            if self._client is None:
                self._client = await self._open()
            return self._client

    @property
    def _shown_name(self) -> str:
        if "://" not in self._address:
            return f"{self.TITLE} ({self._address})"
        # Show only the host, since an address may contain a password.
        parts = urlsplit(self._address)
        port = f":{parts.port}" if parts.port else ""
        return f"{self.TITLE} ({parts.hostname}{port})"

    def refused(self, status: int, message: str = "") -> Unavailable:
        """Return the error for an answer with this status.

        Args:
            status: The HTTP status.
            message: The service's message, which is quoted only if it cannot concern the key.
        """
        problem = f"refused the request (status {status}){self._quote(message)}."
        if status in (401, 403):
            problem = f"did not accept the key (status {status}). Check {self.KEY_VARIABLE}."
        elif status == 429:
            problem = "gets more requests than it allows (status 429). Try again later."
        elif status >= 500:
            problem = f"has a fault (status {status}). Try again later."
        return Unavailable(f"{self._shown_name} {problem}")

    def failed(self, message: str) -> Unavailable:
        """Return the error for a request that failed for another reason.

        Args:
            message: The reason. It is quoted after the name of the service, cut to 200 characters.
        """
        return Unavailable(f"{self._shown_name} failed{self._quote(message)}.")

    def unreachable(self) -> Unavailable:
        return Unavailable(
            f"{self._shown_name} cannot be reached. Check {self.ADDRESS_VARIABLE} and the network."
        )

    def unexpected_answer(self) -> Unavailable:
        return Unavailable(
            f"{self._shown_name} does not answer like {self.TITLE}. Check {self.ADDRESS_VARIABLE}."
        )

    def _quote(self, message: str) -> str:
        text = " ".join(message.split())
        if self._key:
            text = text.replace(self._key, "…")
        if text:
            return f': "{text[:_MOST_QUOTED]}"'
        return ""

    @asynccontextmanager
    async def _request(self, seconds: float) -> AsyncIterator[None]:
        """Limit the time of a request, and translate the client's errors.

        An error without a translation is a fault in our code.
        """
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise Unavailable(
                f"{self._shown_name} did not answer within {seconds:g} seconds. Try again later."
            ) from None
        except Unavailable:
            raise
        except Exception as error:
            answer = self._translate(error)
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
        self,
        client: Any,
        namespace: str,
        vector: list[float],
        *,
        limit: int,
        conditions: list[Condition],
    ) -> list[tuple[Any, Any]]:
        """Return documents with their similarities."""

    def _is_absent(self, _error: Exception) -> bool:
        """Return True if the error says that the namespace does not exist."""
        return False

    @abstractmethod
    def _translate(self, error: Exception) -> Unavailable | None: ...
