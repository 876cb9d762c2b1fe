"""What the librarian sees of a request: the blocks on show, what was just said, and what its calls gave so far."""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime

from ricordo.domain.clock import to_datetime
from ricordo.domain.message import Message, ToolReturnPart
from ricordo.domain.model import ModelRequest, ToolSchema
from ricordo.llm.librarian.sentences import MARK

_OPENING = re.compile(r"^<([^<>\n/][^<>\n]*)>\n<description>\n", re.MULTILINE)
_LINE_NUMBER = re.compile(r"^\d+→ ?", re.MULTILINE)
_TODAY = re.compile(r"current system date is: *([^\n]+)", re.IGNORECASE)
_QUOTED = re.compile(r'^(\d{4}-\d\d-\d\d): "(.*)"$')
_PERSON_LABELS = ("human", "user", "student", "person", "about_user", "about_me", "user_profile", "profile")


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a block. `words` is what it says; `said_on` is the ISO date where the line quotes a person."""

    label: str
    line: str
    words: str
    said_on: str | None = None


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A block as the system prompt shows it."""

    label: str
    value: str
    limit: int
    is_read_only: bool

    @property
    def notes(self) -> tuple[Note, ...]:
        """Its lines, without the empty ones."""
        return tuple(as_note(self.label, line) for line in self.value.split("\n") if line.strip())


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call made in this turn, and what it gave; `message` is None while no result is there."""

    tool: str
    arguments: Mapping[str, object]
    failed: bool = False
    message: object = None

    @property
    def told(self) -> str:
        """The result as text."""
        return self.message if isinstance(self.message, str) else json.dumps(self.message, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class View:
    """One request, as the librarian reads it. `words` is what the person just said, `rounds` counts replies with calls."""

    words: str
    today: date
    blocks: tuple[ShownBlock, ...]
    tools: Mapping[str, ToolSchema]
    outcomes: tuple[Outcome, ...] = ()
    rounds: int = 0
    is_introduced: bool = False
    may_call_in_parallel: bool = True
    key: str = ""

    @property
    def person_block(self) -> ShownBlock | None:
        """The block about the person, if one can be written to."""
        by_name = {block.label.rsplit("/", 1)[-1].lower(): block for block in self.blocks if not block.is_read_only}
        return next((by_name[label] for label in _PERSON_LABELS if label in by_name), None)

    @property
    def persona(self) -> str:
        """What the persona block says."""
        return next((block.value for block in self.blocks if block.label.rsplit("/", 1)[-1] == "persona"), "")

    @property
    def notes(self) -> tuple[Note, ...]:
        """The lines of all blocks but the persona's."""
        shown = (block for block in self.blocks if block.label.rsplit("/", 1)[-1] != "persona")
        return tuple(note for block in shown for note in block.notes)

    @property
    def has_spoken(self) -> bool:
        """Whether this turn's answer was already given by a tool."""
        return any(outcome.tool == "send_message" and not outcome.failed for outcome in self.outcomes)

    def offers(self, *names: str) -> str | None:
        """The first of these tools that is offered."""
        return next((name for name in names if name in self.tools), None)

    def first(self, *names: str) -> Outcome | None:
        """The first call of one of these tools in this turn."""
        return next((outcome for outcome in self.outcomes if outcome.tool in names), None)


def look(request: ModelRequest) -> View:
    """Read the request."""
    messages = request.messages
    system = next((message.text for message in messages if message.role == "system"), "")
    said = [(at, words) for at, message in enumerate(messages) if (words := spoken_words(message)) is not None]
    last = said[-1][0] if said else len(messages)
    turn = messages[last + 1 :]
    return View(
        words="\n".join(_said_together(messages, said)),
        today=_today(system, messages[last] if said else None),
        blocks=tuple(shown_blocks(system)),
        tools={tool.name: tool for tool in request.tools},
        outcomes=tuple(_outcomes(turn)),
        rounds=sum(1 for message in turn if any(call.name != "send_message" for call in message.tool_calls)),
        is_introduced=any(MARK in text for message in messages for text in _own_words(message)),
        may_call_in_parallel=request.settings.parallel_tool_calls is not False,
        key=re.sub(r"[^0-9A-Za-z]", "", messages[-1].id.removeprefix("message-"))[:24] if messages else "",
    )


