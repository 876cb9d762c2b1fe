"""Our messages as pydantic-ai's, and its responses as our replies.

Signed reasoning is sent back only to the provider that signed it.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import orjson
from pydantic_ai import messages as wire

from ricordo.domain.message import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import FinishReason, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.text import storable_json
from ricordo.domain.usage import Usage
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_format import readable_arguments, readable_name
from ricordo.llm.pictures import UNREADABLE, readable_picture
from ricordo.llm.token_logprobs import read_tokens
from ricordo.llm.tokens import estimated_usage, plausible_count

# Providers need a user message first and last, but a cut window may begin with the assistant.
OPENING = "(The conversation goes on.)"
# Several providers refuse an empty tool result.
EMPTY = "(no output)"
# Call ids that Anthropic and Bedrock accept. Calls of other models may have other ids.
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REDACTED = ("redacted_thinking", "redacted_content")
_SIGNATURE = "thought_signature"
_SURROGATE = re.compile("[\ud800-\udfff]")
# pydantic-ai's name of OpenAI. OpenAI's reasoning arrives as summaries with one id, and is sent
# back in this form.
OPENAI = "openai"
# The separator between the summaries of one piece of reasoning.
THOUGHT_BREAK = "\n\n"
# Claude paused and would continue on request. We use its text so far as the answer.
_PAUSES = {"pause_turn"}
_FINISHES: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}


def to_messages(messages: Iterable[Message], provider: str, system: str) -> list[wire.ModelMessage]:
    """Return the transcript in order, with neighbours of one side merged.

    Args:
        messages: The messages of a request.
        provider: Our name of the provider. Reasoning that it signed is sent back to it.
        system: pydantic-ai's name of this provider.
    """
    return _Transcript(provider, system).of(messages)


@dataclass(slots=True)
class _Transcript:
    """A transcript under construction.

    `names` maps stored call ids to the ids that are sent.
    """

    provider: str
    system: str
    messages: list[wire.ModelMessage] = field(default_factory=list)
    pending: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    sent_ids: set[str] = field(default_factory=set)

    def of(self, messages: Iterable[Message]) -> list[wire.ModelMessage]:
        for number, message in enumerate(messages):
            if message.role == "assistant" or (message.role == "approval" and message.tool_calls):
                parts = [new for part in message.parts for new in self._response_parts(part)]
                # OpenAI refuses reasoning at the end of an answer if no content follows it.
                while self.system == OPENAI and parts and parts[-1].part_kind == "thinking":
                    parts.pop()
                if parts:
                    self._answer(parts)
            else:
                self.pending += self._request_parts(message, is_first=number == 0)
        self._ask()
        return self.messages

    def _answer(self, parts: list[Any]) -> None:
        if self.pending or not self.messages:
            self._ask()
        last = self.messages[-1]
        if isinstance(last, wire.ModelResponse):
            last.parts = [*last.parts, *parts]
        else:
            self.messages.append(wire.ModelResponse(parts=parts, provider_name=self.system))

    def _ask(self) -> None:
        content_types = (wire.UserPromptPart, wire.ToolReturnPart)
        if not any(isinstance(part, content_types) for part in self.pending):
            self.pending.append(wire.UserPromptPart(OPENING))
        self.messages.append(wire.ModelRequest(parts=self.pending))
        self.pending = []

    def _request_parts(self, message: Message, *, is_first: bool) -> list[Any]:
        if message.role == "system" and (is_first or self.system == OPENAI):
            if message.text.strip():
                return [wire.SystemPromptPart(message.text)]
            return []
        if message.role in {"tool", "approval"}:
            return [
                wire.ToolReturnPart(
                    tool_name=readable_name(part.name),
                    content=part.content if part.content.strip() else EMPTY,
                    tool_call_id=self.names.get(part.call_id, part.call_id),
                    outcome="success" if part.status == "success" else "failed",
                )
                for part in message.tool_returns
            ]
        # A later system message is sent at its position with the user's role. At the top it would
        # change the cached prompt.
        content = [piece for part in message.parts if (piece := _piece(part)) is not None]
        if not content:
            return []
        is_text = len(content) == 1 and isinstance(content[0], str)
        return [wire.UserPromptPart(content[0] if is_text else content)]

    def _response_parts(self, part: Part) -> list[Any]:
        match part:
            case TextPart() if part.text.strip():
                if part.signature:
                    details = {_SIGNATURE: part.signature}
                else:
                    details = None
                return [
                    wire.TextPart(
                        part.text,
                        provider_name=self.system if details else None,
                        provider_details=details,
                    )
                ]
            case ToolCallPart():
                arguments = readable_arguments(part.arguments)
                return [
                    wire.ToolCallPart(
                        readable_name(part.name), arguments, self._new_id(part.call_id)
                    )
                ]
            case ReasoningPart() if part.provider == self.provider and self.system == OPENAI:
                return self._summaries(part.signature or part.redacted or "")
            case ReasoningPart() if part.provider == self.provider and part.redacted:
                return [
                    wire.ThinkingPart(
                        "", id=_REDACTED[0], signature=part.redacted, provider_name=self.system
                    )
                ]
            case ReasoningPart() if part.provider == self.provider and part.signature:
                return [
                    wire.ThinkingPart(
                        part.text, signature=part.signature, provider_name=self.system
                    )
                ]
            case _:
                return []

    def _summaries(self, proof: str) -> list[Any]:
        """Return OpenAI's reasoning as it came.

        It is a list of summaries; the first one has the encrypted content.
        """
        if not isinstance(reasoning := read_json(proof), dict):
            return []
        return [
            wire.ThinkingPart(
                text,
                id=reasoning.get("id"),
                signature=None if index else reasoning.get("encrypted_content"),
                provider_name=self.system,
            )
            for index, text in enumerate(reasoning.get("summary") or [""])
        ]

    def _new_id(self, call_id: str) -> str:
        """Return the id to send for a call; an id that is malformed or already used is replaced."""
        name = call_id
        while not _ID.fullmatch(name) or name in self.sent_ids:
            seed = f"{call_id} {len(self.sent_ids)} {name}"
            name = f"call_{hashlib.sha256(seed.encode()).hexdigest()[:24]}"
        self.sent_ids.add(name)
        self.names[call_id] = name
        return name


def _piece(part: Part) -> Any:
    if isinstance(part, TextPart):
        if part.text.strip():
            return part.text
        return None
    if isinstance(part, ImagePart):
        picture = readable_picture(part)
        if picture is None:
            return UNREADABLE
        if picture.url is not None:
            return wire.ImageUrl(picture.url, media_type=picture.media_type or None)
        return wire.BinaryContent(
            base64.b64decode(picture.data or ""), media_type=picture.media_type
        )
    return None


def to_reply(response: wire.ModelResponse, info: ModelInfo, request: ModelRequest) -> ModelReply:
    """Return the reply in a provider's response.

    Args:
        response: The response of pydantic-ai. The SDKs do not check the types of its fields.
        info: The model that answered.
        request: The request, from which usage is estimated if the provider reports none.

    Raises:
        TypeError: A text, or the name of a call, is not a string.
    """
    groups = _grouped(response.parts)
    parts = [part for group in groups for part in _our_parts(group, info.provider)]
    # OpenAI's refusal, which the library removes from the text.
    if refusal := (response.provider_details or {}).get("refusal"):
        parts = [TextPart(whole_text(str(refusal)))]
    counts = response.usage
    reasoning = counts.details.get("reasoning_tokens") or counts.details.get("thoughts_tokens")
    usage = Usage(
        prompt_tokens=plausible_count(counts.input_tokens) or 0,
        completion_tokens=plausible_count(counts.output_tokens) or 0,
        cached_tokens=plausible_count(counts.cache_read_tokens),
        cache_write_tokens=plausible_count(counts.cache_write_tokens),
        reasoning_tokens=plausible_count(reasoning),
    )
    has_ended = refusal or _own_reason(response) in _PAUSES
    finish = "stop" if has_ended else _FINISHES.get(response.finish_reason, "unknown")
    reply = ModelReply(
        tuple(parts),
        usage,
        finish,
        unchanged_text(response.model_name) or info.name,
        _logprobs(response, request),
    )
    if reply.usage.total_tokens:
        return reply
    return replace(reply, usage=estimated_usage(request, reply))


def _logprobs(
    response: wire.ModelResponse, request: ModelRequest
) -> dict[str, list[dict[str, Any]]] | None:
    if request.logprobs is None:
        return None
    lists = [
        (part.provider_details or {}).get("logprobs")
        for part in response.parts
        if part.part_kind == "text"
    ]
    tokens = [token for rows in lists if isinstance(rows, list) for token in read_tokens(rows)]
    if tokens:
        return {"content": tokens}
    return None


def is_finished(response: wire.ModelResponse) -> bool:
    return response.finish_reason is not None or _own_reason(response) is not None


def _own_reason(response: wire.ModelResponse) -> Any:
    return (response.provider_details or {}).get("finish_reason")


def is_summary(part: Any) -> bool:
    return part.part_kind == "thinking" and bool(part.id) and part.id not in _REDACTED


def _grouped(parts: Iterable[Any]) -> Iterator[list[Any]]:
    for _, group in groupby(
        enumerate(parts), lambda row: row[1].id if is_summary(row[1]) else row[0]
    ):
        yield [part for _, part in group]


def _our_parts(group: list[Any], provider: str) -> list[Part]:
    part = group[0]
    signature = unchanged_text((part.provider_details or {}).get(_SIGNATURE))
    match part.part_kind:
        case "text" if text := whole_text(part.content):
            return [TextPart(text, signature)]
        case "thinking" if is_summary(part):
            return _thought(group, provider)
        case "thinking" if part.id in _REDACTED:
            redacted = unchanged_text(part.signature)
            return [ReasoningPart("", redacted=redacted, provider=provider)] if redacted else []
        case "thinking" if part.content or part.signature:
            text, proof = whole_text(part.content), unchanged_text(part.signature)
            return [ReasoningPart(text, signature=proof, provider=provider)]
        case "tool-call":
            call = ToolCallPart(
                unchanged_text(part.tool_call_id) or "",
                whole_text(part.tool_name),
                arguments_of(part.args),
            )
            if not signature:
                return [call]
            # Google signs the call itself. The signature is stored as empty reasoning before the
            # call.
            return [ReasoningPart("", signature=signature, provider=provider), call]
        case _:
            return []


def _thought(group: list[Any], provider: str) -> list[Part]:
    """Return one piece of OpenAI's reasoning, with the content that must be sent back."""
    first = group[0]
    texts = [text for part in group if (text := whole_text(part.content))]
    raw_texts = (first.provider_details or {}).get("raw_content") or ()
    text = THOUGHT_BREAK.join(texts or map(whole_text, raw_texts))
    proof = None
    if signature := unchanged_text(first.signature):
        original = {"id": first.id, "summary": texts, "encrypted_content": signature}
        proof = orjson.dumps(original).decode()
    if text:
        return [ReasoningPart(text, signature=proof, provider=provider)]
    if proof:
        return [ReasoningPart("", redacted=proof, provider=provider)]
    return []


def arguments_of(arguments: Any) -> str:
    if isinstance(arguments, str) or arguments is None:
        return whole_text(arguments)
    return orjson.dumps(storable_json(arguments)).decode()


def whole_text(field: Any) -> str:
    """Return a text of an answer, with U+FFFD for halves of characters.

    Args:
        field: A field of the answer. None is an empty text.

    Raises:
        TypeError: The field is not a string.
    """
    if field is None:
        return ""
    if not isinstance(field, str):
        raise TypeError(f"a text is of the type {type(field).__name__}")
    if _SURROGATE.search(field) is None:
        return field
    # Two halves beside each other are one character.
    return field.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def unchanged_text(field: Any) -> str | None:
    """Return a field that is only useful unchanged, such as a signature.

    Returns None if it is not a string, or has halves of characters.

    Args:
        field: A field of an answer.
    """
    if isinstance(field, str) and _SURROGATE.search(field) is None:
        return field
    return None
