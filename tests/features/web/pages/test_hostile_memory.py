"""Memory that attacks its reader is shown as text, and as fast as other text."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ricordo.pages.filters import MOST_MARKDOWN, markdown, plain
from tests.features.web.pages.test_home import visitor
from tests.features.web.pages.test_memory import home

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "an image": "<img src=x onerror=alert(1)> ![x](https://evil.example/x.png)",
    "a link that runs": "[a](javascript:alert(1)) [b](data:text/html,x) [c](vbscript:x) <javascript:alert(1)>",
    "a link in disguise": "[d](&#106;avascript:x) [e](JaVaScRiPt:x) [f](java\nscript:x) [g]( javascript:x) "
    "[h]\n\n[h]: data:x",
    "attributes": '[a](https://e.example "x\\" onmouseover=\\"alert(1)") **a" onclick="b**',
    "right to left": "pay \u202e001$\u202c \u2066to\u2069 me \u200f\u061c",
    "marks of ours": '\ue000<script>\ue001 \ue000202E\ue001 [a](b "\u202e")',
    "broken Markdown": "**a _b `c [d](e\n> - 1. ```\n|-|\n~~~\n<div\n&#x0; &#0;",
    "a form": '</textarea></form><form action="https://evil.example"><button>Approve</button>',
    "control characters": "bell \x07 escape \x1b[31m backspace \x08 delete \x7f line \u2028 zero\u200bwidth",
    "a template": "{{ 7 * 7 }} {% raw %} ${x}",
}
TAGS = set(
    "p em strong a code pre ul ol li blockquote h1 h2 h3 h4 h5 h6 hr br table thead tbody tr th "
    "td s span".split()
)
RUNS = re.compile(r"\s*(javascript|data|vbscript):", re.IGNORECASE)
# Repeated pieces of Markdown.
REPEATED = (
    "*",
    "_a",
    "**a",
    "[",
    "[](",
    "[a](b",
    "![",
    "<",
    "<a ",
    "`a",
    "~~a",
    "> ",
    "- ",
    "- a\n",
    "1. ",
    "\n",
    "|-",
    "|-|-\n",
)
REPEATED += (
    "a|b\n-|-\n",
    "[a]: b\n",
    "&#",
    "\\",
    "    a\n",
    "a\n===\n",
    '[a](b "',
    "***a***b",
    "\u202e",
    "a*b",
    "<!--",
    "&a;",
)


class Tags(HTMLParser):
    """The tags of a page, as browsers read it: names, and attributes with their values."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {
            value or "" for name, value in attrs if name in ("href", "src", "action", "formaction")
        }


@pytest.mark.parametrize("kind", HOSTILE)
def test_rendered_memory_contains_only_markdown_tags(kind: str) -> None:
    for rendered in (str(markdown(HOSTILE[kind])), str(plain(HOSTILE[kind]))):
        found = Tags(rendered)
        assert found.names <= TAGS
        assert found.attributes <= {"href", "title", "rel", "class", "start", "tabindex"}
        assert not [link for link in found.links if RUNS.match(link)]
        assert not re.search(
            "[\u202a-\u202e\u2066-\u2069\u200f\u061c]", re.sub("<[^>]*>", "", rendered)
        )


def test_every_page_escapes_a_hostile_block(tmp_path: Path) -> None:
    text = "\n\n".join(one for kind, one in HOSTILE.items() if kind != "control characters")
    with visitor(tmp_path) as browser:
        made = browser.put(
            "/users/ada/blocks/human", json={"body": text, "message": HOSTILE["a form"]}
        )
        assert made.status_code == 200, made.text
        edit = {
            "old_string": "alert",
            "new_string": HOSTILE["a form"],
            "replace_all": True,
            "reasoning": HOSTILE["script"],
        }
        assert browser.post("/users/ada/blocks/human/propose", json=edit).status_code == 200
        browser.put(
            "/users/ada/blocks/human", json={"body": text + "\nMore.", "title": HOSTILE["script"]}
        )
        sha = browser.get("/users/ada/blocks/human/history").json()[0]["sha"]
        for path in ("", "?edit=1", "/history", "/blame", "/compare", f"/versions/{sha}"):
            page = browser.get(f"{home(browser)}/blocks/human{path}")
            assert page.status_code == 200, path
            found = Tags(page.text.split('<main id="content"')[1].split("</main>")[0])
            assert not found.names & {"script", "img", "iframe", "style"}, path
            assert not [
                name for name in found.attributes if name.startswith("on") or name == "style"
            ], path
            assert not [link for link in found.links if RUNS.match(link)], path
        for path in (
            "/",
            "/ui/people",
            home(browser),
            f"{home(browser)}/audit?run=1",
            f"{home(browser)}/export",
        ):
            assert "<script>" not in browser.get(path).text, path


def test_huge_blocks_can_be_shown_and_edited(tmp_path: Path) -> None:
    huge = {"lines": "A line of words.\n" * 10_000, "line": "word " * 60_000}
    with visitor(tmp_path) as browser:
        for label, text in huge.items():
            path = f"/users/ada/blocks/{label}"
            assert browser.put(path, json={"body": text, "limit": 2_000_000}).status_code == 200
            page = f"{home(browser)}/blocks/{label}"
            shown = browser.get(page).text
            assert '<pre class="plain"' in shown, "a huge text must not be rendered as Markdown"
            version = (
                browser.get(page, params={"edit": "1"})
                .text.split('name="version" value="')[1]
                .split('"')[0]
            )
            assert (
                browser.post(page, data={"value": text + "!", "version": version}).status_code
                == 303
            )
            assert browser.get(path).json()["body"].endswith("!")
            changed = browser.get(f"{page}/compare").text
            assert len(changed) < 100_000, "unchanged parts must be cut"
            blamed = browser.get(f"{page}/blame").text
            assert blamed.count("<tr data-item") <= 300
            assert browser.get(f"{page}/history").status_code == 200
        lines = browser.get(f"{home(browser)}/blocks/lines/blame", params={"line": "9901"}).text
        assert "Lines 9\u202f901 to 10\u202f001 of 10\u202f001" in lines


def calls_of(text: str) -> int:
    """Return the number of functions that a rendering calls."""
    count = 0

    def see(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        markdown(text)
    finally:
        sys.setprofile(None)
    return count


def test_markdown_rendering_takes_linear_time() -> None:
    calls_of("warm")
    for unit in REPEATED:
        short, long = (calls_of(unit * (length // len(unit))) for length in (400, 1_600))
        assert long < 5 * short, unit
        assert long < 200 * 1_600, unit


def test_a_line_too_long_for_browsers_is_shown_in_pieces() -> None:
    text = "word " * 20_000
    shown = str(plain(text))
    assert shown.count('<span class="piece">') == 20
    assert re.sub("<[^>]*>", "", shown) == text
    assert "piece" not in str(plain("A line of words.\n" * 10_000))


def test_texts_beyond_the_limit_are_not_parsed_as_markdown() -> None:
    assert calls_of("*" * (MOST_MARKDOWN + 1)) < 100
