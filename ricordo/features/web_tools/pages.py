"""Pages as Markdown. They are parsed in the sandbox, since whoever wrote one may be hostile."""

import re

import orjson

from ricordo.errors import Unavailable
from ricordo.features.web_tools.sessions import WebPage
from ricordo.sandbox.process import program_beside
from ricordo.sandbox.service import Sandbox, SandboxLimits

_LIMITS = SandboxLimits(memory_mb=400, cpu_seconds=10, seconds=20, processes=8, output_kb=6_000)
_CHARSET = re.compile(rb"charset=[\"']?([A-Za-z0-9_:.-]{1,40})")
_HEAD = 2_048  # bytes in which a page says its charset


async def markdown_of(sandbox: Sandbox, page: WebPage) -> tuple[str, str]:
    """Return the title and the text of a page. Raises Unavailable where it cannot be read."""
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
            f"The page cannot be read. {result.reason or 'It is no HTML that can be parsed.'}"
        ) from error


def _decoded(page: WebPage) -> str:
    """The text, by the charset that the answer or the page names, else UTF-8."""
    named = _CHARSET.search(page.kind.encode()) or _CHARSET.search(page.body[:_HEAD])
    for charset in (named.group(1).decode() if named else "utf-8", "utf-8"):
        try:
            return page.body.decode(charset)
        except (LookupError, UnicodeError):
            continue
    return page.body.decode("utf-8", "replace")
