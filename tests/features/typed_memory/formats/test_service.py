"""Blocks as Markdown and TOML.

Any text of an agent is reproduced exactly, and a person learns which line is wrong.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ricordo.domain.block_schema import KINDS, BlockSchema, FieldValue, SchemaField
from ricordo.errors import Invalid
from ricordo.features.typed_memory.formats.service import (
    ParsedText,
    from_markdown,
    from_toml,
    to_markdown,
    to_toml,
)
from ricordo.memory.schemas import _FIELD_KEYS, BLOCK_KEYS, parse_schema
from ricordo.memory.sections import LAYOUTS, starting_text, write_sections
from tests.memory.test_sections import LOOSE, SIGNS, STUDENT, filled
from tests.seams.growth import repeated, require_linear

PAGE = (Path(__file__).parents[4] / "docs" / "people" / "block-formats.md").read_text()
WORDS = (
    "block: x\n|format: free\n|---\n|## Name\n|## Strengths\n|## Age\n|12|body = ''|\ufeff".split(
        "|"
    )
)
nasty = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*SIGNS, *WORDS, "'''", '"""', "\x00", "\x7f"]), max_size=25).map(
        "".join
    ),
)
schemas = st.sampled_from([None, STUDENT, LOOSE])
labels = st.sampled_from(
    ["student", "a/b", "Lernjournal für Ada", "yes", '"quoted"', "'x'", "a: b # c", "12", " x "]
)


@given(labels, nasty, schemas)
@example("student", "---\nblock: other\n---\nx", None)
@example("student", "", STUDENT)
@example("student", "\n", LOOSE)
@example("student", "a\r\nb\r\n", None)
def test_any_text_survives_the_markdown_and_toml_views(
    label: str, text: str, schema: BlockSchema | None
) -> None:
    for parsed in (
        from_markdown(to_markdown(label, text, schema), schema),
        from_toml(to_toml(label, text, schema), schema),
    ):
        assert (parsed.label, parsed.text) == (label, text)
    # A view with another schema, or without one, gives the same text.
    assert from_markdown(to_markdown(label, text, schema), None).text == text


@given(filled(), st.sampled_from(LAYOUTS))
def test_typed_fields_survive_the_markdown_and_toml_views(
    fields: dict[str, FieldValue], layout: str
) -> None:
    text = write_sections(fields, LOOSE, layout)  # type: ignore[arg-type]
    toml = to_toml("student", text, LOOSE)
    assert ("body = " in toml) == (not fields)
    for parsed in (
        from_toml(toml, LOOSE),
        from_markdown(to_markdown("student", text, LOOSE), LOOSE),
    ):
        assert replace(parsed, schema_ref=None) == ParsedText("student", text, fields, "complete")
        assert list(parsed.fields) == list(fields)


@given(labels, nasty, schemas)
def test_files_with_crlf_line_ends_parse_equally(
    label: str, text: str, schema: BlockSchema | None
) -> None:
    text = text.replace("\r", "")
    assert (
        from_markdown(to_markdown(label, text, schema).replace("\n", "\r\n"), schema).text == text
    )
    assert from_toml(to_toml(label, text, schema).replace("\n", "\r\n"), schema).text == text


def test_a_text_that_violates_its_schema_is_marked_free_and_not_checked() -> None:
    text = "Alice likes tea.\n## Age\ntwelve"
    markdown, toml = to_markdown("student", text, STUDENT), to_toml("student", text, STUDENT)
    assert markdown == f"---\nblock: student\nschema: student\nformat: free\n---\n{text}\n"
    assert toml == f"block = \"student\"\nformat = \"free\"\nbody = '''\n{text}'''\n"
    assert from_toml(toml, STUDENT) == ParsedText("student", text)
    assert from_markdown(markdown, STUDENT) == ParsedText("student", text, schema_ref="student")
    with pytest.raises(Invalid, match=r"^Line 5: there is text before") as error:
        from_markdown(markdown.replace("format: free\n", ""), STUDENT)
    assert 'Line 7: "Age" must be a whole number. Write it as 12.' in str(error.value)
    # The body begins in line 3 of the file, and its third line is wrong.
    with pytest.raises(Invalid, match=r'Line 5: "Age" must be a whole number.'):
        from_toml(toml.replace('format = "free"\n', ""), STUDENT)


