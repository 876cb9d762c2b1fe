"""Presentation of tools to models, and parsing of their calls. Pure.

The model sees some arguments that the tools themselves never get:

- `thinking`, by the agent's style: for models that can only think in their output.
- `request_heartbeat`, by the agent's style: with it a model asks for another step.
- `quote`, in tools that edit memory: if a block may only change on the user's explicit words.
- `reasoning`, in tools that edit memory: if the agent sees a user's memory.
- `pre_exec_msg`, in voice conversations: a sentence that is spoken while the tool runs.

If a tool already has a property of that name, nothing is added.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import orjson

from ricordo.domain.message import (
    SPEECH_ARGUMENT,
    SPEECH_TOOL,
    Message,
    Part,
    ReasoningPart,
    ToolCallPart,
)
from ricordo.domain.model import ToolSchema, answer_schema
from ricordo.errors import Invalid

THINKING = "thinking"
HEARTBEAT = "request_heartbeat"
QUOTE = "quote"
REASONING = "reasoning"
SPOKEN = "pre_exec_msg"  # wire fact of the retired Letta V1 server
_THINKING_SCHEMA = {
    "type": "string",
    "description": "What you think before this call: why you make it, and what you expect. Only you read it.",
}
_HEARTBEAT_SCHEMA = {
    "type": "boolean",
    "description": "True to get control back right after this call, for another step; false to end your turn "
    "with it.",
}
_SPOKEN_SCHEMA = {
    "type": "string",
    "description": "A short sentence that is read to the user while the tool runs, such as why it takes a "
    "moment. It ends with a full stop, a question mark or an exclamation mark.",
}
_QUOTE_SCHEMA = {
    "type": "string",
    "description": "For a block with policy=explicit: the user's words of just now that ask for this, word "
    "for word. Without them the change is only proposed to the block's owner.",
}
_REASONING_SCHEMA = {
    "type": "string",
    "description": "Why, in a sentence. The block's owner reads it beside the change.",
}
_ADDED = re.compile(r"thinking|request_heartbeat|quote|reasoning|pre_exec_msg|\\u")
_YES = frozenset({"true", "yes", "on", "1"})
_CACHE_SIZE = 2048  # presented tools that are cached; each takes a few kilobytes
_DEPTH_LIMIT = 200  # orjson reads deeper nesting than it writes (254)
_SCHEMA_DEPTH_LIMIT = 20
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class ToolPresentation:
    """The arguments that a style adds to tools.

    Attributes:
        heartbeat: Add the argument `request_heartbeat`.
        thinks_in_arguments: Add `thinking`.
        response_format: The format of the text that `send_message` takes, as in
            `response_format`.
        quoting: Tools that get `quote`.
        reasoning: Tools that get `reasoning`.
        spoken: Tools that get `pre_exec_msg`.
    """

    heartbeat: bool = False
    thinks_in_arguments: bool = False
    response_format: Mapping[str, Any] | None = None
    quoting: frozenset[str] = frozenset()
    reasoning: frozenset[str] = frozenset()
    spoken: frozenset[str] = frozenset()


UNCHANGED = ToolPresentation()


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A parsed call.

    Attributes:
        call: The call to store, without thoughts and spoken sentences.
        thoughts: The argument `thinking`; "" without it.
        wants_heartbeat: The model asks for another step.
        arguments: The tool's arguments as JSON.
        quote: The user's words that permit an edit of memory.
        reasoning: The reason for the edit.
        speech: The sentence that is spoken to the user.
    """

    call: ToolCallPart
    thoughts: str
    wants_heartbeat: bool
    arguments: str
    quote: str = ""
    reasoning: str = ""
    speech: str = ""


def schema_for(
    tool: ToolSchema, presentation: ToolPresentation, *, is_terminal: bool
) -> ToolSchema:
    """Return the schema of the tool that the model sees.

    It is cached by content, so do not change it.

    Args:
        tool: The tool's schema, without added arguments.
        presentation: The arguments to add.
        is_terminal: The tool ends the turn, so it gets no `request_heartbeat`.
    """
    heartbeat = presentation.heartbeat and not is_terminal
    thinks = presentation.thinks_in_arguments
    if tool.name == SPEECH_TOOL and presentation.response_format:
        speech = answer_schema(presentation.response_format)
    else:
        speech = None
    added = tuple(name for name, tools in _by_tools(presentation) if tool.name in tools)
    if not (heartbeat or thinks or added or speech is not None):
        return tool
    if speech is None:
        speech_json = b""
    else:
        speech_json = orjson.dumps(speech)
    parameters = orjson.dumps(tool.parameters)
    return _presented(
        tool.name,
        tool.description,
        parameters,
        speech_json,
        heartbeat=heartbeat,
        thinks=thinks,
        added=added,
    )


