"""Where in a TOML text each key and each item of a list stands. The standard library reads TOML, but keeps no lines."""

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass

Path = tuple[str | int, ...]

_MOST_PARTS = 8
_BASIC = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_LITERAL = r"'[^'\n]*'"
_LONG_BASIC = r'"""[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}'
_LONG_LITERAL = r"'''[^']*(?:'{1,2}(?!')[^']*)*'{3,5}"
_COMMENT = r"#[^\n]*"
_STRING = re.compile("|".join((_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL)), re.DOTALL)
# What begins with a quote and does not end is no TOML: nobody reads beyond it, and looking for its end again would be slow.
_STRING_OR_COMMENT = re.compile(rf"{_STRING.pattern}|[\"'].*\Z|{_COMMENT}", re.DOTALL)
_BLANK = re.compile(rf"(?:\s+|{_COMMENT})*")
_PART = re.compile(rf"[ \t]*([A-Za-z0-9_-]+|{_BASIC}|{_LITERAL})[ \t]*")
_BARE = re.compile(r"[^,\]}#\n]+")
# Nothing is tried twice (`++`), as a name can be as long as the text.
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++(?:[ \t]*+\.[ \t]*+[A-Za-z0-9_-]++){{{_MOST_PARTS}}}")


@dataclass(frozen=True, slots=True)
class Place:
    """The lines of a key and of its value, counted from 1; `is_long` where the value stands between three quotes and their like."""

    line: int
    first: int
    last: int
    is_long: bool = False


def deep_key(text: str) -> int | None:
    """The first line with a key of more than eight parts, if there is one.

    The time that the standard library takes for a key grows with the square of its parts: 10 kB of dots would take two seconds.
    """
    # Strings and comments may hold any dots: only their line breaks stay, and a letter, as a string can be a part of a key.
    bare = _STRING_OR_COMMENT.sub(lambda found: _gap(found.group()), text)
    found = _DEEP_KEY.search(bare)
    return bare.count("\n", 0, found.start()) + 1 if found else None


def _gap(token: str) -> str:
    return ("" if token.startswith("#") else "s") + "\n" * token.count("\n")


def places(text: str) -> dict[Path, Place]:
    """Where everything in a TOML text stands that the standard library can read; tables of an array are counted from 0."""
    return _Reader(text).read()


class _Reader:
    """One pass over a text, from token to token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, Place] = {}
        self._tables: dict[Path, int] = {}  # how many tables an array of tables has so far
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def read(self) -> dict[Path, Place]:
        table: Path = ()
        while self._skip_blank() < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)
        return self._found

    def _line(self) -> int:
        return bisect_right(self._breaks, self._at - 1) + 1

    def _skip_blank(self) -> int:
        self._at = self._match(_BLANK).end()
        return self._at

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:  # unreachable for a text that tomllib has read
            raise ValueError(f"no TOML at {self._at}")
        return match

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            match = self._match(_PART)
            self._at = match.end()
            part = match.group(1)
            parts.append(tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
            if not self._text.startswith(".", self._at):
                return tuple(parts)
            self._at += 1

    def _header(self) -> Path:
        line = self._line()
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        self._at += brackets
        path = self._resolved(self._key())
        self._at += brackets
        if brackets == 2:
            self._found.setdefault(path, Place(line, line, line))
            self._tables[path] = number = self._tables.get(path, -1) + 1
            path = (*path, number)
        self._found.setdefault(path, Place(line, line, line))
        return path

    def _resolved(self, parts: tuple[str, ...]) -> Path:
        """The path of a header: inside an array of tables it means the last table there."""
        path: Path = ()
        for place, part in enumerate(parts):
            path = (*path, part)
            if path in self._tables and place < len(parts) - 1:
                path = (*path, self._tables[path])
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for part in self._key():
            path = (*path, part)
            self._found.setdefault(path, Place(line, line, line))
        self._at += 1  # the equals sign
        self._value(path, line)

    def _value(self, path: Path, line: int | None = None) -> None:
        while self._text[self._at] in " \t":
            self._at += 1
        first, is_long = self._line(), False
        match self._text[self._at]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                string = self._match(_STRING)
                is_long = len(string.group()) >= 6 and string.group()[:3] in ('"""', "'''")
                self._at = string.end()
            case _:
                self._at = self._match(_BARE).end()
        self._found[path] = Place(first if line is None else line, first, self._line(), is_long)

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._text[self._skip_blank()] != "]":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._value((*path, number))
            number += 1
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._text[self._skip_blank()] != "}":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._pair(path)
        self._at += 1
