"""The pages of the documentation, rendered from Markdown for `/help`."""

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ricordo.errors import NotFound

if TYPE_CHECKING:
    from markdown_it.token import Token

_FEATURE = Path(__file__).parent
# In a wheel the pages are inside the package, in a checkout they are next to it.
FOLDERS = (_FEATURE / "docs", _FEATURE.parents[3] / "docs")
_IMAGE = re.compile(r"[a-z0-9-]+\.png")


@dataclass(frozen=True)
class Page:
    """One page of the documentation.

    Attributes:
        name: Its path below `docs/`, without `.md`, e.g. `people/memory`.
        title: The text of its first heading.
        html: Its content.
    """

    name: str
    title: str
    html: str


def read_page(name: str, base: str) -> Page:
    """Return a page by its name; `index` is the list of all pages.

    Args:
        name: The path below `docs/`, without `.md`. The last part of the path is enough if it
            identifies one page.
        base: The path prefix of the server's addresses, without a final slash.

    Raises:
        NotFound: If there is no such page, or this installation has no pages.
    """
    return _rendered(_full_name(name), base)


def image_path(name: str) -> Path:
    """Return the file of a picture that a page shows. Raises NotFound."""
    path = _folder() / "images" / name
    if not _IMAGE.fullmatch(name) or not path.is_file():
        raise NotFound(f'The documentation has no picture "{name[:80]}".')
    return path


@cache
def page_names() -> tuple[str, ...]:
    """List the names of all pages, in alphabetical order.

    They do not change while a server runs.
    """
    folder = _folder()
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.md"))
    return tuple(sorted(path.as_posix() for path in paths))


def _folder() -> Path:
    for folder in FOLDERS:
        if (folder / "index.md").is_file():
            return folder
    raise NotFound("This installation of Ricordo has no pages of documentation.")


def _full_name(name: str) -> str:
    names = page_names()
    if name in names:
        return name
    ends = [page_name for page_name in names if page_name.rpartition("/")[2] == name]
    if len(ends) == 1:
        return ends[0]
    raise NotFound(f'The documentation has no page "{name[:80]}". All pages are at /help.')


@cache
def _rendered(name: str, base: str) -> Page:
    """Render a page once; pages do not change while a server runs."""
    # This import takes 1% of the time of a server's start, and only pages of help need it.
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse((_folder() / f"{name}.md").read_text("utf-8"))
    title = ""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            title = title or following.content
            token.attrSet("id", anchor(following.content))
        _lead_to_help(token.children or (), name, base)
    return Page(name, title, markdown.renderer.render(tokens, markdown.options, {}))


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it from the heading's text.

    For a heading with a link, and for a second heading with the same text, GitHub's differs.
    """
    text = re.sub(r"[^\w\- ]", "", heading.lower())
    return text.replace(" ", "-")


def _lead_to_help(tokens: "Iterable[Token]", page: str, base: str) -> None:
    """Rewrite links to pages and pictures, which are relative file paths."""
    for token in tokens:
        attribute = {"link_open": "href", "image": "src"}.get(token.type)
        if attribute is None:
            continue
        link = urlsplit(str(token.attrGet(attribute)))
        if link.scheme or link.netloc or not link.path:
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.path))
        fragment = f"#{link.fragment}" if link.fragment else ""
        # The README and the changelog are not among the pages.
        is_page = not target.startswith("../")
        address = (
            f"{base}/help/{target.removesuffix('.md')}{fragment}" if is_page else f"{base}/help"
        )
        token.attrSet(attribute, address)
