"""Block schemas: the typed fields that a block's text is made of, as a course designer defines them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal, get_args

from ricordo.domain.block import DEFAULT_LIMIT, Policy
from ricordo.errors import Invalid

FieldKind = Literal["string", "text", "list", "integer", "number", "boolean", "date"]
# An empty field is "" or (), and None where its kind has no empty value. A string is one line, a text may be many.
FieldValue = str | int | float | date | tuple[str, ...] | None

KINDS: tuple[FieldKind, ...] = get_args(FieldKind)
WORDED: tuple[FieldKind, ...] = ("string", "text", "list")
# Keys of the TOML that people edit which are not fields.
RESERVED = ("block", "body", "format", "layout")
LARGEST = 2**63 - 1  # what TOML promises to keep of a whole number

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_NAMING = (
    f"Use letters, digits and _, at most 100, a letter first, and none of: {', '.join(RESERVED)}."
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_TITLE = 200
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
    """One field: its name in TOML, its title as a heading. `max_length` is in characters (of each item, for a list)."""

    name: str
    kind: FieldKind = "string"
    title: str = ""
    description: str = ""
    required: bool = False
    max_length: int | None = None
    max_items: int | None = None
    default: FieldValue = None

    def __post_init__(self) -> None:
        if not self.title:
            words = self.name.replace("_", " ")
            object.__setattr__(self, "title", words[:1].upper() + words[1:])

    @property
    def empty(self) -> FieldValue:
        return () if self.kind == "list" else "" if self.kind in WORDED else None

    def fault(self, value: FieldValue) -> str | None:
        """What is wrong with a value, as the end of a sentence that begins with the field's name; None where it fits."""
        if value is None and self.kind not in WORDED:
            return None
        if not _is_of(self.kind, value):
            return _MUST_BE[self.kind]
        if self.kind == "string" and "\n" in str(value):
            return "must be one line. Take the line breaks out."
        items = value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()
        if self.max_items is not None and self.kind == "list" and len(items) > self.max_items:
            return f"has {len(items)} items and may have {self.max_items}. Take {len(items) - self.max_items} out."
        longest = max((len(item) for item in items), default=0)
        if self.max_length is not None and longest > self.max_length:
            what = "has an item of" if self.kind == "list" else "has"
            return f"{what} {longest} characters and may have {self.max_length}. Shorten it."
        return None

    def lacks(self, value: FieldValue) -> bool:
        is_blank = value is None or value == () or (isinstance(value, str) and not value.strip())
        return self.required and is_blank

    def faults(self) -> list[tuple[str, str]]:
        """What is wrong with the field itself: the key, and a sentence for whoever wrote it."""
        found: list[tuple[str, str]] = []
        if not _NAME.fullmatch(self.name) or self.name in RESERVED:
            found.append(("", f'"{self.name[:80]}" cannot be the name of a field. {_NAMING}'))
        if (
            not self.title.strip()
            or self.title != self.title.strip()
            or _CONTROL.search(self.title)
        ):
            found.append(
                (
                    "title",
                    '"title" must be one line of text without spaces around it. Write it as "Full name".',
                )
            )
        elif len(self.title) > _LONGEST_TITLE:
            found.append(("title", f'"title" may have {_LONGEST_TITLE} characters. Shorten it.'))
        for key, limit, kinds in (
            ("max_length", self.max_length, WORDED),
            ("max_items", self.max_items, ("list",)),
        ):
            if limit is not None and self.kind not in kinds:
                found.append(
                    (key, f'"{key}" has no meaning where "kind" is {self.kind}. Take it out.')
                )
            elif limit is not None and limit < 1:
                found.append((key, f'"{key}" must be 1 or more.'))
        if self.default is not None and (fault := self.fault(self.default)):
            found.append(("default", f'"default" {fault}'))
        return found


@dataclass(frozen=True, slots=True)
class BlockSchema:
    """The fields of blocks of one kind. `policy` and `limit` (in characters) are what a new block of the kind starts with.

    Without a `policy` it is the usual one of whoever owns the block.
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
        faults = [sentence for each in self.fields for _, sentence in each.faults()]
        if faults := faults or [sentence for _, sentence in same_headings(self.fields)]:
            raise Invalid(f'The block schema "{self.name}" cannot be used: {faults[0]}')

    def by_heading(self) -> dict[str, SchemaField]:
        return {
            key: each
            for each in self.fields
            for key in (heading_key(each.title), heading_key(each.name))
        }


def heading_key(heading: str) -> str:
    """The words of a heading or name without what people write differently: capitals, underscores, spaces."""
    return " ".join(heading.replace("_", " ").split()).casefold()


def same_headings(fields: Sequence[SchemaField]) -> list[tuple[SchemaField, str]]:
    """The fields whose headings an earlier field has already, each with a sentence."""
    taken: dict[str, str] = {}
    found: list[tuple[SchemaField, str]] = []
    for each in fields:
        for words in dict.fromkeys((heading_key(each.title), heading_key(each.name))):
            if words in taken:
                found.append(
                    (
                        each,
                        f'"{each.name}" and "{taken[words]}" cannot be told apart. Change a title.',
                    )
                )
                break
            taken[words] = each.name
    return found


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
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and (
                abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)
            )  # type: ignore[arg-type]
