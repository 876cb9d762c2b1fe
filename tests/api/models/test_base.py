"""Responses made from response models, and the format of timestamps."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from ricordo.api.models.base import From, ResponseModel, Timestamp, VersionId, date
from ricordo.domain.clock import stamp
from ricordo.domain.text import Json

MOMENT = 1_795_293_195_123_456  # 2026-11-21T20:33:15.123456Z


@dataclass(frozen=True, slots=True)
class Size:
    height: int


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    size: Size
    head: bytes | None = None
    planted_at: int = MOMENT
    felled_at: int | None = None
    secret: str = "hidden"


class TreeAnswer(ResponseModel):
    name: str
    height: Annotated[int, From("size.height")]
    version: Annotated[VersionId | None, From("head")]
    planted_at: Timestamp
    felled_at: Timestamp | None
    kind: Literal["tree"] = "tree"
    birds: int


def test_a_response_has_exactly_the_fields_of_its_model() -> None:
    assert TreeAnswer.of(Tree("Oak", Size(9), bytes(2)), birds=3) == {
        "name": "Oak",
        "height": 9,
        "version": "0000",
        "planted_at": "2026-11-21T20:33:15.123456Z",
        "felled_at": None,
        "kind": "tree",
        "birds": 3,
    }


def test_keyword_values_override_the_source_and_are_serialized_alike() -> None:
    made = TreeAnswer.of(
        Tree("Oak", Size(9)), birds=0, name="Elm", felled_at=0, version=b"\x0a", kind="bush"
    )
    assert (made["name"], made["felled_at"], made["version"], made["kind"], made["birds"]) == (
        *("Elm", "1970-01-01T00:00:00.000000Z", "0a", "bush", 0),
    )


def test_a_missing_field_and_an_unknown_field_raise_type_errors() -> None:
    with pytest.raises(TypeError, match=r"TreeAnswer\.birds is missing, and Tree has no birds"):
        TreeAnswer.of(Tree("Oak", Size(9)))
    with pytest.raises(TypeError, match="TreeAnswer has no leaves"):
        TreeAnswer.of(Tree("Oak", Size(9)), birds=3, leaves=7)


def test_a_default_is_documented_as_always_sent() -> None:
    schema: Json = TreeAnswer.model_json_schema(mode="serialization")
    assert set(schema["required"]) == set(schema["properties"])
    assert schema["additionalProperties"] is False


def test_timestamps_have_microseconds_and_message_dates_whole_seconds() -> None:
    assert stamp(MOMENT) == "2026-11-21T20:33:15.123456Z"
    assert stamp(MOMENT - 123_456) == "2026-11-21T20:33:15.000000Z"
    assert stamp(0) == "1970-01-01T00:00:00.000000Z"
    assert stamp(None) is None
    for part in (0, 1, 999_999):
        assert date(MOMENT - 123_456 + part) == "2026-11-21T20:33:15+00:00"
