"""Extract the readable part of a page as Markdown, in the sandbox.

Request: {html}. Answer: {title, text}.
"""

import json
import os
import re
import sys

ANSWER = 3


def main() -> None:
    """Serve the one request."""
    html = json.load(sys.stdin)["html"]
    from lxml.html import fromstring
    from markdownify import markdownify
    from readability import Document

    sys.setrecursionlimit(20_000)
    page = Document(html)
    title = text = ""
    try:
        title = page.short_title()
        text = markdownify(
            page.summary(html_partial=True), heading_style="ATX", strip=["img", "script", "style"]
        )
    except Exception:  # the library cannot parse the page
        text = ""
    whole = fromstring(html)
    for element in whole.xpath("//script|//style|//noscript|//template|//nav"):
        element.drop_tree()
    plain = whole.text_content()
    if len(text.strip()) < 200 < len(plain.strip()):  # a page of links or of short parts
        text = plain
    text = "\n".join(line.rstrip() for line in text.splitlines())
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    answer = {"title": " ".join(str(title or "").split())[:300], "text": text}
    with os.fdopen(ANSWER, "wb") as stream:
        stream.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
