"""The schema of a tool, read from the source of its function.

Types come from the signature, descriptions from the docstring. The source is parsed here and never
run. `args_json_schema` describes types that a signature cannot express.
"""

import ast
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ricordo.domain.model import ToolSchema
from ricordo.errors import Invalid
from ricordo.tools.docstrings import Docstring, read_docstring

# Parameters that the server fills in; models do not see them.
FILLED_IN = ("agent_state", "client")
_SCALARS = {
    **{
        "str": {"type": "string"},
        "int": {"type": "integer"},
        "float": {"type": "number"},
        "bool": {"type": "boolean"},
    },
    **{
        "Any": {},
        "None": {"type": "null"},
        "bytes": {"type": "string"},
        "datetime": {"type": "string", "format": "date-time"},
    },
    **{
        "date": {"type": "string", "format": "date"},
        "object": {},
        "UUID": {"type": "string", "format": "uuid"},
    },
}
_LISTS = (
    "list",
    "List",
    "Sequence",
    "Iterable",
    "tuple",
    "Tuple",
    "set",
    "Set",
    "frozenset",
    "FrozenSet",
)
_OBJECTS = ("dict", "Dict", "Mapping", "MutableMapping", "DefaultDict")
_DEEPEST = 20
_MOST_EXPANDED = 100_000  # parts of classes, as `_weight` counts them
_CACHED = 256  # sources
_HINT = (
    "Use str, int, float, bool, list[…], dict[str, …], Optional[…], Literal[…], a class of the "
    "source, or args_json_schema"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_Value = str | int | float | bool


class _Classes:
    """The classes of a source, and how much a schema may still take from them.

    A class is read again at each use. If classes contain fields of other classes, the number of
    uses can grow exponentially.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._members: dict[str, dict[str, _Value]] = {}
        self._room = _MOST_EXPANDED

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def take(self, name: str) -> ast.ClassDef:
        """Return a class for one use. Raises Invalid if the uses exceed the limit."""
        node = self._nodes[name]
        self._room -= _weight(node)
        if self._room < 0:
            raise Invalid(
                f"With {name}, its classes are too long, since each use of a class repeats its "
                "fields."
            )
        return node

    def members(self, name: str) -> dict[str, _Value]:
        """Return the values of an enumeration by their names; {} for an unknown class."""
        if name not in self._nodes:
            return {}
        if name not in self._members:
            self._members[name] = _enum_members(self._nodes[name])
        return self._members[name]


def _weight(node: ast.ClassDef) -> int:
    """Return how much a use of a class adds to a schema: its nodes, names and characters."""
    weight = len(node.body)
    for line in node.body:
        if isinstance(line, ast.AnnAssign | ast.Assign | ast.Expr):
            weight += sum(map(_weight_of_part, ast.walk(line)))
    return weight


def _weight_of_part(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=str(text)) | ast.Name(id=text):
            return 1 + len(text)
    return 1


def read_source(source: str, description: str | None = None) -> ToolSchema:
    """Return the schema of the last public function in the source.

    Args:
        source: The source in Python.
        description: The description of the tool; None or "" takes it from the docstring.

    Raises:
        Invalid: The source cannot be read, or a docstring, a type or a name is missing.
    """
    tree = _parsed(source)
    function = function_of(tree)
    docstring = _docstring_of(function)
    description = description or docstring.description
    if not description:
        raise Invalid(
            f"{function.name} needs a docstring. The agent reads its first lines to learn when "
            "to call the tool."
        )
    try:
        parameters = _parameters(function, docstring.arguments, _Classes(tree))
    except (RecursionError, MemoryError):
        raise Invalid(f"The types of {function.name} are nested too deeply.") from None
    return ToolSchema(function.name, description, parameters)


def function_name(source: str, name: str | None = None) -> str:
    """Return the name of the tool's function.

    Args:
        source: The source in Python.
        name: The name that is preferred. If it is None or missing in the source, the last public
            function is chosen.

    Raises:
        Invalid: The source cannot be read, or defines no function.
    """
    return function_of(_parsed(source), name).name


def name_and_description(source: str) -> tuple[str, str]:
    """Return the function's name and its docstring without the sections.

    The types of its parameters are not read.

    Args:
        source: The source in Python. Its last public function is read.

    Raises:
        Invalid: The source cannot be read, or defines no function.
    """
    function = function_of(_parsed(source))
    return function.name, _docstring_of(function).description


def _docstring_of(function: Function) -> Docstring:
    names = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    return read_docstring(ast.get_docstring(function) or "", names)


def function_of(tree: ast.Module, name: str | None = None) -> Function:
    """Return the tool's function.

    Args:
        tree: The parsed source; only functions at its top level are examined.
        name: The name that is preferred. If it is None or missing in the source, the last public
            function is chosen.

    Raises:
        Invalid: The source defines no function.
    """
    functions = [node for node in tree.body if isinstance(node, Function)]
    chosen = next((function for function in functions if function.name == name), None)
    public = [function for function in functions if not function.name.startswith("_")]
    if not chosen and not public:
        raise Invalid(
            "The source defines no function. Write one with `def`, outside of classes and "
            "functions."
        )
    return chosen or public[-1]


@lru_cache(_CACHED)
def needs_of(source: str, name: str) -> frozenset[str]:
    """Return the extra parameters of a call: "agent_state" and "client".

    "client" is also needed if the source reads a global `client`, imports letta_client or names the
    variables with the server's address and key.

    Args:
        source: The source in Python. Without a function, nothing is needed.
        name: The name of the tool's function.
    """
    try:
        tree = _parsed(source)
        arguments = function_of(tree, name).args
    except Invalid:
        return frozenset()
    needs = {
        argument.arg for argument in ast.walk(arguments) if isinstance(argument, ast.arg)
    } & set(FILLED_IN)
    loaded_names = set()
    assigned_names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name_, ctx=ast.Load()):
                loaded_names.add(name_)
            case ast.Name(id=name_) | ast.arg(arg=name_) | ast.alias(asname=str(name_)):
                assigned_names.add(name_)
            case ast.alias(name=name_) | ast.ImportFrom(module=str(name_)):
                assigned_names.add(name_.partition(".")[0])
            case ast.Constant(value=("LETTA_API_KEY" | "LETTA_BASE_URL")):
                needs.add("client")
    if "client" in loaded_names - assigned_names or "letta_client" in assigned_names:
        needs.add("client")
    return frozenset(needs)


def _parsed(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        raise Invalid(
            f"The source is not valid Python: line {error.lineno}: {error.msg}."
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise Invalid("The source is not valid Python, or nested too deeply.") from None


def _parameters(
    function: Function, descriptions: Mapping[str, str], classes: _Classes
) -> dict[str, Any]:
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise Invalid(
            f"{function.name} has parameters without a name (*, ** or /). Give each one a name, so "
            "that a model can fill it."
        )
    required_count = len(arguments.args) - len(arguments.defaults)
    defaults = [*[None] * required_count, *arguments.defaults, *arguments.kw_defaults]
    properties: dict[str, Any] = {}
    required = []
    for parameter, default in zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True):
        if parameter.arg in FILLED_IN:
            continue
        if parameter.annotation is None:
            raise Invalid(
                f"The parameter {parameter.arg} of {function.name} has no type. Write one, such as "
                f"{parameter.arg}: str."
            )
        try:
            schema = _schema(parameter.annotation, classes, ())
        except Invalid as error:
            raise Invalid(
                f"The parameter {parameter.arg} of {function.name}: {error} {_HINT}."
            ) from None
        if parameter.arg in descriptions:
            schema = {**schema, "description": descriptions[parameter.arg]}
        properties[parameter.arg] = _with_default(schema, default)
        if default is None:
            required.append(parameter.arg)
    return {"type": "object", "properties": properties, "required": required}


def _with_default(schema: dict[str, Any], default: ast.expr | None) -> dict[str, Any]:
    value = _plain_value(default) if default else None
    if value is None:
        return schema
    return {**schema, "default": value}


def _plain_value(node: ast.expr) -> str | int | float | bool | None:
    """Return a written text, number or boolean; None for anything else, such as a call."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, str | int | float | bool):
        return value
    return None


def _schema(node: ast.expr, classes: _Classes, inside: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON schema of a written type.

    `inside` names the classes and generics around it.
    """
    if len(inside) > _DEEPEST:
        raise Invalid("Its type is nested too deeply.")
    if isinstance(node, ast.Constant):
        if node.value is None:
            return {"type": "null"}
        if isinstance(node.value, str):  # a type in quotes
            try:
                return _schema(ast.parse(node.value, mode="eval").body, classes, (*inside, "…"))
            except (SyntaxError, ValueError):
                pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_schema(side, classes, (*inside, "|")) for side in _sides(node)])
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(_last_name(node), classes, inside)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Attribute):
        outer = _last_name(node.value)
        if isinstance(node.slice, ast.Tuple):
            parts = node.slice.elts
        else:
            parts = [node.slice]
        return _generic(outer, parts, classes, (*inside, outer))
    raise Invalid(f"The type {ast.unparse(node)[:100]} has no JSON schema.")


def _sides(union: ast.BinOp) -> list[ast.expr]:
    """Return the members of a union that is written with `|`, in order."""
    members = []
    waiting: list[ast.expr] = [union]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            waiting += [node.right, node.left]
        else:
            members.append(node)
    return members


def _last_name(node: ast.Name | ast.Attribute) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr


def _named(name: str, classes: _Classes, inside: tuple[str, ...]) -> dict[str, Any]:
    if name in classes:
        if name in inside:
            raise Invalid(f"{name} holds itself.")
        return _of_class(classes.take(name), classes, (*inside, name))
    if name in _SCALARS:
        return dict(_SCALARS[name])
    if name in _LISTS:
        return {"type": "array", "items": {}}
    if name in _OBJECTS:
        return {"type": "object"}
    raise Invalid(f"The type {name} is not known.")


def _generic(
    outer: str, parts: list[ast.expr], classes: _Classes, inside: tuple[str, ...]
) -> dict[str, Any]:
    if outer == "Literal":
        return _enumeration(_literal_values(parts, classes))
    if outer == "Annotated":
        descriptions = map(_description, parts[1:])
        description = next(filter(None, descriptions), None)
        return _described(_schema(parts[0], classes, inside), description)
    inner = [_schema(part, classes, inside) for part in parts if not _is_ellipsis(part)]
    if outer == "Optional":
        return _union([*inner, {"type": "null"}])
    if outer == "Union":
        return _union(inner)
    if outer in _LISTS:
        return {"type": "array", "items": inner[0] if len(inner) == 1 else _union(inner)}
    if outer in _OBJECTS:
        if len(inner) > 1 and inner[1]:
            return {"type": "object", "additionalProperties": inner[1]}
        return {"type": "object"}
    raise Invalid(f"The type {outer}[…] is not known.")


def _literal_values(
    parts: Sequence[ast.expr], classes: _Classes
) -> list[str | int | float | bool | None]:
    """Return the values of `Literal[…]`, which may contain members of an enumeration.

    Raises Invalid for a value that cannot be read, since the model could never choose it.
    """
    values: list[str | int | float | bool | None] = []
    for part in parts:
        value = _plain_value(part)
        if value is None and isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            value = classes.members(part.value.id).get(part.attr)
        if value is None and not (isinstance(part, ast.Constant) and part.value is None):
            raise Invalid(f"The value {ast.unparse(part)[:100]} of Literal cannot be read.")
        values.append(value)
    return values


def _enumeration(constants: Sequence[Any]) -> dict[str, Any]:
    constant_types = {type(constant) for constant in constants}
    if len(constant_types) == 1:
        json_type = {str: "string", bool: "boolean", int: "integer"}.get(*constant_types)
        if json_type:
            return {"type": json_type, "enum": list(constants)}
    return {"enum": list(constants)}


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of any of these, without null.

    Null is left out, since it confuses small models, and an optional parameter is not required
    anyway.
    """
    not_null = [schema for schema in schemas if schema != {"type": "null"}]
    if not not_null:
        return {"type": "null"}
    if len(not_null) == 1:
        return not_null[0]
    return {"anyOf": not_null}


def _described(schema: dict[str, Any], description: str | None) -> dict[str, Any]:
    if description:
        return {**schema, "description": description}
    return schema


def _enum_members(node: ast.ClassDef) -> dict[str, _Value]:
    """Return the values of an enumeration's members by their names.

    Raises Invalid for a value that cannot be read, since the model could never choose it.
    """
    members: dict[str, _Value] = {}
    highest = None
    for line in node.body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=written):
                value = _plain_value(written)
            case _:
                continue
        if name.startswith("_"):
            continue
        if _is_auto(written):
            value = _automatic_value(node, name, highest, is_first=not members)
        if value is None:
            raise Invalid(
                f"The value {ast.unparse(written)[:100]} of the enumeration cannot be read. Write "
                "a text or a number."
            )
        if isinstance(value, int):
            highest = value if highest is None else max(highest, value)
        members[name] = value
    return members


def _is_auto(node: ast.expr) -> bool:
    """Return True for the calls `auto()` and `enum.auto()`."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return False
    match node.func:
        case ast.Name(id="auto") | ast.Attribute(value=ast.Name(id="enum"), attr="auto"):
            return True
    return False


def _automatic_value(
    node: ast.ClassDef, name: str, highest: int | None, *, is_first: bool
) -> str | int | None:
    """Return the value that `auto()` gives to a member, as the module `enum` defines it.

    Args:
        node: The enumeration.
        name: The name of the member.
        highest: The highest number of the earlier members; None if they have no numbers.
        is_first: There are no earlier members.
    """
    if "StrEnum" in _base_names(node):
        return name.lower()
    if is_first:
        return 1
    return None if highest is None else highest + 1


def _base_names(node: ast.ClassDef) -> set[str]:
    return {
        base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases
    }


def _inherited_fields(
    node: ast.ClassDef, classes: _Classes, inside: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """Return properties and required names from a class's bases in the same source."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id not in inside:
            inherited = _of_class(classes.take(base.id), classes, (*inside, base.id))
            properties |= inherited.get("properties", {})
            required += inherited.get("required", [])
    return properties, required


def _of_class(node: ast.ClassDef, classes: _Classes, inside: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of a model, dataclass or TypedDict, or an enumeration."""
    if _base_names(node) & {"Enum", "StrEnum", "IntEnum"}:
        return {"enum": list(classes.members(node.name).values())}
    properties, required = _inherited_fields(node, classes, inside)
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        if line.target.id.startswith("_"):
            continue
        schema = _schema(line.annotation, classes, inside)
        if line.value is not None and (description := _description(line.value)):
            schema = {**schema, "description": description}
        properties[line.target.id] = _with_default(schema, line.value)
        if line.value is None or _is_required(line.value):
            required.append(line.target.id)
    schema = {"type": "object", "properties": properties, "required": required}
    return _described(schema, ast.get_docstring(node))


def _description(node: ast.expr) -> str | None:
    """Return the text of `Field(description="…")`, or of a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
                return str(keyword.value.value)
    return None


def _is_required(default: ast.expr) -> bool:
    """Return True if the field has no default: an ellipsis, or a `Field` without a default."""
    if not isinstance(default, ast.Call):
        return _is_ellipsis(default)
    if any(keyword.arg in ("default", "default_factory") for keyword in default.keywords):
        return False
    return not default.args or _is_ellipsis(default.args[0])


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
