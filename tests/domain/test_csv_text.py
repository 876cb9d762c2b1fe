"""CSV of any spreadsheet gives the same rows."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.csv_text import csv_rows
from ricordo.errors import Invalid

CELLS = st.text("ab ,;\t\"'", min_size=1, max_size=8).map(str.strip)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5),
    delimiter=st.sampled_from(",;\t"),
    line_end=st.sampled_from(("\n", "\r\n", "\r")),
    empty_lines=st.integers(0, 2),
)
def test_rows_are_read_with_every_delimiter_and_line_end(
    rows: list[tuple[str, str]], delimiter: str, line_end: str, empty_lines: int
) -> None:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator=line_end)
    writer.writerows([("student", "guardian"), *rows])

    read = [cells for _, cells in csv_rows(line_end * empty_lines + file.getvalue()) if cells]

    assert read == [["student", "guardian"], *map(list, rows)]


def test_a_text_that_is_not_csv_is_refused_with_its_line() -> None:
    with pytest.raises(Invalid, match="Line 2: this is not CSV"):
        list(csv_rows("student,guardian\nada," + "x" * 200_000))