def test_a_new_block_is_incomplete_until_required_fields_are_filled() -> None:
    text = starting_text(STUDENT)
    markdown, toml = to_markdown("student", text, STUDENT), to_toml("student", text, STUDENT)
    assert markdown.startswith(
        "---\nblock: student\nschema: student\nformat: incomplete\n---\n## Name\n## Background\n"
    )
    assert toml.startswith(
        'block = "student"\nformat = "incomplete"\nname = ""\nbackground = ""\nstrengths = '
        '["Curiosity"]\nage = ""\n'
    )
    for parsed in (from_markdown(markdown, STUDENT), from_toml(toml, STUDENT)):
        assert (parsed.text, parsed.form, parsed.fields["age"]) == (text, "incomplete", None)
    with pytest.raises(Invalid, match=r'^Line 5: "Name" is required and empty. Fill it in.$'):
        from_markdown(markdown.replace("format: incomplete\n", ""), STUDENT)
    with pytest.raises(Invalid, match=r'^Line 2: "name" is required and empty. Fill it in.$'):
        from_toml(toml.replace('format = "incomplete"\n', ""), STUDENT)
    # Even with the format `incomplete`, a text must follow its schema.
    with pytest.raises(Invalid, match=r'^Line 5: "Age" must be a whole number. Write it as 12.$'):
        from_markdown("---\nformat: incomplete\n---\n## Age\nx", STUDENT)


def test_other_layouts_are_kept_as_a_layout_name_or_as_raw_text() -> None:
    spaced = "## Name\nAda\n\n## Age\n21"
    assert (
        to_toml("s", spaced, STUDENT) == 'block = "s"\nlayout = "spaced"\nname = "Ada"\nage = 21\n'
    )
    odd = "## name\nAda\n\n\n## Age\n021"
    assert to_toml("s", odd, STUDENT) == f"block = \"s\"\nbody = '''\n{odd}'''\n"
    assert from_toml(to_toml("s", odd, STUDENT), STUDENT) == ParsedText(
        "s", odd, {"name": "Ada", "age": 21}, "complete"
    )


def test_a_text_that_names_another_schema_is_not_checked() -> None:
    parsed = from_markdown("---\nblock: x\nschema: 'other'\n---\n## Age\nx", STUDENT)
    assert parsed == ParsedText("x", "## Age\nx", schema_ref="other")


def test_without_a_schema_a_toml_of_fields_becomes_sections() -> None:
    """Other systems store blocks in this way, with only the fields."""
    toml = (
        'name = "Alice"\nstrengths = ["a", "b"]\nage = 21\nborn = 2004-02-29\nkeen = true\nscore '
        "= 1.5\n"
    )
    parsed = from_toml(toml, None)
    sections = (
        "Name\nAlice",
        "Strengths\n- a\n- b",
        "Age\n21",
        "Born\n2004-02-29",
        "Keen\nyes",
        "Score\n1.5",
    )
    assert parsed.text == "\n".join(f"## {section}" for section in sections)
    born = date(2004, 2, 29)
    fields = {
        "name": "Alice",
        "strengths": ("a", "b"),
        "age": 21,
        "born": born,
        "keen": True,
        "score": 1.5,
    }
    assert (parsed.fields, parsed.label, parsed.form) == (fields, None, "free")
    assert from_toml('x = "a"', BlockSchema("s", "S", (SchemaField("x"),))).text == "## X\na"


