"""The normal form of text, applied to requests, in storage and in look-ups.

- Text: composed letters (Unicode NFC), line ends as LF, and no byte order mark (U+FEFF). All other
  characters stay.
- Names (labels, tags, names of files, users, agents): text without meaningless hidden characters.
  Joiners stay between letters of scripts that need them and within emoji, as do the selectors and
  tags of emoji.

`docs/internals/decisions/0056-normal-form-of-text.md` gives the reasons, and lists where it is
applied.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

# A JSON object.
Json = dict[str, Any]
# The most levels of lists and objects in a request. In an answer, a few more are around them.
MOST_LEVELS: Final = 100
# The most levels that orjson writes.
_LEVELS_OF_JSON: Final = 254
_BYTE_ORDER_MARK = "\ufeff"
# Soft hyphens, zero-width spaces, direction marks and overrides, and other characters that no font
# shows.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0001]+"
)
_JOINERS = re.compile("[\u200c\u200d]+")
# The flags of England, Scotland and Wales are a black flag with tags; no other emoji needs tags.
_TAGS = re.compile("(\U0001f3f4[\U000e0020-\U000e007f]+)|[\U000e0020-\U000e007f]+")
# Lower code points are Latin, Greek, Cyrillic and Armenian, whose letters are never joined.
_FIRST_JOINED = "\u0590"
_LATIN_AND_GREEK_AGAIN = ("\u1e00", "\u1fff")
# The time to sort the marks of one letter grows with the square of their number: 12 s for 80,000.
_MOST_MARKS = 256
# Texts with such a run are composed in pieces. It may also be a run of punctuation, which `_pieces`
# does not split.
_LONG_RUN = re.compile(rf"[^\w\x00-\x7f]{{{_MOST_MARKS},}}")

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_ASCII_CONTROLS = bytes((*range(9), *range(14, 32), 127))
# Fields of requests that hold names, wherever they occur.
NAME_FIELDS = frozenset(
    (
        "agent_name block_label course file_name filename group identifier identifier_key"
        " label labels name names new_label old_label path tag tags title user_id"
    ).split()
)
# Fields that are not changed by a byte: programs, keys, passwords and signed content.
VERBATIM_FIELDS = frozenset(
    (
        "access_key access_secret access_token api_key api_secret auth_token client_secret"
        " code code_verifier credentials custom_headers data encrypted_content env env_vars"
        " environment_variables headers password redacted_reasoning refresh_token"
        " refresh_token_enc secret secrets signature source_code thinking_signature token"
        " token_enc tool_exec_environment_variables"
        # History that was imported with the ids of its versions.
        " versions"
    ).split()
)


# Levels of lists and objects. No real result has that many. JSON libraries give up at 200 or more.
_MOST_LEVELS = 50


def nests_deeply(text: str, value: Any) -> bool:
    """Return whether JSON has more than 50 levels of lists and objects.

    Such a value is kept as text, since libraries cannot write it into another JSON document.

    Args:
        text: The JSON.
        value: Its value.
    """
    if text.count("[") + text.count("{") <= _MOST_LEVELS:
        return False
    level = [value]
    for _ in range(_MOST_LEVELS + 1):
        level = [container for container in level if isinstance(container, dict | list)]
        if not level:
            return False
        level = [
            member
            for container in level
            for member in (container.values() if isinstance(container, dict) else container)
        ]
    return True


def is_plain(text: str) -> bool:
    """Return True for printable ASCII, as most texts are.

    It has no hidden characters and no combining marks. The check is six times faster than a regular
    expression.

    Args:
        text: Any text. Tabs and line breaks count as printable.
    """
    return text.isascii() and len(text.encode().translate(None, _ASCII_CONTROLS)) == len(text)


def normal_text(text: str) -> str:
    r"""Return the text in normal form.

    >>> normal_text("Gru\u0308\u00dfe\r\n")
    'Grüße\n'

    Args:
        text: Any text. Names have another normal form (`normal_name`).
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():
        return text
    return _composed(text.replace(_BYTE_ORDER_MARK, ""))


def normal_name(text: str) -> str:
    r"""Return the name in normal form.

    >>> normal_name("hu\u200bman"), normal_name("\u202eAda")
    ('human', 'Ada')

    Args:
        text: A label, a tag, or the name of a file, user or agent.
    """
    if text.isascii():
        return normal_text(text)
    text = _TAGS.sub(r"\1", _HIDDEN.sub("", text))
    return normal_text(_JOINERS.sub(_joiner, text))


def text_key(text: str) -> str:
    r"""Return the key by which texts are compared without case.

    >>> text_key("Gru\u0308\u00dfe") == text_key("GR\u00dcSSE")
    True

    Args:
        text: Any text. Hidden characters stay, except byte order marks.
    """
    if text.isascii():
        return text.lower()
    return _composed(normal_text(text).casefold())


