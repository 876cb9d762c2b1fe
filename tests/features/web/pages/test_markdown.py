"""Markdown of people and agents: tables, coloured code, and formulas.

None of them can run a script or load a file.
"""

import re
from html.parser import HTMLParser

import pytest

from ricordo.pages.filters import editable_markdown, markdown, short

LATEX = [
    r"x^2 < 3",
    r"\text{<script>alert(1)</script>}",
    r"\href{javascript:alert(1)}{x}",
    r"\style{background:url(//evil.example)}{x}",
    r'\class{a" onload="alert(1)}{x}',
    r"\text{<img src=x onerror=alert(1)>}",
    r"\color{red\" onclick=\"x}y",
    r"\mathbf{<b>}",
    r"\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}",
    r"\frac{1",
    r"\left( \left(",
    "{" * 900,
    r"x_1_2",
    "\\sqrt" * 150,
]


class Elements(HTMLParser):
    """The elements of a text, with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)


@pytest.mark.parametrize("fence", ["$%s$", "$$%s$$", r"\(%s\)", r"\[%s\]"])
def test_a_formula_becomes_mathml_only(fence: str) -> None:
    for latex in LATEX:
        elements = Elements(markdown(f"Let {fence % latex} be."))
        assert not elements.names & {"script", "img", "b", "a", "style", "svg", "iframe"}, latex
        assert not {name for name in elements.attributes if name.startswith("on")}, latex
        assert not elements.attributes & {"style", "href", "src"}, latex
    assert "<msup>" in markdown(fence % "x^2")


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "From $5 to $10",
        "$ 5 $",
        r"\$x\$",
        "`$x$`",
        "US$5/US$10",
        "a $ b",
        "$",
        "$$",
        "$$ $$",
        "```\n$x$\n```",
        "$a\nb$",
    ],
)
def test_text_with_dollar_signs_is_not_a_formula(text: str) -> None:
    assert "<math" not in markdown(text)


def test_table_columns_are_aligned_by_classes() -> None:
    html = markdown("|a|b|c|\n|:-|-:|:-:|\n|1|2|3|")
    assert 'class="to-right">2' in html
    assert 'class="to-center">3' in html
    assert "style=" not in html


@pytest.mark.parametrize(
    "language", ["python", "JavaScript", "html", "sql", "no-such", "", '"><b>']
)
def test_code_is_highlighted_without_changing_its_text(language: str) -> None:
    code = 'def f(x): return "<b>&amp;</b>"  # 1 < 2\n'
    html = markdown(f"```{language}\n{code}```")
    assert not Elements(html).names & {"b", "script"}
    shown = re.sub(r"</?(span|pre|code)[^>]*>", "", html).strip()
    assert shown == ("def f(x): return &#34;&lt;b&gt;&amp;amp;&lt;/b&gt;&#34;  # 1 &lt; 2")
    assert ('class="hk"' in html) == (language in ("python", "JavaScript", "html", "sql")) or (
        language in ("html", "sql")
    )


def test_editable_markdown_keeps_formulas_and_characters() -> None:
    rendered = editable_markdown("Maths: $x^2$, *so\u200b* <b>it</b> is.")
    assert rendered == "<p>Maths: $x^2$, <em>so\u200b</em> &lt;b&gt;it&lt;/b&gt; is.</p>\n"


def test_a_shortened_text_shows_that_it_was_cut() -> None:
    assert short("one\n  two", 7) == "one two"
    assert short("one two three", 7) == "one tw…"
    spaced = short(f"one{' ' * 1000}two", 7)
    assert spaced == "one…", "many blanks must not hide that the rest is missing"
