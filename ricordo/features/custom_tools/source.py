"""The schema of a tool, from the source of its function: types from its signature, words from its docstring.

The source is parsed here and never run. What these types do not say can be said with `args_json_schema`.
"""

import ast
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ricordo.domain.model import ToolSchema
from ricordo.errors import Invalid
from ricordo.tools.docstrings import Docstring, read_docstring

# Parameters that the server fills in, which no model sees.
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
_CACHED = 256  # sources
_HINT = "Use str, int, float, bool, list[…], dict[str, …], Optional[…], Literal[…], a class of the source, or args_json_schema"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_source(source: str, name: str | None = None, description: str | None = None) -> ToolSchema:
    """The tool as models see it: the function of this `name`, else the last public one. Raises Invalid with what is missing."""
    tree = _parsed(source)
    function = function_of(tree, name)
    docstring = _docstring_of(function)
    told = description or docstring.description
    if not told:
        raise Invalid(
            f"Say what {function.name} is for: the first lines of its docstring tell it the agent."
        )
    types = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return ToolSchema(function.name, told, _parameters(function, docstring.arguments, types))


def function_name(source: str, name: str | None = None) -> str:
    """Return the name of the function that the tool is; raises Invalid where there is none."""
    return function_of(_parsed(source), name).name


def name_and_description(source: str) -> tuple[str, str]:
    """Return the function's name and what its docstring says before its sections, whatever its types are."""
    function = function_of(_parsed(source), None)
    return function.name, _docstring_of(function).description


def _docstring_of(function: Function) -> Docstring:
    names = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    return read_docstring(ast.get_docstring(function) or "", names)


def function_of(tree: ast.Module, name: str | None) -> Function:
    functions = [node for node in tree.body if isinstance(node, Function)]
    chosen = next((function for function in functions if function.name == name), None)
    public = [function for function in functions if not function.name.startswith("_")]
    if not chosen and not public:
        raise Invalid(
            "The source defines no function. Write one with `def`, at the outermost level."
        )
    return chosen or public[-1]


@lru_cache(_CACHED)
def needs_of(source: str, name: str) -> frozenset[str]:
    """What a call gets beside its arguments: "agent_state", and a "client" where the source names or makes one of its own."""
    try:
        tree = _parsed(source)
        arguments = function_of(tree, name).args
    except Invalid:
        return frozenset()
    needs = {
        argument.arg for argument in ast.walk(arguments) if isinstance(argument, ast.arg)
    } & set(FILLED_IN)
    used, made = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=named, ctx=ast.Load()):
                used.add(named)
            case ast.Name(id=named) | ast.arg(arg=named) | ast.alias(asname=str(named)):
                made.add(named)
            case ast.alias(name=named) | ast.ImportFrom(module=str(named)):
                made.add(named.partition(".")[0])
            case ast.Constant(value=("LETTA_API_KEY" | "LETTA_BASE_URL")):
                needs.add("client")
    return frozenset(
        needs | ({"client"} if "client" in used - made or "letta_client" in made else set())
    )


def _parsed(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        raise Invalid(f"The source is no valid Python: line {error.lineno}: {error.msg}.") from None
    except (ValueError, RecursionError, MemoryError):
        raise Invalid("The source is no valid Python, or nested too deeply.") from None


def _parameters(
    function: Function, words: Mapping[str, str], types: Mapping[str, ast.ClassDef]
) -> dict[str, Any]:
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise Invalid(
            f"{function.name} has parameters without a name (*, ** or /). Name each one, so that a model can."
        )
    places = len(arguments.args) - len(arguments.defaults)
    defaults = [*[None] * places, *arguments.defaults, *arguments.kw_defaults]
    properties: dict[str, Any] = {}
    required = []
    for parameter, default in zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True):
        if parameter.arg in FILLED_IN:
            continue
        if parameter.annotation is None:
            raise Invalid(
                f"The parameter {parameter.arg} of {function.name} has no type. Write one, such as {parameter.arg}: str."
            )
        try:
            schema = _schema(parameter.annotation, types, ())
        except Invalid as error:
            raise Invalid(
                f"The parameter {parameter.arg} of {function.name}: {error} {_HINT}."
            ) from None
        if parameter.arg in words:
            schema = {**schema, "description": words[parameter.arg]}
        properties[parameter.arg] = _with_default(schema, default)
        if default is None:
            required.append(parameter.arg)
    return {"type": "object", "properties": properties, "required": required}


def _with_default(schema: dict[str, Any], default: ast.expr | None) -> dict[str, Any]:
    if isinstance(default, ast.Constant) and isinstance(default.value, str | int | float | bool):
        return {**schema, "default": default.value}
    return schema


