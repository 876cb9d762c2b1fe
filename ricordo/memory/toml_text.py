"""TOML as people edit it: reading with the line of what is wrong, and writing values so that they are pleasant to edit."""

import re
import tomllib
from collections.abc import Mapping
from datetime import date
from typing import Any

from ricordo.domain.block_schema import FieldValue
from ricordo.memory.sections import Problem, refuse
from ricordo.memory.toml_lines import Path, Place, deep_key, places

_PLACE = re.compile(r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)
_NO_END = "the text has no end. Put the quotes that it begins with behind it."
_HINTS = (
    ("Cannot overwrite", "this key stands there a second time. Keep one of the two."),
    ("Cannot declare", "this table stands there a second time. Keep one of the two."),
    ("Cannot redefine", "this table stands there a second time. Keep one of the two."),
    ("Cannot mutate", "this table stands there a second time. Keep one of the two."),
    ("Expected '='", 'an "=" is missing after the name. Write it as name = "Alice".'),
    ("Invalid initial character for a key", 'a line must begin with a name. Write it as name = "Alice".'),
    ("Invalid statement", 'a line must begin with a name. Write it as name = "Alice".'),
    ("Invalid value", 'this is no value of TOML. Put text in quotes, as in name = "Alice".'),
    ("Illegal character '\\n'", _NO_END),
    ("Expected \"'''\"", _NO_END),
    ("Unterminated string", _NO_END),
    ("Expected newline or end", "only one value can stand behind a name. Put text in quotes."),
    ("Unclosed array", 'the list has no end. Put "]" behind it.'),
    ("Unescaped '\\'", r"a \ in quotes must be written as \\."),
    ("Invalid date", "there is no such day or time. Write it as 2026-05-31."),
)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_NEEDS_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f]')
# In a text of several lines, line breaks and tabs stand as they are. Of three quotes in a row the third is escaped, and the last
# one of the text, as the closing quotes come behind it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NEEDS_LONG_ESCAPE = re.compile(rf'\\|{_CONTROL.pattern}|(?<="")"|"\Z')
_WIDEST = 100


def read_toml(text: str, where: str = "") -> dict[str, Any]:
    """What a TOML text holds. Raises Invalid that names the line, and `where` in front of it."""
    if line := deep_key(text):
        refuse([Problem(line, "the name has too many parts. Use at most eight, with dots between them.")], where)
    try:
        return tomllib.loads(text)
    except RecursionError:
        refuse([Problem(1, "lists or tables lie too deep in each other. Make it flatter.")], where)
    except tomllib.TOMLDecodeError as error:
        refuse([_told(str(error), text)], where)
    except ValueError:  # a number of thousands of digits
        refuse([Problem(_line_of_digits(text), "the number has too many digits. Shorten it.")], where)


def _told(message: str, text: str) -> Problem:
    match = _PLACE.fullmatch(message)
    what = match["what"] if match else message
    line = int(match["line"]) if match and match["line"] else text.rstrip("\n").count("\n") + 1
    hint = next((hint for beginning, hint in _HINTS if what.startswith(beginning)), None)
    return Problem(line, hint or f"the TOML cannot be read: {what}. Correct it there.")


def _line_of_digits(text: str) -> int:
    found = re.search(r"[0-9a-fA-F_]{1000}", text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


class Lines:
    """The lines of a TOML text that was read without an error, looked up when the first one is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: dict[Path, Place] | None = None

    def place(self, *path: str | int) -> Place:
        """Where a key or item stands; where it is missing, its nearest parent, and at last the end of the text."""
        if self._places is None:
            self._places = places(self._text)
        while path:
            if path in self._places:
                return self._places[path]
            path = path[:-1]
        end = self._text.rstrip().count("\n") + 1
        return Place(end, end, end)

    def problem(self, sentence: str, *path: str | int) -> Problem:
        """A sentence about what stands at a path."""
        return Problem(self.place(*path).line, sentence)

    def line_in(self, text: str, line: int, *path: str | int) -> int:
        """The line in the file of a line of a text that stands at a path; the text's first where they do not correspond."""
        place = self.place(*path)
        breaks = text.count("\n")
        if place.is_long and place.last - place.first == breaks + 1:
            return place.first + line  # the text begins below its opening quotes
        return place.first + line - 1 if place.last - place.first == breaks else place.line


def write_toml(values: Mapping[str, FieldValue]) -> str:
    """A TOML text with one key a value, in their order; an empty value of any kind is written as ""."""
    return "".join(f"{key} = {_value(value)}\n" for key, value in values.items())


def _value(value: FieldValue) -> str:
    match value:
        case None:
            return '""'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case date():
            return value.isoformat()
        case str():
            return _long(value) if "\n" in value else _short(value)
        case tuple():
            items = [_short(item) for item in value]
            line = f"[{', '.join(items)}]"
            return line if len(line) <= _WIDEST else "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def _short(text: str) -> str:
    return f'"{_NEEDS_ESCAPE.sub(_escaped, text)}"'


def _long(text: str) -> str:
    # The line break right behind the opening quotes is not part of the text.
    if "'''" in text or text.endswith("'") or _CONTROL.search(text):
        return f'"""\n{_NEEDS_LONG_ESCAPE.sub(_escaped, text)}"""'
    return f"'''\n{text}'''"


def _escaped(found: re.Match[str]) -> str:
    sign = found.group()
    return _ESCAPES.get(sign, f"\\u{ord(sign):04x}")
