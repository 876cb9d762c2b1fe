"""What an import leaves out or mends of a file, in words; and how a value is made to fit a request model.

The rule: an import refuses only a file that is broken. Whatever else does not fit is mended, or left out by itself and named.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ricordo.api.models.base import Json
from ricordo.domain.redaction import redact_values

# Notes of one import, and bytes of the unknown fields that are kept with an agent: its settings are read in every turn.
_MOST_NOTES, _MOST_KEPT = 200, 20_000
_MOST_ROUNDS = 50
_LONGEST_NAME = 80
_EMPTY: tuple[object, ...] = (None, "", [], {})
_Path = tuple[str | int, ...]


@dataclass
class ImportNotes:
    """What an import left out or mended. `unread` holds unknown fields by their place in the file."""

    counts: Counter[str] = field(default_factory=Counter)
    unread: dict[str, Any] = field(default_factory=dict)
    size: int = 0

    def add(self, sentence: str) -> None:
        self.counts[sentence] += 1

    def add_unknown(self, kind: str, place: str, value: Any) -> None:
        """Note a field that is unknown here, and keep its value aside. An empty one asks for nothing."""
        if value in _EMPTY:
            return
        name = place.rpartition(".")[2]
        is_kept = self._keep(place, value)
        what = "it is kept aside" if is_kept else "it is left out"
        self.add(f'{kind}: the field "{name[:_LONGEST_NAME]}" is unknown here; {what}.')

    def _keep(self, place: str, value: Any) -> bool:
        value = redact_values({"value": value})["value"]
        try:
            size = len(place) + len(orjson.dumps(value))
        except TypeError:
            return False
        if self.size + size > _MOST_KEPT:
            return False
        self.size += size
        self.unread[place] = value
        return True

    def lines(self) -> list[str]:
        """Return the sentences in their order, each once."""
        told = [
            text if count == 1 else f"{text} ({count} times)" for text, count in self.counts.items()
        ]
        more = len(told) - _MOST_NOTES
        return told if more <= 0 else [*told[:_MOST_NOTES], f"And {more} more of the kind."]


def without_unknown(
    sent: Mapping[str, Any], known: Iterable[str], kind: str, place: str, notes: ImportNotes
) -> Json:
    """Return the known fields; note the others."""
    fields = set(known)
    for name, value in sent.items():
        if name not in fields:
            notes.add_unknown(kind, f"{place}.{name}", value)
    return {name: value for name, value in sent.items() if name in fields}


def fitted(model: type[BaseModel], sent: Json, kind: str, place: str, notes: ImportNotes) -> Json:
    """Return what the model takes of the value; each part that it refuses is left out by itself and noted."""
    kept = deepcopy(sent)
    for _ in range(_MOST_ROUNDS):
        try:
            model.model_validate(kept)
        except ValidationError as error:
            faults = {
                path: fault for fault in error.errors() if (path := _path_of(kept, fault["loc"]))
            }
            if not faults:
                notes.add(f"{kind}: left out, since {_reason(error.errors()[0])}.")
                return {}
            _remove(kept, faults, kind, place, notes)
        else:
            return kept
    return {}


def _path_of(value: Any, loc: _Path) -> _Path:
    """Return the part of a fault's location that is there: names of union members and of missing fields are not."""
    path: list[str | int] = []
    for step in loc:
        is_there = (
            step in value
            if isinstance(value, dict)
            else isinstance(value, list) and isinstance(step, int)
        )
        if is_there and not (isinstance(value, list) and int(step) >= len(value)):
            path.append(step)
            value = value[step]
    return tuple(path)


def _remove(
    kept: Json, faults: Mapping[_Path, ErrorDetails], kind: str, place: str, notes: ImportNotes
) -> None:
    outermost = [
        path for path in faults if not any(path[:end] in faults for end in range(1, len(path)))
    ]
    # From the end of each list, so that the places of the others stay.
    for path in sorted(
        outermost, key=lambda one: [(str(type(step)), step) for step in one], reverse=True
    ):
        *parents, last = path
        holder: Any = kept
        for step in parents:
            holder = holder[step]
        removed, fault = holder.pop(last), faults[path]
        if fault["type"] == "extra_forbidden":
            notes.add_unknown(
                f"{kind}{_shown(parents)}", ".".join(map(str, (place, *path))), removed
            )
        else:
            notes.add(f"{kind}: {_shown(path).strip()} is left out, since {_reason(fault)}.")


def _shown(path: Iterable[str | int]) -> str:
    """Return a place without its numbers, so that many of a kind are one note."""
    names = [str(step)[:_LONGEST_NAME] for step in path if isinstance(step, str)]
    return f" {'.'.join(names)}" if names else ""


def _reason(fault: ErrorDetails) -> str:
    words = fault["msg"].removeprefix("Value error, ")
    return f"{words[:1].lower()}{words[1:]}".rstrip(".")


_DEEPEST = 100
_MOST_INTEGER = 2**63


def storable(content: Any, notes: ImportNotes) -> Any:
    """Return JSON without what no database keeps: NUL, halves of characters, integers beyond 64 bits, endless nesting."""
    try:
        text = orjson.dumps(content)
    except TypeError:
        text = b"\\u0000"
    if b"\\u0000" not in text:
        return content
    cleaned = _storable(content, 0)
    if cleaned != content:
        notes.add("Values that cannot be stored, such as NUL characters, were taken out of texts.")
    return cleaned


def _storable(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return None
    match value:
        case str():
            return value.replace("\0", "").encode("utf-8", "replace").decode()
        case dict():
            return {
                _storable(str(name), depth + 1): _storable(item, depth + 1)
                for name, item in value.items()
            }
        case list():
            return [_storable(item, depth + 1) for item in value]
        case int() if not -_MOST_INTEGER <= value < _MOST_INTEGER:
            return None
    return value
