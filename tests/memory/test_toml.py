"""TOML is read with the line of what is wrong, and in a moment whatever is written."""

import time

import pytest

from ricordo.errors import Invalid
from ricordo.memory.toml import Lines, TomlPlace, deep_key, places, read_toml

TEXT = '''# A comment with a = sign and "quotes"
title = "Student"  # and [brackets]
when = 2026-05-31 10:00:00
long = """
one
two""\\""""
raw = \'\'\'a = 1
b = 2\'\'\'
list = [ "a", # with a ]
  [1, 2],
  {x = 1, y.z = "}"},
]

[fields.name]
kind = "string"
"odd key".'b c' = 1
[[block]]
label = "one"
[[block]]
  label = "two"
  [block.fields.age]
  kind = 'integer'
'''


def test_keys_items_and_tables_are_found_on_their_lines_whatever_the_line_ends() -> None:
    found = places(TEXT)
    lines = {
        ("title",): 2,
        ("when",): 3,
        ("long",): 4,
        ("raw",): 7,
        ("list",): 9,
        ("fields", "name"): 14,
        ("fields", "name", "kind"): 15,
        ("fields", "name", "odd key", "b c"): 16,
        ("block", 0, "label"): 18,
        ("block", 1): 19,
        ("block", 1, "label"): 20,
        ("block", 1, "fields", "age"): 21,
        ("block", 1, "fields", "age", "kind"): 22,
    }
    assert {path: found[path].line for path in lines} == lines
    assert found[("long",)] == TomlPlace(4, 6, is_long=True)
    assert found[("raw",)] == TomlPlace(7, 8, is_long=True)
    assert found[("list",)] == TomlPlace(9, 12)
    assert places(TEXT.replace("\n", "\r\n")) == found


def test_a_key_of_more_than_eight_parts_is_found_on_its_line() -> None:
    """The standard library takes two seconds for ten thousand bytes of dots, and three minutes for a hundred thousand."""
    for text, line in (
        ("a = 1\n" + ".".join("abcdefghi") + " = 1", 2),
        ("[" + " . ".join("abcdefghi") + "]", 1),
        ("x = '''\n\n'''\ny = {" + ".".join(["'a.b'"] * 9) + " = 1}", 4),
        (".".join("abcdefgh") + " = 1", None),
        ('x = "' + ".".join("a" * 50) + '"', None),
        ("x = '''\n" + ".".join("a" * 50) + "\n'''", None),
        ("# " + ".".join("a" * 50), None),
        ("x = 1.5", None),
    ):
        assert deep_key(text) == line, text


def test_looking_for_deep_keys_is_fast_whatever_is_written() -> None:
    for text in (
        "a." * 50_000,
        '"""\n\\' * 20_000,
        "'" * 99_999,
        "\"'" * 50_000,
        "a = [" + "#\n" * 50_000,
        "\\\"'''" * 20_000,
        "a" * 100_000,
    ):
        begin = time.process_time()
        deep_key(text)
        assert time.process_time() - begin < 1, text[:20]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\nb = Alice\n", "Line 2: this is no value of TOML. Put text in quotes"),
        ("a = 1\n\na = 2", "Line 3: this key occurs twice."),
        ("[a]\n[a]", "Line 2: this table occurs twice."),
        ("a 1", 'Line 1: an "=" is missing'),
        ("a = 1\n? = 2", "Line 2: a line must begin with a name."),
        ('a = 1\nb = "Alice', "Line 2: the text has no end."),
        ('a = "Alice\nb = 1', "Line 1: the text has no end."),
        ("a = '''\nAlice\n", "Line 2: the text has no end."),
        ('a = """\nAlice\n', "Line 2: the text has no end."),
        ("a = [1,\n2", "Line 2: the list has no end."),
        ('a = "C:\\new\\wine"', "Line 1: a \\ in quotes must be written as \\\\."),
        ("a = 2026-02-30", "Line 1: there is no such day"),
        ("a = 12 years", "Line 1: a key can have only one value"),
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


def test_the_line_of_what_is_missing_is_that_of_its_table_or_the_last() -> None:
    lines = Lines("a = 1\n[b]\nc = 1\n\n")
    assert (lines.place("b", "d").line, lines.place("x").line) == (2, 3)


def test_lines_of_a_text_are_found_in_the_file_where_they_correspond() -> None:
    for text, line in (
        ("a = 1\nbody = '''\none\ntwo'''", 4),
        ("a = 1\nbody = '''one\ntwo'''", 3),
        ('a = 1\nbody = "one\\ntwo"', 2),
    ):
        assert Lines(text).line_in("one\ntwo", 2, "body") == line, text