def spoken_words(message: Message) -> str | None:
    """What a person said in this message; None where no person speaks (heartbeats, logins and alerts come as users too)."""
    if message.role != "user":
        return None
    return unpackaged(message.text)


def unpackaged(text: str) -> str | None:
    """The words inside the packaging of the memgpt family, text without packaging as it is, None for its system events."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        packaged = json.loads(text)
    except ValueError:
        return text
    if not isinstance(packaged, dict) or "type" not in packaged:
        return text
    if packaged["type"] == "user_message":
        return str(packaged.get("message", ""))
    return None if packaged["type"] in {"heartbeat", "login", "system_alert"} else text


def shown_blocks(system: str) -> Iterator[ShownBlock]:
    """The blocks in the system prompt's memory section."""
    end = system.rfind("</memory_blocks>")
    at = system.find("<memory_blocks>")
    while at >= 0 and (opening := _OPENING.search(system, at, max(end, 0))):
        label = opening[1]
        close = system.find(f"</value>\n</{label}>", opening.end(), end)
        head, found, value = system[opening.end() : max(close, 0)].partition("<value>\n")
        at = close if close >= 0 else opening.end()
        if close < 0 or not found:
            continue
        value = value.removesuffix("\n")
        metadata = head.rpartition("<metadata>")[2]
        limit = re.search(r"^- chars_limit=(\d+)", metadata, re.MULTILINE)
        yield ShownBlock(
            label,
            _LINE_NUMBER.sub("", value) if "<warning>" in metadata else value,
            int(limit[1]) if limit else 100_000,
            re.search(r"^- read_only=true", metadata, re.MULTILINE) is not None,
        )


def as_note(label: str, line: str) -> Note:
    """A line of a block, read: the librarian's own lines are quotes with a date."""
    match = _QUOTED.match(line.strip())
    return Note(label, line, match[2], match[1]) if match else Note(label, line, line.strip(" -*•\t"))


def data_in(value: object) -> object:
    """The value itself, or what a text holds as JSON or as a Python literal (archival search answers with either)."""
    if not isinstance(value, str) or value.lstrip()[:1] not in {"[", "{"}:
        return value
    try:
        return json.loads(value)
    except ValueError:
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value


def _said_together(messages: tuple[Message, ...], said: list[tuple[int, str]]) -> list[str]:
    """What was said since the last answer: a client may send several messages at once."""
    words: list[str] = []
    end = len(messages)
    for at, text in reversed(said):
        if words and any(message.role == "assistant" for message in messages[at:end]):
            break
        words.insert(0, text)
        end = at
    return words


def _today(system: str, message: Message | None) -> date:
    """The agent's date from its prompt, which knows its time zone; else the day the message came in, UTC."""
    # The last one: what a block says about dates stands before the prompt's own line.
    if found := _TODAY.findall(system):
        text = found[-1].strip()
        for form in ("%Y-%m-%d", "%B %d, %Y", "%d %B %Y", "%A, %B %d, %Y"):
            try:
                return datetime.strptime(text, form).date()  # noqa: DTZ007 (a calendar day has no zone)
            except ValueError:
                continue
    return to_datetime(message.created_at if message else 0).date()


def _outcomes(turn: Iterable[Message]) -> Iterator[Outcome]:
    turn = tuple(turn)
    results = {result.call_id: result for message in turn for result in message.tool_returns}
    for call in (call for message in turn for call in message.tool_calls):
        arguments = data_in(call.arguments)
        failed, told = _unwrapped(results[call.call_id]) if call.call_id in results else (False, None)
        yield Outcome(call.name, arguments if isinstance(arguments, dict) else {}, failed, told)


def _unwrapped(result: ToolReturnPart) -> tuple[bool, object]:
    """Whether it failed, and the message, with or without the packaging `{"status", "message", "time"}`."""
    content = data_in(result.content)
    if isinstance(content, dict) and content.get("status") in {"OK", "Failed"}:
        return content["status"] == "Failed" or result.status == "error", content.get("message")
    return result.status == "error", content


def _own_words(message: Message) -> Iterator[str]:
    if message.role == "assistant":
        yield message.text
        yield from (call.arguments for call in message.tool_calls if call.name == "send_message")
