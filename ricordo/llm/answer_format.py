"""The required form of an answer: instruct the model, read the answer, and check it.

The form is a JSON schema (`response_format`) or one tool call (`forced_tool`). Some providers
enforce the format and some ignore it, so each answer is checked here. JSON in a fence or between
sentences is taken out. An answer in another form is requested once more, with its fault named.
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

_FENCE = "```"
_OPENING = re.compile(r"[{\[]")
_MOST_OPENINGS = 100  # each attempt reads the rest of the text
_LONGEST_PATH = 100
_LONGEST_FAULT = 300
_CACHED_VALIDATORS = 64
_OUTSIDE = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef)":"(?!#)')
# Not checked, since a caller's regular expression may take unlimited time.
_UNCHECKED = ("pattern", "patternProperties", "format")


def instruction(response_format: Mapping[str, Any] | None) -> str:
    """Return the instruction about the answer's form.

    It is empty if every text is valid.
    """
    schema = _schema(response_format)
    if schema is None:
        return ""
    if (response_format or {}).get("type") == "json_object":
        return "Your answer to the user has to be one JSON object, with nothing before or after it."
    schema_json = orjson.dumps(schema).decode()
    return (
        "Your answer to the user has to be JSON that is valid under the JSON schema below, with "
        f"nothing before or after it.\n<answer_schema>\n{schema_json}\n</answer_schema>"
    )


def with_instruction(
    messages: tuple[Message, ...], response_format: Mapping[str, Any] | None
) -> tuple[Message, ...]:
    """Return the messages with the instruction at the end of the system message.

    The system message is the first message.
    """
    form_instruction = instruction(response_format)
    if not form_instruction:
        return messages
    return (messages[0].with_text(f"{messages[0].text}\n\n{form_instruction}"), *messages[1:])


def in_format(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """Return the reply with its text as the required JSON or tool call.

    Any other reply is returned unchanged.
    """
    if any(isinstance(part, ToolCallPart) for part in reply.parts):
        return reply
    text = _text(reply)
    if tool := next((tool for tool in request.tools if tool.name == request.forced_tool), None):
        fitting_arguments = (
            candidate
            for candidate in _candidates(text)
            if not _fault(candidate, tool.parameters, is_object=True)
        )
        arguments = next(fitting_arguments, None)
        if arguments is None:
            return reply
        call = ToolCallPart(new_call_id(), tool.name, arguments)
        return replace(reply, parts=_replace_text(reply, call), finish="tool_calls")
    schema = _schema(request.settings.response_format)
    if schema is None:
        return reply
    fitting_answers = (
        candidate for candidate in _candidates(text) if not _fault(candidate, schema)
    )
    answer = next(fitting_answers, None)
    if answer is None or answer == text:
        return reply
    return replace(reply, parts=_replace_text(reply, TextPart(answer)))


def answer_fault(reply: ModelReply, request: ModelRequest) -> Fault | None:
    """Return the fault of a repaired reply, or of its form.

    Returns None if the reply can be used.
    """
    schema = _schema(request.settings.response_format)
    is_answer = not any(isinstance(part, ToolCallPart) for part in reply.parts)
    if schema is None or not is_answer or reply.finish in ("length", "content_filter"):
        return fault_in(reply, request)
    fault = _fault(_text(reply), schema)
    if fault is None:
        return None  # JSON that was required is never a call written as text
    explanation = (
        f"Your answer cannot be used: {fault}. {instruction(request.settings.response_format)}"
    )
    return fault_in(reply, request) or Fault(explanation)


def _schema(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of the answer.

    Returns None if no schema is required, or if the format is one that only its provider knows.
    """
    try:
        return answer_schema(response_format)
    except Invalid:
        return None


def _text(reply: ModelReply) -> str:
    return "\n".join(part.text for part in reply.parts if isinstance(part, TextPart)).strip()


def _replace_text(reply: ModelReply, new_part: Part) -> tuple[Part, ...]:
    return (*(part for part in reply.parts if not isinstance(part, TextPart)), new_part)


def _candidates(text: str) -> Iterator[str]:
    """Yield texts that may be the JSON.

    Candidates are the whole text, each fenced block, and each outermost object or list.
    """
    yield text
    for block in text.split(_FENCE)[1::2]:
        yield block.removeprefix("json").strip()
    decoder = json.JSONDecoder()
    end = 0
    for opening in islice(_OPENING.finditer(text), _MOST_OPENINGS):
        if opening.start() < end:
            continue
        with suppress(ValueError, RecursionError):
            _, end = decoder.raw_decode(text, opening.start())
            yield text[opening.start() : end]


def _fault(text: str, schema: Mapping[str, Any], *, is_object: bool = False) -> str | None:
    """Describe the fault of a text as JSON of this schema.

    Returns None if it has none.
    """
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "it is not JSON"
    if is_object and not isinstance(answer, dict):
        return "it is not a JSON object"
    content = orjson.dumps(schema)
    if _OUTSIDE.search(content):  # the library would fetch schemas from outside
        return None
    try:
        error = next(iter(_validator(content).iter_errors(answer)), None)
    except Exception:  # a broken schema cannot judge any answer
        return None
    if error is None:
        return None
    path = "/".join(map(str, error.absolute_path))[:_LONGEST_PATH]
    message = error.message[:_LONGEST_FAULT]
    return f"at {path}: {message}" if path else message


@lru_cache(_CACHED_VALIDATORS)
def _validator(schema: bytes) -> "Validator":
    # Imported at first use: it takes 70 ms, and few answers have a required form.
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]

    kinds: Any = validators.extend(Draft202012Validator, dict.fromkeys(_UNCHECKED, _unchecked))
    return kinds(orjson.loads(schema))


def _unchecked(*_arguments: Any) -> None:
    return None
