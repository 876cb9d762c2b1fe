"""Times on the wire: stamps of objects with microseconds and `Z`, dates of messages in seconds with `+00:00`."""

from functools import lru_cache
from typing import overload

from ricordo.domain.clock import SECOND, to_datetime


@overload
def stamp(micros: int) -> str: ...
@overload
def stamp(micros: None) -> None: ...
def stamp(micros: int | None) -> str | None:
    """`2026-11-21T20:33:15.123456Z`."""
    if micros is None:
        return None
    seconds, rest = divmod(micros, SECOND)
    return f"{_second(seconds)}.{rest:06d}Z"


def date(micros: int) -> str:
    """`2026-11-21T20:33:15+00:00`."""
    return to_datetime(micros).isoformat(timespec="seconds")


@lru_cache(1024)
def _second(seconds: int) -> str:
    """Without a zone: what is listed or filed together is often of one second."""
    return to_datetime(seconds * SECOND).isoformat(timespec="seconds").removesuffix("+00:00")