def test_markdown_needs_no_front_matter_and_drops_the_final_newline() -> None:
    assert from_markdown("## Name\nAda\n", STUDENT) == ParsedText(
        None, "## Name\nAda", {"name": "Ada"}, "complete"
    )
    assert from_markdown("a\r\nb\r\n", None).text == "a\nb"
    assert from_markdown("---\nHello\n---\n", None).text == "---\nHello\n---"
    assert from_markdown("\ufeff---\nblock: x\n---\ny", None) == ParsedText("x", "y")
    assert from_markdown("\ufefftext\r\nmore\r\n", None).text == "text\nmore"
    assert from_markdown("---\nblock: 'it''s'\n---", None) == ParsedText("it's", "")


MARKDOWN: dict[str, list[str]] = {
    "---\nblock: a\n## Name\nAda": ["Line 1: the front matter has no end. End it with a line ---."],
    "---\nblock: a\nblock: b\n---\n": ['Line 3: "block" occurs twice. Keep one of the two.'],
    "---\nblock: a\ntags: b\n---\n": [
        'Line 3: "tags" is not known here. Use block, schema and format, or put it below*'
    ],
    "---\nformat: odd\n---\n": [
        'Line 2: "format" can be incomplete or free. Write one, or take the line out.'
    ],
    "---\nblock: a/history\n---\n": [
        'Line 2: Block label "a/history" cannot be used: "history" is reserved*'
    ],
    "---\nblock:\n---\n": ['Line 2: Block label "" cannot be used.*'],
    "---\nblock: a\n---\n\n## Age\ntwelve\n## Hobbies\n": [
        'Line 6: "Age" must be a whole number. Write it as 12.',
        'Line 7: "Hobbies" is not a field of "student".*',
        'Line 7: "Name" is required and missing. Add a line "## Name".',
    ],
}
TOML: dict[str, list[str]] = {
    'name = "Ada"\nage = "twelve"': ['Line 2: "age" must be a whole number. Write it as 12.'],
    'name = "Ada"\nage = 12 years': ["Line 2: a key can have only one value. Put text in quotes."],
    "name = Ada": ["Line 1: this is not a TOML value.*"],
    'name = 3\nhobbies = ["tea"]\nstrengths = [\n  "a",\n  7,\n]\nenrolled = "yes"\n'
    "since = 2026-05-31T10:00:00Z\nscore = nan": [
        'Line 1: "name" must be text. Write it as "Alice".',
        (
            'Line 2: "hobbies" is not a field of "student". Use one of: name, background, '
            "strengths, age, score, enrolled, since."
        ),
        'Line 3: "strengths" must be a list of texts. Write it as ["one", "two"].',
        'Line 7: "enrolled" must be true or false. Write it as true.',
        'Line 8: "since" must be a day. Write it as 2026-05-31.',
        'Line 9: "score" must be a number. Write it as 12.5.',
    ],
    'name = "A"\nstrengths = ["a", "b", "c", "d"]': [
        'Line 2: "strengths" has 4 items and may have 3. Remove 1.'
    ],
    "age = 12\n": ['Line 1: "name" is required and missing. Add a line that begins with name ='],
    'name = "A"\nbody = ""': ['Line 1: "name" cannot be used with "body". Keep one of the two.'],
    'layout = "open"\nbody = ""': [
        'Line 1: "layout" cannot be used with "body". Keep one of the two.'
    ],
    'name = "A"\nformat = "free"': [
        'Line 2: "format" must be incomplete here. Or take the line out.'
    ],
    'name = "A"\nlayout = "wide"': [
        'Line 2: "layout" must be compact or spaced or open here. Or take the line out.'
    ],
    "body = 3\nblock = 4": [
        f'Line {n}: "{key}" must be text. Put it in quotes.'
        for n, key in ((1, "body"), (2, "block"))
    ],
    'block = "a<b"\nname = "A"': ['Line 1: Block label "a<b" cannot be used.*'],
    "": ['Line 1: there are neither fields nor a "body". Write body = "" to empty the block.'],
    'name = "A"\n[address]\nstreet = "B"': ['Line 2: "address" is not a field of "student".*'],
    "name = {first = 'A'}": ['Line 1: "name" must be text. Write it as "Alice".'],
}
KIND = "must be text, a list of texts, a number, true, false or a day."
UNKNOWN: dict[str, list[str]] = {
    "[address]\nstreet = 1": [f'Line 1: "address" {KIND}'],
    "x = [1]": [f'Line 1: "x" {KIND}'],
    "x = 2026-05-31T10:00:00Z": [f'Line 1: "x" {KIND}'],
    '"full name" = ""': ['Line 1: "full name" cannot be the name of a field.*'],
    "a = 1\nA = 2": ['Line 2: "A" and "a" cannot be told apart. Change a title.'],
    "x = inf": ['Line 1: "x" must be a number. Write it as 12.5.'],
}


