"""Decode the JSON of an agent file.

The bytes may be UTF-8, UTF-16 or UTF-32, with or without a byte order mark. The JSON may be wrapped
in JSON strings.
"""

import json
from typing import Any

import orjson

from ricordo.domain.text import normal_json
from ricordo.errors import Invalid
from ricordo.features.documents.agent_files.tolerance import ImportNotes, storable

# The most JSON strings around a file. Some servers wrote a file as a JSON string, and some exports
# were encoded a second time.
_MOST_LAYERS = 4
# Characters of the file that an error quotes.
_MOST_QUOTED = 40
_BYTE_ORDER_MARK = "\ufeff"


def decode(data: bytes, notes: ImportNotes) -> Any:
    """Return the decoded content of the file.

    Raises Invalid if the file is empty, cut off, not JSON or nested too deeply. For a file that is
    not JSON, the error names the position of the fault.
    """
    content = _loads(_text_of(data), notes)
    for _ in range(_MOST_LAYERS):
        if not isinstance(content, str):
            break
        notes.add(
            "The file was a JSON string that contains the agent file; the content of the string was read."
        )
        content = _loads(content, notes)
    return normal_json(storable(content, notes))


def _text_of(data: bytes) -> str:
    if not data.strip():
        raise Invalid("The agent file is empty. Export it again, and send the whole file.")
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding.startswith("utf-8"):
            message = (
                f"The agent file is not JSON: byte {error.start:,} of {len(data):,} is no UTF-8. "
                "Save it as UTF-8."
            )
        else:
            message = (
                f"The agent file looks like {encoding}, and breaks off at byte {error.start:,} "
                f"of {len(data):,}."
            )
        raise Invalid(message) from error


def _loads(text: str, notes: ImportNotes) -> Any:
    text = text.lstrip(_BYTE_ORDER_MARK).strip()
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        # Python's json module reads NaN, lone surrogates and control characters. It writes the
        # first two itself.
        return _loads_leniently(text, notes)


def _loads_leniently(text: str, notes: ImportNotes) -> Any:
    try:
        content = json.loads(text, strict=False, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise Invalid(_describe_error(text, error)) from error
    except RecursionError as error:
        raise Invalid("The agent file is nested too deeply to be read.") from error
    notes.add(
        "The file holds values that JSON does not know, such as NaN; they were left out or mended."
    )
    return content


def _describe_error(text: str, error: json.JSONDecodeError) -> str:
    position = f"line {error.lineno}, column {error.colno}"
    is_in_text = error.msg.startswith("Unterminated string")
    is_at_end = error.pos >= len(text) - 1 and text[error.pos :] not in ("}", "]")
    if (is_in_text or is_at_end) and text[:1] in ("{", "[", '"'):
        if is_in_text:
            place = f"inside the text that begins at {position}"
        else:
            place = f"at {position}"
        return (
            f"The agent file is not JSON: it ends after {len(text):,} characters, {place}. It "
            "seems to be cut off: export or download it again."
        )
    near = text[error.pos : error.pos + _MOST_QUOTED].partition("\n")[0]
    return f"The agent file is not JSON: {error.msg} at {position}, near {near!r}."
