"""The two web tools for agents."""

from typing import Any

from ricordo.errors import Invalid, Unavailable
from ricordo.features.custom_tools.web.options import WebSettings
from ricordo.features.custom_tools.web.pages import markdown_of
from ricordo.features.custom_tools.web.sessions import fetch, search
from ricordo.tools.toolbox import ServerTool, ToolContext

_SHOWN = 20_000  # characters of a page
_MOST_RESULTS = 20


async def web_search(
    context: ToolContext,  # noqa: ARG001
    query: str,
    num_results: int = 10,
    include_domains: list[str] | None = None,
    exclude_domains: list[str] | None = None,
) -> dict[str, Any]:
    """Search the web.

    Returns titles, addresses and a few words of each page; fetch_webpage reads one whole.

    Args:
        query: What to look for.
        num_results: How many results, 20 at most.
        include_domains: Only pages of these domains, such as ["python.org"].
        exclude_domains: No pages of these domains.
    """
    if not query.strip():
        raise Invalid("query is empty. Write what to search for.")
    count = min(max(num_results, 1), _MOST_RESULTS)
    results = await search(
        WebSettings(), query[:1000], count, include_domains or [], exclude_domains or []
    )
    return {"query": query, "results": results}


async def fetch_webpage(context: ToolContext, url: str, offset: int = 0) -> str:
    """Read a page of the web as Markdown.

    Args:
        url: The address of the page, with http:// or https://.
        offset: From which character on, for pages that were too long to be shown whole.
    """
    page = await fetch(url, allow_private=WebSettings().fetch_private_pages)
    title, text = await markdown_of(context.sandbox, page)
    if not text.strip():
        raise Unavailable(f"{page.url} holds no text to read. It may need JavaScript, or a login.")
    begin = min(max(offset, 0), len(text))
    excerpt = text[begin : begin + _SHOWN]
    end = begin + len(excerpt)
    heading = f"# {title}\n\n" if title and not begin else ""
    more = ""
    if end < len(text):
        more = (
            f"\n\n[Characters {begin} to {end} of {len(text)}. Call again with offset={end} for "
            "more.]"
        )
    return f"{heading}{page.url}\n\n{excerpt}{more}"


_TRAITS: Any = {
    "acts_outside": True,
    "brings_untrusted": True,
    "runs_in_parallel": True,
    "is_read_only": True,
}
TOOLS = (
    ServerTool(web_search, "letta_builtin", **_TRAITS),
    ServerTool(fetch_webpage, "letta_builtin", **_TRAITS),
)
