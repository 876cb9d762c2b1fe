"""The mending of a reply while its chunks arrive: thoughts are told from text, and what may be a call is held back.

In the end the chunks say what the mended reply says; where too much was shown by then, the answer starts over.
"""

import re
from collections.abc import Iterator, Sequence

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ReasoningChunk, Restarted, TextChunk, ToolCallChunk, ToolSchema
from ricordo.llm.chat import chunks_of
from ricordo.llm.written_calls import MARKS

_THINKS = ("<think>", "<thinking>")
# A fence that may hold a call; whether it does, only the end of the text tells.
_FENCE = r"```(?:tool_call|tool_code|(?:json)?[ \t]*\n\s*[\[{])"
_HOLD = re.compile("|".join([*map(re.escape, MARKS), _FENCE]))
_HALF_FENCE = re.compile(r"(?:`{1,2}|```[a-z_]*[ \t]*(?:\n\s*)?)$")
_CLOSING = re.compile(r"[ \t]*```")
_LINE_START = 100


class StreamRepair:
    """Feed it every chunk, then close it with the mended reply."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._state = "opening"
        self._held = ""
        self._tag = ""
        self._has_tools = bool(tools)
        self._openings: tuple[str, ...] = _THINKS
        if tools:
            self._openings += ("{", "[{", *MARKS, *(f"[{tool.name}(" for tool in tools))
        self._line, self._is_closed = "", False
        self._text: list[str] = []
        self._thought: list[str] = []
        # By index, the name and the arguments that readers have seen.
        self._calls: dict[int, tuple[str, str]] = {}

    def feed(self, chunk: Chunk) -> Iterator[Chunk]:
        for shown in self._read(chunk):
            self._note(shown)
            yield shown

    def close(self, reply: ModelReply) -> Iterator[Chunk]:
        """What is still to be shown, now that the mended reply is known."""
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        thought = _missing(self._thought, [part.text for part in reply.parts if isinstance(part, ReasoningPart)])
        text = _missing(self._text, [part.text for part in reply.parts if isinstance(part, TextPart)])
        agrees = all(
            index < len(calls) and calls[index].name == name and calls[index].arguments.startswith(arguments)
            for index, (name, arguments) in self._calls.items()
        )
        if thought is None or text is None or not agrees:
            yield Restarted()
            yield from chunks_of(reply)
            return
        if thought:
            yield ReasoningChunk(thought)
        if text:
            yield TextChunk(text)
        for index, call in enumerate(calls):
            if index not in self._calls:
                yield ToolCallChunk(index, call.arguments, call.call_id, call.name)
            elif rest := call.arguments[len(self._calls[index][1]) :]:
                yield ToolCallChunk(index, rest)

    def _read(self, chunk: Chunk) -> Iterator[Chunk]:
        if isinstance(chunk, ToolCallChunk) and self._held.strip():
            # With a real call beside it, what was held back is no call.
            held, self._held = self._held, ""
            yield ReasoningChunk(held) if self._state == "thinking" else TextChunk(held)
        if not isinstance(chunk, TextChunk):
            yield chunk
            return
        self._held += chunk.text
        if self._state == "opening":
            self._open()
        if self._state == "thinking":
            yield from self._think()
        if self._state == "fenced" and self._is_example(chunk.text):
            held, self._held, self._state = self._held, "", "text"
            yield TextChunk(held)
        if self._state == "text":
            yield from self._show()

    def _is_example(self, text: str) -> bool:
        """Whether the fence has ended and the text goes on behind it. Each line is read once, in however many pieces it comes."""
        *lines, last = (self._line + text).split("\n")
        for line in (*lines, last):
            words = line
            if not self._is_closed and (closing := _CLOSING.match(line)):
                self._is_closed, words = True, line[closing.end() :]
            if self._is_closed and words.strip():
                return True
        # Of a long line its beginning is enough to tell whether it closes the fence.
        self._line = "" if self._is_closed else last[:_LINE_START]
        return False

    def _note(self, shown: Chunk) -> None:
        match shown:
            case TextChunk():
                self._text.append(shown.text)
            case ReasoningChunk():
                self._thought.append(shown.text)
            case ToolCallChunk():
                name, arguments = self._calls.get(shown.index, ("", ""))
                self._calls[shown.index] = name + (shown.name or ""), arguments + shown.arguments
            case _:
                pass

    def _open(self) -> None:
        start = self._held.lstrip()
        if self._tag:  # After a thought, the blank lines before the answer belong to neither.
            self._held = start
        for opening in self._openings:
            if start.startswith(opening):
                thinks = opening in _THINKS
                self._state, self._tag = ("thinking", f"</{opening[1:]}") if thinks else ("held", "")
                self._held = start[len(opening) :] if thinks else self._held
                return
        if start and not any(opening.startswith(start) for opening in self._openings):
            self._state = "text"

    def _think(self) -> Iterator[Chunk]:
        if not self._thought:
            self._held = self._held.lstrip()
        thought, end, rest = self._held.partition(self._tag)
        if end:
            self._state, self._held = "opening", rest
            self._openings = tuple(o for o in self._openings if o not in _THINKS)
            if thought := thought.rstrip():
                yield ReasoningChunk(thought)
            self._open()
            return
        # A piece of the closing tag may be at the end, and blanks that belong to nobody: keep them until it is known.
        kept = next((n for n in range(len(self._tag) - 1, 0, -1) if thought.endswith(self._tag[:n])), 0)
        shown = thought[: len(thought) - kept].rstrip()
        self._held = thought[len(shown) :]
        if shown:
            yield ReasoningChunk(shown)

    def _show(self) -> Iterator[Chunk]:
        """The text up to where a call may begin."""
        held, end = self._held, len(self._held)
        if self._has_tools:
            if found := _HOLD.search(held):
                end = found.start()
                self._state = "held"
                if held.startswith("```", end):
                    # The first line of a fence cannot close it.
                    self._state, self._line, self._is_closed = "fenced", "-", False
                    self._is_example(held[end + 3 :])
            elif half := _HALF_FENCE.search(held):
                end = half.start()
            else:
                last = max(held.rfind("<"), held.rfind("["))
                if last >= 0 and any(mark.startswith(held[last:]) for mark in MARKS):
                    end = last
        self._held = held[end:]
        if end:
            yield TextChunk(held[:end])


def _missing(shown: Sequence[str], whole: Sequence[str]) -> str | None:
    """What was not shown yet; None where something else was. Blanks at the ends do not count."""
    seen, all_of_it = "".join(shown), "".join(whole)
    if all_of_it.startswith(seen):
        return all_of_it[len(seen) :]
    if all_of_it.strip().startswith(seen.strip()):
        return all_of_it.strip()[len(seen.strip()) :]
    return None
