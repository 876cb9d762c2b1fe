"""Times on the wire: stamps of objects with microseconds and `Z`, dates of messages in seconds with `+00:00`."""

from typing import overload

from ricordo.domain.clock import to_datetime


@overload
def stamp(micros: int) -> str: ...
@overload
def stamp(micros: None) -> None: ...
def stamp(micros: int | None) -> str | None:
    """`2026-11-21T20:33:15.123456Z`."""
    if micros is None:
        return None
    return to_datetime(micros).isoformat(timespec="microseconds").replace("+00:00", "Z")


def date(micros: int) -> str:
    """`2026-11-21T20:33:15+00:00`."""
    return to_datetime(micros).isoformat(timespec="seconds")
