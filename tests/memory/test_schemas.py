"""Block schemas in TOML: the files that course designers write, and the errors that they get."""

import os
from datetime import date
from pathlib import Path
from typing import get_args

import pytest

from ricordo.domain.block import Policy
from ricordo.domain.block_schema import KINDS, BlockSchema, SchemaField
from ricordo.errors import Invalid, NotFound, Unavailable
from ricordo.memory.schemas import (
    FOLDER,
    Lines,
    TomlLines,
    deep_key,
    key_lines,
    parse_schema,
    read_schema,
    read_toml,
    require_follows,
    schema_names,
    schemas_in,
)
from tests.seams.growth import repeated, require_linear

STUDENT = """
title = "Student"
description = "What the tutor knows about the student."
policy = "propose"
limit = 4000

[fields.name]
required = true
max_length = 80

[fields.strengths]
kind = "list"
title = "Strong points"
description = "What she is good at."
max_items = 8
default = ["Curiosity"]

[fields.since]
kind = "date"
default = 2026-05-31
"""


def test_a_schema_is_read_with_its_fields_in_order() -> None:
    assert parse_schema(STUDENT, "student") == BlockSchema(
        "student",
        "Student",
        (
            SchemaField("name", "string", "Name", required=True, max_length=80),
            SchemaField(
                "strengths",
                "list",
                "Strong points",
                "What she is good at.",
                max_items=8,
                default=("Curiosity",),
            ),
            SchemaField("since", "date", default=date(2026, 5, 31)),
        ),
        "What the tutor knows about the student.",
        "propose",
        4000,
    )


def test_every_error_of_a_schema_is_reported_with_its_line() -> None:
    named = (
        "Use letters, digits and _, at most 100, a letter first, and none of: block, body, "
        "format, layout."
    )
    known = "Use: kind, title, description, required, max_length, max_items, default, egress."
    for text, *told in (
        ("", "Line 1: the schema has no fields. Give it one, as in [fields.name]."),
        ('title = "A"\ntitle = "B"', "Line 2: this key occurs twice. Keep one of the two."),
        (
            "colour = 1\n[fields.x]",
            'Line 1: "colour" is not known here. Use: title, description, policy, limit, fields.',
        ),
        ("title = 1\n[fields.x]", 'Line 1: "title" must be text in quotes.'),
        ('title = ""\n[fields.x]', 'Line 1: "title" is empty. Fill it in, or remove the line.'),
        ("limit = true\n[fields.x]", 'Line 1: "limit" must be a whole number.'),
        ("limit = 0\n[fields.x]", 'Line 1: "limit" must lie between 1 and 1000000000 characters.'),
        (
            'policy = "ask"\n[fields.x]',
            f'Line 1: "policy" must be one of: {", ".join(get_args(Policy))}.',
        ),
        ('[fields]\nname = "text"', 'Line 2: "name" must be a table. Write it as [fields.name].'),
        ("fields = 3", 'Line 1: "fields" must be a table.'),
        (
            '[fields.x]\nkind = "words"\ntype = "text"\nrequired = "yes"',
            f'Line 2: "kind" must be one of: {", ".join(KINDS)}.',
            f'Line 3: "type" is not known here. {known}',
            'Line 4: "required" must be true or false.',
        ),
        (
            "[fields.x]\nmax_items = 3",
            'Line 2: "max_items" has no meaning where "kind" is string. Take it out.',
        ),
        ('[fields.x]\nkind = "list"\nmax_items = 0', 'Line 3: "max_items" must be 1 or more.'),
        (
            '[fields.x]\nkind = "integer"\ndefault = "12"',
            'Line 3: "default" must be a whole number. Write it as 12.',
        ),
        (
            '[fields.x]\nkind = "list"\ndefault = [1]',
            'Line 3: "default" must be a list of texts. Write it as ["one", "two"].',
        ),
        ('[fields.x]\ntitle = ""', 'Line 2: "title" is empty. Fill it in, or remove the line.'),
        ("[fields.a]\n[fields.body]", f'Line 2: "body" cannot be the name of a field. {named}'),
        (
            '[fields.a]\n[fields.b]\ntitle = "A"',
            'Line 2: "b" and "a" cannot be told apart. Change a title.',
        ),
    ):
        with pytest.raises(Invalid) as error:
            parse_schema(text, "x")
        assert str(error.value).splitlines() == told, text


def test_a_folder_of_schemas_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "block_schemas"
    folder.mkdir()

    def refuse(path: str | Path = ".") -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(Unavailable, match="block_schemas cannot be read: Permission denied"):
        schema_names(folder)


def test_schemas_are_files_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "block_schemas"
    assert schema_names(folder) == []
    with pytest.raises(
        NotFound,
        match=r'There is no block schema "student". Put it into block_schemas/student.toml',
    ):
        read_schema("student", folder)
    (folder / "student.toml").write_text("\ufeff" + STUDENT.replace("\n", "\r\n"), "utf-8")
    (folder / "a.b.toml").write_text("[fields.x]")
    (folder / "odd name.toml").write_text("")
    (folder / "readme.md").write_text("")
    assert schema_names(folder) == ["a.b", "student"]
    assert read_schema("student", folder) == parse_schema(STUDENT, "student")
    with pytest.raises(NotFound, match=r"use one of these: a.b, student"):
        read_schema("teacher", folder)