def spans_of(text: str, piece: str) -> list[tuple[int, int]]:
    r"""Return the spans of the piece in a text, compared in normal form.

    The spans refer to the unchanged text and do not overlap. None of them begins or ends inside a
    letter.

    >>> spans_of("Gru\u0308\u00dfe\r\n", "\u00fc")
    [(2, 4)]

    Args:
        text: The text to search. It need not be in normal form.
        piece: The text to find; an empty one is found nowhere.

    Returns:
        Pairs of a start and an end, in characters.
    """
    piece = normal_text(piece)
    if not piece:
        return []
    pattern = re.compile(re.escape(piece))
    if is_normal_text(text):
        return [match.span() for match in pattern.finditer(text)]
    normal_parts: list[str] = []
    # The position before each letter, and the end, by position in the normal form. A character
    # without a normal form, such as a byte order mark, belongs to the letter before it.
    borders: dict[int, int] = {}
    position = 0
    length = 0
    for letter in _letters(text):
        normal = normal_text(letter)
        if normal:
            borders[length] = position
        normal_parts.append(normal)
        length += len(normal)
        position += len(letter)
    borders[length] = position
    return [
        (borders[start], borders[end])
        for start, end in (match.span() for match in pattern.finditer("".join(normal_parts)))
        if start in borders and end in borders
    ]


def name_key(name: str) -> str:
    r"""Return the key by which people tell names apart, without case and hidden characters.

    >>> name_key("Gr\u00fc\u00dfe") == name_key("GRU\u0308SSE")
    True

    Args:
        name: The name of a block, a file or the like; it need not be in normal form.
    """
    shown = "".join(
        character for character in normal_name(name) if unicodedata.category(character) != "Cf"
    )
    return unicodedata.normalize("NFC", shown.casefold())


def is_normal_text(text: str) -> bool:
    """Return True if the text is in normal form.

    Args:
        text: Any text.
    """
    return normal_text(text) == text


def is_normal_name(name: str) -> bool:
    """Return True if the name is in normal form.

    Args:
        name: Any text.
    """
    return normal_name(name) == name


def encoded_json(value: Any) -> bytes:
    """Return the value as JSON.

    Args:
        value: Any JSON value, which is not changed.

    Raises:
        TypeError: JSON cannot hold the value, or it is nested more than `MOST_LEVELS` deep.
    """
    spare = _LEVELS_OF_JSON - MOST_LEVELS
    for _ in range(spare):
        value = [value]
    return orjson.dumps(value)[spare:-spare]


def storable_json(value: Any, levels: int = MOST_LEVELS) -> Any:
    """Return a JSON value with replacements for what no database can store.

    NUL and halves of characters (lone surrogates) become U+FFFD. Integers beyond 64 bits become
    floating-point numbers. If they are too large for such numbers, they become null. Lists and
    objects that are nested too deeply also become null.

    Args:
        value: Any JSON value, which is not changed.
        levels: The most levels of lists and objects.
    """
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, Mapping | list | tuple) and levels == 0:
        return None
    if isinstance(value, Mapping):
        return {
            storable_json(key): storable_json(member, levels - 1) for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)([storable_json(member, levels - 1) for member in value])
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        try:
            return float(value)
        except OverflowError:
            return None
    return value


def normal_json(value: Any, field: str = "") -> Any:
    """Return a JSON value with its texts in normal form.

    Fields in `NAME_FIELDS` are normalized as names; those in `VERBATIM_FIELDS` are not changed.

    Args:
        value: Any JSON value, which is not changed.
        field: The name of the field that has the value; "" for a whole document.
    """
    if isinstance(value, str):
        if field in NAME_FIELDS:
            return normal_name(value)
        return normal_text(value)
    if isinstance(value, Mapping):
        return {
            normal_text(key) if isinstance(key, str) else key: (
                member if key in VERBATIM_FIELDS else normal_json(member, key)
            )
            for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)([normal_json(member, field) for member in value])
    return value


def _joiner(run: re.Match[str]) -> str:
    """Return the first of several joiners if the letters on both sides may need it, else ""."""
    text = run.string
    if run.start() == 0 or run.end() == len(text):
        return ""
    joins = _can_join(text[run.start() - 1]) and _can_join(text[run.end()])
    return run[0][0] if joins else ""


def _can_join(sign: str) -> bool:
    first, last = _LATIN_AND_GREEK_AGAIN
    return sign >= _FIRST_JOINED and not first <= sign <= last


def _composed(text: str) -> str:
    if _LONG_RUN.search(text) is None:
        return unicodedata.normalize("NFC", text)
    return "".join(unicodedata.normalize("NFC", piece) for piece in _pieces(text))


def _letters(text: str) -> Iterator[str]:
    """Yield the text in parts whose normal forms are independent of each other."""
    start = 0
    for index in range(1, len(text)):
        character = text[index]
        if character.isascii():
            is_inside = character == "\n" and text[index - 1] == "\r"
        else:
            is_vowel_or_end = "\u1160" <= character <= "\u11ff"  # of a Korean syllable
            is_inside = is_vowel_or_end or unicodedata.category(character).startswith("M")
        if not is_inside:
            yield text[start:index]
            start = index
    if text:
        yield text[start:]


def _pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces with bounded runs of marks."""
    start = 0
    marks = 0
    for index, character in enumerate(text):
        if unicodedata.combining(character):
            marks = marks + 1
        else:
            marks = 0
        if marks > _MOST_MARKS:
            yield text[start:index]
            start = index
            marks = 0
    yield text[start:]


def decoded(content: bytes) -> str:
    """Decode the bytes of a file whose encoding is unknown.

    UTF-16 is recognized by its byte order mark. Other bytes that are not UTF-8 are read as
    Windows-1252.

    Args:
        content: The whole file. A byte order mark is left out, and bytes that cannot be decoded
            become U+FFFD.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")
