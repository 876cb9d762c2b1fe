"""HTTP to pages and search engines, with limited answers.

The addresses of pages are checked. The operator chooses the search engine, so its address is not.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from ricordo import __version__
from ricordo.errors import Invalid, Unavailable
from ricordo.features.custom_tools.web.options import WebSettings
from ricordo.llm.addresses import Lookup, PinnedTransport, PrivateAddress, require_callable

_SETTING = "RICORDO_FETCH_PRIVATE_PAGES"
_SECONDS = 20.0
_MOST_BYTES = 5 * 1024 * 1024
_REDIRECTS = 5
_HEADERS = {
    "user-agent": f"Ricordo/{__version__}",
    "accept": "text/html, application/xhtml+xml, text/plain, */*;q=0.5",
    "accept-encoding": "gzip, identity",
}
_TEXTS = (
    "text/",
    "application/xhtml+xml",
    "application/xml",
    "application/json",
    "application/rss+xml",
    "application/atom+xml",
)


@dataclass(frozen=True, slots=True)
class WebPage:
    """A fetched page.

    `url` is the address after all redirects, `kind` the content type with its charset.
    """

    url: str
    kind: str
    body: bytes


async def fetch(url: str, *, allow_private: bool = False, lookup: Lookup | None = None) -> WebPage:
    """Return the page at an address, after checking each redirect.

    Args:
        url: The address.
        allow_private: Also call addresses in private networks.
        lookup: Finds the IP addresses of a host; None asks the system.

    Raises:
        Invalid: The address may not be called.
        Unavailable: No readable page arrives in time.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            return await _follow(url, allow_private=allow_private, lookup=lookup)
    except TimeoutError as error:
        raise Unavailable(f"The page did not arrive within {_SECONDS:g} seconds.") from error
    except PrivateAddress as error:
        raise Invalid(str(error)) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError, ValueError) as error:
        raise Unavailable(
            f"The page could not be reached ({type(error).__name__}). Check the address."
        ) from error


async def _follow(url: str, *, allow_private: bool, lookup: Lookup | None) -> WebPage:
    transport = PinnedTransport(_SETTING, allow_private=allow_private, lookup=lookup)
    waits = httpx2.Timeout(_SECONDS)
    async with httpx2.AsyncClient(
        transport=transport, trust_env=False, follow_redirects=False, timeout=waits
    ) as http:
        for _ in range(_REDIRECTS + 1):
            require_callable(url, allow_private=allow_private, setting=_SETTING)
            async with http.stream("GET", url, headers=_HEADERS) as answer:
                if answer.is_redirect and (target := answer.headers.get("location")):
                    url = str(answer.url.join(target))
                    continue
                if answer.status_code >= 400:
                    raise Unavailable(
                        f"{url} answered {answer.status_code} {answer.reason_phrase}."
                    )
                kind = answer.headers.get("content-type", "text/html")
                if not kind.lower().startswith(_TEXTS):
                    raise Unavailable(
                        f"{url} is {kind.partition(';')[0]}, and only text can be read."
                    )
                return WebPage(url, kind, await _body(answer, "The page"))
    raise Unavailable(f"The address redirects more than {_REDIRECTS} times.")


async def _body(answer: httpx2.Response, noun: str) -> bytes:
    """Return the unpacked body. Raises Unavailable if it is too long or cannot be unpacked.

    The error begins with the noun.
    """
    return b"".join([piece async for piece in _pieces(answer, noun)])


async def _pieces(answer: httpx2.Response, noun: str) -> AsyncIterator[bytes]:
    packing = answer.headers.get("content-encoding", "identity").lower()
    if packing not in ("identity", "", "gzip", "deflate"):
        raise Unavailable(f"{noun} came packed as {packing[:40]}, which the request did not allow.")
    if packing in ("gzip", "deflate"):
        unpack = zlib.decompressobj(47)
    else:
        unpack = None
    remaining = _MOST_BYTES
    async for chunk in answer.aiter_raw():
        try:
            if unpack:
                piece = unpack.decompress(chunk, remaining + 1)
            else:
                piece = chunk
        except zlib.error as error:
            raise Unavailable(f"{noun} cannot be decompressed.") from error
        remaining -= len(piece)
        if remaining < 0:
            raise Unavailable(
                f"{noun} has more than {_MOST_BYTES // 1024**2} MB, and more is not read."
            )
        yield piece


@dataclass(frozen=True, slots=True)
class SearchEngine:
    """A search engine: its address, and the fields of its request and answer."""

    url: str
    results: tuple[str, ...]
    snippet: str
    key_header: str = ""
    is_post: bool = False
    domains: tuple[str, str] = ("", "")
    date: str = ""


