"""The canonical text of a block with a schema.

Agents read and edit its sections, and the values can be read back from them.
"""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.block_schema import BlockSchema, FieldValue, SchemaField
from ricordo.errors import Invalid
from ricordo.memory.sections import (
    LAYOUTS,
    Layout,
    Problem,
    layout_of,
    read_sections,
    refuse,
    starting_text,
    write_sections,
)
from tests.seams.growth import repeated, require_linear

STUDENT = BlockSchema(
    "student",
    "Student",
    (
        SchemaField("name", required=True, max_length=40),
        SchemaField("background", "text"),
        SchemaField("strengths", "list", max_items=3, default=("Curiosity",)),
        SchemaField("age", "integer"),
        SchemaField("score", "number"),
        SchemaField("enrolled", "boolean"),
        SchemaField("since", "date", title="Student since"),
    ),
)
# The fields have no limits, so any value of the right kind is valid.
LOOSE = BlockSchema(
    "loose",
    "Loose",
    tuple(SchemaField(each.name, each.kind, title=each.title) for each in STUDENT.fields),
)
SIGNS = [
    "## Name",
    "##",
    "#",
    "---",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\t",
    " ",
    "- ",
    "-",
    "  ",
    "\\",
    "\\##",
    "\u2028",
    "a",
    "é 🫖",
]
nasty = st.one_of(st.text(), st.lists(st.sampled_from(SIGNS), max_size=20).map("".join))
OF_KIND: dict[str, st.SearchStrategy[FieldValue]] = {
    "string": nasty.map(lambda text: text.replace("\n", "")),
    "text": nasty,
    "list": st.lists(nasty).map(tuple),
    "integer": st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    "number": st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**63) + 1, 2**63 - 1),
    "boolean": st.none() | st.booleans(),
    "date": st.none() | st.dates(),
}


@st.composite
def filled(draw: st.DrawFn) -> dict[str, FieldValue]:
    fields = draw(st.lists(st.sampled_from(LOOSE.fields), unique=True))
    return {each.name: draw(OF_KIND[each.kind]) for each in fields}


@given(filled(), st.sampled_from(LAYOUTS))
def test_written_sections_read_back_unchanged(
    fields: dict[str, FieldValue], layout: Layout
) -> None:
    text = write_sections(fields, LOOSE, layout)
    reading = read_sections(text, LOOSE)
    assert reading.problems == ()
    assert list(reading.fields.items()) == list(fields.items())
    found = layout_of(text, LOOSE, reading)
    assert found is not None
    assert write_sections(reading.fields, LOOSE, found) == text


@given(filled())
def test_a_text_with_changed_line_ends_has_the_same_fields(
    fields: dict[str, FieldValue],
) -> None:
    text = write_sections(fields, LOOSE).replace("\r", "")
    assert (
        read_sections(text.replace("\n", "\r\n"), LOOSE).fields == read_sections(text, LOOSE).fields
    )


def test_a_text_has_a_heading_for_each_field_and_a_dash_for_each_item() -> None:
    fields: dict[str, FieldValue] = {
        "name": "Alice",
        "background": "Computer science\n\nstudent",
        "strengths": ("Creativity", "Patience,\nmostly"),
        "age": 21,
        "score": 7.5,
        "enrolled": True,
        "since": date(2025, 9, 1),
    }
    text = write_sections(fields, STUDENT)
    assert text == (
        "## Name\nAlice\n## Background\nComputer science\n\nstudent\n"
        "## Strengths\n- Creativity\n- Patience,\n  mostly\n"
        "## Age\n21\n## Score\n7.5\n## Enrolled\nyes\n## Student since\n2025-09-01"
    )
    assert read_sections(text, STUDENT).fields == fields


def test_only_lines_that_look_like_headings_or_blank_space_are_escaped() -> None:
    text = write_sections(
        {
            "background": "\n## Not a heading\n### One below\n\n\\# x\n---\n",
            "strengths": ("", "a\n\nb"),
        },
        LOOSE,
    )
    assert text == (
        "## Background\n\\\n\\## Not a heading\n### One below\n\n\\# x\n---\n\\\n## "
        "Strengths\n-\n- a\n  \\\n  b"
    )


