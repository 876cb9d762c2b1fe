"""A tool's schema from its function: parameters from the signature, words from the docstring's `Args:` section."""

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from ricordo.domain.model import ToolSchema

_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class Arguments(BaseModel):
    """The base of the models that check a call's arguments; unknown ones are refused by name."""

    model_config = ConfigDict(extra="forbid")


def arguments_model(function: Callable[..., Any]) -> type[Arguments]:
    """A model of the function's parameters, its first one (the context) left out."""
    hints = get_type_hints(function)
    words = _argument_words(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        # An alias, because a field of its own name could hide something of the model: json, copy, schema, …
        fields[f"argument_{name}"] = (hints[name], Field(default, alias=name, description=words.get(name)))
    return create_model(function.__name__, __base__=Arguments, **fields)


def describe(function: Callable[..., Any], arguments: type[Arguments]) -> ToolSchema:
    """The tool as models see it."""
    summary = re.split(r"\n\s*(?:Args|Returns|Raises):", inspect.getdoc(function) or "")[0].strip()
    schema = _plain(arguments.model_json_schema())
    parameters = {"type": "object", "properties": schema.get("properties", {}), "required": schema.get("required", [])}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    return ToolSchema(function.__name__, summary, parameters)


def _argument_words(docstring: str) -> dict[str, str]:
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    words: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(section.group(1)).splitlines() if section else ():
        if match := _ARGUMENT.match(line):
            name = match.group(1)
            words[name] = match.group(2)
        elif name and line.strip():
            words[name] += " " + line.strip()
    return words


def _plain(schema: Any) -> Any:
    """Drop titles, null alternatives, null defaults and `additionalProperties: false`, which only confuse small models."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **options[0]}
    return {
        key: {name: _plain(item) for name, item in value.items()} if key == "properties" else _plain(value)
        for key, value in schema.items()
        if key != "title" and (key, value) not in (("additionalProperties", False), ("default", None))
    }
