"""Our messages as pydantic-ai's, and its responses as our replies. What a provider signed goes back to that provider only."""

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
from ricordo.domain.usage import Usage
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_format import readable_arguments, readable_name
from ricordo.llm.pictures import UNREADABLE, readable_picture
from ricordo.llm.token_logprobs import read_tokens
from ricordo.llm.tokens import estimated_usage, plausible_count

# Providers want a conversation to begin and to end with the user; a window that was cut may begin with the assistant.
OPENING = "(The conversation goes on.)"
# A result without a word is refused by several providers.
EMPTY = "(no output)"
# What Anthropic and Bedrock take as the id of a call and as the name of a tool. Other models' calls come with other ones.
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REDACTED = ("redacted_thinking", "redacted_content")
_SIGNATURE = "thought_signature"
# What pydantic-ai calls OpenAI: its thoughts come as summaries with one id, and go back with it.
OPENAI = "openai"
# Between the summaries of one thought.
THOUGHT_BREAK = "\n\n"
# Claude rests, and would go on if it were asked to: what it said so far is an answer.
_PAUSES = {"pause_turn"}
_FINISHES: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}


def to_messages(messages: Iterable[Message], provider: str, system: str) -> list[wire.ModelMessage]:
    """The transcript in order, neighbours on one side merged; `system` is pydantic-ai's name of this provider."""
    return _Transcript(provider, system).of(messages)


@dataclass(slots=True)
class _Transcript:
    """Puts a transcript together. `names` holds the ids of calls as they go out, by those that are stored."""

    provider: str
    system: str
    result: list[wire.ModelMessage] = field(default_factory=list)
    pending: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def of(self, messages: Iterable[Message]) -> list[wire.ModelMessage]:
        for number, message in enumerate(messages):
            if message.role == "assistant" or (message.role == "approval" and message.tool_calls):
                parts = [part for own in message.parts for part in self._response_parts(own)]
                # Thoughts at the very end, with nothing of the model behind them, are refused by OpenAI.
                while self.system == OPENAI and parts and parts[-1].part_kind == "thinking":
                    parts.pop()
                if parts:
                    self._answer(parts)
            else:
                self.pending += self._request_parts(message, is_first=number == 0)
        self._ask()
        return self.result

    def _answer(self, parts: list[Any]) -> None:
        if self.pending or not self.result:
            self._ask()
        last = self.result[-1]
        if isinstance(last, wire.ModelResponse):
            last.parts = [*last.parts, *parts]
        else:
            self.result.append(wire.ModelResponse(parts=parts, provider_name=self.system))

    def _ask(self) -> None:
        if not any(
            isinstance(part, (wire.UserPromptPart, wire.ToolReturnPart)) for part in self.pending
        ):
            self.pending.append(wire.UserPromptPart(OPENING))
        self.result.append(wire.ModelRequest(parts=self.pending))
        self.pending = []

    def _request_parts(self, message: Message, *, is_first: bool) -> list[Any]:
        if message.role == "system" and (is_first or self.system == OPENAI):
            return [wire.SystemPromptPart(message.text)] if message.text.strip() else []
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
        # A later system message stays in its place, in the user's voice: at the top it would rewrite the cached prompt.
        content = [piece for part in message.parts if (piece := _piece(part)) is not None]
        if not content:
            return []
        plain = content[0] if len(content) == 1 and isinstance(content[0], str) else content
        return [wire.UserPromptPart(plain)]

    def _response_parts(self, part: Part) -> list[Any]:
        match part:
            case TextPart() if part.text.strip():
                details = {_SIGNATURE: part.signature} if part.signature else None
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
        """Return OpenAI's thoughts as they came: their summaries, the first with what is encrypted."""
        if not isinstance(kept := read_json(proof), dict):
            return []
        return [
            wire.ThinkingPart(
                text,
                id=kept.get("id"),
                signature=None if at else kept.get("encrypted_content"),
                provider_name=self.system,
            )
            for at, text in enumerate(kept.get("summary") or [""])
        ]

    def _new_id(self, call_id: str) -> str:
        """The id of a call as it goes out: its own, unless it has signs that are refused or an earlier call had it."""
        name = call_id
        while not _ID.fullmatch(name) or name in self.used:
            name = (
                "call_"
                + hashlib.sha256(f"{call_id} {len(self.used)} {name}".encode()).hexdigest()[:24]
            )
        self.used.add(name)
        self.names[call_id] = name
        return name


def _piece(part: Part) -> Any:
    if isinstance(part, TextPart):
        return part.text if part.text.strip() else None
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
    """Return the reply in a provider's response."""
    parts = [own for group in _grouped(response.parts) for own in _our_parts(group, info.provider)]
    if refusal := (response.provider_details or {}).get(
        "refusal"
    ):  # OpenAI's, which the library takes out of the text
        parts = [TextPart(str(refusal))]
    counted = response.usage
    thought = counted.details.get("reasoning_tokens") or counted.details.get("thoughts_tokens")
    usage = Usage(
        prompt_tokens=plausible_count(counted.input_tokens) or 0,
        completion_tokens=plausible_count(counted.output_tokens) or 0,
        cached_tokens=plausible_count(counted.cache_read_tokens),
        cache_write_tokens=plausible_count(counted.cache_write_tokens),
        reasoning_tokens=plausible_count(thought),
    )
    has_ended = refusal or _own_reason(response) in _PAUSES
    finish = "stop" if has_ended else _FINISHES.get(response.finish_reason, "unknown")
    reply = ModelReply(
        tuple(parts), usage, finish, response.model_name or info.name, _logprobs(response, request)
    )
    return (
        reply if reply.usage.total_tokens else replace(reply, usage=estimated_usage(request, reply))
    )


def _logprobs(
    response: wire.ModelResponse, request: ModelRequest
) -> dict[str, list[dict[str, Any]]] | None:
    if request.logprobs is None:
        return None
    found = [
        (part.provider_details or {}).get("logprobs")
        for part in response.parts
        if part.part_kind == "text"
    ]
    tokens = [token for rows in found if isinstance(rows, list) for token in read_tokens(rows)]
    return {"content": tokens} if tokens else None


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
    signature = (part.provider_details or {}).get(_SIGNATURE)
    match part.part_kind:
        case "text" if part.content:
            return [TextPart(part.content, signature)]
        case "thinking" if is_summary(part):
            return _thought(group, provider)
        case "thinking" if part.id in _REDACTED:
            return [ReasoningPart("", redacted=part.signature, provider=provider)]
        case "thinking" if part.content or part.signature:
            return [ReasoningPart(part.content, signature=part.signature, provider=provider)]
        case "tool-call":
            call = ToolCallPart(part.tool_call_id, part.tool_name, arguments_of(part.args))
            # Google signs the call itself; kept as a thought without words, which goes back right before the call.
            return (
                [ReasoningPart("", signature=signature, provider=provider), call]
                if signature
                else [call]
            )
        case _:
            return []


def _thought(group: list[Any], provider: str) -> list[Part]:
    """One thought of OpenAI's, with what has to go back as it came."""
    first, texts = group[0], [part.content for part in group if part.content]
    text = THOUGHT_BREAK.join(texts or (first.provider_details or {}).get("raw_content") or ())
    kept = {"id": first.id, "summary": texts, "encrypted_content": first.signature}
    proof = orjson.dumps(kept).decode() if first.signature else None
    if not (text or proof):
        return []
    return [
        ReasoningPart(text, proof if text else None, None if text else proof, provider=provider)
    ]


def arguments_of(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else orjson.dumps(arguments).decode()
