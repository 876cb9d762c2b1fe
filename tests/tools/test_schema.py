"""A tool's schema: what models are told about it, from its signature and docstring."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from ricordo.tools.builtin import plugin
from ricordo.tools.toolbox import ServerTool, ToolContext

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tools.json").read_text("utf-8"))
TOOLS = {tool.name: tool for tool in plugin.tools()}


def test_the_built_in_tools_are_these() -> None:
    assert list(TOOLS) == [expected["name"] for expected in GOLDEN]


@pytest.mark.parametrize("expected", GOLDEN, ids=lambda expected: expected["name"])
def test_a_built_in_tool_is_described_to_models_like_this(expected: dict[str, Any]) -> None:
    schema = TOOLS[expected["name"]].schema
    assert schema.description == expected["description"]
    assert schema.parameters == expected["parameters"]
    assert list(schema.parameters["properties"]) == list(expected["parameters"]["properties"])


class Stop(BaseModel):
    """A halt."""

    city: str
    note: str | None = None


async def plan_trip(
    context: ToolContext,
    city: str,
    days: int,
    budget: float | None = None,
    by: Literal["train", "car"] = "train",
    stops: list[Stop] | None = None,
    with_dog: bool = False,
) -> str:
    """Plan a trip.

    It takes a while: be patient.

    Args:
        city: Where to go.
            Examples: Turin: nice; Rome: big.
        days (int): How long.
        stops: Where to halt on the way.

    Returns:
        The plan.
    """
    return f"{city} {days} {budget} {by} {stops} {with_dog}"


def test_types_defaults_and_choices_come_from_the_signature_and_words_from_the_docstring() -> None:
    schema = ServerTool(plan_trip, "custom").schema
    assert (schema.name, schema.description) == ("plan_trip", "Plan a trip.\n\nIt takes a while: be patient.")
    assert schema.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where to go. Examples: Turin: nice; Rome: big."},
            "days": {"type": "integer", "description": "How long."},
            "budget": {"type": "number"},
            "by": {"type": "string", "enum": ["train", "car"], "default": "train"},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}, "description": "Where to halt on the way."},
            "with_dog": {"type": "boolean", "default": False},
        },
        "required": ["city", "days"],
        "$defs": {
            "Stop": {
                "type": "object",
                "description": "A halt.",
                "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
                "required": ["city"],
            }
        },
    }


def test_parameters_may_have_the_names_of_schema_words() -> None:
    def search(context: ToolContext, title: str, default: str | None = None, properties: int = 0) -> None: ...

    assert ServerTool(search, "custom").schema.parameters == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "default": {"type": "string"},
            "properties": {"type": "integer", "default": 0},
        },
        "required": ["title"],
    }


async def test_parameters_may_have_any_name_that_python_allows() -> None:
    def save(context: ToolContext, copy: str, json: str, schema: str = "", model_config: str = "") -> str:
        return copy + json + schema + model_config

    tool = ServerTool(save, "custom")
    assert list(tool.schema.parameters["properties"]) == ["copy", "json", "schema", "model_config"]
    context: Any = None
    assert await tool.call(context, {"copy": "a", "json": "b", "schema": "c", "model_config": "d"}) == "abcd"
