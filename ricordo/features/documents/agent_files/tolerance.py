"""Notes on an import's changes, and helpers that fit values to a model.

Reading refuses only a broken file. Any other invalid part is mended, or left out and named in a
note. Storing may still refuse, for example without rights or at a limit.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ricordo.domain.redaction import redact_values
from ricordo.domain.text import MOST_LEVELS, Json, encoded_json

_MOST_NOTES = 200
# The most bytes of unknown fields that an agent keeps. The limit is low, since each turn reads its
# settings.
_MOST_UNREAD_BYTES = 20_000
_MOST_ROUNDS = 50
_LONGEST_NAME = 80
_EMPTY: tuple[object, ...] = (None, "", [], {})
_Path = tuple[str | int, ...]


@dataclass
class ImportNotes:
    """Notes on the parts that an import left out or mended.

    `unread` holds unknown fields by their path in the file, and `size` is their size in bytes.
    """

    counts: Counter[str] = field(default_factory=Counter)
    unread: dict[str, Any] = field(default_factory=dict)
    size: int = 0

    def clear(self) -> None:
        """Remove all notes; a unit of work calls it first, because it may run again."""
        self.counts.clear()
        self.unread.clear()
        self.size = 0

    def merged(self, later: "ImportNotes") -> "ImportNotes":
        """Return these notes and the later ones, without the unread fields."""
        return ImportNotes(self.counts + later.counts)

    def add(self, sentence: str) -> None:
        self.counts[sentence] += 1

    def add_unknown(self, kind: str, path: str, value: Any) -> None:
        """Note an unknown field, and store its value in `unread` if there is room.

        An empty field is ignored.

        Args:
            kind: The part of the file, for the note, such as "Blocks".
            path: The path of the field in the file, with dots; its last name is the field's.
            value: The value of the field, whose secrets are removed.
        """
        if value in _EMPTY:
            return
        name = path.rpartition(".")[2]
        redacted = redact_values({"value": value})["value"]
        if not self._keep(path, redacted):
            outcome = "it is left out"
        elif redacted == value:
            outcome = "it is kept unchanged for exports"
        else:
            outcome = "it is kept for exports without its secrets"
        self.add(f'{kind}: the field "{name[:_LONGEST_NAME]}" is unknown here; {outcome}.')

    def _keep(self, path: str, value: Any) -> bool:
        try:
            size = len(path) + len(orjson.dumps(value))
        except TypeError:
            return False
        if self.size + size > _MOST_UNREAD_BYTES:
            return False
        self.size += size
        self.unread[path] = value
        return True

    def lines(self) -> list[str]:
        """Return each sentence once, in the order of the notes; above 200, count the rest."""
        sentences = [
            text if count == 1 else f"{text} ({count} times)" for text, count in self.counts.items()
        ]
        rest = len(sentences) - _MOST_NOTES
        if rest <= 0:
            return sentences
        return [*sentences[:_MOST_NOTES], f"There are {rest} more notes of this kind."]


def is_id_of(ids: Collection[str], value: Any) -> bool:
    """Return True if the value is one of these ids. Any JSON value may stand where an id belongs.

    Args:
        ids: The ids of one kind in the file, as a set or as the keys of a mapping.
        value: The value in the file, which may be of a type that cannot be hashed.
    """
    return isinstance(value, str) and value in ids


def without_unknown(
    fields: Mapping[str, Any], known_names: Iterable[str], kind: str, path: str, notes: ImportNotes
) -> Json:
    """Return the known fields; note the others.

    Args:
        fields: The fields of one object, which are not changed.
        known_names: The names of the known fields.
        kind: The part of the file, for the notes, such as "Blocks".
        path: The path of the object in the file, or its id.
        notes: Gets a note on each unknown field that is not empty.
    """
    names = set(known_names)
    for name, value in fields.items():
        if name not in names:
            notes.add_unknown(kind, f"{path}.{name}", value)
    return {name: value for name, value in fields.items() if name in names}


def fitted(model: type[BaseModel], fields: Json, kind: str, path: str, notes: ImportNotes) -> Json:
    """Return the fields that the model accepts.

    Each part that it refuses is left out separately and noted. If it refuses the whole, the result
    or still refuses something after 50 rounds, the result is empty.

    Args:
        model: The pydantic model.
        fields: The fields of one object, which are not changed.
        kind: The part of the file, for the notes, such as "Blocks".
        path: The path of the object in the file, or its id.
        notes: Gets notes on the refused parts.
    """
    accepted = deepcopy(fields)
    for _ in range(_MOST_ROUNDS):
        try:
            model.model_validate(accepted)
        except ValidationError as error:
            faults = {
                fault_path: fault
                for fault in error.errors()
                if (fault_path := _path_of(accepted, fault["loc"]))
            }
            if not faults:
                notes.add(f"{kind}: left out, since {_reason(error.errors()[0])}.")
                return {}
            _remove(accepted, faults, kind, path, notes)
        else:
            return accepted
    notes.add(f"{kind}: left out, since each mended fault made another one.")
    return {}


def _path_of(value: Any, loc: _Path) -> _Path:
    """Return the part of a fault's location that exists in the value.

    A location may also contain names of union members and of missing fields.
    """
    existing: list[str | int] = []
    for step in loc:
        if isinstance(value, dict):
            is_there = step in value
        else:
            is_there = isinstance(value, list) and isinstance(step, int)
        if is_there and not (isinstance(value, list) and int(step) >= len(value)):
            existing.append(step)
            value = value[step]
    return tuple(existing)


def _remove(
    accepted: Json,
    faults: Mapping[_Path, ErrorDetails],
    kind: str,
    base_path: str,
    notes: ImportNotes,
) -> None:
    outermost = [
        path for path in faults if not any(path[:end] in faults for end in range(1, len(path)))
    ]
    # Begin at the end of each list, so that the positions of other entries do not change.
    for path in sorted(outermost, key=_sort_key, reverse=True):
        *parents, last = path
        holder: Any = accepted
        for step in parents:
            holder = holder[step]
        removed = holder.pop(last)
        fault = faults[path]
        if fault["type"] == "extra_forbidden":
            notes.add_unknown(
                f"{kind}{_path_text(parents)}", ".".join(map(str, (base_path, *path))), removed
            )
        else:
            notes.add(f"{kind}: {_path_text(path).strip()} is left out, since {_reason(fault)}.")


def _sort_key(path: _Path) -> list[tuple[str, str | int]]:
    return [(str(type(step)), step) for step in path]


def _path_text(path: Iterable[str | int]) -> str:
    """Return a path without numbers, so that similar faults share one note."""
    names = [str(step)[:_LONGEST_NAME] for step in path if isinstance(step, str)]
    return f" {'.'.join(names)}" if names else ""


def _reason(fault: ErrorDetails) -> str:
    sentence = fault["msg"].removeprefix("Value error, ")
    return f"{sentence[:1].lower()}{sentence[1:]}".rstrip(".")


_MOST_INTEGER = 2**63


def storable(content: Any, notes: ImportNotes) -> Any:
    """Return JSON without values that a database cannot store.

    NUL characters are removed, and lone surrogates become "?". Integers beyond 64 bits become None;
    so do lists and objects that are nested too deeply.

    Args:
        content: Decoded JSON, which is not changed.
        notes: Gets a note if something was removed.
    """
    try:
        text = encoded_json(content)
    except TypeError:
        text = b"\\u0000"
    if b"\\u0000" not in text:
        return content
    cleaned = _storable(content, 0)
    if cleaned != content:
        notes.add("Values that cannot be stored, such as NUL characters, were removed.")
    return cleaned


def _storable(value: Any, depth: int) -> Any:
    match value:
        case dict() | list() if depth == MOST_LEVELS:
            return None
        case str():
            return value.replace("\0", "").encode("utf-8", "replace").decode()
        case dict():
            return {
                _storable(str(name), depth + 1): _storable(child, depth + 1)
                for name, child in value.items()
            }
        case list():
            return [_storable(child, depth + 1) for child in value]
        case int() if not -_MOST_INTEGER <= value < _MOST_INTEGER:
            return None
    return value
