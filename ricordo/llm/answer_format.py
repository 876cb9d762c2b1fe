"""The form that an answer is to have (`response_format`), and the call that it is to be (`forced_tool`): told, read and checked.

Some providers make their models keep to it, some ignore it, and nobody can tell beforehand: so each answer is read here. JSON in a
fence or between words is taken out, and an answer without it is asked for again once, with what is wrong.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from ricordo.domain.message import Message, Part, TextPart, ToolCallPart
from ricordo.domain.model import ModelReply, ModelRequest, answer_schema
from ricordo.errors import Invalid
from ricordo.llm.repair import Fault, fault_in
from ricordo.llm.written_calls import new_call_id

if TYPE_CHECKING:
    from jsonschema.protocols import Validator  # type: ignore[import-untyped]

_FENCE, _OPENING = "```", re.compile(r"[{\[]")
_MOST_OPENINGS = 100  # that are tried: each may take the length of the text
_LONGEST_PLACE, _LONGEST_FAULT = 100, 300
_CACHED = 64  # validators
_OUTSIDE = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef)":"(?!#)')
# Time without bound in an expression of the caller's; the rest of a schema takes time by its size.
_UNCHECKED = ("pattern", "patternProperties", "format")


def instruction(response_format: Mapping[str, Any] | None) -> str:
    """Return what a model is told of the form of its answer; empty where any text will do."""
    schema = _schema(response_format)
    if schema is None:
        return ""
    if (response_format or {}).get("type") == "json_object":
        return "Your answer to the user has to be one JSON object, with nothing before or after it."
    shown = orjson.dumps(schema).decode()
    return (
        "Your answer to the user has to be JSON that is valid under the JSON schema below, with nothing before or after it.\n"
        f"<answer_schema>\n{shown}\n</answer_schema>"
    )


def with_instruction(
    messages: tuple[Message, ...], response_format: Mapping[str, Any] | None
) -> tuple[Message, ...]:
    """Return the messages with the instruction at the end of the system message, which is the first."""
    words = instruction(response_format)
    if not words:
        return messages
    return (messages[0].with_text(f"{messages[0].text}\n\n{words}"), *messages[1:])


def in_format(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """Return the reply with its words as the JSON that was asked for, or as the call; as it came where they hold neither."""
    if any(isinstance(part, ToolCallPart) for part in reply.parts):
        return reply
    text = _text(reply)
    if tool := next((tool for tool in request.tools if tool.name == request.forced_tool), None):
        found = next(
            (one for one in _candidates(text) if not _fault(one, tool.parameters, is_object=True)),
            None,
        )
        if found is None:
            return reply
        call = ToolCallPart(new_call_id(), tool.name, found)
        return replace(reply, parts=_with_words(reply, call), finish="tool_calls")
    schema = _schema(request.settings.response_format)
    if schema is None:
        return reply
    fitting = next((one for one in _candidates(text) if not _fault(one, schema)), None)
    if fitting is None or fitting == text:
        return reply
    return replace(reply, parts=_with_words(reply, TextPart(fitting)))


def answer_fault(reply: ModelReply, request: ModelRequest) -> Fault | None:
    """Return what is still broken in a mended reply, its form too; None where it can be used."""
    schema = _schema(request.settings.response_format)
    is_answer = not any(isinstance(part, ToolCallPart) for part in reply.parts)
    if schema is None or not is_answer or reply.finish in ("length", "content_filter"):
        return fault_in(reply, request)
    fault = _fault(_text(reply), schema)
    if fault is None:
        return None  # JSON that was asked for is no call in words
    told = f"Your answer cannot be used: {fault}. {instruction(request.settings.response_format)}"
    return fault_in(reply, request) or Fault(told)


def _schema(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of the answer; None also for a format that a provider alone knows."""
    try:
        return answer_schema(response_format)
    except Invalid:
        return None


def _text(reply: ModelReply) -> str:
    return "\n".join(part.text for part in reply.parts if isinstance(part, TextPart)).strip()


def _with_words(reply: ModelReply, words: Part) -> tuple[Part, ...]:
    return (*(part for part in reply.parts if not isinstance(part, TextPart)), words)


def _candidates(text: str) -> Iterator[str]:
    """Yield what of the text may be the JSON: all of it, what is in fences, and each outermost object or list."""
    yield text
    for block in text.split(_FENCE)[1::2]:
        yield block.removeprefix("json").strip()
    decoder, end = json.JSONDecoder(), 0
    for opening in islice(_OPENING.finditer(text), _MOST_OPENINGS):
        if opening.start() < end:
            continue
        with suppress(ValueError, RecursionError):
            _, end = decoder.raw_decode(text, opening.start())
            yield text[opening.start() : end]


def _fault(text: str, schema: Mapping[str, Any], *, is_object: bool = False) -> str | None:
    """Return what is wrong with a text as JSON of this schema; None where nothing is."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "it is not JSON"
    if is_object and not isinstance(value, dict):
        return "it is not a JSON object"
    content = orjson.dumps(schema)
    if _OUTSIDE.search(content):  # the library would fetch what lies elsewhere
        return None
    try:
        error = next(iter(_validator(content).iter_errors(value)), None)
    except Exception:  # a schema that cannot be followed, of which nobody can say what fits
        return None
    if error is None:
        return None
    place = "/".join(map(str, error.absolute_path))[:_LONGEST_PLACE]
    return f"{f'at {place}: ' if place else ''}{error.message[:_LONGEST_FAULT]}"


@lru_cache(_CACHED)
def _validator(schema: bytes) -> "Validator":
    # Slow to import (70 ms), and few answers have a form.
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]

    kinds: Any = validators.extend(Draft202012Validator, dict.fromkeys(_UNCHECKED, _unchecked))
    return kinds(orjson.loads(schema))


def _unchecked(*_arguments: Any) -> None:
    return None
