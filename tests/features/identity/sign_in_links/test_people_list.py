"""Lists of people as spreadsheets write them, and the faults that are reported."""

import itertools

import pytest

from ricordo.errors import Invalid
from ricordo.features.identity.sign_in_links.people_list import Person, decoded, read_people

ROWS = (
    ("name", "e-mail", "role", "course"),
    ("Ada Lovelace", "ada@example.org", "student", "essays"),
    ("Zoë Müller", "zoe@example.org", "teacher", ""),
)
PEOPLE = [
    Person("Ada Lovelace", "ada@example.org", "user", "essays"),
    Person("Zoë Müller", "zoe@example.org", "developer", None),
]


def without_lines(people: list[Person]) -> list[Person]:
    return [
        Person(person.name, person.email, person.role, person.course, person.user)
        for person in people
    ]


def test_spreadsheets_are_read_with_any_delimiter_encoding_and_line_end() -> None:
    encodings = ("utf-8", "utf-8-sig", "utf-16", "cp1252")
    endings = ("\n", "\r\n", "\r", "\n\n", "\r\n \r\n")
    for delimiter, encoding, end in itertools.product(",;\t", encodings, endings):
        text = end.join(delimiter.join(row) for row in ROWS) + end
        people = read_people(text.encode(encoding))
        assert without_lines(people) == PEOPLE, (delimiter, encoding, end)
        assert without_lines(read_people(decoded(text.encode(encoding)))) == PEOPLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Name;Mail\nAda;ada@x.org\nAda;ada@x.org\n", 1),
        ("name,email\nAda,ada@x.org\nAda,ADA@x.org\n", 1),
        ('name,email\n"Lovelace, Ada",ada@x.org\n', 1),
        ("E-Mail Address\nada@x.org\nbob@x.org", 2),
        ("name,email,,\nAda,ada@x.org,,\n", 1),
        ("name,user\nAda,ada1\nAda,ada2\n", 2),
    ],
)
def test_duplicate_lines_of_a_people_list_count_once(text: str, expected: int) -> None:
    assert len(read_people(text)) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "names no people"),
        ("name,email\n", "names no people"),
        ("Ada,ada@x.org\n", "names no column"),
        ("name,name\nAda,Ada\n", "twice"),
        ("name,telephone\nAda,1\n", "telephone"),
        ("name,role\nAda,boss\n", "Line 2"),
        ("name,role\nAda,admin\n", "ricordo key create"),
        ("name,email,role\nAda,a@x.org,user\nAda,a@x.org,teacher\n", "Line 3"),
        ("name,email\n,\nAda,a@x.org,user,more\n", "Line 3"),
        ("role,name\nuser,\n", "Line 2"),
        ("name,role\nAnna,user\nAnna,user\n", "Line 3.*two people"),
        ('name,email\n"Ada\nBcc: all@x.org",a@x.org\n', "line break"),
        ('name,email\nAda,"a@x.org\r\nBcc: all@x.org"\n', "line break"),
    ],
)
def test_faults_in_a_people_list_are_reported_with_their_lines(text: str, fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        read_people(text)
