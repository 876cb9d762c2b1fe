"""A tool call's arguments, read while they are being written: the words in them are told as they come, the rest is passed on.

Pure. It reads one JSON object, cut into pieces anywhere. Broken JSON never raises: from there on nothing more is told, and the
whole call, which comes at the end, says what to do with it.
"""

import json
import re
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

_SPACE = " \t\r\n"
# What a string holds as it is; JSON allows no control characters in it.
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_BARE = re.compile(r'[^"{}\[\], \t\r\n]+')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLOSING = {"{": "}", "[": "]"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")

# A reader stops at `yield` where it has come to the end of what was fed, and goes on there with the next piece.
Reader = Generator[None, None, None]


@dataclass(frozen=True, slots=True)
class Words:
    """A piece of the text that the argument `key` holds, decoded."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Rest:
    """A piece of JSON: all rests together are the arguments without those that were told as words."""

    text: str


class ArgumentStream:
    """Reads the arguments of one call. `watched` are the keys whose strings are told as words; None is every key.

    Only strings right in the object are words; whatever else a watched key holds is passed on.
    """

    def __init__(self, watched: Collection[str] | None = None) -> None:
        self._watched = watched
        self._text = ""
        self._place = 0
        self._found: list[tuple[str | None, list[str]]] = []  # texts by their key; the rest has None
        self._reader = self._object()

    def feed(self, piece: str) -> list[Words | Rest]:
        """What this piece of the arguments brings, in order; neighbours of one kind come as one."""
        if not piece:
            return []
        self._text, self._place = piece, 0
        with suppress(_BrokenError):  # A generator that raised is at its end, so that later pieces bring nothing.
            next(self._reader, None)
        found, self._found = self._found, []
        return [Rest("".join(texts)) if key is None else Words(key, "".join(texts)) for key, texts in found]

    def _object(self) -> Reader:
        if (yield from self._sign()) != "{":
            raise _BrokenError
        sign, members, passed = (yield from self._sign()), 0, 0
        while sign != "}" or members:
            if sign != '"':
                raise _BrokenError
            pieces: list[str] = []
            yield from self._string(pieces.append)
            key = "".join(pieces)
            if (yield from self._sign()) != ":":
                raise _BrokenError
            sign = yield from self._sign()
            if sign == '"' and (self._watched is None or key in self._watched):
                yield from self._string(partial(self._tell, key))
            else:
                self._pass(f"{',' if passed else '{'}{json.dumps(key, ensure_ascii=False)}:")
                self._place -= 1
                yield from self._value()
                passed += 1
            members += 1
            sign = yield from self._sign()
            if sign == "}":
                break
            if sign != ",":
                raise _BrokenError
            sign = yield from self._sign()
        self._pass("}" if passed else "{}")

    def _string(self, take: Callable[[str], None]) -> Reader:
        """Read on to the closing quote; `take` gets the decoded text as it comes."""
        while True:
            if plain := _PLAIN.match(self._text, self._place):
                self._place = plain.end()
                take(plain.group())
            sign = yield from self._next()
            if sign == '"':
                return
            if sign == "\\":
                take((yield from self._escaped()))
            elif sign < " ":
                raise _BrokenError
            else:
                self._place -= 1

    def _escaped(self) -> Generator[None, None, str]:
        sign = yield from self._next()
        if sign != "u":
            if sign not in _ESCAPES:
                raise _BrokenError
            return _ESCAPES[sign]
        code = yield from self._code()
        if not 0xD800 <= code < 0xE000:
            return chr(code)
        # The first half of a character beyond the first 65,536: the second one has to follow.
        if code >= 0xDC00 or (yield from self._next()) != "\\" or (yield from self._next()) != "u":
            raise _BrokenError
        low = yield from self._code()
        if not 0xDC00 <= low < 0xE000:
            raise _BrokenError
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))

    def _code(self) -> Generator[None, None, int]:
        digits = ""
        while len(digits) < 4:
            digit = yield from self._next()
            if digit not in _HEXADECIMAL:
                raise _BrokenError
            digits += digit
        return int(digits, 16)

    def _value(self) -> Reader:
        """Pass a value on, without the space between its parts, up to the comma or brace after it."""
        open_signs: list[str] = []
        is_empty = True
        while True:
            sign = yield from self._sign()
            if not open_signs and sign in ",}":
                if is_empty:
                    raise _BrokenError
                self._place -= 1
                return
            is_empty = False
            if sign == '"':
                yield from self._passed_string()
            elif sign in _CLOSING:
                open_signs.append(_CLOSING[sign])
                self._pass(sign)
            elif sign in "}]":
                if not open_signs or open_signs.pop() != sign:
                    raise _BrokenError
                self._pass(sign)
            else:
                bare = _BARE.match(self._text, self._place)
                self._place = bare.end() if bare else self._place
                self._pass(sign + (bare.group() if bare else ""))

    def _passed_string(self) -> Reader:
        self._pass('"')
        while True:
            if plain := _PLAIN.match(self._text, self._place):
                self._place = plain.end()
                self._pass(plain.group())
            sign = yield from self._next()
            self._pass(sign)
            if sign == '"':
                return
            if sign == "\\":
                self._pass((yield from self._next()))
            elif sign < " ":
                raise _BrokenError

    def _sign(self) -> Generator[None, None, str]:
        """The next character that is not space."""
        sign = " "
        while sign in _SPACE:
            sign = yield from self._next()
        return sign

    def _next(self) -> Generator[None, None, str]:
        while self._place >= len(self._text):
            yield
        self._place += 1
        return self._text[self._place - 1]

    def _tell(self, key: str | None, text: str) -> None:
        if self._found and self._found[-1][0] == key:
            self._found[-1][1].append(text)
        else:
            self._found.append((key, [text]))

    def _pass(self, text: str) -> None:
        self._tell(None, text)


class _BrokenError(Exception):
    """This is no JSON object; it stays in this module."""