def test_headings_items_and_values_may_be_written_in_several_ways() -> None:
    text = (
        "\n##   NAME  \n\nAlice\n\n\n## strengths\n* Creativity\n\n+ Patience\n\tmostly\n"
        "## student_since\n 2025-09-01 \n## Enrolled\nTRUE\n"
    )
    reading = read_sections(text, STUDENT)
    assert reading.problems == reading.missing == ()
    assert reading.fields == {
        "name": "Alice",
        "strengths": ("Creativity", "Patience\nmostly"),
        "since": date(2025, 9, 1),
        "enrolled": True,
    }
    assert layout_of(text, STUDENT, reading) is None


def test_a_new_block_has_all_headings_the_defaults_and_missing_required_fields() -> None:
    text = starting_text(STUDENT)
    assert text.startswith("## Name\n## Background\n## Strengths\n- Curiosity\n## Age\n")
    reading = read_sections(text, STUDENT)
    assert reading.problems == ()
    assert list(map(str, reading.missing)) == ['Line 1: "Name" is required and empty. Fill it in.']
    assert reading.fields["age"] is None
    assert reading.fields["background"] == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Hello\n## Name\nAda",
            'Line 1: there is text before the first heading. Put it below a line "## Title".',
        ),
        (
            "## Hobbies\nTea",
            'Line 1: "Hobbies" is not a field of "student". Use one of "## Name", "## '
            'Background", ',
        ),
        ("## Name\nAda\n## name\nEva", 'Line 3: "Name" occurs twice. Keep one of the two.'),
        ("## Age\n\ntwelve", 'Line 3: "Age" must be a whole number. Write it as 12.'),
        ("## Age\n21 years", 'Line 2: "Age" must be a whole number. Write it as 12.'),
        ("## Age\n99999999999999999999", 'Line 2: "Age" must be a whole number. Write it as 12.'),
        ("## Age\n1\n2", 'Line 2: "Age" must be one line. Remove the other lines.'),
        ("## Score\n7,5", 'Line 2: "Score" must be a number. Write it as 12.5.'),
        ("## Score\n1e999", 'Line 2: "Score" must be a number. Write it as 12.5.'),
        ("## Enrolled\nmaybe", 'Line 2: "Enrolled" must be true or false. Write it as true.'),
        ("## Student since\nMay", 'Line 2: "Student since" must be a day. Write it as 2026-05-31.'),
        ("## Name\nAda\nLovelace", 'Line 2: "Name" must be one line. Remove the line breaks.'),
        ("## Name\n" + "a" * 41, 'Line 2: "Name" has 41 characters and may have 40. Shorten it.'),
        (
            "## Strengths\n- a\n\nb",
            'Line 4: "Strengths" is a list. Begin each item with "- ", and further lines',
        ),
        (
            "## Strengths\n- a\n- b\n- c\n- d",
            'Line 2: "Strengths" has 4 items and may have 3. Remove 1.',
        ),
    ],
)
def test_a_schema_violation_is_reported_with_its_line_and_a_remedy(text: str, told: str) -> None:
    reading = read_sections(text, STUDENT)
    assert len(reading.problems) == 1
    assert str(reading.problems[0]).startswith(told)


def test_a_missing_required_field_is_reported_at_the_end_of_the_text() -> None:
    (missing,) = read_sections("## Age\n21\n", STUDENT).missing
    assert str(missing) == 'Line 3: "Name" is required and missing. Add a line "## Name".'


@pytest.mark.parametrize(
    ("begin", "piece"),
    [("", "## x\n"), ("", "\n"), ("## Strengths\n", "- \n"), ("## Name\n", "\\")],
)
def test_any_text_is_read_in_linear_time(begin: str, piece: str) -> None:
    def work(size: int) -> None:
        text = begin + repeated(piece, size)
        layout_of(text, LOOSE, read_sections(text, LOOSE))

    require_linear(work, 6_000)


def test_problems_are_reported_once_and_in_the_order_of_their_lines() -> None:
    with pytest.raises(Invalid) as error:
        refuse([Problem(7, "b."), Problem(2, "a."), Problem(7, "b.")], "x.toml")
    assert str(error.value) == "x.toml: Line 2: a.\nx.toml: Line 7: b."
    with pytest.raises(Invalid) as error:
        refuse(Problem(line, "no.") for line in range(1, 25))
    assert str(error.value).splitlines()[-2:] == ["Line 20: no.", "And 4 more."]
