"""Where in a TOML text things stand, and the key that would take forever."""

import time

import pytest

from ricordo.memory.toml_lines import Place, deep_key, places

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


def test_keys_items_and_tables_are_found_on_their_lines() -> None:
    found = places(TEXT)
    lines = {
        ("title",): 2,
        ("when",): 3,
        ("long",): 4,
        ("raw",): 7,
        ("list",): 9,
        ("list", 0): 9,
        ("list", 1): 10,
        ("list", 1, 1): 10,
        ("list", 2, "y", "z"): 11,
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
    assert found[("long",)] == Place(4, 4, 6, is_long=True)
    assert found[("raw",)] == Place(7, 7, 8, is_long=True)
    assert found[("list",)] == Place(9, 9, 12)


def test_lines_are_the_same_where_an_editor_changed_the_line_ends() -> None:
    assert places(TEXT.replace("\n", "\r\n")) == places(TEXT)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\n" + ".".join("abcdefghi") + " = 1", 2),
        ("[" + " . ".join("abcdefghi") + "]", 1),
        ("x = '''\n\n'''\ny = {" + ".".join(["'a.b'"] * 9) + " = 1}", 4),
        (".".join("abcdefgh") + " = 1", None),
        ('x = "' + ".".join("a" * 50) + '"', None),
        ("x = '''\n" + ".".join("a" * 50) + "\n'''", None),
        ("# " + ".".join("a" * 50), None),
        ("x = 1.5", None),
    ],
)
def test_a_key_of_more_than_eight_parts_is_found_on_its_line(text: str, line: int | None) -> None:
    """The standard library takes two seconds for ten thousand bytes of dots, and three minutes for a hundred thousand."""
    assert deep_key(text) == line


@pytest.mark.parametrize(
    "text",
    [
        "a." * 50_000,
        '"""\n\\' * 20_000,
        "'" * 99_999,
        "\"'" * 50_000,
        "a = [" + "#\n" * 50_000,
        "\\\"'''" * 20_000,
        "a" * 100_000,
    ],
    ids=["dots", "long strings", "quotes", "two quotes", "comments", "escapes", "name"],
)
def test_looking_for_deep_keys_is_fast_whatever_is_written(text: str) -> None:
    begin = time.process_time()
    deep_key(text)
    assert time.process_time() - begin < 1
