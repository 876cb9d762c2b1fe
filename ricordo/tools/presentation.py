"""How tools are offered to models, and how their calls are read back. Pure.

An agent's style may add arguments of its own to every tool: `thinking`, for models that think only in what they write, and
`request_heartbeat`, by which a model asks for another step. Tools that edit memory get `quote` besides, where a block is only
changed in the user's own words, and `reasoning`, where the agent sees a user's memory. Tools of an agent that speaks aloud get
`pre_exec_msg`, a sentence that is said while they run. None of them ever reaches a tool. A property of that name which a tool has
itself is the tool's and stays.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
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
SPOKEN = "pre_exec_msg"  # a wire fact of the retired Letta V1 server
_THINKING_SCHEMA = {
    "type": "string",
    "description": "What you think before this call: why you make it, and what you expect. Only you read it.",
}
_HEARTBEAT_SCHEMA = {
    "type": "boolean",
    "description": "True to get control back right after this call, for another step; false to end your turn with it.",
}
_SPOKEN_SCHEMA = {
    "type": "string",
    "description": "A short sentence that is read to the user while the tool runs, such as why it takes a moment. It ends with a "
    "full stop, a question mark or an exclamation mark.",
}
_QUOTE_SCHEMA = {
    "type": "string",
    "description": "For a block with policy=explicit: the user's words of just now that ask for this, word for word. Without them "
    "the change is only proposed to the block's owner.",
}
_REASONING_SCHEMA = {
    "type": "string",
    "description": "Why, in a sentence. The block's owner reads it beside the change.",
}
_ADDED = re.compile(r"thinking|request_heartbeat|quote|reasoning|pre_exec_msg|\\u")
_YES = frozenset({"true", "yes", "on", "1"})
_MOST_SCHEMAS = 2048  # kept presented; a few kilobytes each
_DEEPEST = 200  # orjson reads deeper nesting than it writes (254)
_DEEPEST_SCHEMA = 20
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
    """What is added to tools: a heartbeat, thoughts, the format (as in `response_format`) of what `send_message` says, and to the
    tools in `quoting` the user's words, to those in `reasoning` why memory is changed, to those in `spoken` a sentence to say.
    """

    heartbeat: bool = False
    thinks_in_arguments: bool = False
    response_format: Mapping[str, Any] | None = None
    quoting: frozenset[str] = frozenset()
    reasoning: frozenset[str] = frozenset()
    spoken: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call taken apart: what is stored (without thoughts), the thoughts, and the arguments as the tool gets them (JSON).

    `quote` are the words of a user's that it appeals to, `reasoning` says why it changes memory, and `words` are said to the user.
    """

    call: ToolCallPart
    thoughts: str
    wants_heartbeat: bool
    arguments: str
    quote: str = ""
    reasoning: str = ""
    words: str = ""


def schema_for(tool: ToolSchema, how: ToolPresentation, *, is_terminal: bool) -> ToolSchema:
    """The tool as the model is offered it. Cached by content: treat what comes back as read-only."""
    heartbeat = how.heartbeat and not is_terminal
    thinks = how.thinks_in_arguments
    if tool.name == SPEECH_TOOL and how.response_format:
        speech = answer_schema(how.response_format)
    else:
        speech = None
    added = tuple(name for name, tools in _by_tools(how) if tool.name in tools)
    if not (heartbeat or thinks or added or speech is not None):
        return tool
    said = b"" if speech is None else orjson.dumps(speech)
    parameters = orjson.dumps(tool.parameters)
    return _presented(
        tool.name,
        tool.description,
        parameters,
        said,
        heartbeat=heartbeat,
        thinks=thinks,
        added=added,
    )


