"""Special tokens of chat templates: broken in texts for a model, restored in its answers.

A server that renders a chat template reads `<|im_start|>` in any text as the beginning of a
message. So a note, a tool result or a user could speak in another's name. An invisible character
after the token's first character turns the token into ordinary text. Texts without such tokens are
sent unchanged, and stored texts are never changed.
"""

import re
from dataclasses import replace

import orjson

from ricordo.domain.message import Message, Part, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ModelRequest, ToolSchema

_BREAK = "\u200b"
_NAMES = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|MODEL_SETTINGS|THINK|ARGS|CALL_ID"
# The rest of each token, by its first character. A lookahead also matches tokens inside other
# tokens.
_RESTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "<",
        (
            # ChatML, Llama 3, Phi, Qwen, GLM, Granite, Command, Kimi; Gemma 4
            r"\|[\w.:/\x80-\xff-]{1,64}\|?>|\w{1,64}\|>",
            # Llama 2, Mistral, Gemma
            r"(?:/?s|bos|eos|pad|unk|mask|(?:start|end)_of_(?:turn|image|sentence|text)|unused\d+)>|</?SYS>>",
            # GLM, Aya, GPT-2, Nemotron, T5, StarCoder
            r"(?:sop|eop|(?:BOS|EOS|PAD)_TOKEN|endoftext|SPECIAL_\d+|extra_id_\d+|fim_\w{3,6})>",
        ),
    ),
    (
        r"\[",
        (
            # Mistral, Kimi, GLM, MiniMax
            rf"(?:/?(?:{_NAMES})|BOS|EOS|PAD|gMASK|sMASK|MASK|IMG|IMG_BREAK|IMG_END|PREFIX|MIDDLE|SUFFIX)\]|e~\[",
        ),
    ),
    (r"\]", (r"~b\]",)),
)
# The last alternative is DeepSeek's `<｜User｜>`, with wide bars.
_IN_JSON = re.compile(
    "|".join(rf"{first}(?={'|'.join(rests)})" for first, rests in _RESTS).encode()
    + rb"|<(?=\xef\xbd\x9c[\w\x80-\xff]{1,99}>)"
)
_ANY_REST = "|".join(rest for _, rests in _RESTS for rest in rests)
_BROKEN = re.compile(rf"(?<=[<\[\]])(?:{_BREAK}|\\u200[bB])(?={_ANY_REST}|\uff5c|\\uff5c)")
_IN_BYTES = _BREAK.encode()


def break_tokens(json: bytes) -> bytes:
    """Return the JSON with each special token in its texts broken after its first character.

    Args:
        json: JSON in UTF-8, or any text in UTF-8.
    """
    return _IN_JSON.sub(lambda match: match[0] + _IN_BYTES, json)


def mend_tokens(text: str) -> str:
    """Return a model's text or JSON, with the broken tokens that the model copied restored.

    Args:
        text: A text, or JSON in which the invisible character may be escaped.
    """
    if _BREAK in text or "\\u200" in text:
        return _BROKEN.sub("", text)
    return text


def with_broken_tokens(request: ModelRequest) -> ModelRequest:
    """Return the request with broken tokens.

    For adapters that do not build the JSON themselves.

    Args:
        request: The request, which is not changed.
    """
    messages = tuple(map(_broken_message, request.messages))
    tools = tuple(map(_broken_tool, request.tools))
    return replace(request, messages=messages, tools=tools)


def with_whole_tokens(reply: ModelReply) -> ModelReply:
    """Return the reply with the broken tokens that the model copied restored.

    Args:
        reply: The whole reply, which is not changed.
    """

    def mend_part(part: Part) -> Part:
        match part:
            case TextPart():
                return replace(part, text=mend_tokens(part.text))
            case ToolCallPart():
                return replace(part, arguments=mend_tokens(part.arguments))
            case _:
                return part

    return replace(reply, parts=tuple(map(mend_part, reply.parts)))


def _broken_message(message: Message) -> Message:
    return replace(message, parts=tuple(map(_broken_part, message.parts)))


def _broken_part(part: Part) -> Part:
    match part:
        case TextPart():
            return replace(part, text=_broken(part.text))
        case ToolCallPart():
            return replace(part, arguments=_broken(part.arguments))
        case ToolReturnPart():
            return replace(part, content=_broken(part.content))
        case _:
            return part


def _broken_tool(tool: ToolSchema) -> ToolSchema:
    parameters = orjson.loads(break_tokens(orjson.dumps(tool.parameters)))
    return replace(tool, description=_broken(tool.description), parameters=parameters)


def _broken(text: str) -> str:
    return break_tokens(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
