"""Block schemas: the typed fields of a block's text, defined by course designers."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal, get_args

from ricordo.domain.block import DEFAULT_LIMIT, Policy
from ricordo.errors import Invalid

FieldKind = Literal["string", "text", "list", "integer", "number", "boolean", "date"]
# An empty field is "" or (), or None for kinds without an empty value. A string is one line; a text
# may have many.
FieldValue = str | int | float | date | tuple[str, ...] | None

KINDS: tuple[FieldKind, ...] = get_args(FieldKind)
WORDED: tuple[FieldKind, ...] = ("string", "text", "list")
# Keys of the edited TOML that are not fields.
RESERVED = ("block", "body", "format", "layout")
LARGEST = 2**63 - 1  # the largest integer that TOML guarantees

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_NAMING = (
    f"Use letters, digits and _, at most 100, a letter first, and none of: {', '.join(RESERVED)}."
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_TITLE = 200
_KIND_WORDS: dict[FieldKind, str] = {
    "string": "one line",
    "text": "text",
    "list": 'a list, each item on a line with "- "',
    "integer": "a whole number",
    "number": "a number",
    "boolean": "yes or no",
    "date": "a day as 2026-05-31",
}
_MUST_BE: dict[FieldKind, str] = {
    "string": 'must be text. Write it as "Alice".',
    "text": "must be text. Write it between ''' and '''.",
    "list": 'must be a list of texts. Write it as ["one", "two"].',
    "integer": "must be a whole number. Write it as 12.",
    "number": "must be a number. Write it as 12.5.",
    "boolean": "must be true or false. Write it as true.",
    "date": "must be a day. Write it as 2026-05-31.",
}


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field: its name in TOML, and its title as a heading.

    `max_length` is in characters; for a list it applies to each item. `egress` is the label of its
    egress policy (`domain/egress.py`).
    """

    name: str
    kind: FieldKind = "string"
    title: str = ""
    description: str = ""
    required: bool = False
    max_length: int | None = None
    max_items: int | None = None
    default: FieldValue = None
    egress: str | None = None

    def __post_init__(self) -> None:
        if not self.title:
            title = self.name.replace("_", " ")
            object.__setattr__(self, "title", title[:1].upper() + title[1:])

    @property
    def summary(self) -> str:
        """The field in one line: its heading, kind, limits and description."""
        parts = [_KIND_WORDS[self.kind]]
        if self.max_items is not None:
            parts.append(f"at most {self.max_items} items")
        if self.max_length is not None:
            each = " in each" if self.kind == "list" else ""
            parts.append(f"at most {self.max_length} characters{each}")
        if self.required:
            parts.append("required")
        description = " ".join(self.description.split())
        return f"## {self.title} ({', '.join(parts)}){': ' if description else ''}{description}"

    @property
    def empty(self) -> FieldValue:
        if self.kind == "list":
            return ()
        return "" if self.kind in WORDED else None

    def fault(self, value: FieldValue) -> str | None:
        """Return the fault of a field value as the end of a sentence; None if it fits.

        The sentence begins with the field's name.

        Args:
            value: The value. None fits every kind that has no empty value.
        """
        if value is None and self.kind not in WORDED:
            return None
        if not _is_of(self.kind, value):
            return _MUST_BE[self.kind]
        if self.kind == "string" and "\n" in str(value):
            return "must be one line. Remove the line breaks."
        texts = _texts(value)
        if self.max_items is not None and self.kind == "list" and len(texts) > self.max_items:
            excess = len(texts) - self.max_items
            return f"has {len(texts)} items and may have {self.max_items}. Remove {excess}."
        longest = max((len(text) for text in texts), default=0)
        if self.max_length is not None and longest > self.max_length:
            verb = "has an item of" if self.kind == "list" else "has"
            return f"{verb} {longest} characters and may have {self.max_length}. Shorten it."
        return None

    def lacks(self, value: FieldValue) -> bool:
        """Return True if the field is required and this value is empty or blank.

        Args:
            value: The value of the field in a block.
        """
        is_blank = value is None or value == () or (isinstance(value, str) and not value.strip())
        return self.required and is_blank

    def faults(self) -> list[tuple[str, str]]:
        """Return the faults of the definition: the key, and a sentence for its author."""
        faults: list[tuple[str, str]] = []
        if not _NAME.fullmatch(self.name) or self.name in RESERVED:
            faults.append(("", f'"{self.name[:80]}" cannot be the name of a field. {_NAMING}'))
        if (
            not self.title.strip()
            or self.title != self.title.strip()
            or _CONTROL.search(self.title)
        ):
            faults.append(
                (
                    "title",
                    '"title" must be one line of text without spaces around it. Write it as "Full '
                    'name".',
                )
            )
        elif len(self.title) > _LONGEST_TITLE:
            faults.append(("title", f'"title" may have {_LONGEST_TITLE} characters. Shorten it.'))
        for key, limit, kinds in (
            ("max_length", self.max_length, WORDED),
            ("max_items", self.max_items, ("list",)),
        ):
            if limit is not None and self.kind not in kinds:
                faults.append(
                    (key, f'"{key}" has no meaning where "kind" is {self.kind}. Take it out.')
                )
            elif limit is not None and limit < 1:
                faults.append((key, f'"{key}" must be 1 or more.'))
        if self.default is not None and (fault := self.fault(self.default)):
            faults.append(("default", f'"default" {fault}'))
        return faults


