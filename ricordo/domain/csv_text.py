"""CSV as spreadsheets write it: with commas, semicolons or tabs, and any line ends. Pure."""

import csv
import io
from collections.abc import Iterator

from ricordo.errors import Invalid

_DELIMITERS = ",;\t"


def csv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    r"""Yield each row with the number of its last line; rows may be empty.

    The delimiter is the most frequent one in the first line that is not empty. Raises Invalid for a
    text that is not CSV.

    >>> list(csv_rows("name;email\r\nAda, the first; ada@example.org"))
    [(1, ['name', 'email']), (2, ['Ada, the first', 'ada@example.org'])]
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    first_line = lines.lstrip("\n").partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first_line.count)
    reader = csv.reader(io.StringIO(lines), delimiter=delimiter, skipinitialspace=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise Invalid(f"Line {reader.line_num}: this is not CSV ({error}).") from error
