"""TOML that people write: read with the line of what is wrong. The standard library reads it, but keeps no lines."""

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ricordo.memory.sections import Problem, refuse

Path = tuple[str | int, ...]

_MOST_PARTS = 8
_BASIC = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_LITERAL = r"'[^'\n]*'"
_LONG_BASIC = r'"""[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}'
_LONG_LITERAL = r"'''[^']*(?:'{1,2}(?!')[^']*)*'{3,5}"
_COMMENT = r"#[^\n]*"
_STRING = re.compile("|".join((_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL)), re.DOTALL)
# What begins with a quote and does not end is no TOML: nothing is read beyond it, and looking for its end again would be slow.
_STRING_OR_COMMENT = re.compile(rf"{_STRING.pattern}|[\"'].*\Z|{_COMMENT}", re.DOTALL)
_BLANK = re.compile(rf"(?:\s+|{_COMMENT})*")
_PART = re.compile(rf"[ \t]*([A-Za-z0-9_-]+|{_BASIC}|{_LITERAL})[ \t]*")
_HEAD = re.compile(rf"(?P<open>\[{{0,2}})(?P<key>{_PART.pattern}(?:\.{_PART.pattern})*)(?:\]{{1,2}}|=)")
_IN_VALUE = re.compile(rf"{_STRING.pattern}|{_COMMENT}|[\[\]{{}}\n]", re.DOTALL)
_LONG = re.compile("[ \t]*(?:\"\"\"|''')")
# Nothing is tried twice (`++`), as a name can be as long as the text.
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++(?:[ \t]*+\.[ \t]*+[A-Za-z0-9_-]++){{{_MOST_PARTS}}}")

_PLACE = re.compile(r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)
_NO_END = "the text has no end. Put the quotes that it begins with behind it."
_SECOND = "this table occurs twice. Keep one of the two."
_NO_NAME = 'a line must begin with a name. Write it as name = "Alice".'
_HINTS = {
    "Cannot overwrite": "this key occurs twice. Keep one of the two.",
    "Cannot declare": _SECOND,
    "Cannot redefine": _SECOND,
    "Cannot mutate": _SECOND,
    "Expected '='": 'an "=" is missing after the name. Write it as name = "Alice".',
    "Invalid initial character for a key": _NO_NAME,
    "Invalid statement": _NO_NAME,
    "Invalid value": 'this is no value of TOML. Put text in quotes, as in name = "Alice".',
    "Illegal character '\\n'": _NO_END,
    "Expected \"'''\"": _NO_END,
    "Unterminated string": _NO_END,
    "Expected newline or end": "a key can have only one value. Put text in quotes.",
    "Unclosed array": 'the list has no end. Put "]" behind it.',
    "Unescaped '\\'": r"a \ in quotes must be written as \\.",
    "Invalid date": "there is no such day or time. Write it as 2026-05-31.",
}


@dataclass(frozen=True, slots=True)
class TomlPlace:
    """The line of a key, and the last one of its value, from 1; `is_long` where the value is between three quotes."""

    line: int
    last: int
    is_long: bool = False


def read_toml(text: str, where: str = "") -> dict[str, Any]:
    """What a TOML text holds. Raises Invalid that names the line, and `where` in front of it."""
    if line := deep_key(text):
        refuse([Problem(line, "the name has too many parts. Use at most eight, with dots between them.")], where)
    try:
        return tomllib.loads(text)
    except RecursionError:
        refuse([Problem(1, "lists or tables lie too deep in each other. Make it flatter.")], where)
    except tomllib.TOMLDecodeError as error:
        refuse([_problem(str(error), text)], where)
    except ValueError:  # a number of thousands of digits
        found = re.search(r"[0-9a-fA-F_]{1000}", text)
        line = text.count("\n", 0, found.start()) + 1 if found else 1
        refuse([Problem(line, "the number has too many digits. Shorten it.")], where)


def deep_key(text: str) -> int | None:
    """The first line with a key of more than eight parts, if there is one.

    The time that the standard library takes for a key grows with the square of its parts: 10 kB of dots would take two seconds.
    """
    # Strings and comments may hold any dots: only their line breaks stay, and a letter, as a string can be a part of a key.
    bare = _STRING_OR_COMMENT.sub(lambda found: _gap(found.group()), text)
    found = _DEEP_KEY.search(bare)
    return bare.count("\n", 0, found.start()) + 1 if found else None


class Lines:
    """The lines of a TOML text that was read without an error, looked up when the first one is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _places(self) -> dict[Path, TomlPlace]:
        return places(self._text)

    def place(self, *path: str | int) -> TomlPlace:
        """The place of a key; where it is missing, of its nearest parent, and at last the text's end."""
        while path and path not in self._places:
            path = path[:-1]
        end = self._text.rstrip().count("\n") + 1
        return self._places.get(path) or TomlPlace(end, end)

    def problem(self, sentence: str, *path: str | int) -> Problem:
        return Problem(self.place(*path).line, sentence)

    def line_in(self, text: str, line: int, *path: str | int) -> int:
        """The line in the file of a line of a text that stands at a path; the text's first where they do not correspond."""
        place = self.place(*path)
        # A long text begins below its opening quotes.
        above = place.last - place.line - text.count("\n")
        return place.line + line - 1 + above if above in (0, int(place.is_long)) else place.line


def places(text: str) -> dict[Path, TomlPlace]:
    """Where the keys and tables of a TOML text stand that the standard library can read; tables of an array count from 0."""
    found: dict[Path, TomlPlace] = {}
    arrays: dict[Path, int] = {}  # the number of the last table of each array of tables
    table: Path = ()
    line, at = 1, 0
    while head := _HEAD.match(text, end := _next(text, at)):
        line += text.count("\n", at, end)
        path = () if head["open"] else table
        for part in _PART.findall(head["key"]):
            if path in arrays:  # it means the last table there
                path = (*path, arrays[path])
            path = (*path, tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
            found.setdefault(path, TomlPlace(line, line))
        if head["open"] == "[[":
            arrays[path] = arrays.get(path, -1) + 1
            path = (*path, arrays[path])
        if head["open"]:
            found[path] = TomlPlace(line, line)
            table, at = path, head.end()
            continue
        at = _value_end(text, head.end())
        last = line + text.count("\n", end, at)
        found[path] = TomlPlace(line, last, is_long=bool(_LONG.match(text, head.end())))
        line = last
    return found


def _next(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _value_end(text: str, begin: int) -> int:
    depth = 0
    for token in _IN_VALUE.finditer(text, begin):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and not depth:
            return token.start()
    return len(text)


def _problem(message: str, text: str) -> Problem:
    match = _PLACE.fullmatch(message)
    what = match["what"] if match else message
    line = int(match["line"]) if match and match["line"] else text.rstrip("\n").count("\n") + 1
    hint = next((hint for beginning, hint in _HINTS.items() if what.startswith(beginning)), None)
    return Problem(line, hint or f"the TOML cannot be read: {what}. Correct it there.")


def _gap(token: str) -> str:
    return ("" if token.startswith("#") else "s") + "\n" * token.count("\n")