def parse_call(
    call: ToolCallPart, presentation: ToolPresentation, schema: ToolSchema | None = None
) -> ParsedCall:
    """Return the call without the arguments that the style adds, and without forbidden nulls.

    Broken JSON is returned unchanged.

    Args:
        call: The call as the model wrote it.
        presentation: The arguments that the tools got in this request.
        schema: The tool's schema, without added arguments. Arguments that it declares stay.
            `thinking` and `request_heartbeat` are removed otherwise, whatever the style is. None:
            the tool is unknown, and only the style's arguments are removed.
    """
    if schema and "null" in call.arguments:
        call = without_nulls(call, schema)
    # Most calls have no added argument and need not be parsed; only an escaped letter could hide
    # one.
    is_formatted = call.name == SPEECH_TOOL and presentation.response_format
    if is_formatted or _ADDED.search(call.arguments):
        arguments = _object(call.arguments)
    else:
        arguments = None
    if arguments is None:
        return ParsedCall(call, "", wants_heartbeat=False, arguments=call.arguments)
    added_names = _added_names(call.name, arguments, presentation, schema)
    stored = call
    tool_arguments = _without(arguments, added_names)
    if not_stored := added_names & {THINKING, SPOKEN}:
        stored = replace(call, arguments=_dumps(_without(arguments, not_stored)))
    is_structured = is_formatted and not isinstance(tool_arguments.get(SPEECH_ARGUMENT, ""), str)
    if is_structured:
        tool_arguments[SPEECH_ARGUMENT] = _text(tool_arguments[SPEECH_ARGUMENT])
    texts = {
        name: _text(arguments[name])
        for name in (THINKING, QUOTE, REASONING, SPOKEN)
        if name in added_names
    }
    return ParsedCall(
        stored,
        texts.get(THINKING, ""),
        wants_heartbeat=HEARTBEAT in added_names
        and presentation.heartbeat
        and _means_yes(arguments[HEARTBEAT]),
        arguments=_dumps(tool_arguments) if added_names or is_structured else call.arguments,
        quote=texts.get(QUOTE, ""),
        reasoning=texts.get(REASONING, ""),
        speech=texts.get(SPOKEN, ""),
    )


