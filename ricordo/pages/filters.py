"""How pages show times, numbers and texts."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from orjson import OPT_INDENT_2, dumps

from ricordo.domain.clock import SECOND

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

# Characters of a text that is rendered as Markdown; what is longer is shown as it is. The time grows in step with the length, by up
# to 25 µs a character: half a second for the worst of such texts.
MOST_MARKDOWN = 20_000
# Characters of a query whose words are marked, and of a word that is marked by its beginning.
_MOST_QUERY, _SHORT = 500, 4
# Characters that change the direction of what follows, which could make a line read as another one.
_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
# Characters of a line from which it is shown in pieces: browsers take seconds to find the direction of a line of a megabyte.
_LONG_LINE, _PIECE = 50_000, 5_000
# A tag of rendered Markdown, whose attributes are quoted and escaped, or a marked character of its text.
_TAG_OR_MARK = re.compile("<[^<>]*>|\ue000([0-9A-F]{4})\ue001")


def at(value: str | None) -> Markup:
    """A time of the API, which the browser shows in its own time zone; an empty text for None."""
    if not value:
        return Markup("")
    time = datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone(UTC)
    exact = time.strftime("%Y-%m-%d %H:%M:%S UTC")
    words = time.strftime("%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(time.isoformat(), exact, words)


def number(value: float | None) -> str:
    """A number with thin spaces between thousands; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}".replace(",", "\u202f")


def short(text: str | None, most: int = 160) -> str:
    """The first characters of a text on one line."""
    line = " ".join((text or "")[: most * 4].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def cut(text: str | None, most: int = MOST_MARKDOWN) -> str:
    """As much of the text as a page of many texts shows, and how much there is besides."""
    text = text or ""
    return (
        text
        if len(text) <= most
        else f"{text[:most]}\n… and {number(len(text) - most)} more characters, which the API has."
    )


def markdown(text: str | None) -> Markup:
    """Markdown as HTML in which nothing is loaded and nothing runs: HTML in it is shown as text, and images are links."""
    text = text or ""
    if len(text) > MOST_MARKDOWN:
        return Markup('<pre class="plain" tabindex="0">{}</pre>').format(plain(text))
    rendered = _markdown().render(_with_marks(text))
    return Markup(_TAG_OR_MARK.sub(_shown_mark, rendered))  # noqa: S704 - the renderer escapes


def plain(text: str | None) -> Markup:
    """A text as it is, with marks for characters that would change its direction."""
    text = text or ""
    if len(text) > _LONG_LINE and max(map(len, text.split("\n"))) > _LONG_LINE:
        pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
        return Markup("").join(
            Markup('<span class="piece">{}</span>').format(_plain(piece)) for piece in pieces
        )
    return _plain(text)


def _plain(text: str) -> Markup:
    escaped = str(escape(_with_marks(text)))
    return Markup(_TAG_OR_MARK.sub(_shown_mark, escaped))  # noqa: S704 - escaped above


def _with_marks(text: str) -> str:
    return _DIRECTIONS.sub(lambda found: f"\ue000{ord(found[0]):04X}\ue001", text)


def _shown_mark(found: re.Match[str]) -> str:
    """A mark in a text as an element; one in a tag is in an attribute, where nobody reads it."""
    return f'<span class="mark">U+{found[1]}</span>' if found[1] else found[0]


@cache
def _markdown() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": 20}).enable(
        ["table", "strikethrough"]
    )
    made.disable("image")

    def open_link(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        tokens[index].attrSet("rel", "noopener noreferrer nofollow")
        made: str = renderer.renderToken(tokens, index, options, env)
        return made

    made.add_render_rule("link_open", open_link)
    return made


def at_time(value: int | None) -> Markup:
    """A time of the database, in microseconds, as `at` shows one."""
    return at(datetime.fromtimestamp(value / SECOND, UTC).isoformat() if value else None)


def texts(message: Mapping[str, Any]) -> str:
    """What a message of a traced prompt says, whichever way its model's provider writes it down."""
    content = message.get("parts", message.get("content"))
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return dumps(message, option=OPT_INDENT_2).decode()
    said = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(
        text if isinstance(text, str) else dumps(part, option=OPT_INDENT_2).decode()
        for text, part in zip(said, content, strict=True)
    )


def stems(query: str) -> list[str]:
    """How the words of a query begin, without their endings: what a text that holds one of them is known by."""
    words = re.findall(r"\w{2,40}", query.casefold()[:_MOST_QUERY])
    return list(
        dict.fromkeys(
            word if len(word) < _SHORT else word[: max(_SHORT, len(word) - 2)] for word in words
        )
    )


def found(text: str | None, query: str, most: int = 400) -> Markup:
    """The part of a text around the first word of the query, with the words marked."""
    line = " ".join((text or "")[:MOST_MARKDOWN].split())
    pattern = re.compile(
        "|".join(rf"\b{re.escape(stem)}\w{{0,20}}" for stem in stems(query)) or r"(?!)",
        re.IGNORECASE,
    )
    first = pattern.search(line)
    begin = max(first.start() - most // 3, 0) if first else 0
    cut, shown, place = line[begin : begin + most], Markup(""), 0
    for hit in pattern.finditer(cut):
        shown += escape(cut[place : hit.start()]) + Markup("<mark>{}</mark>").format(hit[0])
        place = hit.end()
    dots = ("…" if begin else "", "…" if begin + most < len(line) else "")
    return Markup("{}{}{}").format(dots[0], shown + escape(cut[place:]), dots[1])


FILTERS: Mapping[str, Callable[..., Any]] = {
    "at": at,
    "number": number,
    "short": short,
    "markdown": markdown,
    "plain": plain,
    "cut": cut,
    "found": found,
    "texts": texts,
    "at_time": at_time,
}
