"""TOML that people write: read with the line of what is wrong. The standard library reads it, but keeps no lines."""

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass
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
_BARE = re.compile(r"[^,\]}#\n]+")
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
    """The lines of a key and of its value, counted from 1; `is_long` where the value is between three quotes."""

    line: int
    first: int
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
        self._places: dict[Path, TomlPlace] | None = None

    def place(self, *path: str | int) -> TomlPlace:
        """The place of a key or item; where it is missing, of its nearest parent, and at last the end of the text."""
        if self._places is None:
            self._places = places(self._text)
        while path:
            if path in self._places:
                return self._places[path]
            path = path[:-1]
        end = self._text.rstrip().count("\n") + 1
        return TomlPlace(end, end, end)

    def problem(self, sentence: str, *path: str | int) -> Problem:
        return Problem(self.place(*path).line, sentence)

    def line_in(self, text: str, line: int, *path: str | int) -> int:
        """The line in the file of a line of a text that stands at a path; the text's first where they do not correspond."""
        place = self.place(*path)
        breaks = text.count("\n")
        if place.is_long and place.last - place.first == breaks + 1:
            return place.first + line  # the text begins below its opening quotes
        return place.first + line - 1 if place.last - place.first == breaks else place.line


def places(text: str) -> dict[Path, TomlPlace]:
    """Where everything in a TOML text stands that the standard library can read; tables of an array are counted from 0."""
    reader = _PlaceReader(text)
    reader.read()
    return reader.found


class _PlaceReader:
    """One pass over a text, from token to token."""

    def __init__(self, text: str) -> None:
        self.found: dict[Path, TomlPlace] = {}
        self._text = text
        self._at = 0
        self._tables: dict[Path, int] = {}  # the number of the last table of each array of tables
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def read(self) -> None:
        table: Path = ()
        while self._skip(_BLANK) < len(self._text):
            if self._text.startswith("[", self._at):
                line, brackets = self._line(), 2 if self._text.startswith("[[", self._at) else 1
                self._at += brackets
                table = self._key((), line)
                self._at += brackets
                if brackets == 2:
                    self._tables[table] = number = self._tables.get(table, -1) + 1
                    table = (*table, number)
                    self.found[table] = TomlPlace(line, line, line)
            else:
                self._pair(table)

    def _line(self) -> int:
        return bisect_right(self._breaks, self._at - 1) + 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:  # unreachable for a text that tomllib has read
            raise ValueError(f"no TOML at {self._at}")
        return match

    def _skip(self, pattern: re.Pattern[str]) -> int:
        self._at = self._match(pattern).end()
        return self._at

    def _key(self, path: Path, line: int) -> Path:
        while True:
            if path in self._tables:  # it means the last table there
                path = (*path, self._tables[path])
            part = self._match(_PART)
            self._at = part.end()
            name = part.group(1)
            path = (*path, tomllib.loads(f"key = {name}")["key"] if name[0] in "\"'" else name)
            self.found.setdefault(path, TomlPlace(line, line, line))
            if not self._text.startswith(".", self._at):
                return path
            self._at += 1

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = self._key(table, line)
        self._at += 1  # the equals sign
        self._value(path, line)

    def _value(self, path: Path, line: int | None = None) -> None:
        while self._text[self._at] in " \t":
            self._at += 1
        first, start, is_long = self._line(), self._at, False
        if (sign := self._text[start]) in "[{":
            self._items(path, "]" if sign == "[" else "}")
        elif sign in "\"'":
            is_long = self._skip(_STRING) - start >= 6 and self._text[start : start + 3] in ('"""', "'''")
        else:
            self._skip(_BARE)
        self.found[path] = TomlPlace(first if line is None else line, first, self._line(), is_long)

    def _items(self, path: Path, end: str) -> None:
        """Read a list or an inline table."""
        self._at += 1
        number = 0
        while (sign := self._text[self._skip(_BLANK)]) != end:
            if sign == ",":
                self._at += 1
            elif end == "}":
                self._pair(path)
            else:
                self._value((*path, number))
                number += 1
        self._at += 1


def _problem(message: str, text: str) -> Problem:
    match = _PLACE.fullmatch(message)
    what = match["what"] if match else message
    line = int(match["line"]) if match and match["line"] else text.rstrip("\n").count("\n") + 1
    hint = next((hint for beginning, hint in _HINTS.items() if what.startswith(beginning)), None)
    return Problem(line, hint or f"the TOML cannot be read: {what}. Correct it there.")


def _gap(token: str) -> str:
    return ("" if token.startswith("#") else "s") + "\n" * token.count("\n")
