"""A list of people to invite, as CSV from any spreadsheet. Pure.

It accepts the byte order marks and encodings of spreadsheets, commas, semicolons and tabs, any line
ends, and empty lines. The first ten faults are reported with their lines, and a list with a fault
invites nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ricordo.domain.csv_text import csv_rows
from ricordo.domain.text import decoded, normal_name
from ricordo.errors import Invalid

MOST_PEOPLE = 2_000
MOST_BYTES = 2_000_000
_MOST_FAULTS = 10
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "name": ("name", "full name", "fullname", "student", "display name"),
    "email": ("email", "e-mail", "mail", "e-mail address", "email address"),
    "role": ("role",),
    "course": ("course",),
    "user": ("user", "identifier", "login", "username", "id"),
}
ROLES: Mapping[str, str] = {
    "": "user",
    "user": "user",
    "student": "user",
    "developer": "developer",
    "teacher": "developer",
    "guardian": "guardian",
    "parent": "guardian",
}
TELL_APART = (
    "Remove one of the two; if they are two people, give each an e-mail address or an identifier."
)


@dataclass(frozen=True, slots=True)
class Person:
    """One person to invite. `line` is the number of the line in the list, 0 if there is none."""

    name: str
    email: str | None = None
    role: str = "user"
    course: str | None = None
    user: str | None = None
    line: int = 0

    @property
    def identifier(self) -> str:
        """The user's identifier: the chosen one, or else the e-mail address, or else the name."""
        return self.user or self.email or self.name

    @property
    def has_name_alone(self) -> bool:
        """Return True if nothing distinguishes this person from others with the same name."""
        return not self.email and not self.user

    @property
    def place(self) -> str:
        return f"Line {self.line}: " if self.line else ""


def role_named(name: str) -> str:
    """Return the role of this name. Raises Invalid."""
    role = ROLES.get(name.strip().casefold())
    if role is None:
        raise Invalid(
            f'No invitation has the role "{name[:40]}". Use user (or student), developer '
            "(or teacher) or guardian (or parent); administrators and services get a key: ricordo "
            "key create."
        )
    return role


def read_people(content: bytes | str) -> list[Person]:
    """Return the people in a CSV file; equal lines count once.

    Raises Invalid with the first ten faults, each with its line.
    """
    if len(content) > MOST_BYTES:
        raise Invalid(f"This list is larger than {MOST_BYTES:,} bytes. Split it.")
    text = decoded(content) if isinstance(content, bytes) else content.removeprefix("\ufeff")
    faults: list[str] = []
    people: list[Person] = []
    header: dict[str, int] | None = None
    try:
        for line, cells in csv_rows(text):
            row = [_cell(cell) for cell in cells]
            if not any(row):
                continue
            if header is None:
                header = _columns(row)
                continue
            try:
                people.append(_person(header, row, line))
            except Invalid as error:
                faults.append(f"Line {line}: {error}")
    except Invalid as error:
        faults.append(str(error))
    people = _without_repetitions(people, faults)
    _require_no_faults(faults)
    if not people:
        raise Invalid(
            "This list names no people. Begin it with a line such as: name,email,role,course"
        )
    if len(people) > MOST_PEOPLE:
        raise Invalid(f"This list has more than {MOST_PEOPLE:,} people. Split it.")
    return people


def _require_no_faults(faults: Sequence[str]) -> None:
    """Raise Invalid with the faults, if there are any."""
    if not faults:
        return
    rest = len(faults) - _MOST_FAULTS
    more = f"\nand {rest} more." if rest > 0 else ""
    raise Invalid("\n".join(faults[:_MOST_FAULTS]) + more + "\nNo invitation was made.")


def _cell(cell: str) -> str:
    return " ".join(normal_name(cell).split()) if "\n" not in cell else cell


def _columns(row: Sequence[str]) -> dict[str, int]:
    """Return the positions of the columns that the first line names."""
    header: dict[str, int] = {}
    unknown: list[str] = []
    for index, cell in enumerate(row):
        title = cell.casefold().replace("_", " ").strip()
        column = next((name for name, titles in _COLUMNS.items() if title in titles), None)
        if column in header:
            raise Invalid(f'Line 1 names the column "{column}" twice. Leave one out.')
        if column:
            header[column] = index
        elif title:
            unknown.append(cell[:40])
    if "name" not in header and "email" not in header:
        raise Invalid(
            "The first line names no column for people. Begin with: name,email,role,course"
        )
    if unknown:
        raise Invalid(
            f"Line 1 names unknown columns: {', '.join(unknown)}. Use name, email, role, course, "
            "user; leave others out."
        )
    return header


def _person(header: Mapping[str, int], row: Sequence[str], line: int) -> Person:
    if len(row) > max(header.values()) + 1 and any(row[max(header.values()) + 1 :]):
        raise Invalid("it has more cells than the first line. Put texts with a comma in quotes.")
    cells = {column: row[index] if index < len(row) else "" for column, index in header.items()}
    if broken := next((cell for cell in cells.values() if "\n" in cell), None):
        raise Invalid(f'there is a line break in "{" ".join(broken.split())[:40]}".')
    name, email = cells.get("name", ""), cells.get("email", "")
    if not name and not email:
        raise Invalid("it has neither a name nor an e-mail address.")
    return Person(
        name=name or email.partition("@")[0],
        email=email or None,
        role=role_named(cells.get("role", "")),
        course=cells.get("course") or None,
        user=cells.get("user") or None,
        line=line,
    )


def _without_repetitions(people: Sequence[Person], faults: list[str]) -> list[Person]:
    """Return the people without equal lines; add a fault for each line that contradicts another.

    Two equal lines with only a name may be two people, so they are a fault too.
    """
    by_key: dict[str, Person] = {}
    for person in people:
        earlier = by_key.setdefault(person.identifier.casefold(), person)
        if earlier is not person and person.has_name_alone:
            faults.append(
                f'Line {person.line}: "{person.name[:80]}" is in line {earlier.line} too. {TELL_APART}'
            )
            continue
        is_equal = (earlier.name, earlier.role, earlier.course) == (
            person.name,
            person.role,
            person.course,
        )
        if earlier is not person and not is_equal:
            faults.append(
                f'Line {person.line}: "{person.identifier[:80]}" is in line {earlier.line} too, '
                "with other values. Remove one of the two."
            )
    return list(by_key.values())
