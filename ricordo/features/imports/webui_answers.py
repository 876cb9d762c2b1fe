"""Answers of Open WebUI: what is said, and beside it the thoughts, which stand in its text as HTML, or in a list of outputs."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Each ends before the next one begins: else text with many that never end would take time as the square of its length.
_DETAILS = re.compile(
    r"<details\b([^<>]*)>((?:(?!<details\b).)*?)</details>\n?", re.DOTALL | re.IGNORECASE
)
_TYPE = re.compile(r"""\btype=["']?([\w-]+)""", re.IGNORECASE)
_SUMMARY = re.compile(r"<summary>(?:(?!<summary>).)*?</summary>", re.DOTALL | re.IGNORECASE)
_TAGS = re.compile(
    r"\A\s*<(think|thinking|thought|reason|reasoning)>(.*?)</\1>\s*", re.DOTALL | re.IGNORECASE
)
_QUOTED = re.compile(r"^> ?", re.MULTILINE)


@dataclass(slots=True)
class WebuiAnswer:
    """An answer in parts; `tools` counts uses of tools."""

    text: str = ""
    thoughts: list[str] = field(default_factory=list)
    tools: int = 0


def split_answer(text: str) -> WebuiAnswer:
    """Return what is said of a text, and what stands in blocks of HTML in it; blocks of other types stay."""
    answer = WebuiAnswer()

    def take(found: re.Match[str]) -> str:
        kind = _TYPE.search(found[1])
        match kind[1].lower() if kind else None:
            case "reasoning":
                inner = html.unescape(_SUMMARY.sub("", found[2], count=1))
                answer.thoughts.append(_QUOTED.sub("", inner.strip()))
            case "tool_calls" | "code_interpreter":
                answer.tools += 1
            case _:
                return found[0]
        return ""

    said = _DETAILS.sub(take, text)
    while found := _TAGS.match(said):
        answer.thoughts.append(found[2].strip())
        said = said[found.end() :]
    answer.text = said.strip() if said != text else text
    return answer


def read_outputs(outputs: Any) -> WebuiAnswer:
    """Return an answer that is a list of outputs, as OpenAI's responses have them."""
    answer, texts = WebuiAnswer(), []
    for one in outputs if isinstance(outputs, list) else ():
        if not isinstance(one, Mapping):
            continue
        match one.get("type"):
            case "message":
                texts += _texts(one.get("content"))
            case "reasoning":
                answer.thoughts += _texts(one.get("content")) or _texts(one.get("summary"))
            case str(kind) if kind.endswith(("_call", "_call_output")):
                answer.tools += kind.endswith("_call")
    whole = split_answer("\n".join(texts))
    return WebuiAnswer(whole.text, [*answer.thoughts, *whole.thoughts], answer.tools + whole.tools)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    pieces = content if isinstance(content, list) else []
    return [str(one["text"]) for one in pieces if isinstance(one, Mapping) and one.get("text")]