def _schema(
    node: ast.expr, types: Mapping[str, ast.ClassDef], inside: tuple[str, ...]
) -> dict[str, Any]:
    """The JSON schema of a type as it is written; `inside` names the classes and generics around it."""
    if len(inside) > _DEEPEST:
        raise Invalid("Its type is nested too deeply.")
    if isinstance(node, ast.Constant):
        if node.value is None:
            return {"type": "null"}
        if isinstance(node.value, str):  # a type in quotes
            try:
                return _schema(ast.parse(node.value, mode="eval").body, types, (*inside, "…"))
            except (SyntaxError, ValueError):
                pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_schema(side, types, (*inside, "|")) for side in (node.left, node.right)])
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(node.id if isinstance(node, ast.Name) else node.attr, types, inside)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Attribute):
        outer = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(outer, parts, types, (*inside, outer))
    raise Invalid(f"The type {ast.unparse(node)[:100]} has no JSON schema.")


def _named(name: str, types: Mapping[str, ast.ClassDef], inside: tuple[str, ...]) -> dict[str, Any]:
    if name in types:
        if name in inside:
            raise Invalid(f"{name} holds itself.")
        return _of_class(types[name], types, (*inside, name))
    if name in _SCALARS:
        return dict(_SCALARS[name])
    if name in _LISTS:
        return {"type": "array", "items": {}}
    if name in _OBJECTS:
        return {"type": "object"}
    raise Invalid(f"The type {name} is not known.")


def _generic(
    outer: str, parts: list[ast.expr], types: Mapping[str, ast.ClassDef], inside: tuple[str, ...]
) -> dict[str, Any]:
    if outer == "Literal":
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        kinds = {type(value) for value in values}
        kind = (
            {str: "string", bool: "boolean", int: "integer"}.get(*kinds)
            if len(kinds) == 1
            else None
        )
        return {**({"type": kind} if kind else {}), "enum": values}
    if outer == "Annotated":
        described = next((text for part in parts[1:] if (text := _description(part))), None)
        return {
            **_schema(parts[0], types, inside),
            **({"description": described} if described else {}),
        }
    inner = [_schema(part, types, inside) for part in parts if not _is_ellipsis(part)]
    if outer == "Optional":
        return _union([*inner, {"type": "null"}])
    if outer == "Union":
        return _union(inner)
    if outer in _LISTS:
        return {"type": "array", "items": inner[0] if len(inner) == 1 else _union(inner)}
    if outer in _OBJECTS:
        return {
            "type": "object",
            **({"additionalProperties": inner[1]} if len(inner) > 1 and inner[1] else {}),
        }
    raise Invalid(f"The type {outer}[…] is not known.")


def _union(options: list[dict[str, Any]]) -> dict[str, Any]:
    """Without null, which only confuses small models: what may be left out is not required."""
    left = [option for option in options if option != {"type": "null"}]
    return left[0] if len(left) == 1 else {"anyOf": left}


def _of_class(
    node: ast.ClassDef, types: Mapping[str, ast.ClassDef], inside: tuple[str, ...]
) -> dict[str, Any]:
    """An object of the fields of a model, dataclass or TypedDict; an enumeration's values."""
    bases = {
        base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases
    }
    if bases & {"Enum", "StrEnum", "IntEnum"}:
        values = [
            line.value.value
            for line in node.body
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        ]
        return {"enum": values}
    properties: dict[str, Any] = {}
    required = []
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in types and base.id not in inside:
            inherited = _of_class(types[base.id], types, (*inside, base.id))
            properties |= inherited.get("properties", {})
            required += inherited.get("required", [])
    for line in node.body:
        if (
            not isinstance(line, ast.AnnAssign)
            or not isinstance(line.target, ast.Name)
            or line.target.id.startswith("_")
        ):
            continue
        schema = _schema(line.annotation, types, inside)
        if line.value is not None and (described := _description(line.value)):
            schema = {**schema, "description": described}
        properties[line.target.id] = _with_default(schema, line.value)
        if line.value is None or _is_required(line.value):
            required.append(line.target.id)
    described = ast.get_docstring(node)
    return {
        **{"type": "object", "properties": properties, "required": required},
        **({"description": described} if described else {}),
    }


def _description(node: ast.expr) -> str | None:
    """The words of `Field(description="…")`, or of a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
                return str(keyword.value.value)
    return None


def _is_required(value: ast.expr) -> bool:
    """Whether a field's value is a `Field` without a default."""
    if not isinstance(value, ast.Call):
        return _is_ellipsis(value)
    if any(keyword.arg in ("default", "default_factory") for keyword in value.keywords):
        return False
    return not value.args or _is_ellipsis(value.args[0])


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
