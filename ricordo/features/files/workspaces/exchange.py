"""The format of files that enter and leave the sandbox.

The header comes first, as one line of JSON. Each file follows as a line of JSON with its path and
size, and then its bytes.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def packed(header: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return the header and the files as one byte string.

    Args:
        header: The header, as a value for JSON.
        files: The contents by path.
    """
    parts = [json.dumps(header).encode(), b"\n"]
    for path, content in files.items():
        parts += [json.dumps({"path": path, "size": len(content)}).encode(), b"\n", content]
    return b"".join(parts)


def unpacked(packed_bytes: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the header, and the files by path.

    Args:
        packed_bytes: The bytes in the form that `packed` returns; they are not trusted.

    Raises:
        ValueError: The bytes have another form.
    """
    header, offset = _line(packed_bytes, 0)
    files: dict[str, bytes] = {}
    while offset < len(packed_bytes):
        entry, offset = _line(packed_bytes, offset)
        path = entry.get("path")
        size = entry.get("size")
        if (
            not isinstance(path, str)
            or not isinstance(size, int)
            or not 0 <= size <= len(packed_bytes) - offset
        ):
            raise ValueError("This is not a file.")
        files[path] = packed_bytes[offset : offset + size]
        offset += size
    return header, files


def _line(packed_bytes: bytes, offset: int) -> tuple[dict[str, Any], int]:
    end = packed_bytes.find(b"\n", offset)
    entry = None
    if end >= 0:
        # A line that is nested too deeply raises RecursionError, which is no ValueError.
        with suppress(RecursionError):
            entry = json.loads(packed_bytes[offset:end])
    if isinstance(entry, dict):
        return entry, end + 1
    raise ValueError("This is not a line of JSON.")
