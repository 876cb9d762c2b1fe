"""Schemas of blocks: the values that fields accept, and invalid schemas."""

from datetime import UTC, date, datetime

import pytest

from ricordo.domain.block_schema import (
    KINDS,
    BlockSchema,
    FieldKind,
    FieldValue,
    SchemaField,
    same_headings,
)
from ricordo.errors import Invalid

GOOD: dict[FieldKind, list[FieldValue]] = {
    "string": ["", "Ada", "## Ada"],
    "text": ["", "a\nb"],
    "list": [(), ("a", ""), ("a\nb",)],
    "integer": [None, 0, -(2**63) + 1],
    "number": [None, 1, -2.5],
    "boolean": [None, True, False],
    "date": [None, date(2026, 5, 31)],
}
BAD: dict[FieldKind, list[object]] = {
    "string": [None, 1, ("a",), "a\nb"],
    "text": [None, 1, ()],
    "list": [None, "a", (1,), ("a", None)],
    "integer": [True, 1.0, "1", 2**63, ""],
    "number": [False, "1", float("inf"), float("nan"), 10**400],
    "boolean": [0, 1, "yes"],
    "date": ["2026-05-31", datetime(2026, 5, 31, tzinfo=UTC), 20260531],
}


def test_a_field_accepts_only_values_of_its_kind() -> None:
    for kind in KINDS:
        field = SchemaField("x", kind)
        assert [value for value in GOOD[kind] if field.fault(value)] == [], kind
        assert [value for value in BAD[kind] if not field.fault(value)] == [], kind  # type: ignore[arg-type]
        assert field.fault(field.empty) is None, kind


def test_a_too_long_value_is_reported_with_both_lengths() -> None:
    assert (
        SchemaField("x", max_length=3).fault("abcd")
        == "has 4 characters and may have 3. Shorten it."
    )
    assert (
        SchemaField("x", "list", max_items=1).fault(("a", "b", "c"))
        == "has 3 items and may have 1. Remove 2."
    )
    assert SchemaField("x", "list", max_length=1).fault(("a", "bc")) == (
        "has an item of 2 characters and may have 1. Shorten it."
    )
    assert SchemaField("x", "list", max_items=2, max_length=1).fault(("a", "b")) is None


def test_a_required_field_lacks_an_empty_or_blank_value() -> None:
    field = SchemaField("x", "text", required=True)
    assert [value for value in (None, "", " \n", ()) if not field.lacks(value)] == []
    assert not field.lacks("a")
    assert not SchemaField("x", "boolean", required=True).lacks(False)
    assert not SchemaField("x", "integer", required=True).lacks(0)
    assert not SchemaField("x").lacks("")


def test_an_invalid_field_names_the_wrong_key() -> None:
    for field, key in (
        *((SchemaField(name), "") for name in ("1x", "a-b", "body", "x" * 101)),
        *((SchemaField("x", title=title), "title") for title in (" A", "A\nB", "A" * 201)),
        (SchemaField("x", "integer", max_length=1), "max_length"),
        (SchemaField("x", "string", max_items=1), "max_items"),
        (SchemaField("x", "list", max_items=0), "max_items"),
        (SchemaField("x", "integer", default="12"), "default"),
        (SchemaField("x", "string", max_length=2, default="abc"), "default"),
    ):
        assert [found for found, _ in field.faults()] == [key], field
        with pytest.raises(Invalid, match='block schema "s" cannot be used'):
            BlockSchema("s", "S", (field,))


def test_two_fields_with_equal_headings_are_refused() -> None:
    fields = (SchemaField("full_name"), SchemaField("name", title="FULL  name"))
    assert [(each.name, sentence) for each, sentence in same_headings(fields)] == [
        ("name", '"name" and "full_name" cannot be told apart. Change a title.')
    ]
    with pytest.raises(Invalid, match="cannot be told apart"):
        BlockSchema("s", "S", fields)
    with pytest.raises(Invalid, match="has no fields"):
        BlockSchema("s", "S", ())


def test_a_field_is_found_by_its_name_or_title() -> None:
    field = SchemaField("grade", title="School grade")
    schema = BlockSchema("s", "S", (field,))
    assert schema.by_heading() == {"grade": field, "school grade": field}
    assert SchemaField("engagement_strategy").title == "Engagement strategy"
