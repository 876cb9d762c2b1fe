"""JSON as models write it: nearly right. Pure; a text whose meaning is not certain is not read.

Read are line breaks in strings, doubled braces, Python's way to write it, a comma too many, Gemma's quotes and a brace that is
missing at the end. Each reading takes time that grows with the text's length alone.
"""

import ast
import json
import re
from typing import Any

import orjson

# Longer texts are not read as Python: its parser holds up all threads meanwhile, and is quadratic in f-strings.
PYTHON_CHARACTERS = 16_000
_DECODER = json.JSONDecoder(strict=False)
_SIGNS = re.compile(r"""\\.|["'()\[\]{}]""", re.DOTALL)
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_STRING = r'"(?:[^"\\]|\\(?:.|\Z))*+(?:"|\Z)'
_SPARE_COMMA = re.compile(rf"({_STRING})|,(?=\s*+[}}\]])", re.DOTALL)
_DOUBLED_BRACE = re.compile(rf"({_STRING})|([{{}}])\2", re.DOTALL)
_BARE_KEY = re.compile(rf"({_STRING})|([{{,]\s*+)([A-Za-z_]\w{{0,127}})(?=:)", re.DOTALL)
_GEMMA_QUOTES = ("<escape>", '<|"|>')


def read_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON; None where it is none."""
    try:
        return orjson.loads(text)
    except ValueError:
        return None


def read_value_at(text: str, start: int) -> tuple[Any, int] | None:
    """Return the object or list that begins at `start`, and where it ends; None where it cannot be read."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        end = balanced_end(text, start)
    if end is None:
        return None
    value = read_loosely(text[start:end])
    return None if value is None else (value, end)


def read_unclosed(text: str) -> Any:
    """Return the value of a text that lacks one or two braces at its end, all else being whole."""
    rest = text.rstrip()
    values = (_strictly(rest + end) for end in ("}", "}}"))
    return next((value for value in values if value is not None), None)


def read_loosely(text: str) -> Any:
    """Return the value of a whole text that is nearly JSON; None where it cannot be read."""
    for quote in _GEMMA_QUOTES:
        text = text.replace(quote, '"')
    variants = [text]
    if text.startswith("{{"):
        variants += [text[1:-1], _DOUBLED_BRACE.sub(lambda match: match[1] or match[2], text)]
    for variant in variants:
        value = _strictly(variant)
        if value is None:
            value = _as_python(variant)
        if value is None:
            value = _strictly(
                _BARE_KEY.sub(_quoted_key, _SPARE_COMMA.sub(lambda match: match[1] or "", variant))
            )
        if value is not None:
            return value
    return None


def balanced_end(text: str, start: int) -> int | None:
    """Return where the bracket at `start` is closed, past strings in either quote; None where it never is."""
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
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return None if text[end:].strip() else value


def _as_python(text: str) -> Any:
    if len(text) > PYTHON_CHARACTERS or not text.startswith(("{", "[")):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    return value if isinstance(value, dict | list) else None
