"""Convert web pages to Markdown in the sandbox, since a page may be hostile."""

import re

import orjson

from ricordo.errors import Unavailable
from ricordo.features.custom_tools.web.sessions import WebPage
from ricordo.sandbox.process import program_beside
from ricordo.sandbox.service import Sandbox, SandboxLimits

_LIMITS = SandboxLimits(memory_mb=400, cpu_seconds=10, seconds=20, processes=8, output_kb=6_000)
_CHARSET = re.compile(rb"charset=[\"']?([A-Za-z0-9_:.-]{1,40})")
_HEAD = 2_048  # bytes searched for the page's charset


async def markdown_of(sandbox: Sandbox, page: WebPage) -> tuple[str, str]:
    """Return a page's title and text.

    Args:
        sandbox: The sandbox that parses HTML.
        page: The fetched page. A page of another type than HTML has the title "", and its text is
            not changed.

    Raises:
        Unavailable: The page cannot be read, or the sandbox or the extra `files` is missing.
    """
    text = _decoded(page)
    if "html" not in page.kind.lower():
        return "", text
    result = await sandbox.run_python(
        program_beside(__file__), orjson.dumps({"html": text}), limits=_LIMITS
    )
    try:
        answer = orjson.loads(result.answer)
        return str(answer["title"]), str(answer["text"])
    except (ValueError, TypeError, KeyError) as error:
        if b"ModuleNotFoundError" in result.stderr:
            raise Unavailable(
                "Reading pages needs the extra `files`: install ricordo[files]."
            ) from error
        raise Unavailable(
            f"The page cannot be read. {result.reason or 'It is not HTML that can be parsed.'}"
        ) from error


def _decoded(page: WebPage) -> str:
    """Decode by the charset of the response or the page, else as UTF-8."""
    match = _CHARSET.search(page.kind.encode()) or _CHARSET.search(page.body[:_HEAD])
    for charset in (match.group(1).decode() if match else "utf-8", "utf-8"):
        try:
            return page.body.decode(charset)
        except (LookupError, UnicodeError):
            continue
    return page.body.decode("utf-8", "replace")
