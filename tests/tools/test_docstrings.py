"""Docstrings of tools: each parameter gets its description, and no line is lost."""

import pytest

from ricordo.features.custom_tools.source.source import read_source

WORDS = {"title": "Title of the book", "ref": "Reference, for example 3:5"}
SUMMARY = "Get the text of a book."

STYLES = {
    "google": "Args:\n    title: {title}\n    ref: {ref}",
    "google with types": "Args:\n    title (str): {title}\n    ref (str, optional): {ref}",
    "google with french spaces": "Args:\n    title (str) : {title}\n    ref (str) : {ref}",
    "google without types, with spaces": "Arguments :\n    title : {title}\n    ref : {ref}",
    "google with a deep type": "Args:\n    title (Optional[Tuple[int, str]]): {title}\n    ref (dict[str, int]): {ref}",
    "google in capitals": "ARGS:\n    title: {title}\n    ref: {ref}",
    "google as a list": "Parameters:\n    - title: {title}\n    - ref: {ref}",
    "google with ticks": "Args:\n    `title`: {title}\n    ``ref``: {ref}",
    "google with dashes": "Args:\n    title - {title}\n    ref — {ref}",
    "google with a full-width colon": "Args:\n    title：{title}\n    ref：{ref}",
    "numpy": "Parameters\n----------\ntitle : str\n    {title}\nref : str, optional\n    {ref}",
    "numpy without spaces": "Parameters\n----------\ntitle: str\n    {title}\nref: str\n    {ref}",
    "numpy without types": "Parameters\n----------\ntitle\n    {title}\nref\n    {ref}",
    "numpy with a default": "Parameters\n----------\ntitle : str\n    {title}\n\nref : str, default None\n    {ref}",
    "sphinx": ":param title: {title}\n:param ref: {ref}",
    "sphinx with types": ":param str title: {title}\n:param str ref: {ref}",
    "sphinx with types beside": ":param title: {title}\n:type title: str\n:param ref: {ref}\n:type ref: str, optional",
    "sphinx by another name": ":arg title: {title}\n:keyword ref: {ref}",
    "epytext with spaces": ":parameter title:   {title}\n:parameter ref: {ref}",
}
RESULTS = [
    "",
    "Returns:\n    str: The text.\n\nRaises:\n    ValueError: If there is none.",
    "Returns\n-------\nstr\n    The text.\n\nRaises\n------\nValueError\n    If there is none.",
    ":return: The text.\n:rtype: str\n:raises ValueError: If there is none.",
]


def tool(docstring: str) -> tuple[str, dict[str, str]]:
    body = docstring.replace("\n", "\n    ")
    schema = read_source(
        f'def get_text(title: str, ref: str = None) -> str:\n    """{body}\n    """\n    return '
        "title\n"
    )
    properties = schema.parameters["properties"]
    return schema.description, {
        name: each["description"] for name, each in properties.items() if "description" in each
    }


@pytest.mark.parametrize("style", STYLES)
def test_each_parameter_has_its_description(style: str) -> None:
    for results in RESULTS:
        described = tool(f"{SUMMARY}\n\n{STYLES[style].format(**WORDS)}\n\n{results}")
        assert described == (SUMMARY, WORDS)


@pytest.mark.parametrize("style", STYLES)
def test_an_unknown_line_stays_in_the_description(style: str) -> None:
    odd = [
        "Note: it is slow.",
        "See also: the other one.",
        "Example:\n    >>> get_text('x')",
        ":meta: private",
        "* a list",
    ]
    for line in odd:
        description, words = tool(f"{SUMMARY}\n\n{line}\n\n{STYLES[style].format(**WORDS)}")
        assert words == WORDS
        assert all(part.strip() in description for part in line.split("\n"))
        description, words = tool(f"{SUMMARY}\n\n{STYLES[style].format(**WORDS)}\n\n{line}")
        assert all(part.strip() in f"{description} {words}" for part in line.split("\n"))


def test_details_in_a_parameters_type_are_kept() -> None:
    description, words = tool(
        f"{SUMMARY}\n\nArgs:\n    title (one of 'fast', 'deep' or 'none at all'): How.\n"
        "    kind: Gone by now.\n    ref: Where\n        to look.\n"
    )
    assert words == {
        "title": "(one of 'fast', 'deep' or 'none at all') How.",
        "ref": "Where to look.",
    }
    assert description == f"{SUMMARY}\n\nkind: Gone by now."
    assert tool(f"{SUMMARY}\n\nArgs: see the manual.") == (
        f"{SUMMARY}\n\nArgs: see the manual.",
        {},
    )
    assert (
        tool(f"{SUMMARY} Usage: get it.\n\nParameters are plain.")[0]
        == f"{SUMMARY} Usage: get it.\n\nParameters are plain."
    )
