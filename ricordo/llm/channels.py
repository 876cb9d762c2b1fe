"""The channels of gpt-oss, where a server left them in the text: thoughts, words to the user, and calls of functions. Pure.

Some servers drop the special signs and leave the words between them: `analysisThe user …assistantfinalHello`.
"""

import re
from dataclasses import dataclass, field

from ricordo.llm.loose_json import read_value_at

_SIGN = re.compile(r"<\|(start|channel|constrain|message|end|return|call)\|>")
_SPOKEN = re.compile(r"(?<=.)assistant(?=(?:analysis|commentary|final))", re.DOTALL)
_SPOKEN_CHANNEL = re.compile(r"(?<=<\|channel\|>)(analysis|final)")
_SPOKEN_CALL = re.compile(
    r"(?<=<\|channel\|>)(commentary[ \t]{0,9}to=functions\.[\w.-]{1,128})[ \t]{0,9}(?:json|code)?\s{0,9}(?=\{)"
)
_RECIPIENT = re.compile(r"\bto=([\w.:-]{1,128})")
_IN_WORDS = re.compile(
    r"(?:analysis(?=[A-Z])|assistantfinal|assistantcommentary|assistantanalysis)"
)


@dataclass(slots=True)
class Channels:
    """The parts of an answer; `calls` are names with arguments as they were written."""

    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)


def has_channels(text: str) -> bool:
    """Return whether a text is made of channels, with their signs or in words."""
    if "<|channel|>" in text:
        return text.lstrip().startswith("<|") or "<|message|>" in text
    return (text.startswith("analysis") and "assistantfinal" in text) or text.startswith(
        ("assistantfinal", "assistantcommentary")
    )


def may_become_channels(text: str) -> bool:
    """Return whether a text that goes on may turn out to be channels in words."""
    return _IN_WORDS.match(text) is not None


def split_channels(text: str) -> Channels:
    """Take the channels of a text apart."""
    if "<|channel|>" not in text:
        text = _with_signs(text)
    channels = Channels()
    header: list[str] = []
    # Before the first sign, and behind the last one of a message, stands content without a header.
    is_content = is_between = True
    at = 0
    for sign in _SIGN.finditer(text):
        piece = text[at : sign.start()]
        at = sign.end()
        if is_content:
            # What the template began is a thought that ends with the first sign.
            began = "analysis" if is_between and sign[1] == "end" else "final"
            _add(channels, " ".join(header) or began, piece)
            header, is_content = [], False
        else:
            header.append(piece)
        is_between = sign[1] in ("end", "return", "call")
        is_content = is_between or sign[1] == "message"
    _add(channels, " ".join(header) or "final", text[at:] if is_content else "")
    return channels


def _with_signs(text: str) -> str:
    text = text if text.startswith("assistant") else f"assistant{text}"
    text = (
        _SPOKEN.sub("<|end|><|start|>assistant<|channel|>", f" {text}")
        .removeprefix(" ")
        .removeprefix("<|end|>")
    )
    return _SPOKEN_CALL.sub(r"\1<|message|>", _SPOKEN_CHANNEL.sub(r"\1<|message|>", text))


def _add(channels: Channels, header: str, content: str) -> None:
    recipient = _RECIPIENT.search(header)
    if recipient and recipient[1] != "user":
        arguments = content.strip()
        value = read_value_at(arguments, 0) if arguments.startswith("{") else None
        end = value[1] if value else len(arguments)
        # Without any arguments it was cut off: these cannot be read either.
        channels.calls.append((recipient[1], arguments[:end] or "{"))
        if said := arguments[end:].strip():
            channels.texts.append(said)
    elif content.strip():
        (channels.thoughts if "analysis" in header else channels.texts).append(content.strip())
