"""Chat completions as JSON: messages and tools for the wire.

The functions are pure. They build the JSON by hand for speed.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from ricordo.domain.message import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ModelRequest, ToolSchema
from ricordo.domain.text import nests_deeply
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_dialect import Dialect, can_force, thinking_fields
from ricordo.llm.pictures import UNREADABLE, readable_picture

# Extra settings that are not sent to the server as they are. `strict` changes the schemas of the
# tools.
_OWN_SETTINGS = frozenset({"strict", "provider_type"})
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
MOST_ID_CHARACTERS = 40  # OpenAI's limit
_MISTRAL_ID = re.compile(r"^[A-Za-z0-9]{9}$")


def to_body(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """Return the body of a chat completion for this request.

    Args:
        request: The transcript, the tools and the settings.
        model: The name of the model at its server.
        dialect: The known needs of this kind of server.
    """
    settings = request.settings
    body: dict[str, Any] = {"model": model, "messages": to_messages(request.messages, dialect)}
    if request.callable_tools:
        _add_tools(body, request, dialect)
    if settings.temperature is not None and dialect.takes_temperature:
        body["temperature"] = settings.temperature
    if settings.max_output_tokens is not None:
        body[dialect.max_tokens_name] = settings.max_output_tokens
    body.update(thinking_fields(settings, dialect, must_call=must_call(request)))
    if settings.response_format is not None:
        body["response_format"] = settings.response_format
    if request.user_id is not None and dialect.takes_user:
        body["user"] = request.user_id
    if request.stream:
        body["stream"] = True
        if dialect.takes_stream_options:
            body["stream_options"] = {"include_usage": True}
    if dialect.takes_verbosity:
        hidden = _OWN_SETTINGS
    else:
        hidden = _OWN_SETTINGS | {"verbosity"}
    body.update((name, extra) for name, extra in settings.extra.items() if name not in hidden)
    if request.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    return body


def must_call(request: ModelRequest) -> bool:
    """Return whether the request demands a tool call.

    Args:
        request: The request. Without tools it demands none.
    """
    return bool(request.tools) and (
        request.forced_tool is not None or request.tool_choice == "required"
    )


def _add_tools(body: dict[str, Any], request: ModelRequest, dialect: Dialect) -> None:
    tools: Iterable[ToolSchema] = request.tools
    choice: Any = request.tool_choice
    if not can_force(request, dialect) and must_call(request):
        choice = "auto"
    elif request.forced_tool is not None:
        choice = {"type": "function", "function": {"name": request.forced_tool}}
        if not dialect.forces_by_name:
            tools = [tool for tool in tools if tool.name == request.forced_tool]
            choice = "required"
    is_strict = dialect.takes_strict and request.settings.extra.get("strict") is True
    body["tools"] = [
        {"type": "function", "function": _function(tool, is_strict=is_strict)} for tool in tools
    ]
    body["tool_choice"] = choice
    if request.settings.parallel_tool_calls is not None and dialect.takes_parallel:
        body["parallel_tool_calls"] = request.settings.parallel_tool_calls


def _function(tool: ToolSchema, *, is_strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if is_strict:
        strict = strict_parameters(tool.parameters)
    else:
        strict = None
    if strict is None:
        return function
    return function | {"parameters": strict, "strict": True}


def strict_parameters(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema with every object closed, for strict mode.

    Args:
        schema: The JSON schema of a tool's parameters, or of a part of them.

    Returns:
        A new schema. None if an object has optional or free fields, which strict mode refuses, or
        if the schema has a keyword such as `anyOf` or `$ref`.
    """
    closed = dict(schema)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or set(properties) != set(schema.get("required", ())):
            return None
        inner = {name: strict_parameters(field) for name, field in properties.items()}
        if schema.get("additionalProperties") or any(field is None for field in inner.values()):
            return None
        closed |= {"properties": inner, "additionalProperties": False}
    if isinstance(schema.get("items"), dict):
        if (item_schema := strict_parameters(schema["items"])) is None:
            return None
        closed["items"] = item_schema
    if {"$ref", "$defs", "anyOf", "oneOf", "allOf", "default"} & set(schema):
        return None
    return closed


