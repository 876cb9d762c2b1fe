"""Schemas that are read from the source of tools."""

from typing import Any

import pytest

from ricordo.errors import Invalid
from ricordo.features.custom_tools.source import source as module
from ricordo.features.custom_tools.source.source import function_name, read_source

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
    "bool | (int | str) | float": {
        "anyOf": [{"type": name} for name in ("boolean", "integer", "string", "number")]
    },
    " | ".join([*["list[int]"] * 60, "None"]): {
        "anyOf": [{"type": "array", "items": {"type": "integer"}}] * 60
    },
    "None | None": {"type": "null"},
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


@pytest.mark.parametrize("written", TYPES, ids=lambda written: written[:60])
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
    # Expressions that are too deep for the parser or for the text of the message.
    "def f(x: " + "-" * 1500 + "1):\n  'Do.'": "nested too deeply",
    "def f(x: '" + "-" * 3000 + "1'):\n  'Do.'": "nested too deeply",
    "def f(x: Literal[" + "-" * 1500 + "y]):\n  'Do.'": "nested too deeply",
    "class E(Enum):\n  A = " + "-" * 1500 + "y\ndef f(x: E):\n  'Do.'": "nested too deeply",
    "class A0(object): y: int\n"
    + "".join(f"class A{i}(A{i - 1}): ...\n" for i in range(1, 1000))
    + "def f(x: A999):\n  'Do.'": "nested too deeply",
}


@pytest.mark.parametrize("source", WRONG, ids=range(len(WRONG)))
def test_incomplete_sources_are_refused_with_a_reason(source: str) -> None:
    with pytest.raises(Invalid, match=WRONG[source]):
        read_source(f"{CLASSES}\n{source}" if "Node" in source else source)


def _nested(levels: int, fields: int) -> str:
    """Return a source in which each class has fields of the next class."""
    lines = [f"class A{levels}:\n  x: int"]
    for level in range(levels):
        lines.append(f"class A{level}:")
        lines += [f"  f{field}: A{level + 1}" for field in range(fields)]
    return "\n".join([*lines, "def f(x: A0):", "  'Do.'"])


def test_classes_that_multiply_each_other_are_refused() -> None:
    """The number of classes in the schema grows exponentially with the levels."""
    with pytest.raises(Invalid, match="each use of a class repeats its fields"):
        read_source(_nested(8, 4))
    shown = read_source(_nested(8, 2)).parameters["properties"]["x"]
    for level in range(8):
        assert len(shown["properties"]) == 2, level
        shown = shown["properties"]["f1"]
    assert shown["properties"] == {"x": {"type": "integer"}}


@pytest.mark.parametrize("line", ["'{}'\n  x: int", "x: Literal['{}']", "{}: int"])
def test_long_texts_of_classes_that_are_used_often_are_refused(line: str) -> None:
    """The text is repeated for each field and for each subclass."""
    lines = ["class A:", "  " + line.format("a" * 2_000)]
    for number in range(30):
        lines += [f"class B{number}(A):", "  y: A"]
    parameters = ", ".join(f"b{number}: B{number}" for number in range(30))
    source = "\n".join([*lines, f"def f({parameters}):", "  'Do.'"])
    with pytest.raises(Invalid, match="each use of a class repeats its fields"):
        read_source(source)


def test_an_enumeration_is_read_once_for_all_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    members = module._enum_members

    def count(node: Any) -> Any:
        read.append(node)
        return members(node)

    monkeypatch.setattr(module, "_enum_members", count)
    lines = "".join(f"  A{i} = auto()\n" for i in range(50))
    names = ", ".join(f"E.A{i}" for i in range(50))
    source = f"class E(Enum):\n{lines}def f(x: Literal[{names}]):\n  'Do.'"
    assert read_source(source).parameters["properties"]["x"]["enum"] == list(range(1, 51))
    assert len(read) == 1


def test_the_last_public_function_is_the_tool_and_agent_state_is_hidden() -> None:
    source = (
        "def one():\n  'One.'\nasync def two(agent_state: dict, x: str):\n  'Two.'\ndef "
        "_three():\n  'Three.'"
    )
    assert list(read_source(source).parameters["properties"]) == ["x"]
    assert read_source(source).name == "two"
    assert read_source(source, "Mine.").description == "Mine."
    assert function_name(source, "one") == "one"
