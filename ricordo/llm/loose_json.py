"""JSON as models write it: nearly right.

The functions are pure. They do not read a text whose meaning is uncertain.

They read line breaks in strings, doubled braces, Python literals, trailing commas, keys without
quotes, Gemma's quotes, and texts that lack the last brace or two. Each function takes time linear
in the length of the text.
"""

import ast
import json
import re
from typing import Any

import orjson

# Longer texts are not read as Python, whose parser blocks all threads and is quadratic in
# f-strings.
PYTHON_CHARACTERS = 16_000
_DECODER = json.JSONDecoder(strict=False)
_SIGNS = re.compile(r"""\\.|["'()\[\]{}]""", re.DOTALL)
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_STRING = r'"(?:[^"\\]|\\(?:.|\Z))*+(?:"|\Z)'
_SPARE_COMMA = re.compile(rf"({_STRING})|,(?=\s*+[}}\]])", re.DOTALL)
_DOUBLED_BRACE = re.compile(rf"({_STRING})|([{{}}])\2", re.DOTALL)
_BARE_KEY = re.compile(rf"({_STRING})|([{{,]\s*+)([A-Za-z_]\w{{0,127}})(?=:)", re.DOTALL)
# An escape; the group is empty for half of a surrogate pair without the other half.
_ESCAPE = re.compile(
    r"(\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)"
    r"|\\u[dD][89a-fA-F][\da-fA-F]{2}",
    re.DOTALL,
)
_GEMMA_QUOTES = ("<escape>", '<|"|>')


def read_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON.

    Args:
        text: The text, or its bytes in UTF-8.

    Returns:
        The value; None if it is not JSON, and also for `null`.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        return None


def read_answer(content: bytes) -> Any:
    """Return the value of a server's answer in JSON, with U+FFFD for each broken character.

    Broken characters are bytes that are not UTF-8, and halves of surrogate pairs. Servers send them
    where a token, or a piece of a stream, ends within a character. NaN and Infinity become None.

    Args:
        content: The answer.

    Returns:
        The value; None if the answer is not JSON, and also for `null`.
    """
    value = read_json(content)
    if value is None:
        text = content.decode(errors="replace")
        text = _ESCAPE.sub(lambda match: match[1] or "\\ufffd", text)
        value = read_json(text)
        if value is None and ("NaN" in text or "Infinity" in text):
            value = _read_with_constants(text)
    return value


def _read_with_constants(text: str) -> Any:
    """Return the value of JSON from Python's own encoder, with None for NaN and Infinity."""
    try:
        return json.loads(text, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        return None


def member_of(value: Any, name: str) -> Any:
    """Return a member of a JSON object.

    Args:
        value: Any JSON value.
        name: The name of the member.

    Returns:
        None if the member is missing, or if the value is not an object.
    """
    return value.get(name) if isinstance(value, dict) else None


def read_value_at(text: str, start: int) -> tuple[Any, int] | None:
    """Return the object or list that begins at `start`, and its end.

    Args:
        text: A text of a model, with other text before and after the value.
        start: The index of the opening brace or bracket.

    Returns:
        The value and the index after it; None if it is unreadable.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        end = balanced_end(text, start)
    if end is None:
        return None
    parsed = read_loosely(text[start:end])
    if parsed is None:
        return None
    return (parsed, end)


def read_unclosed(text: str) -> Any:
    """Return the value of a text that lacks only one or two closing braces.

    Args:
        text: The text from its opening brace to its end.

    Returns:
        The value; None if the text is unreadable.
    """
    rest = text.rstrip()
    readings = (_strictly(rest + end) for end in ("}", "}}"))
    return next((parsed for parsed in readings if parsed is not None), None)


def read_loosely(text: str) -> Any:
    """Return the value of a whole text that is nearly JSON.

    Args:
        text: The text, without blanks around it.

    Returns:
        The value; None if the text is unreadable.
    """
    for quote in _GEMMA_QUOTES:
        text = text.replace(quote, '"')
    variants = [text]
    if text.startswith("{{"):
        variants += [text[1:-1], _DOUBLED_BRACE.sub(lambda match: match[1] or match[2], text)]
    for variant in variants:
        parsed = _strictly(variant)
        if parsed is None:
            parsed = _as_python(variant)
        if parsed is None:
            parsed = _strictly(
                _BARE_KEY.sub(_quoted_key, _SPARE_COMMA.sub(lambda match: match[1] or "", variant))
            )
        if parsed is not None:
            return parsed
    return None


def balanced_end(text: str, start: int) -> int | None:
    """Return the end of the bracket at `start`; brackets in quoted strings do not count.

    Args:
        text: A text of a model.
        start: The index of the opening bracket.

    Returns:
        The index after the closing bracket; None if the bracket is never closed.
    """
    stack: list[str] = []
    quote = ""
    for match in _SIGNS.finditer(text, start):
        sign = match[0]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in _CLOSERS:
            stack.append(_CLOSERS[sign])
        elif sign in ")]}":
            if not stack or stack.pop() != sign:
                return None
            if not stack:
                return match.end()
    return None


def _quoted_key(match: re.Match[str]) -> str:
    return match[1] or f'{match[2]}"{match[3]}"'


def _strictly(text: str) -> Any:
    """Read a whole text as JSON that may have line breaks in its strings."""
    try:
        parsed, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return None if text[end:].strip() else parsed


def _as_python(text: str) -> Any:
    if len(text) > PYTHON_CHARACTERS or not text.startswith(("{", "[")):
        return None
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    if isinstance(parsed, dict | list):
        return parsed
    return None
