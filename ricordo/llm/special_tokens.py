"""Special tokens of chat templates in texts: broken on their way to a model, whole again in what it answers.

A server that renders a chat template reads `<|im_start|>` in a text as the beginning of a message, whoever wrote it: so a note, a
tool's result or a user could speak in another's name. A sign that nobody sees, behind its first sign, makes it a word like any
other. Text without such a token goes out as it is, to the byte; nothing that is stored changes.
"""

import re
from dataclasses import replace

import orjson

from ricordo.domain.message import Message, Part, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ModelRequest, ToolSchema

_BREAK = "\u200b"
_NAMES = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|MODEL_SETTINGS|THINK|ARGS|CALL_ID"
# What stands behind the first sign of each token: it is only looked at, so that tokens within are found too.
_BEHIND: tuple[tuple[str, tuple[str, ...]], ...] = (
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
# DeepSeek's `<｜User｜>`, with wide bars
_IN_JSON = re.compile(
    "|".join(rf"{sign}(?={'|'.join(behind)})" for sign, behind in _BEHIND).encode()
    + rb"|<(?=\xef\xbd\x9c[\w\x80-\xff]{1,99}>)"
)
_BROKEN = re.compile(
    rf"(?<=[<\[\]])(?:{_BREAK}|\\u200[bB])(?={'|'.join(one for _, behind in _BEHIND for one in behind)}|\uff5c|\\uff5c)"
)
_IN_BYTES = _BREAK.encode()


def break_tokens(json: bytes) -> bytes:
    """The JSON, each special token in its texts broken after its first sign."""
    return _IN_JSON.sub(lambda found: found[0] + _IN_BYTES, json)


def mend_tokens(text: str) -> str:
    """What a model wrote, the tokens that it copied from a broken text whole again; also in JSON."""
    return _BROKEN.sub("", text) if _BREAK in text or "\\u200" in text else text


def with_broken_tokens(request: ModelRequest) -> ModelRequest:
    """The request, the tokens in its messages and tools broken; for adapters that make no JSON themselves."""
    messages, tools = (
        tuple(map(_broken_message, request.messages)),
        tuple(map(_broken_tool, request.tools)),
    )
    return replace(request, messages=messages, tools=tools)


def with_whole_tokens(reply: ModelReply) -> ModelReply:
    def mended(part: Part) -> Part:
        match part:
            case TextPart():
                return replace(part, text=mend_tokens(part.text))
            case ToolCallPart():
                return replace(part, arguments=mend_tokens(part.arguments))
            case _:
                return part

    return replace(reply, parts=tuple(map(mended, reply.parts)))


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
