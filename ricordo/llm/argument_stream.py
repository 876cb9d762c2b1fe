"""A tool call's arguments, read while they are written: the text of one of them as it comes, and the others as JSON."""

import json
import re

from pydantic_core import from_json

# The text is parsed again once it has grown by this part: so the time it takes grows with its length, not with its square.
GROWTH = 128
# Characters: longer arguments are parsed less often, since each time takes as long as they are.
_LONG, _GROWTH_OF_LONG = 32_000, 16
# No tool has more arguments; from there on only the whole call tells them.
_MOST_KEYS = 100
_SIGNS = re.compile(r'\\.?|["{}]', re.DOTALL)


class ArgumentStream:
    """Reads the arguments of a call in pieces, the text of `key` apart. Broken JSON ends it silently: the whole call tells."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._text = ""
        self._unread: list[str] = []
        self._unread_length = 0
        self._depth = 0
        self._in_string = False
        self._backslash = ""
        self._is_over = False
        self._shown = ("", "")

    def feed(self, piece: str) -> tuple[str, str]:
        """Return what this piece brings: text of the wanted argument, and JSON of the others, which together is valid."""
        if self._is_over:
            return "", ""
        self._unread.append(piece)
        self._unread_length += len(piece)
        is_whole = self._ends(piece)
        growth = GROWTH if len(self._text) < _LONG else _GROWTH_OF_LONG
        if not is_whole and self._unread_length * growth < len(self._text) + self._unread_length:
            return "", ""
        self._text = "".join((self._text, *self._unread)).lstrip()
        self._unread, self._unread_length, self._is_over = [], 0, is_whole
        if not self._text:
            return "", ""
        seen = self._shown
        try:
            self._shown = self._read(is_whole=is_whole)
        except ValueError:
            self._is_over = True
        if not all(map(str.startswith, self._shown, seen)):  # An argument came twice.
            self._shown, self._is_over = seen, True
        return self._shown[0][len(seen[0]) :], self._shown[1][len(seen[1]) :]

    def _read(self, *, is_whole: bool) -> tuple[str, str]:
        """Return all that is certain by now. Of the last argument only the beginning of a text is."""
        arguments = from_json(self._text, allow_partial=False if is_whole else "trailing-strings")
        if not isinstance(arguments, dict):
            return "", ""
        if len(arguments) > _MOST_KEYS:
            raise ValueError("too many arguments")
        rows = {key: f"{_dumps(key)}:{_dumps(value)}" for key, value in arguments.items()}
        if rows and not is_whole:
            last, value = next(reversed(arguments.items()))
            rows[last] = rows[last][:-1] if isinstance(value, str) else ""
        found = arguments.get(self._key)
        if isinstance(found, str):
            del rows[self._key]
        others = ",".join(filter(None, rows.values()))
        return found if isinstance(
            found, str
        ) else "", f"{{{others}}}" if is_whole else others and "{" + others

    def _ends(self, piece: str) -> bool:
        """Whether this piece closes the object."""
        signs = _SIGNS.findall(self._backslash + piece)
        self._backslash = "\\" if signs and signs[-1] == "\\" else ""
        for sign in signs:
            if sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string and sign in "{}":
                self._depth += 1 if sign == "{" else -1
        return "}" in piece and self._depth <= 0 and not self._in_string


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
