"""What the adapters to vector services share: names of namespaces, sizes of requests, patience, and errors in our own words.

A client's error may quote the request, its headers or a body that repeats the key. So none is ever shown or chained: each
becomes one sentence here that says what happened and what to do.
"""

import asyncio
import hashlib
import importlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import orjson

from ricordo.errors import Unavailable
from ricordo.search.vector_index import VectorRecord

T = TypeVar("T")
DEFAULT_PREFIX = "ricordo"
MOST_RESULTS = 10_000  # the most that Turbopuffer and Pinecone return for one query

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_SAID = 200


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that one request may take, the client's own retries among them: someone waits for a search, nobody for a write."""

    search: float = 8
    write: float = 60


def namespace_of(prefix: str, space: str, model: str) -> str:
    """The namespace of a space and a model: letters, digits, - and _, 122 at most; the hash keeps any two apart."""
    digest = hashlib.sha256("\0".join((prefix, space, model)).encode()).hexdigest()[:24]
    return "-".join((_UNSAFE.sub("_", prefix)[:32], _UNSAFE.sub("_", space)[:64], digest))


def latest(records: Sequence[VectorRecord]) -> list[VectorRecord]:
    """The records without those that a later one of the same document replaces: services refuse two in one request."""
    return list({record.document: record for record in records}.values())


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
    """The items in lists of at most so many."""
    return (list(items[start : start + most]) for start in range(0, len(items), most))


def floats(vector: Sequence[float]) -> list[float]:
    """The vector as JSON can hold it; an array's own numbers it cannot."""
    return [float(value) for value in vector]


def ranked(found: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Best first; of equals the older document."""
    return sorted(found, key=lambda one: (-one[1], one[0]))


def library(module: str, title: str, extra: str) -> Any:
    """The service's client library; raises Unavailable with what to install. Slow, so call it in a thread."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Unavailable(f'{title} needs its library. Install it with: pip install "ricordo[{extra}]"') from None


@dataclass(frozen=True, slots=True)
class Service:
    """A service as its errors name it: its title, where it is, the variables that say so, and the key that no sentence holds."""

    title: str
    place: str
    key_variable: str
    place_variable: str
    key: str = field(default="", repr=False)

    @property
    def _where(self) -> str:
        if "://" not in self.place:
            return f"{self.title} ({self.place})"
        parts = urlsplit(self.place)  # an address may hold a password, its host does not
        return f"{self.title} ({parts.hostname}{f':{parts.port}' if parts.port else ''})"

    def refused(self, status: int, said: str = "") -> Unavailable:
        """The error for an answer with this status; what the service said is quoted where it cannot be about the key."""
        if status in (401, 403):
            return Unavailable(f"{self._where} did not accept the key (status {status}). Check {self.key_variable}.")
        if status == 429:
            return Unavailable(f"{self._where} gets more requests than it allows (status 429). Try again later.")
        if status >= 500:
            return Unavailable(f"{self._where} has a fault (status {status}). Try again later.")
        return Unavailable(f"{self._where} refused the request (status {status}){self._quoted(said)}.")

    def failed(self, said: str) -> Unavailable:
        """The error for a failure without a status."""
        return Unavailable(f"{self._where} failed{self._quoted(said)}.")

    def unreachable(self) -> Unavailable:
        """The error for no connection."""
        return Unavailable(f"{self._where} cannot be reached. Check {self.place_variable} and the network.")

    def unlike_itself(self) -> Unavailable:
        """The error for an answer that this service does not give."""
        return Unavailable(f"{self._where} gave an answer that is not {self.title}'s. Check {self.place_variable}.")

    @asynccontextmanager
    async def asked(
        self, seconds: float, in_our_words: Callable[[Exception], Unavailable | None]
    ) -> AsyncIterator[None]:
        """Wait so long at most, and turn the client's errors into ours; those without words are faults of our own."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise Unavailable(f"{self._where} did not answer within {seconds:g} seconds. Try again later.") from None
        except Unavailable:
            raise
        except Exception as error:
            if answer := in_our_words(error):
                raise answer from None
            raise

    def _quoted(self, said: str) -> str:
        words = " ".join(said.split())
        if self.key:
            words = words.replace(self.key, "…")
        return f': "{words[:_MOST_SAID]}"' if words else ""


class OpenedOnce(Generic[T]):
    """A client that is opened at its first use, once for all who come at the same time; a failed try is tried again."""

    def __init__(
        self, title: str, opening: Callable[[], Awaitable[T]], closing: Callable[[T], Awaitable[None]]
    ) -> None:
        self._title, self._opening, self._closing = title, opening, closing
        self._opened: list[T] = []
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def get(self) -> T:
        """The client; raises Unavailable once it was closed."""
        async with self._lock:
            if self._is_closed:
                raise Unavailable(f"{self._title} is closed, because the server stops.")
            if not self._opened:
                self._opened.append(await self._opening())
            return self._opened[0]

    async def close(self) -> None:
        """Close it if it is open; a second call does nothing."""
        async with self._lock:
            self._is_closed = True
            while self._opened:
                await self._closing(self._opened.pop())