@pytest.mark.parametrize(
    "name", ["", "../student", "a/b", ".student", "a" * 101, "stu dent", "x\n"]
)
def test_a_schema_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        Invalid, match=r'cannot be the name of a block schema.* Begin with a letter, a digit or "_"'
    ):
        read_schema(name, tmp_path)


def test_an_invalid_schema_file_is_named(tmp_path: Path) -> None:
    def told(content: bytes) -> str:
        (tmp_path / "x.toml").write_bytes(content)
        with pytest.raises(Invalid) as error:
            read_schema("x", tmp_path)
        return str(error.value)

    assert (
        told(b"\n[fields.x]\nkind = 1")
        == 'block_schemas/x.toml: Line 3: "kind" must be text in quotes.'
    )
    assert told(b"a = \n").startswith("block_schemas/x.toml: Line 1: this is not a TOML value.")
    assert told(b"\xff") == "block_schemas/x.toml is not UTF-8 text. Save it as UTF-8."
    assert told(b"#" * 65_537) == "block_schemas/x.toml is larger than 65536 bytes. Shorten it."
    (tmp_path / "y.toml").mkdir()
    with pytest.raises(Unavailable, match=r"block_schemas/y.toml cannot be read: Is a directory"):
        read_schema("y", tmp_path)


FOLLOWED = parse_schema(
    '[fields.name]\nkind = "string"\nrequired = true\n\n[fields.age]\nkind = "integer"\n',
    "student",
    "student.toml",
)
WHOLE, EMPTY, FREE = "## Name\nAda\n## Age\n36", "## Name\n## Age\n36", "Her name is Ada."


def test_an_edit_cannot_make_a_text_violate_its_schema_more() -> None:
    for before, after in (
        *((WHOLE, WHOLE.replace("36", "37")), (EMPTY, WHOLE), (EMPTY, "## Name\n## Age\n40")),
        *((FREE, WHOLE), (FREE, "Ada.")),
    ):
        require_follows("student", before, after, FOLLOWED)
    for before, after, line in (
        (WHOLE, "## Name\nAda\n## Age\nold", "Line 4"),
        (WHOLE, f"Hello.\n{WHOLE}", "Line 1"),
        (WHOLE, EMPTY, "Line 1"),
        (EMPTY, FREE, "Line 1"),
    ):
        with pytest.raises(
            Invalid, match=rf'"student" has to follow the schema "student"[\s\S]*{line}'
        ):
            require_follows("student", before, after, FOLLOWED)


def test_a_missing_or_broken_schema_restricts_nothing(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "broken.toml").write_text("fields = ")
    schemas = schemas_in(tmp_path)
    for name in ("broken", "missing"):
        assert schemas(name) is None
        require_follows("student", WHOLE, FREE, schemas(name))


TOML = '''# A comment with a = sign and "quotes"
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


def test_keys_items_and_tables_are_found_on_their_lines_with_any_line_ends() -> None:
    found = key_lines(TOML)
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
    assert found[("long",)] == TomlLines(4, 6, is_long=True)
    assert found[("raw",)] == TomlLines(7, 8, is_long=True)
    assert found[("list",)] == TomlLines(9, 12)
    assert key_lines(TOML.replace("\n", "\r\n")) == found


def test_a_key_of_more_than_eight_parts_is_found_on_its_line() -> None:
    """The standard library needs minutes for a key with a hundred thousand dots."""
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


def test_searching_for_deep_keys_takes_linear_time() -> None:
    for begin, piece in (
        ("", "a."),
        ("", '"""\n\\'),
        ("", "'"),
        ("", "\"'"),
        ("a = [", "#\n"),
        ("", "\\\"'''"),
        ("", "a"),
    ):
        require_linear(
            lambda size, begin=begin, piece=piece: deep_key(begin + repeated(piece, size)),
            12_500,
            piece,
        )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\nb = Alice\n", "Line 2: this is not a TOML value. Put text in quotes"),
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
        ('a = "\\u12"', "Line 1: the TOML cannot be read: Invalid hex value. Correct that line."),
        ("a = 1\nb = " + "1" * 5000, "Line 2: the number has too many digits."),
        ("a = " + "[" * 50_000, "Line 1: lists or tables are nested too deeply"),
        ("a = 1\n" + "b." * 50_000 + "c = 1", "Line 2: the name has too many parts."),
    ],
)
def test_broken_toml_is_reported_with_its_line(text: str, told: str) -> None:
    with pytest.raises(Invalid) as error:
        read_toml(text)
    assert str(error.value).startswith(told)


def test_a_missing_key_has_the_line_of_its_table_or_the_last_line() -> None:
    lines = Lines("a = 1\n[b]\nc = 1\n\n")
    assert (lines.of("b", "d").line, lines.of("x").line) == (2, 3)


def test_lines_of_a_multiline_text_are_mapped_to_lines_of_the_file() -> None:
    for text, line in (
        ("a = 1\nbody = '''\none\ntwo'''", 4),
        ("a = 1\nbody = '''one\ntwo'''", 3),
        ('a = 1\nbody = "one\\ntwo"', 2),
    ):
        assert Lines(text).line_in("one\ntwo", 2, "body") == line, text


def test_nesting_that_is_too_deep_is_refused_with_its_line() -> None:
    text = f'title = "T"\n# a comment [[[\ndescription = {"[" * 5000}{"]" * 5000}\n'
    with pytest.raises(Invalid, match=r"^Line 3: lists or tables are nested too deeply"):
        parse_schema(text, "x")
