"""Filters of templates: times, numbers and texts."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from markupsafe import Markup, escape
from orjson import OPT_INDENT_2, dumps

from ricordo.domain.clock import SECOND
from ricordo.domain.hidden_text import UnseenRun, unseen_runs, with_marks
from ricordo.pages.formulas import add_formulas
from ricordo.pages.highlight import highlight
from ricordo.pages.reasons import shown_reason

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

# The most characters of a text that is rendered as Markdown. A longer text is shown as it is.
# Rendering takes up to 25 µs a character, and so half a second for the worst text.
MOST_MARKDOWN = 20_000
_MOST_QUERY = 500  # characters of a query whose words are marked
_SHORT = 4  # shorter words keep their endings
# Longer lines are shown in pieces, since browsers take seconds to find the text direction of a line
# of a megabyte.
_LONG_LINE = 50_000
_PIECE = 5_000
# Matches a tag of rendered Markdown, whose attributes are quoted and escaped. Also matches the
# placeholder of a run of hidden characters, with the number of the run.
_TAG_OR_MARK = re.compile("<[^<>]*>|\ue000([0-9]{1,9})\ue001")


def at(timestamp: str | None) -> Markup:
    """Format a time of the API for the browser's time zone.

    None gives an empty text. So does the beginning of 1970, which is the time of things that always
    existed.

    Args:
        timestamp: A time in ISO 8601, with a zone.
    """
    if not timestamp or timestamp.startswith("1970-01-01T00:00:00"):
        return Markup("")
    time = datetime.fromisoformat(timestamp.replace("Z", "+00:00")).astimezone(UTC)
    exact = time.strftime("%Y-%m-%d %H:%M:%S UTC")
    text = f"{time:%b} {time.day}, {time.year}, {time:%H:%M}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(time.isoformat(), exact, text)


def shown(content: Any) -> Any:
    """Return the printed form of a template's expression, with marks for hidden text.

    Markup is not changed, since the filter that returned it has already marked hidden text.

    Args:
        content: The value of the expression, of any type.
    """
    if isinstance(content, str) and not isinstance(content, Markup):
        return with_marks(content)
    return content


def number(amount: float | None) -> str:
    """Format a number with thin spaces between thousands; a dash for None.

    Args:
        amount: The number, which is rounded to a whole one.
    """
    if amount is None:
        return "–"
    return f"{amount:,.0f}".replace(",", "\u202f")


def short(text: str | None, length: int = 160) -> str:
    """Return the first characters of a text, on one line.

    Args:
        text: Line breaks and repeated spaces become single spaces. None is an empty text.
        length: The most characters of the result, with "…" at the end of a cut text.
    """
    text = text or ""
    most_read = length * 4
    line = " ".join(text[:most_read].split())
    if len(line) <= length and not text[most_read:].strip():
        return line
    return f"{line[: length - 1]}…"


def cut(text: str | None, length: int = MOST_MARKDOWN) -> str:
    """Return the beginning of a long text, and the number of characters after it.

    Args:
        text: None is an empty text.
        length: The most characters of the beginning.
    """
    text = text or ""
    if len(text) <= length:
        return text
    rest = number(len(text) - length)
    return f"{text[:length]}\n… and {rest} more characters, which the API has."


def markdown(text: str | None) -> Markup:
    """Render Markdown as HTML that loads nothing and runs nothing.

    HTML in it is shown as text, and images become links.

    Args:
        text: The Markdown; None is an empty text. One that is too long is shown as it is.
    """
    text = text or ""
    if len(text) > MOST_MARKDOWN:
        return Markup('<pre class="plain" tabindex="0">{}</pre>').format(plain(text))
    return _shown_marks(text, _markdown().render)


def editable_markdown(text: str) -> Markup:
    """Render Markdown for an editor that turns it back into Markdown. Formulas stay as written.

    Args:
        text: The Markdown. One that is too long is shown as it is.
    """
    if len(text) > MOST_MARKDOWN:
        return Markup("<pre>{}</pre>").format(text)
    return Markup(_markdown(has_formulas=False).render(text))  # noqa: S704 - no HTML of the text


def plain(text: str | None) -> Markup:
    """Return a text with marks in place of hidden characters, otherwise unchanged.

    Args:
        text: The text, which is escaped. None is an empty text.
    """
    text = text or ""
    if len(text) > _LONG_LINE and max(map(len, text.split("\n"))) > _LONG_LINE:
        pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
        return Markup("").join(
            Markup('<span class="piece">{}</span>').format(_plain(piece)) for piece in pieces
        )
    return _plain(text)


def _plain(text: str) -> Markup:
    return _shown_marks(text, lambda marked: str(escape(marked)))


def _shown_marks(text: str, render: Callable[[str], str]) -> Markup:
    """Return the rendered text with an element in place of each run of hidden characters.

    If a run is in the attribute of a tag, its placeholder stays.
    """
    runs = unseen_runs(text)
    if not runs:
        return Markup(render(text))  # noqa: S704 - the caller escapes
    pieces: list[str] = []
    end = 0
    for number, run in enumerate(runs):
        pieces += (text[end : run.start], f"\ue000{number}\ue001")
        end = run.end
    rendered = render("".join((*pieces, text[end:])))

    def show(match: re.Match[str]) -> str:
        if match[1] is None or int(match[1]) >= len(runs):
            return match[0]
        return str(_mark(runs[int(match[1])]))

    return Markup(_TAG_OR_MARK.sub(show, rendered))  # noqa: S704 - the caller escapes


def _mark(run: UnseenRun) -> Markup:
    if run.tag_text:
        meaning = f"Hidden text: {run.tag_text[:_MOST_QUERY]}"
    elif run.is_hidden:
        meaning = "Not shown; models read it"
    else:
        meaning = "Direction of right-to-left text"
    return Markup('<span class="mark" title="{}">{}</span>').format(meaning, run.mark)


@cache
def _markdown(*, has_formulas: bool = True) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    options = {"html": False, "breaks": True, "maxNesting": 20, "highlight": highlight}
    parser = MarkdownIt("commonmark", options)
    parser.enable(["table", "strikethrough"])
    parser.disable("image")

    def open_link(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        tokens[index].attrSet("rel", "noopener noreferrer nofollow")
        html: str = renderer.renderToken(tokens, index, options, env)
        return html

    def open_cell(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        # The pages allow no styles in attributes.
        if style := tokens[index].attrs.pop("style", None):
            tokens[index].attrSet("class", str(style).replace("text-align:", "to-"))
        html: str = renderer.renderToken(tokens, index, options, env)
        return html

    parser.add_render_rule("link_open", open_link)
    parser.add_render_rule("th_open", open_cell)
    parser.add_render_rule("td_open", open_cell)
    if has_formulas:
        add_formulas(parser)
    return parser


def at_time(micros: int | None) -> Markup:
    """Format a time of the database, in microseconds, like `at`.

    Args:
        micros: The time in microseconds since 1970, UTC; None or 0 gives an empty text.
    """
    return at(datetime.fromtimestamp(micros / SECOND, UTC).isoformat() if micros else None)


def texts(message: Mapping[str, Any]) -> str:
    """Return the text of a message in a traced prompt, in any provider's format.

    Args:
        message: One message of a traced request, as JSON.
    """
    content = message.get("parts", message.get("content"))
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return dumps(message, option=OPT_INDENT_2).decode()
    part_texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(
        text if isinstance(text, str) else dumps(part, option=OPT_INDENT_2).decode()
        for text, part in zip(part_texts, content, strict=True)
    )


def stems(query: str) -> list[str]:
    """Return the words of a query without their endings, as they are searched in texts.

    Args:
        query: The query. Only its first 500 characters count.
    """
    query_words = re.findall(r"\w{2,40}", query.casefold()[:_MOST_QUERY])
    beginnings = (
        word if len(word) < _SHORT else word[: max(_SHORT, len(word) - 2)] for word in query_words
    )
    return list(dict.fromkeys(beginnings))


def found(text: str | None, query: str, length: int = 400) -> Markup:
    """Return the part of a text where it first has a word of the query; all such words are marked.

    If the text has none of the words, return its beginning.

    Args:
        text: Only the first `MOST_MARKDOWN` characters are searched. None is an empty text.
        query: The words, which are compared without their endings. Only its first 500 characters
            count.
        length: The most characters of the part. At most a third of them stand before the first
            word.
    """
    line = " ".join((text or "")[:MOST_MARKDOWN].split())
    pattern = re.compile(
        "|".join(rf"\b{re.escape(stem)}\w{{0,20}}" for stem in stems(query)) or r"(?!)",
        re.IGNORECASE,
    )
    first = pattern.search(line)
    begin = 0
    if first:
        begin = max(first.start() - length // 3, 0)
    excerpt = line[begin : begin + length]
    marked = Markup("")
    end = 0
    for hit in pattern.finditer(excerpt):
        marked += escape(excerpt[end : hit.start()]) + Markup("<mark>{}</mark>").format(hit[0])
        end = hit.end()
    marked += escape(excerpt[end:])
    dots_before = "…" if begin else ""
    dots_after = "…" if begin + length < len(line) else ""
    return Markup("{}{}{}").format(dots_before, marked, dots_after)


def initials(name: str | None) -> str:
    """Return one or two letters for a name.

    Args:
        name: The name of a person or an agent. One without letters and digits, or None, gives "?".
    """
    name_parts: list[str] = re.findall(r"[^\W_]+", name or "") or ["?"]
    letters = name_parts[0][0] if len(name_parts) == 1 else name_parts[0][0] + name_parts[-1][0]
    return letters.upper()


def hue(name: str | None) -> int:
    """Return the number of a name's colour, from 0 to 7, always the same for the name.

    Args:
        name: The name of a person or an agent. Its case does not matter.
    """
    return crc32((name or "").casefold().encode()) % 8


def day(text: str) -> Markup:
    """Format a date like 2026-11-27 for people; other text stays.

    Args:
        text: A date, or any other text, which is escaped.
    """
    try:
        time = datetime.strptime(text, "%Y-%m-%d")  # noqa: DTZ007 - a day has no zone
    except ValueError:
        return escape(text)
    return Markup('<time datetime="{}" data-local>{}</time>').format(
        text, f"{time:%b} {time.day}, {time.year}"
    )


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
    "initials": initials,
    "hue": hue,
    "day": day,
    "reason": shown_reason,
}
