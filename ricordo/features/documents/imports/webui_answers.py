"""Answers of Open WebUI, split into text and thoughts.

Thoughts are in the text as HTML, or in a list of outputs.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A match contains no beginning of another block. Without this limit, a text with many unclosed
# blocks would take quadratic time.
_DETAILS = re.compile(
    r"<details\b([^<>]*)>((?:(?!<details\b).)*?)</details>\n?", re.DOTALL | re.IGNORECASE
)
_TYPE = re.compile(r"""\btype=["']?([\w-]+)""", re.IGNORECASE)
_SUMMARY = re.compile(r"<summary>(?:(?!<summary>).)*?</summary>", re.DOTALL | re.IGNORECASE)
_TAGS = re.compile(
    r"\s*<(think|thinking|thought|reason|reasoning)>(.*?)</\1>\s*", re.DOTALL | re.IGNORECASE
)
_QUOTED = re.compile(r"^> ?", re.MULTILINE)


@dataclass(slots=True)
class WebuiAnswer:
    """An answer in parts; `tools` counts tool calls."""

    text: str = ""
    thoughts: list[str] = field(default_factory=list)
    tools: int = 0


def split_answer(text: str) -> WebuiAnswer:
    """Split a text into its visible part and its HTML blocks.

    Blocks of unknown types stay in the text.
    """
    answer = WebuiAnswer()

    def extract(block: re.Match[str]) -> str:
        kind = _TYPE.search(block[1])
        match kind[1].lower() if kind else None:
            case "reasoning":
                inner = html.unescape(_SUMMARY.sub("", block[2], count=1))
                answer.thoughts.append(_QUOTED.sub("", inner.strip()))
            case "tool_calls" | "code_interpreter":
                answer.tools += 1
            case _:
                return block[0]
        return ""

    visible = _DETAILS.sub(extract, text)
    begin = 0
    while tag := _TAGS.match(visible, begin):
        answer.thoughts.append(tag[2].strip())
        begin = tag.end()
    visible = visible[begin:]
    if visible != text:
        answer.text = visible.strip()
    else:
        answer.text = text
    return answer


def read_outputs(outputs: Any) -> WebuiAnswer:
    """Return an answer from a list of outputs, as in OpenAI's Responses API."""
    answer = WebuiAnswer()
    texts: list[str] = []
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, Mapping):
            continue
        match output.get("type"):
            case "message":
                texts += _texts(output.get("content"))
            case "reasoning":
                answer.thoughts += _texts(output.get("content")) or _texts(output.get("summary"))
            case str(kind) if kind.endswith(("_call", "_call_output")):
                answer.tools += kind.endswith("_call")
    whole = split_answer("\n".join(texts))
    return WebuiAnswer(whole.text, [*answer.thoughts, *whole.thoughts], answer.tools + whole.tools)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    pieces = content if isinstance(content, list) else []
    return [
        str(piece["text"]) for piece in pieces if isinstance(piece, Mapping) and piece.get("text")
    ]