def _without(arguments: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {name: argument for name, argument in arguments.items() if name not in names}


def _added_names(
    tool_name: str,
    arguments: Mapping[str, Any],
    presentation: ToolPresentation,
    schema: ToolSchema | None,
) -> set[str]:
    """Return the names of the arguments that do not belong to the tool."""
    style = {THINKING: presentation.thinks_in_arguments, HEARTBEAT: presentation.heartbeat}
    own_properties = schema.parameters.get("properties", {}) if schema else None
    if own_properties is None:
        own_properties = ()
        added_names = {name for name, is_added in style.items() if is_added}
    else:
        added_names = style.keys() - own_properties
    added_names &= arguments.keys()
    for name, tools in _by_tools(presentation):
        if name in arguments and tool_name in tools and name not in own_properties:
            added_names.add(name)
    return added_names


def without_nulls(call: ToolCallPart, schema: ToolSchema) -> ToolCallPart:
    """Return the call without optional arguments that are null although their schema forbids null.

    Some models write null to leave an argument out.

    Args:
        call: The call as the model wrote it.
        schema: The tool's schema, without added arguments.
    """
    arguments = _object(call.arguments)
    if arguments is None:
        return call
    present = given_arguments(arguments, schema)
    if present == arguments:
        return call
    return replace(call, arguments=_dumps(present))


def given_arguments(arguments: Mapping[str, Any], schema: ToolSchema) -> dict[str, Any]:
    """Return the arguments without optional ones that are null although their schema forbids null.

    Nested objects are treated in the same way.

    Args:
        arguments: The arguments of a call, which are not changed.
        schema: The tool's schema, without added arguments.
    """
    present: dict[str, Any] = _without_nulls(dict(arguments), schema.parameters, schema.parameters)
    return present


def _without_nulls(content: Any, schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        schema = _resolve(schema["$ref"], root)
    if not isinstance(schema, Mapping) or depth > _SCHEMA_DEPTH_LIMIT:
        return content
    if isinstance(content, list):
        return [_without_nulls(part, schema.get("items"), root, depth + 1) for part in content]
    properties = schema.get("properties")
    if not isinstance(content, dict) or not isinstance(properties, Mapping):
        return content
    required = schema.get("required") or ()
    return {
        name: _without_nulls(part, properties.get(name), root, depth + 1)
        for name, part in content.items()
        if part is not None
        or name not in properties
        or name in required
        or _allows_null(properties[name], root)
    }


def _allows_null(schema: Any, root: Mapping[str, Any]) -> bool:
    """Return whether the schema allows null, as one without a type does."""
    if not isinstance(schema, Mapping) or schema.get("nullable") is True:
        return True
    return _fits(None, schema, root)


def _by_tools(presentation: ToolPresentation) -> Sequence[tuple[str, frozenset[str]]]:
    """Return the arguments that only certain tools get, with these tools."""
    return (
        (QUOTE, presentation.quoting),
        (REASONING, presentation.reasoning),
        (SPOKEN, presentation.spoken),
    )


def with_thoughts(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the messages with the thoughts before each tool call among its arguments.

    Args:
        messages: Messages of a model; they are not changed.
    """
    return tuple(_thinking(message) if message.tool_calls else message for message in messages)


def prefill(
    call: ToolCallPart, fixed_arguments: Mapping[str, Any], schema: ToolSchema
) -> ToolCallPart:
    """Return the call with these arguments in place of the model's own.

    Arguments that are not a JSON object are left as they are; the tool refuses them.

    Args:
        call: The call as the model wrote it.
        fixed_arguments: The values by argument, from a tool rule.
        schema: The tool's schema, without added arguments.

    Raises:
        Invalid: The tool does not have an argument, or its schema does not allow the value.
    """
    properties = schema.parameters.get("properties", {})
    for name, fixed in fixed_arguments.items():
        if name not in properties:
            known_names = ", ".join(properties) or "none"
            raise Invalid(
                f"A tool rule fills the argument {name}, which {call.name} does not have. It has: "
                f"{known_names}."
            )
        if not _fits(fixed, properties[name], schema.parameters):
            message = (
                f"A tool rule fills {name} of {call.name} with {_dumps(fixed)[:200]}, which does "
                "not fit its schema."
            )
            raise Invalid(f"{message} Change the rule.")
    arguments = _object(call.arguments)
    if arguments is None or not fixed_arguments:
        return call
    return replace(call, arguments=_dumps({**arguments, **fixed_arguments}))


@lru_cache(maxsize=_CACHE_SIZE)
def _presented(
    name: str,
    description: str,
    parameters: bytes,
    speech: bytes,
    *,
    heartbeat: bool,
    thinks: bool,
    added: tuple[str, ...],
) -> ToolSchema:
    """Return the tool with the arguments of its style; `parameters` and `speech` are JSON."""
    schema: dict[str, Any] = orjson.loads(parameters)
    properties = dict(schema.get("properties", {}))
    required = list(schema.get("required", []))
    if speech and SPEECH_ARGUMENT in properties:
        speech_schema: dict[str, Any] = orjson.loads(speech)
        speech_schema.pop("$schema", None)
        # A `$ref` refers to definitions at the root.
        schema |= {
            key: {**schema.get(key, {}), **speech_schema.pop(key)}
            for key in ("$defs", "definitions")
            if key in speech_schema
        }
        argument_schema = {
            "description": properties[SPEECH_ARGUMENT].get("description", "What to say."),
            **speech_schema,
        }
        properties[SPEECH_ARGUMENT] = _rooted(argument_schema)
    for argument, argument_schema in ((QUOTE, _QUOTE_SCHEMA), (REASONING, _REASONING_SCHEMA)):
        if argument in added and argument not in properties:
            properties[argument] = dict(argument_schema)
    for argument, argument_schema, is_added in (
        (SPOKEN, _SPOKEN_SCHEMA, SPOKEN in added),
        (THINKING, _THINKING_SCHEMA, thinks),
    ):
        if is_added and argument not in properties:
            properties = {argument: dict(argument_schema), **properties}
            required = [argument, *required]
    if heartbeat and HEARTBEAT not in properties:
        properties[HEARTBEAT] = dict(_HEARTBEAT_SCHEMA)
        required = [*required, HEARTBEAT]
    return ToolSchema(
        name,
        description,
        {**schema, "type": "object", "properties": properties, "required": required},
    )


def _rooted(schema: Any) -> Any:
    """Return the schema, with references to its root adapted to its new path."""
    if isinstance(schema, list):
        return [_rooted(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/properties/{SPEECH_ARGUMENT}"
        if (key, content) == ("$ref", "#")
        else _rooted(content)
        for key, content in schema.items()
    }


def _thinking(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            first = len(parts)
            while (
                first
                and isinstance(earlier := parts[first - 1], ReasoningPart)
                and not earlier.native
            ):
                first -= 1
            thoughts = "\n".join(
                thought.text for thought in parts[first:] if isinstance(thought, ReasoningPart)
            )
            arguments = _object(part.arguments)
            if thoughts and arguments is not None and THINKING not in arguments:
                del parts[first:]
                part = replace(part, arguments=_dumps({THINKING: thoughts, **arguments}))  # noqa: PLW2901
        parts.append(part)
    if tuple(parts) == message.parts:
        return message
    return replace(message, parts=tuple(parts))


def _means_yes(flag: Any) -> bool:
    """Return whether the value means true; small models write "true", "True" or 1."""
    if isinstance(flag, str):
        return flag.strip().lower() in _YES
    return flag is True or flag == 1


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return _dumps(content)


def _object(arguments: str) -> dict[str, Any] | None:
    """Return the arguments if they are a JSON object that can be rewritten."""
    try:
        if arguments.strip():
            parsed = orjson.loads(arguments)
        else:
            parsed = {}
        if arguments.count("{") + arguments.count("[") > _DEPTH_LIMIT:
            orjson.dumps(parsed)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    if isinstance(parsed, dict):
        return parsed
    return None


def _dumps(content: Any) -> str:
    return orjson.dumps(content, default=str).decode()


def _type_names(kinds: Any) -> list[Any]:
    if isinstance(kinds, str):
        return [kinds]
    if isinstance(kinds, list):
        return kinds
    return []


def _is_equal(content: Any, choice: Any) -> bool:
    # In Python True equals 1; in JSON it does not.
    return bool(content == choice) and isinstance(content, bool) == isinstance(choice, bool)


def _fits(content: Any, schema: Any, root: Mapping[str, Any]) -> bool:
    """Return whether the value fits the schema's type, enum, const, anyOf and oneOf.

    The tool checks the rest.
    """
    return _Fitting(content, root).fits(schema)


class _Fitting:
    """One comparison of a value with a schema.

    References can lead to the same part of a schema very often, so each part is compared once.
    """

    def __init__(self, content: Any, root: Mapping[str, Any]) -> None:
        self._content = content
        self._root = root
        # The results by the identity of a part, which the schema keeps alive, and its depth.
        self._results: dict[tuple[int, int], bool] = {}

    def fits(self, schema: Any, depth: int = 0) -> bool:
        if not isinstance(schema, Mapping) or depth > _SCHEMA_DEPTH_LIMIT:
            return True
        key = (id(schema), depth)
        if key not in self._results:
            self._results[key] = self._fits_part(schema, depth)
        return self._results[key]

    def _fits_part(self, schema: Mapping[str, Any], depth: int) -> bool:
        content = self._content
        if isinstance(schema.get("$ref"), str) and not self.fits(
            _resolve(schema["$ref"], self._root), depth + 1
        ):
            return False
        choices = schema.get("enum")
        type_names = _type_names(schema.get("type"))
        if type_names and not any(_has_type(content, kind) for kind in type_names):
            return False
        if "const" in schema:
            choices = [schema["const"]]
        if isinstance(choices, list) and not any(_is_equal(content, choice) for choice in choices):
            return False
        # For oneOf one fitting alternative is enough too, since several may fit this shallow check.
        return all(
            any(self.fits(alternative, depth + 1) for alternative in schema[key])
            for key in ("anyOf", "oneOf")
            if schema.get(key)
        )


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the target of a local reference, such as "#/$defs/Mode"; None if there is none."""
    target: Any = root
    path = reference.removeprefix("#").strip("/")
    for step in path.split("/") if path else ():
        if isinstance(target, Mapping):
            target = target.get(step.replace("~1", "/").replace("~0", "~"))
        else:
            target = None
    return target


def _has_type(content: Any, kind: Any) -> bool:
    if not isinstance(kind, str) or kind not in _TYPES:
        return True
    if kind == "integer" and isinstance(content, float):
        return content.is_integer()
    if isinstance(content, bool):
        return kind == "boolean"
    return isinstance(content, _TYPES[kind])
