"""Schemas that are read from the source of tools."""

from typing import Any

import pytest

from ricordo.errors import Invalid
from ricordo.features.custom_tools.source.source import read_source

ROLL = '''
import random
from typing import Literal, Optional

def _helper(): ...

def roll(sides: int, times: int = 1, kind: Literal["fair", "loaded"] = "fair", note: Optional[str] = None) -> str:
    """Roll dice.

    The sum counts.

    Args:
        sides (int): How many sides
            one of them has.
        times: How often.

    Returns:
        str: The sum.
    """
    return str(random.randint(1, sides))
'''


def test_types_come_from_the_signature_and_descriptions_from_the_docstring() -> None:
    schema = read_source(ROLL)
    assert (schema.name, schema.description) == ("roll", "Roll dice.\n\nThe sum counts.")
    assert schema.parameters == {
        "type": "object",
        "properties": {
            "sides": {"type": "integer", "description": "How many sides one of them has."},
            "times": {"type": "integer", "description": "How often.", "default": 1},
            "kind": {"type": "string", "enum": ["fair", "loaded"], "default": "fair"},
            "note": {"type": "string"},
        },
        "required": ["sides"],
    }


TYPES: dict[str, dict[str, Any]] = {
    "list[str]": {"type": "array", "items": {"type": "string"}},
    "List['int']": {"type": "array", "items": {"type": "integer"}},
    "dict": {"type": "object"},
    "dict[str, float]": {"type": "object", "additionalProperties": {"type": "number"}},
    "int | str | None": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "typing.Optional[bool]": {"type": "boolean"},
    "'str | None'": {"type": "string"},
    "Annotated[str, 'A town.']": {"type": "string", "description": "A town."},
    "tuple[int, ...]": {"type": "array", "items": {"type": "integer"}},
    "datetime.date": {"type": "string", "format": "date"},
    "Literal[-1, 1]": {"type": "integer", "enum": [-1, 1]},
    "Literal[-2, -1]": {"type": "integer", "enum": [-2, -1]},
    "Literal['a', -1, None, True]": {"enum": ["a", -1, None, True]},
    "Literal[Colour.RED, 'green']": {"type": "string", "enum": ["red", "green"]},
    "Colour": {"enum": ["red", "blue"]},
    "Level": {"enum": [-1, 1]},
    "Steps": {"enum": [1, 5, 6]},
    "Names": {"enum": ["north", "south"]},
    "Place": {
        "type": "object",
        "description": "Where.",
        "properties": {
            "town": {"type": "string", "description": "Its name."},
            "tags": {"type": "array", "items": {"type": "string"}},
            "size": {"type": "integer", "default": 3},
            "step": {"type": "number", "default": -0.5},
        },
        "required": ["town"],
    },
}
CLASSES = '''
class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"

class Level(Enum):
    _ignore_ = "other"
    LOW = -1
    HIGH = +1

    def name(self) -> str: ...

class Steps(Enum):
    A = auto()
    B = 5
    C = enum.auto()

class Names(StrEnum):
    NORTH = auto()
    SOUTH = auto()

class Place(BaseModel):
    """Where."""
    town: str = Field(..., description="Its name.")
    tags: list[str] = Field(default_factory=list)
    size: int = 3
    step: float = -0.5

class Node(BaseModel):
    next: "Node"
'''


@pytest.mark.parametrize("written", TYPES)
def test_each_type_has_its_schema(written: str) -> None:
    source = f'{CLASSES}\ndef f(x: {written}):\n    """Do it."""'
    assert read_source(source).parameters["properties"]["x"] == TYPES[written]


WRONG = {
    "def f(x: int:": "line 1",
    "x = 1": "defines no function",
    "def f(x):\n  'Do.'": "x of f has no type",
    "def f(x: int): ...": "f needs a docstring",
    "def f(*x: int):\n  'Do.'": "without a name",
    "def f(x: Frobnicator):\n  'Do.'": "Frobnicator is not known",
    "def f(x: Node):\n  'Do.'": "holds itself",
    "def f(x: Literal[b'a']):\n  'Do.'": "The value b'a' of Literal cannot be read",
    "def f(x: Literal[Other.RED]):\n  'Do.'": "The value Other.RED of Literal cannot be read",
    "class E(Enum):\n  A = make()\ndef f(x: E):\n  'Do.'": "value make.* of the enumeration",
    "def f(x: 1 + 2):\n  'Do.'": "no JSON schema",
    "x = " + "(" * 5000 + ")" * 5000: "nested too deeply|not valid Python",
    "def f(x: " + "list[" * 50 + "int" + "]" * 50 + "):\n  'Do.'": "nested too deeply",
    "\0": "not valid Python",
}


@pytest.mark.parametrize("source", WRONG, ids=range(len(WRONG)))
def test_incomplete_sources_are_refused_with_a_reason(source: str) -> None:
    with pytest.raises(Invalid, match=WRONG[source]):
        read_source(f"{CLASSES}\n{source}" if "Node" in source else source)


def test_the_last_public_function_is_the_tool_and_agent_state_is_hidden() -> None:
    source = (
        "def one():\n  'One.'\nasync def two(agent_state: dict, x: str):\n  'Two.'\ndef "
        "_three():\n  'Three.'"
    )
    assert list(read_source(source).parameters["properties"]) == ["x"]
    assert read_source(source).name == "two"
    assert read_source(source, "one").name == "one"
    assert read_source(source, "one", "Mine.").description == "Mine."