@dataclass(frozen=True, slots=True)
class BlockSchema:
    """The fields of one kind of block.

    `policy` and `limit` (in characters) are the initial ones of a new block of this kind. Without a
    `policy`, the block starts with the policy that is usual for its owner.
    """

    name: str
    title: str
    fields: tuple[SchemaField, ...]
    description: str = ""
    policy: Policy | None = None
    limit: int = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        if not self.fields:
            raise Invalid(f'The block schema "{self.name}" has no fields. Give it one.')
        faults = [sentence for field in self.fields for _, sentence in field.faults()]
        if faults := faults or [sentence for _, sentence in same_headings(self.fields)]:
            raise Invalid(f'The block schema "{self.name}" cannot be used: {faults[0]}')

    def by_heading(self) -> dict[str, SchemaField]:
        return {
            key: field
            for field in self.fields
            for key in (heading_key(field.title), heading_key(field.name))
        }


def described(schema: BlockSchema, description: str) -> str:
    """Return a block's description with its fields, for agents that fill them in.

    Args:
        schema: The schema of the block.
        description: The block's description, which comes first; "" for none.
    """
    fields = "\n".join(f"- {field.summary}" for field in schema.fields)
    return f"{description}\nIts fields, each below its heading:\n{fields}".strip()


def heading_key(heading: str) -> str:
    """Return a heading or name in lower case, without underscores and extra spaces.

    Args:
        heading: The heading, without its "##", or the name of a field.
    """
    return " ".join(heading.replace("_", " ").split()).casefold()


def same_headings(fields: Sequence[SchemaField]) -> list[tuple[SchemaField, str]]:
    """Return the fields whose heading equals that of an earlier field, each with a sentence.

    Args:
        fields: The fields of one schema, in order. Title and name of a field are both headings.

    Returns:
        Each such field with a sentence for the author of the schema.
    """
    names_by_heading: dict[str, str] = {}
    faults: list[tuple[SchemaField, str]] = []
    for field in fields:
        for heading in dict.fromkeys((heading_key(field.title), heading_key(field.name))):
            if heading in names_by_heading:
                earlier = names_by_heading[heading]
                sentence = f'"{field.name}" and "{earlier}" cannot be told apart. Change a title.'
                faults.append((field, sentence))
                break
            names_by_heading[heading] = field.name
    return faults


def _texts(value: FieldValue) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return value
    if isinstance(value, str):
        return (value,)
    return ()


def _is_of(kind: FieldKind, value: object) -> bool:
    match kind:
        case "string" | "text":
            return isinstance(value, str)
        case "list":
            return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        case "boolean":
            return isinstance(value, bool)
        case "date":
            return isinstance(value, date) and not isinstance(value, datetime)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
        case "number":
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            if isinstance(value, int):
                return abs(value) <= LARGEST
            return math.isfinite(value)
