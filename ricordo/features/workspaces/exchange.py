"""How files go into the sandbox and come back: a line of JSON, and for each file a line with its path and size, then its bytes."""

import json
from collections.abc import Mapping
from typing import Any


def packed(header: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return the header and the files in one piece."""
    parts = [json.dumps(header).encode(), b"\n"]
    for path, data in files.items():
        parts += [json.dumps({"path": path, "size": len(data)}).encode(), b"\n", data]
    return b"".join(parts)


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the header and the files. Raises ValueError for anything else, whoever wrote it."""
    header, place = _line(data, 0)
    files: dict[str, bytes] = {}
    while place < len(data):
        told, place = _line(data, place)
        path = told.get("path")
        size = told.get("size")
        if (
            not isinstance(path, str)
            or not isinstance(size, int)
            or not 0 <= size <= len(data) - place
        ):
            raise ValueError("This is no file.")
        files[path] = data[place : place + size]
        place += size
    return header, files


def _line(data: bytes, place: int) -> tuple[dict[str, Any], int]:
    end = data.find(b"\n", place)
    made = json.loads(data[place:end]) if end >= 0 else None
    if isinstance(made, dict):
        return made, end + 1
    raise ValueError("This is no line of JSON.")
