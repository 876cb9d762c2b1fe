"""The channels of gpt-oss that a server left in the text. Pure.

Channels hold reasoning, text for the user and function calls. Some servers drop the special tokens
and leave only the words between them: `analysisThe user …assistantfinalHello`.
"""

import re
from dataclasses import dataclass, field

from ricordo.llm.loose_json import read_value_at

_TOKEN = re.compile(r"<\|(start|channel|constrain|message|end|return|call)\|>")
_BARE_MESSAGE = re.compile(r"(?<=.)assistant(?=(?:analysis|commentary|final))", re.DOTALL)
_BARE_CHANNEL = re.compile(r"(?<=<\|channel\|>)(analysis|final)")
_BARE_CALL = re.compile(
    r"(?<=<\|channel\|>)(commentary[ \t]{0,9}to=functions\.[\w.-]{1,128})[ \t]{0,9}(?:json|code)?\s{0,9}(?=\{)"
)
_RECIPIENT = re.compile(r"\bto=([\w.:-]{1,128})")
_BARE_BEGINNING = re.compile(
    r"(?:analysis(?=[A-Z])|assistantfinal|assistantcommentary|assistantanalysis)"
)


@dataclass(slots=True)
class Channels:
    """The parts of an answer.

    `calls` holds the name of each call and its arguments as the model wrote them.
    """

    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)


def has_channels(text: str) -> bool:
    """Return whether a text consists of channels, with or without their tokens."""
    if "<|channel|>" in text:
        return text.lstrip().startswith("<|") or "<|message|>" in text
    return (text.startswith("analysis") and "assistantfinal" in text) or text.startswith(
        ("assistantfinal", "assistantcommentary")
    )


def may_become_channels(text: str) -> bool:
    """Return whether an unfinished text may turn out to be channels without tokens."""
    return _BARE_BEGINNING.match(text) is not None


def split_channels(text: str) -> Channels:
    """Split a text into its channels."""
    if "<|channel|>" not in text:
        text = _restore_tokens(text)
    channels = Channels()
    header: list[str] = []
    # The text before the first token and after the last token of a message has no header.
    is_content = is_between = True
    position = 0
    for token in _TOKEN.finditer(text):
        piece = text[position : token.start()]
        position = token.end()
        if is_content:
            # If the template began the reasoning, the first token ends it.
            if is_between and token[1] == "end":
                default_header = "analysis"
            else:
                default_header = "final"
            _add(channels, " ".join(header) or default_header, piece)
            header = []
        else:
            header.append(piece)
        is_between = token[1] in ("end", "return", "call")
        is_content = is_between or token[1] == "message"
    _add(channels, " ".join(header) or "final", text[position:] if is_content else "")
    return channels


def _restore_tokens(text: str) -> str:
    if not text.startswith("assistant"):
        text = f"assistant{text}"
    text = (
        _BARE_MESSAGE.sub("<|end|><|start|>assistant<|channel|>", f" {text}")
        .removeprefix(" ")
        .removeprefix("<|end|>")
    )
    return _BARE_CALL.sub(r"\1<|message|>", _BARE_CHANNEL.sub(r"\1<|message|>", text))


def _add(channels: Channels, header: str, content: str) -> None:
    recipient = _RECIPIENT.search(header)
    if recipient and recipient[1] != "user":
        arguments = content.strip()
        if arguments.startswith("{"):
            parsed = read_value_at(arguments, 0)
        else:
            parsed = None
        end = parsed[1] if parsed else len(arguments)
        # A call without arguments was cut off: "{" makes it unreadable, like other calls that were
        # cut off.
        channels.calls.append((recipient[1], arguments[:end] or "{"))
        if text := arguments[end:].strip():
            channels.texts.append(text)
    elif text := content.strip():
        if "analysis" in header:
            pieces = channels.thoughts
        else:
            pieces = channels.texts
        pieces.append(text)