def test_faults_are_reported_with_their_line_with_or_without_a_schema() -> None:
    for read, schema, table in (
        (from_markdown, STUDENT, MARKDOWN),
        (from_toml, STUDENT, TOML),
        (from_toml, None, UNKNOWN),
    ):
        for text, told in table.items():
            with pytest.raises(Invalid) as error:
                read(text, schema)
            lines = str(error.value).splitlines()
            assert len(lines) == len(told), text
            for line, expected in zip(lines, told, strict=True):
                assert line.startswith(expected.removesuffix("*")), text
                assert expected.endswith("*") or line == expected, text


def test_both_views_take_linear_time() -> None:
    def go_both_ways(size: int, piece: str, schema: BlockSchema | None) -> None:
        text = repeated(piece, size)
        assert from_markdown(to_markdown("x", text, schema), schema).text == text
        assert from_toml(to_toml("x", text, schema), schema).text == text

    for piece in ("## Name\n", "'''\\\"\n", "\r\n", "é 🫖 ", "\\## x\n"):
        for schema in (None, LOOSE):
            require_linear(partial(go_both_ways, piece=piece, schema=schema), 1_000, piece)


def test_hostile_texts_are_parsed_in_linear_time() -> None:
    pieces = ("#", "#\n", "[", "a.", "---\n", "\r\n", "\0", "[[a]]\n", '"', "## Name\n")
    texts: list[Callable[[int], str]] = [partial(repeated, piece) for piece in pieces]
    texts += [
        lambda size: "".join(f"k{number} = 1\n" for number in range(size // 10)),
        lambda size: "".join(f"[t{number}]\n" for number in range(size // 10)),
        lambda size: "a = " + "[" * size,
    ]

    def parse(size: int, text: Callable[[int], str], schema: BlockSchema | None) -> None:
        for read in (from_markdown, from_toml):
            with suppress(Invalid):
                read(text(size), schema)

    for text in texts:
        for schema in (None, LOOSE):
            require_linear(partial(parse, text=text, schema=schema), 1_000, text(60))


def page_examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_of_the_formats_page_are_correct() -> None:
    designed, first, free = page_examples("toml")
    schema = parse_schema(designed, "student")
    markdown, escaped = page_examples("markdown")
    parsed = from_markdown(markdown, schema)
    assert parsed.form == "complete"
    assert to_markdown("student", parsed.text, schema) == markdown
    assert to_toml("student", parsed.text, schema) == first
    assert from_toml(first, schema) == replace(parsed, schema_ref=None)
    assert (
        from_markdown(escaped, schema).fields["background"]
        == "Wrote an essay:\n## My garden\nwith three parts."
    )
    assert to_toml("notes", from_toml(free, None).text, None) == free
    (wrong,) = page_examples("text")
    with pytest.raises(Invalid) as error:
        from_markdown(markdown.replace("\n21\n", "\ntwenty-one\n"), schema)
    assert f"{error.value}\n" == wrong


def test_the_formats_page_documents_every_field_kind_and_key() -> None:
    words = [*KINDS, *BLOCK_KEYS, *_FIELD_KEYS, *LAYOUTS]
    assert [word for word in words if f"`{word}`" not in PAGE] == []
