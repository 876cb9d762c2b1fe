"""A reader of a tool call's arguments while the model writes them.

It returns the text of one argument as it arrives, and the other arguments as JSON.
"""

import json
import re

from pydantic_core import from_json

# The text is parsed again after each growth by 1/128, so the total time is linear in the text's
# length.
GROWTH = 128
# Texts of more characters are parsed less often, since parsing takes time in proportion to the
# length.
_LONG = 32_000
_GROWTH_OF_LONG = 16
# No tool has more arguments. A call with more is read only once it is complete.
_MOST_KEYS = 100
_SIGNS = re.compile(r'\\.?|["{}]', re.DOTALL)


class ArgumentStream:
    """Reads a call's arguments in pieces, the text of `key` separately.

    Broken JSON ends the reading without an error; the fault is reported for the complete call.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._text = ""
        self._unread: list[str] = []
        self._unread_length = 0
        self._depth = 0
        self._in_string = False
        self._backslash = ""
        self._is_over = False
        self._read_so_far = ("", "")

    def feed(self, piece: str) -> tuple[str, str]:
        """Return the new text of the `key` argument and the others' new JSON.

        Args:
            piece: The next characters of the call's JSON.

        Returns:
            Both continue what was returned before. Both are empty while the piece is too short to
            be read, after the end, and after a fault.
        """
        if self._is_over:
            return "", ""
        self._unread.append(piece)
        self._unread_length += len(piece)
        is_whole = self._ends(piece)
        if len(self._text) < _LONG:
            growth = GROWTH
        else:
            growth = _GROWTH_OF_LONG
        if not is_whole and self._unread_length * growth < len(self._text) + self._unread_length:
            return "", ""
        self._text = "".join((self._text, *self._unread)).lstrip()
        self._unread = []
        self._unread_length = 0
        self._is_over = is_whole
        if not self._text:
            return "", ""
        before = self._read_so_far
        try:
            self._read_so_far = self._read(is_whole=is_whole)
        except ValueError:
            self._is_over = True
        if not all(map(str.startswith, self._read_so_far, before)):  # an argument came twice
            self._read_so_far = before
            self._is_over = True
        text, others = self._read_so_far
        return text[len(before[0]) :], others[len(before[1]) :]

    def _read(self, *, is_whole: bool) -> tuple[str, str]:
        """Return the text of `key` and the JSON of the other arguments, as far as they are certain.

        If the last argument is a text, only its beginning is certain.
        """
        arguments = from_json(self._text, allow_partial=False if is_whole else "trailing-strings")
        if not isinstance(arguments, dict):
            return "", ""
        if len(arguments) > _MOST_KEYS:
            raise ValueError("too many arguments")
        rows = {key: f"{_dumps(key)}:{_dumps(argument)}" for key, argument in arguments.items()}
        if rows and not is_whole:
            last_key, last_argument = next(reversed(arguments.items()))
            is_text = isinstance(last_argument, str)
            # The last text lacks its closing quote.
            rows[last_key] = rows[last_key][:-1] if is_text else ""
        text = arguments.get(self._key)
        if isinstance(text, str):
            del rows[self._key]
        else:
            text = ""
        others = ",".join(filter(None, rows.values()))
        if is_whole:
            return text, f"{{{others}}}"
        return text, "{" + others if others else ""

    def _ends(self, piece: str) -> bool:
        """Return whether this piece closes the object."""
        signs = _SIGNS.findall(self._backslash + piece)
        if signs and signs[-1] == "\\":
            self._backslash = "\\"
        else:
            self._backslash = ""
        for sign in signs:
            if sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string and sign in "{}":
                self._depth += 1 if sign == "{" else -1
        return "}" in piece and self._depth <= 0 and not self._in_string


def _dumps(argument: object) -> str:
    return json.dumps(argument, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
