"""The one normal form of text: what enters the server is stored, compared and looked up in it.

- Text: composed letters (Unicode NFC), line ends as LF, and no byte order mark (U+FEFF) anywhere. All other characters stay.
- Names (labels, tags, names of files, users, agents): text without hidden characters that say nothing. A joiner between letters
  of scripts that need it, or between emoji, stays, as do the selectors and tags of emoji.

`docs/internals/decisions/0056-normal-form-of-text.md` says why, and where each is applied.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_BYTE_ORDER_MARK = "\ufeff"
# Soft hyphens, spaces without width, marks and overrides of direction, and others that no font shows.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0001]+"
)
_JOINERS = re.compile("[\u200c\u200d]+")
# The flags of England, Scotland and Wales are a black flag and tags; nothing else needs any.
_TAGS = re.compile("(\U0001f3f4[\U000e0020-\U000e007f]+)|[\U000e0020-\U000e007f]+")
# Below are Latin, Greek, Cyrillic and Armenian, whose letters are never joined.
_FIRST_JOINED = "\u0590"
_LATIN_AND_GREEK_AGAIN = ("\u1e00", "\u1fff")
# To put many marks on one letter in order takes the square of their number: 12 s for 80,000.
_MOST_MARKS = 256
# Marks are no letters; a long run of others, as of signs of punctuation, is only looked at in pieces too.
_LONG_RUN = re.compile(rf"[^\w\x00-\x7f]{{{_MOST_MARKS},}}")

# Fields of requests that hold names, wherever they stand.
NAME_FIELDS = frozenset(
    {
        *(
            "agent_name",
            "block_label",
            "course",
            "file_name",
            "filename",
            "group",
            "identifier",
            "identifier_key",
        ),
        *(
            "label",
            "labels",
            "name",
            "names",
            "new_label",
            "old_label",
            "path",
            "tag",
            "tags",
            "title",
            "user_id",
        ),
    }
)
# Fields whose content is kept to the byte: programs, keys and passwords, and what a provider signed.
VERBATIM_FIELDS = frozenset(
    {
        *(
            "access_key",
            "access_secret",
            "access_token",
            "api_key",
            "api_secret",
            "auth_token",
            "client_secret",
        ),
        *(
            "code",
            "code_verifier",
            "credentials",
            "custom_headers",
            "data",
            "encrypted_content",
            "env",
            "env_vars",
        ),
        *(
            "environment_variables",
            "headers",
            "password",
            "redacted_reasoning",
            "refresh_token",
            "refresh_token_enc",
        ),
        *(
            "secret",
            "secrets",
            "signature",
            "source_code",
            "thinking_signature",
            "token",
            "token_enc",
        ),
        # History that came with the ids of its versions.
        *("tool_exec_environment_variables", "versions"),
    }
)


def normal_text(text: str) -> str:
    """Return the text in normal form.

    >>> normal_text("Gru\\u0308\\u00dfe\\r\\n")
    'Grüße\\n'
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():
        return text
    return _composed(text.replace(_BYTE_ORDER_MARK, ""))


def normal_name(text: str) -> str:
    """Return the name in normal form.

    >>> normal_name("hu\\u200bman"), normal_name("\\u202eAda")
    ('human', 'Ada')
    """
    if text.isascii():
        return normal_text(text)
    text = _TAGS.sub(r"\1", _HIDDEN.sub("", text))
    return normal_text(_JOINERS.sub(_joiner, text))


def has_hidden(text: str) -> bool:
    """Return whether characters that nobody sees stand in the text, those of emoji and joined letters included."""
    return not text.isascii() and any(signs.search(text) for signs in (_HIDDEN, _TAGS, _JOINERS))


def shown_text(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without hidden characters, but for those that stand in the same place of a known text.

    >>> shown_text("on\u200bce"), shown_text("on\u200bce", ["only on\u200bce"]) == "on\u200bce"
    ('once', True)
    """
    if not has_hidden(text):
        return text
    texts = list(known)

    def is_known(run: re.Match[str]) -> bool:
        around = run.string[max(run.start() - 1, 0) : run.end() + 1]
        return any(around in other for other in texts)

    text = _HIDDEN.sub(lambda run: run[0] if is_known(run) else "", text)
    text = _TAGS.sub(lambda run: run[0] if run[1] or is_known(run) else "", text)
    return _JOINERS.sub(lambda run: run[0] if is_known(run) else _joiner(run), text)


def name_key(name: str) -> str:
    """Return by what names are told apart for people: neither case nor anything hidden counts.

    >>> name_key("Gr\\u00fc\\u00dfe") == name_key("GRU\\u0308SSE")
    True
    """
    shown = "".join(sign for sign in normal_name(name) if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFC", shown.casefold())


def is_normal_text(text: str) -> bool:
    return normal_text(text) == text


def is_normal_name(name: str) -> bool:
    return normal_name(name) == name


def normal_json(value: Any, field: str = "") -> Any:
    """Return a JSON value with its texts in normal form: names by `NAME_FIELDS`, and those of `VERBATIM_FIELDS` untouched."""
    if isinstance(value, str):
        return normal_name(value) if field in NAME_FIELDS else normal_text(value)
    if isinstance(value, Mapping):
        return {
            normal_text(key) if isinstance(key, str) else key: (
                item if key in VERBATIM_FIELDS else normal_json(item, key)
            )
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)([normal_json(item, field) for item in value])
    return value


def _joiner(run: re.Match[str]) -> str:
    """The first of a run of joiners where letters on both sides can need it, else nothing."""
    text = run.string
    is_inside = run.start() > 0 and run.end() < len(text)
    return (
        run[0][0]
        if is_inside and _can_join(text[run.start() - 1]) and _can_join(text[run.end()])
        else ""
    )


def _can_join(sign: str) -> bool:
    first, last = _LATIN_AND_GREEK_AGAIN
    return sign >= _FIRST_JOINED and not first <= sign <= last


def _composed(text: str) -> str:
    if _LONG_RUN.search(text) is None:
        return unicodedata.normalize("NFC", text)
    return "".join(unicodedata.normalize("NFC", piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of bounded runs of marks."""
    start = marks = 0
    for place, sign in enumerate(text):
        marks = marks + 1 if unicodedata.combining(sign) else 0
        if marks > _MOST_MARKS:
            yield text[start:place]
            start, marks = place, 0
    yield text[start:]
