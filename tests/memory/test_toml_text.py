"""TOML read with the line of what is wrong, and written so that it reads back as it was."""

import time
import tomllib
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.block_schema import FieldValue
from ricordo.errors import Invalid
from ricordo.memory.toml_text import Lines, read_toml, write_toml

SIGNS = [
    "'''",
    '"""',
    "'",
    '"',
    "\\",
    "\n",
    "\r\n",
    "\t",
    "\x00",
    "\x7f",
    "\x85",
    "\u2028",
    "#",
    "[",
    " ",
    "a",
    "é",
    "🫖",
]
texts = st.one_of(st.text(), st.lists(st.sampled_from(SIGNS), max_size=30).map("".join))
values: st.SearchStrategy[FieldValue] = st.one_of(
    texts,
    st.lists(texts).map(tuple),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.dates(),
)


@given(st.dictionaries(st.sampled_from("abcdef"), values))
def test_what_is_written_reads_back_as_it_was(written: dict[str, FieldValue]) -> None:
    text = write_toml(written)
    expected = {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()}
    read = read_toml(text)
    assert read == expected
    assert {key: type(value) for key, value in read.items()} == {key: type(value) for key, value in expected.items()}
    # Editors turn line ends around; the values stay.
    assert read_toml(text.replace("\n", "\r\n")) == expected


def test_texts_of_several_lines_stand_between_three_quotes_and_long_lists_have_a_line_an_item() -> None:
    told = write_toml(
        {
            "a": "one\n\ttwo\n",
            "b": "it's '''\n\"\"\"\"",
            "c": ("x",),
            "d": ("y" * 60, "z" * 60),
            "e": date(2026, 5, 31),
            "f": None,
        }
    )
    assert told == (
        "a = '''\none\n\ttwo\n'''\n"
        'b = """\nit\'s \'\'\'\n""\\"\\""""\n'
        'c = ["x"]\n'
        f'd = [\n    "{"y" * 60}",\n    "{"z" * 60}",\n]\n'
        "e = 2026-05-31\n"
        'f = ""\n'
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\nb = Alice\n", "Line 2: this is no value of TOML. Put text in quotes"),
        ("a = 1\n\na = 2", "Line 3: this key stands there a second time."),
        ("[a]\n[a]", "Line 2: this table stands there a second time."),
        ("a 1", 'Line 1: an "=" is missing'),
        ("a = 1\n? = 2", "Line 2: a line must begin with a name."),
        ('a = 1\nb = "Alice', "Line 2: the text has no end."),
        ('a = "Alice\nb = 1', "Line 1: the text has no end."),
        ("a = '''\nAlice\n", "Line 2: the text has no end."),
        ('a = """\nAlice\n', "Line 2: the text has no end."),
        ("a = [1,\n2", "Line 2: the list has no end."),
        ('a = "C:\\new\\wine"', "Line 1: a \\ in quotes must be written as \\\\."),
        ("a = 2026-02-30", "Line 1: there is no such day"),
        ("a = 12 years", "Line 1: only one value can stand"),
        ('a = "\\u12"', "Line 1: the TOML cannot be read: Invalid hex value. Correct it there."),
        ("a = 1\nb = " + "1" * 5000, "Line 2: the number has too many digits."),
        ("a = " + "[" * 50_000, "Line 1: lists or tables lie too deep"),
        ("a = 1\n" + "b." * 50_000 + "c = 1", "Line 2: the name has too many parts."),
    ],
)
def test_broken_toml_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(Invalid) as error:
        read_toml(text)
    assert str(error.value).startswith(told)


def test_a_text_of_a_hundred_thousand_characters_is_written_and_read_fast() -> None:
    long = {"a": "'''\\\"\n" * 20_000, "b": tuple(["item"] * 20_000)}
    begin = time.process_time()
    assert tomllib.loads(write_toml(long)) == {"a": long["a"], "b": list(long["b"])}
    assert time.process_time() - begin < 3


def test_the_line_of_what_is_missing_is_that_of_its_table_or_the_last() -> None:
    lines = Lines("a = 1\n[b]\nc = 1\n\n")
    assert lines.place("b", "d").line == 2
    assert lines.place("x").line == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nbody = '''\none\ntwo'''", 4),
        ("a = 1\nbody = '''one\ntwo'''", 3),
        ('a = 1\nbody = "one\\ntwo"', 2),
    ],
)
def test_lines_of_a_text_are_found_in_the_file_where_they_correspond(text: str, line: int) -> None:
    assert Lines(text).line_in("one\ntwo", 2, "body") == line
