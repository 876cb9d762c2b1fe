"""Cheap estimates of a text's tokens, without a vocabulary.

Four ASCII characters count as one token. So do two characters of other alphabets (Cyrillic, Arabic,
accents), and each Chinese, Japanese or Korean character. JSON and code take a third more. The
provider's count is meant to correct the estimate.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from ricordo.domain.message import (
    ApprovalPart,
    CompactionPart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelReply, ModelRequest, ToolSchema
from ricordo.domain.usage import Usage

MESSAGE_TOKENS = 4
# No answer has more. A higher count is a server's mistake and may not fit into a database.
MOST_TOKENS = 2**31 - 1
_MOST_DIGITS = 12
# Providers count between 700 and 1,600 for a picture of usual size.
IMAGE_TOKENS = 1_000
_WIDE = re.compile(
    "[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U0001f000-\U0003ffff]+"
)


def text_tokens(text: str) -> int:
    """Return an estimate of the tokens of a text.

    Args:
        text: Any text; JSON and code have more tokens than the estimate.
    """
    if text.isascii():
        return (len(text) + 3) // 4
    return _wider_tokens(text)


def _wider_tokens(text: str) -> int:
    ascii_length = len(text.encode("ascii", "ignore"))
    other = len(text) - ascii_length
    # If every character takes at most two bytes in UTF-8, none is wide, so the slow count is not
    # needed.
    is_narrow = len(text.encode("utf-8", "surrogatepass")) == len(text) + other
    if is_narrow:
        wide = 0
    else:
        wide = sum(map(len, _WIDE.findall(text)))
    return (ascii_length + 3) // 4 + wide + (other - wide + 1) // 2


def shortened(text: str, tokens: int) -> str:
    """Return the beginning of the text, of about this many tokens.

    A shorter text is returned whole.

    Args:
        text: A text for an embedding model.
        tokens: The most tokens by our estimate, 0 or more.
    """
    text = text[: tokens * 4]
    while (size := text_tokens(text)) > tokens:
        text = text[: max(1, min(len(text) - 1, len(text) * tokens // size))]
    return text


def writable(text: str) -> str:
    """Return the text with a "?" in place of each lone surrogate, which UTF-8 cannot write.

    Args:
        text: A text for another program.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def part_tokens(part: Part) -> int:
    """Return the tokens of one part.

    Reasoning counts if its provider may need it back: if it is signed, redacted or marked with the
    provider.

    Args:
        part: The part. A picture has a fixed estimate; decisions and marks of a compaction have
            none.
    """
    match part:
        case TextPart():
            return text_tokens(part.text)
        case ToolReturnPart():
            return text_tokens(part.content) + MESSAGE_TOKENS
        case ToolCallPart():
            return text_tokens(part.name) + text_tokens(part.arguments) + MESSAGE_TOKENS
        case ImagePart():
            return IMAGE_TOKENS
        case ReasoningPart():
            if part.signature or part.provider:
                visible = text_tokens(part.text)
            else:
                visible = 0
            return visible + (text_tokens(part.redacted) if part.redacted else 0)
        case ApprovalPart() | CompactionPart():
            return 0


def message_tokens(message: Message) -> int:
    """Return an estimate of the tokens of a message in a prompt.

    Args:
        message: A message of the transcript.
    """
    return MESSAGE_TOKENS + sum(map(part_tokens, message.parts))


def tool_tokens(tools: Sequence[ToolSchema]) -> int:
    """Return an estimate of the tokens of tools in a prompt.

    Args:
        tools: The offered tools. Their schemas count as JSON.
    """
    return sum(
        text_tokens(tool.name)
        + text_tokens(tool.description)
        + len(orjson.dumps(tool.parameters)) // 4
        + MESSAGE_TOKENS
        for tool in tools
    )


def request_tokens(request: ModelRequest) -> int:
    """Return an estimate of the tokens of a whole prompt, with its tools.

    Args:
        request: The request, of which messages and tools count.
    """
    return sum(map(message_tokens, request.messages)) + tool_tokens(request.tools)


def transcript_tokens(messages: Iterable[Message]) -> int:
    """Return an estimate of the tokens of messages in a prompt.

    Args:
        messages: The messages, with the system message if it is to count.
    """
    return sum(map(message_tokens, messages))


def estimated_usage(request: ModelRequest, reply: ModelReply) -> Usage:
    """Return an estimate of a call's tokens, for servers that report none.

    Args:
        request: The request, for the tokens of the prompt.
        reply: The reply. All of its reasoning counts, although a later prompt may leave it out.
    """
    completion_tokens = sum(
        text_tokens(part.text) if isinstance(part, ReasoningPart) else part_tokens(part)
        for part in reply.parts
    )
    return Usage(prompt_tokens=request_tokens(request), completion_tokens=completion_tokens)


def plausible_count(count: Any) -> int | None:
    """Return a server's count of tokens; None if it cannot be one.

    Args:
        count: The value of a field in a server's answer.
    """
    if isinstance(count, str) and count.strip().isdecimal() and len(count) <= _MOST_DIGITS:
        count = int(count)
    is_number = isinstance(count, int | float) and not isinstance(count, bool)
    if is_number and 0 <= count <= MOST_TOKENS:
        return int(count)
    return None