def to_messages(
    messages: Iterable[Message], dialect: Dialect | None = None
) -> list[dict[str, Any]]:
    """Return the transcript in its order.

    Reasoning is left out, except for servers that expect it back.

    Args:
        messages: The transcript, in which each call has one result.
        dialect: The known needs of the server; None for OpenAI's usual form.
    """
    dialect = dialect or Dialect()
    if dialect.short_call_ids:
        call_id = _short_id
    else:
        call_id = _id_within_limit
    rows: list[dict[str, Any]] = []
    for message in messages:
        role = message.role
        if role == "assistant" or (role == "approval" and message.tool_calls):
            if row := _assistant(message, call_id, dialect):
                rows.append(row)
        elif role in {"tool", "approval"}:
            rows += (
                {"role": "tool", "tool_call_id": call_id(part.call_id), "content": part.content}
                for part in message.tool_returns
            )
        elif role == "system":
            rows.append({"role": "system", "content": message.text})
        elif content := _content(message.parts):
            if dialect.answers_before_user and rows and rows[-1]["role"] == "tool":
                rows.append({"role": "assistant", "content": "OK."})
            rows.append({"role": "user", "content": content})
    return rows


def _assistant(
    message: Message, call_id: Callable[[str], str], dialect: Dialect
) -> dict[str, Any] | None:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[ReasoningPart] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, ToolCallPart):
            function = {
                "name": readable_name(part.name),
                "arguments": readable_arguments(part.arguments),
            }
            calls.append({"id": call_id(part.call_id), "type": "function", "function": function})
        elif isinstance(part, ReasoningPart) and part.provider == dialect.provider:
            thoughts.append(part)
    text = "\n".join(texts)
    if not (text or calls):
        return None
    row: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        row["tool_calls"] = calls
    if dialect.replays != "nothing":
        _add_thoughts(row, thoughts, dialect)
    return row


def _details_of(thoughts: list[ReasoningPart]) -> list[Any]:
    proofs = [part.signature or part.redacted for part in thoughts]
    lists = [read_json(proof) for proof in proofs if proof]
    return [detail for part in lists if isinstance(part, list) for detail in part]


def _add_thoughts(row: dict[str, Any], thoughts: list[ReasoningPart], dialect: Dialect) -> None:
    thought_text = "\n".join(part.text for part in thoughts if part.text)
    if dialect.replays == "field":
        if "tool_calls" in row:
            row["reasoning_content"] = thought_text
    elif dialect.replays == "details":
        if details := _details_of(thoughts):
            row["reasoning_details"] = details
    elif thought_text:
        if row["content"]:
            text = [{"type": "text", "text": row["content"]}]
        else:
            text = []
        row["content"] = [
            {"type": "thinking", "thinking": [{"type": "text", "text": thought_text}]},
            *text,
        ]


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]] | None:
    """Return a message's content: one text if there are only texts, otherwise a list of parts."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text or None
    if not any(isinstance(part, ImagePart) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextPart)) or None
    rows: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart) and part.text:
            rows.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            rows.append(_picture(part))
    return rows


def _picture(part: ImagePart) -> dict[str, Any]:
    picture = readable_picture(part)
    if picture is None:
        return {"type": "text", "text": UNREADABLE}
    image = {"url": picture.url or f"data:{picture.media_type};base64,{picture.data}"}
    if picture.detail is not None:
        image["detail"] = picture.detail
    return {"type": "image_url", "image_url": image}


def readable_name(name: str) -> str:
    """Return a tool's name in a form that every provider accepts, even if a model invented it.

    Args:
        name: The name as the model wrote it.
    """
    return _NO_NAME.sub("_", name)[:64] or "unknown"


def readable_arguments(text: str) -> str:
    """Return arguments that every server can read.

    One call with broken JSON must not make the whole transcript unusable.

    Args:
        text: The arguments of a stored call, as the model wrote them.

    Returns:
        The same text if it is a JSON object that is not deeply nested; otherwise an object that
        quotes it.
    """
    arguments = read_json(text)
    if isinstance(arguments, dict) and not nests_deeply(text, arguments):
        return text
    return orjson.dumps({"unreadable_arguments": text}).decode()


def _id_within_limit(call_id: str) -> str:
    # An import or an older version may have stored a longer id.
    if len(call_id) <= MOST_ID_CHARACTERS:
        return call_id
    return f"call_{hashlib.blake2b(call_id.encode(), digest_size=12).hexdigest()}"


def _short_id(call_id: str) -> str:
    if _MISTRAL_ID.match(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=16).hexdigest()[:9]