ENGINES: Mapping[str, SearchEngine] = {
    "searxng": SearchEngine("", ("results",), "content", date="publishedDate"),
    "brave": SearchEngine(
        url="https://api.search.brave.com/res/v1/web/search",
        results=("web", "results"),
        snippet="description",
        key_header="X-Subscription-Token",
        date="page_age",
    ),
    "exa": SearchEngine(
        url="https://api.exa.ai/search",
        results=("results",),
        snippet="text",
        key_header="x-api-key",
        is_post=True,
        domains=("includeDomains", "excludeDomains"),
        date="publishedDate",
    ),
    "tavily": SearchEngine(
        url="https://api.tavily.com/search",
        results=("results",),
        snippet="content",
        key_header="Authorization",
        is_post=True,
        domains=("include_domains", "exclude_domains"),
        date="published_date",
    ),
}
_NONE = (
    "There is no search engine here. The operator sets RICORDO_WEB_SEARCH to searxng (with "
    "RICORDO_WEB_SEARCH_URL), or to brave, exa or tavily (with RICORDO_WEB_SEARCH_KEY)."
)


def _headers_for(engine: SearchEngine, key: str) -> dict[str, str]:
    headers = {
        "user-agent": _HEADERS["user-agent"],
        "accept": "application/json",
        "accept-encoding": _HEADERS["accept-encoding"],
    }
    if engine.key_header == "Authorization":
        headers[engine.key_header] = f"Bearer {key}"
    elif engine.key_header:
        headers[engine.key_header] = key
    return headers


def _results(engine: SearchEngine, body: bytes, count: int) -> list[dict[str, str]]:
    rows: Any = orjson.loads(body)
    for name in engine.results:
        rows = rows[name]
    return [_result(engine, row) for row in rows[:count]]


async def search(
    settings: WebSettings, query: str, count: int, included: Sequence[str], excluded: Sequence[str]
) -> list[dict[str, str]]:
    """Return the results of the configured search engine.

    Each result has `title`, `url`, `snippet` and `published_date`, except those that the engine
    does not send.

    Args:
        settings: The settings, which choose the engine.
        query: The text to search for.
        count: The most results to return.
        included: Domains to which the search is limited; empty for all.
        excluded: Domains to leave out.

    Raises:
        Unavailable: No engine is configured, or it fails.
    """
    engine = ENGINES.get(settings.web_search)
    key = settings.web_search_key.get_secret_value() if settings.web_search_key else ""
    url = settings.web_search_url or (engine.url if engine else "")
    if engine is None or not url or (engine.key_header and not key):
        raise Unavailable(_NONE)
    headers = _headers_for(engine, key)
    fields = _request_fields(
        settings.web_search, engine, query, count=count, included=included, excluded=excluded
    )
    if settings.web_search == "searxng":
        url = f"{url.rstrip('/')}/search"
    request: dict[str, Any] = {"method": "GET", "params": fields}
    if engine.is_post:
        request = {"method": "POST", "json": fields}
    try:
        async with (
            asyncio.timeout(_SECONDS),
            httpx2.AsyncClient(timeout=_SECONDS) as http,
            http.stream(url=url, headers=headers, **request) as answer,
        ):
            if answer.status_code != 200:
                hint = " Check RICORDO_WEB_SEARCH_KEY." if answer.status_code in (401, 403) else ""
                raise Unavailable(f"The search engine answered {answer.status_code}.{hint}")
            body = await _body(answer, "The search engine's answer")
        return _results(engine, body, count)
    except (TimeoutError, httpx2.HTTPError, OSError) as error:
        raise Unavailable(
            f"The search engine cannot be reached ({type(error).__name__})."
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unavailable("The search engine sent an answer without results.") from error


def _request_fields(
    name: str,
    engine: SearchEngine,
    query: str,
    *,
    count: int,
    included: Sequence[str],
    excluded: Sequence[str],
) -> dict[str, Any]:
    """Return the search in the engine's form.

    Engines without a field for domains know the operator `site:`.
    """
    if not engine.is_post:
        only = " OR ".join(f"site:{domain}" for domain in included)
        without = [f"-site:{domain}" for domain in excluded]
        text = " ".join(filter(None, [query, only, *without]))
        if name == "searxng":
            return {"q": text, "format": "json"}
        return {"q": text, "count": count}
    fields: dict[str, Any] = {"query": query}
    if name == "exa":
        fields |= {"numResults": count, "contents": {"text": {"maxCharacters": 500}}}
    else:
        fields["max_results"] = count
    for field, domains in zip(engine.domains, (included, excluded), strict=True):
        if domains:
            fields[field] = list(domains)
    return fields


def _result(engine: SearchEngine, entry: Mapping[str, Any]) -> dict[str, str]:
    parts = {
        "title": "title",
        "url": "url",
        "snippet": engine.snippet,
        "published_date": engine.date,
    }
    return {
        name: str(entry[field])[:1000]
        for name, field in parts.items()
        if field and entry.get(field)
    }
