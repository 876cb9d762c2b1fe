"""A text goes on following its block's schema: what a tool writes may not make it follow less than it did."""

from pathlib import Path

import pytest

from ricordo.errors import Invalid
from ricordo.memory.conforming import require_follows, schemas_in
from ricordo.memory.schemas import FOLDER, parse_schema

SCHEMA = parse_schema(
    '[fields.name]\nkind = "string"\nrequired = true\n\n[fields.age]\nkind = "integer"\n', "student", "student.toml"
)
WHOLE, EMPTY, FREE = "## Name\nAda\n## Age\n36", "## Name\n## Age\n36", "Her name is Ada."


@pytest.mark.parametrize(
    ("before", "after"),
    [(WHOLE, WHOLE.replace("36", "37")), (EMPTY, WHOLE), (EMPTY, "## Name\n## Age\n40"), (FREE, WHOLE), (FREE, "Ada.")],
)
def test_what_follows_it_no_less_than_before_is_let_through(before: str, after: str) -> None:
    require_follows("student", before, after, SCHEMA)


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (WHOLE, "## Name\nAda\n## Age\nold", "Line 4"),
        (WHOLE, f"Hello.\n{WHOLE}", "Line 1"),
        (WHOLE, EMPTY, "Line 1"),
        (EMPTY, FREE, "Line 1"),
    ],
)
def test_what_follows_it_less_is_refused_with_the_line(before: str, after: str, line: str) -> None:
    with pytest.raises(Invalid, match=rf'"student" has to follow the schema "student"[\s\S]*{line}'):
        require_follows("student", before, after, SCHEMA)


def test_a_block_whose_schema_is_not_here_or_is_broken_is_bound_by_nothing(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "broken.toml").write_text("fields = ")
    schemas = schemas_in(tmp_path)
    for name in ("broken", "missing"):
        assert schemas(name) is None
        require_follows("student", WHOLE, FREE, schemas(name))