def parse_call(
    call: ToolCallPart, how: ToolPresentation, schema: ToolSchema | None = None
) -> ParsedCall:
    """The call without what the style added; broken JSON comes back untouched.

    With the tool's own `schema` its properties are left alone, and what it does not know is taken out whatever the style.
    """
    # Most calls hold none of them, and need not be read: only an escaped letter could hide a name.
    is_formatted = call.name == SPEECH_TOOL and how.response_format
    arguments = _object(call.arguments) if is_formatted or _ADDED.search(call.arguments) else None
    if arguments is None:
        return ParsedCall(call, "", wants_heartbeat=False, arguments=call.arguments)
    own = schema.parameters.get("properties", {}) if schema else None
    added = {THINKING: how.thinks_in_arguments, HEARTBEAT: how.heartbeat}
    ours = {
        name for name, adds in added.items() if (adds if own is None else name not in own)
    } & arguments.keys()
    for name, tools in _by_tools(how):
        if name in arguments and call.name in tools and name not in (own or ()):
            ours.add(name)
    stored = call
    kept = {name: value for name, value in arguments.items() if name not in ours}
    if told := ours & {THINKING, SPOKEN}:
        stored = replace(
            call,
            arguments=_dumps({name: arguments[name] for name in arguments if name not in told}),
        )
    is_structured = is_formatted and not isinstance(kept.get(SPEECH_ARGUMENT, ""), str)
    if is_structured:
        kept[SPEECH_ARGUMENT] = _text(kept[SPEECH_ARGUMENT])
    return ParsedCall(
        stored,
        _text(arguments[THINKING]) if THINKING in ours else "",
        wants_heartbeat=HEARTBEAT in ours and how.heartbeat and _means_yes(arguments[HEARTBEAT]),
        arguments=_dumps(kept) if ours or is_structured else call.arguments,
        quote=_text(arguments[QUOTE]) if QUOTE in ours else "",
        reasoning=_text(arguments[REASONING]) if REASONING in ours else "",
        words=_text(arguments[SPOKEN]) if SPOKEN in ours else "",
    )


def without_nulls(call: ToolCallPart, schema: ToolSchema | None) -> ToolCallPart:
    """The call without arguments at null that may be left out and whose schema has no null: models write that for "not given"."""
    arguments = _object(call.arguments) if schema and "null" in call.arguments else None
    if schema is None or arguments is None:
        return call
    kept = given_arguments(arguments, schema)
    if kept == arguments:
        return call
    return replace(call, arguments=_dumps(kept))


def given_arguments(arguments: Mapping[str, Any], schema: ToolSchema) -> dict[str, Any]:
    """The arguments without those at null that may be left out and whose schema has no null, also within objects."""
    kept: dict[str, Any] = _without_nulls(dict(arguments), schema.parameters, schema.parameters)
    return kept


def _without_nulls(value: Any, schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        schema = _at(schema["$ref"], root)
    if not isinstance(schema, Mapping) or depth > _DEEPEST_SCHEMA:
        return value
    if isinstance(value, list):
        return [_without_nulls(item, schema.get("items"), root, depth + 1) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(properties, Mapping):
        return value
    required = schema.get("required") or ()
    return {
        name: _without_nulls(item, properties.get(name), root, depth + 1)
        for name, item in value.items()
        if item is not None
        or name not in properties
        or name in required
        or _allows_null(properties[name], root)
    }


def _allows_null(schema: Any, root: Mapping[str, Any]) -> bool:
    """Return whether null is a value of its own here, and not only what fits because nothing is said."""
    if not isinstance(schema, Mapping) or schema.get("nullable") is True:
        return True
    return _fits(None, schema, root)


def _by_tools(how: ToolPresentation) -> Sequence[tuple[str, frozenset[str]]]:
    """The arguments that only some tools get, with these tools."""
    return (QUOTE, how.quoting), (REASONING, how.reasoning), (SPOKEN, how.spoken)


def with_thoughts(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(_thinking(message) if message.tool_calls else message for message in messages)


def prefill(call: ToolCallPart, values: Mapping[str, Any], schema: ToolSchema) -> ToolCallPart:
    """The call with these arguments in the place of the model's own; raises Invalid for values that the schema has no place for.

    Arguments that are no JSON object stay as they are: the tool refuses them.
    """
    properties = schema.parameters.get("properties", {})
    for name, value in values.items():
        if name not in properties:
            known = ", ".join(properties) or "none"
            raise Invalid(
                f"A tool rule fills {name} of {call.name}, which has no such argument. It has: "
                f"{known}."
            )
        if not _fits(value, properties[name], schema.parameters):
            told = (
                f"A tool rule fills {name} of {call.name} with {_dumps(value)[:200]}, which does "
                "not fit its schema."
            )
            raise Invalid(f"{told} Change the rule.")
    arguments = _object(call.arguments)
    if arguments is None or not values:
        return call
    return replace(call, arguments=_dumps({**arguments, **values}))


@lru_cache(maxsize=_MOST_SCHEMAS)
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
    """The tool with what its style adds; `parameters` and `speech` are JSON."""
    schema: dict[str, Any] = orjson.loads(parameters)
    properties = dict(schema.get("properties", {}))
    required = list(schema.get("required", []))
    if speech and SPEECH_ARGUMENT in properties:
        said: dict[str, Any] = orjson.loads(speech)
        said.pop("$schema", None)
        # A `$ref` looks for definitions at the root.
        schema |= {
            key: {**schema.get(key, {}), **said.pop(key)}
            for key in ("$defs", "definitions")
            if key in said
        }
        described = {
            "description": properties[SPEECH_ARGUMENT].get("description", "What to say."),
            **said,
        }
        properties[SPEECH_ARGUMENT] = _rooted(described)
    for argument, described in ((QUOTE, _QUOTE_SCHEMA), (REASONING, _REASONING_SCHEMA)):
        if argument in added and argument not in properties:
            properties[argument] = dict(described)
    for argument, described, is_wanted in (
        (SPOKEN, _SPOKEN_SCHEMA, SPOKEN in added),
        (THINKING, _THINKING_SCHEMA, thinks),
    ):
        if is_wanted and argument not in properties:
            properties = {argument: dict(described), **properties}
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
    """The schema with references to its own root pointing to where it now is."""
    if isinstance(schema, list):
        return [_rooted(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/properties/{SPEECH_ARGUMENT}" if (key, value) == ("$ref", "#") else _rooted(value)
        for key, value in schema.items()
    }


def _thinking(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            first = len(parts)
            while first and isinstance(last := parts[first - 1], ReasoningPart) and not last.native:
                first -= 1
            thoughts = "\n".join(
                one.text for one in parts[first:] if isinstance(one, ReasoningPart)
            )
            arguments = _object(part.arguments)
            if thoughts and arguments is not None and THINKING not in arguments:
                del parts[first:]
                part = replace(part, arguments=_dumps({THINKING: thoughts, **arguments}))  # noqa: PLW2901
        parts.append(part)
    if tuple(parts) == message.parts:
        return message
    return replace(message, parts=tuple(parts))


def _means_yes(value: Any) -> bool:
    """Small models write "true", "True" or 1 where true is meant."""
    if isinstance(value, str):
        return value.strip().lower() in _YES
    return value is True or value == 1


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return _dumps(value)


def _object(arguments: str) -> dict[str, Any] | None:
    """The arguments, where they are an object that can be read and written again."""
    try:
        value = orjson.loads(arguments) if arguments.strip() else {}
        if arguments.count("{") + arguments.count("[") > _DEEPEST:
            orjson.dumps(value)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    if isinstance(value, dict):
        return value
    return None


def _dumps(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def _fits(value: Any, schema: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether the value may stand here, as far as type, enum, const, anyOf and oneOf tell; the tool checks the rest."""
    if not isinstance(schema, Mapping) or depth > 20:
        return True
    if isinstance(schema.get("$ref"), str) and not _fits(
        value, _at(schema["$ref"], root), root, depth + 1
    ):
        return False
    kinds = schema.get("type")
    choices = schema.get("enum")
    named = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if named and not any(_is_of(value, kind) for kind in named):
        return False
    if "const" in schema:
        choices = [schema["const"]]
    if isinstance(choices, list) and not any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in choices
    ):
        return False
    # One fitting alternative is enough for oneOf too: seen this lightly, several that differ deeper down may fit.
    return all(
        any(_fits(value, option, root, depth + 1) for option in schema[key])
        for key in ("anyOf", "oneOf")
        if schema.get(key)
    )


def _at(reference: str, root: Mapping[str, Any]) -> Any:
    """What a local reference points to; nothing where it leads out of the schema."""
    place: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if isinstance(place, Mapping):
            place = place.get(step.replace("~1", "/").replace("~0", "~"))
        else:
            place = None
    return place


def _is_of(value: Any, kind: Any) -> bool:
    if not isinstance(kind, str) or kind not in _TYPES:
        return True
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])
