"""What the librarian sees of a request: the blocks on show, what was just said, and what its calls gave so far."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime

from ricordo.domain.clock import to_datetime
from ricordo.domain.message import Message
from ricordo.domain.model import ModelRequest, ToolSchema

SEND = "send_message"
_OPENING = re.compile(r"^<([^<>\n/][^<>\n]*)>\n<description>\n", re.MULTILINE)
_LINE_NUMBER = re.compile(r"^\d+→ ?", re.MULTILINE)
_TODAY = re.compile(r"current system date is: *(?:\w+, )?(\w+ \d+, \d{4})", re.IGNORECASE)
_QUOTED = re.compile(r'^(\d{4}-\d\d-\d\d): "(.*)"$')
_PERSON_LABELS = ("human", "user", "student", "person", "about_user", "about_me", "user_profile", "profile")


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a block. `words` is what it says; `said_on` is the ISO date where the line quotes a person."""

    label: str
    line: str
    words: str
    said_on: str = ""


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A block as the system prompt shows it."""

    label: str
    value: str
    limit: int
    is_read_only: bool

    @property
    def name(self) -> str:
        return self.label.rsplit("/", 1)[-1].lower()

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(note_of(self.label, line) for line in self.value.split("\n") if line.strip())


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """A call made in this turn, and what it gave; `message` is None while no result is there."""

    tool: str
    arguments: Mapping[str, object]
    failed: bool = False
    message: object = None

    @property
    def text(self) -> str:
        return self.message if isinstance(self.message, str) else json.dumps(self.message, ensure_ascii=False)

    def argument(self, *names: str) -> str:
        return str(next((self.arguments[name] for name in names if self.arguments.get(name)), ""))


@dataclass(frozen=True, slots=True)
class LibrarianView:
    """One request, as the librarian reads it. `words` is what the person just said, `rounds` counts replies with calls."""

    words: str
    said_before: str
    today: date
    blocks: tuple[ShownBlock, ...]
    tools: Mapping[str, ToolSchema]
    outcomes: tuple[CallOutcome, ...]
    rounds: int
    own_words: tuple[str, ...]
    may_call_in_parallel: bool
    key: str

    @property
    def person_block(self) -> ShownBlock | None:
        by_name = {block.name: block for block in self.blocks if not block.is_read_only}
        return next((by_name[label] for label in _PERSON_LABELS if label in by_name), None)

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(note for block in self.blocks if block.name != "persona" for note in block.notes)

    def offers(self, *names: str) -> str | None:
        return next((name for name in names if name in self.tools), None)

    def made(self, *names: str) -> list[CallOutcome]:
        return [outcome for outcome in self.outcomes if outcome.tool in names]


def view_of(request: ModelRequest) -> LibrarianView:
    """Read the request."""
    messages = request.messages
    system = next((message.text for message in messages if message.role == "system"), "")
    spoken = [at for at, message in enumerate(messages) if spoken_words(message) is not None]
    last = spoken[-1] if spoken else len(messages)
    # A client may send several messages at once: all since the last answer are what is said.
    answered = max((at for at in range(last) if messages[at].role == "assistant"), default=-1)
    own = [(at, text) for at, message in enumerate(messages) for text in _own_words(message)]
    turn = messages[last + 1 :]
    return LibrarianView(
        words="\n".join(spoken_words(messages[at]) or "" for at in spoken if at > answered),
        said_before=next((text for at, text in reversed(own) if at < last), ""),
        today=_today(system, messages[last] if spoken else None),
        blocks=tuple(shown_blocks(system)),
        tools={tool.name: tool for tool in request.tools},
        outcomes=tuple(_outcomes(turn)),
        rounds=sum(1 for message in turn if any(call.name != SEND for call in message.tool_calls)),
        own_words=tuple(text for _, text in own),
        may_call_in_parallel=request.settings.parallel_tool_calls is not False,
        key=re.sub(r"[^0-9A-Za-z]", "", messages[-1].id.removeprefix("message-"))[:24] if messages else "",
    )


def spoken_words(message: Message) -> str | None:
    """Return what a person said in this message; None where no person speaks, as in a system event."""
    return None if message.role != "user" or message.is_event else unpackaged(message.text)


def unpackaged(text: str) -> str | None:
    """Return the words inside the packaging of older agent types; a text without packaging as it is, None for a system event."""
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
    """Read the blocks in the system prompt's memory section."""
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


def note_of(label: str, line: str) -> Note:
    match = _QUOTED.match(line.strip())
    return Note(label, line, match[2], match[1]) if match else Note(label, line, line.strip(" -*•\t"))


def data_in(value: object) -> object:
    """Return the value, or what a text holds as JSON or as a Python literal (archival search answers with either)."""
    if not isinstance(value, str) or value.lstrip()[:1] not in {"[", "{"}:
        return value
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return read(value)
    return value


def _today(system: str, message: Message | None) -> date:
    """Return the agent's date from its prompt, which knows its time zone; else the day the message came in, UTC."""
    # The last one: what a block says about dates comes before the prompt's own line.
    for text in _TODAY.findall(system)[-1:]:
        with suppress(ValueError):
            return datetime.strptime(text, "%B %d, %Y").date()  # noqa: DTZ007 (a calendar day has no zone)
    return to_datetime(message.created_at if message else 0).date()


def _outcomes(turn: Sequence[Message]) -> Iterator[CallOutcome]:
    results = {result.call_id: result for message in turn for result in message.tool_returns}
    for call in (call for message in turn for call in message.tool_calls):
        arguments = data_in(call.arguments)
        failed, told = False, None
        if result := results.get(call.call_id):
            failed, told = result.status == "error", data_in(result.content)
            # Results may be packaged: `{"status", "message", "time"}`.
            if isinstance(told, dict) and told.get("status") in {"OK", "Failed"}:
                failed, told = failed or told["status"] == "Failed", told.get("message")
        yield CallOutcome(call.name, arguments if isinstance(arguments, dict) else {}, failed, told)


def _own_words(message: Message) -> Iterator[str]:
    if message.role == "assistant":
        if message.text:
            yield message.text
        for call in message.tool_calls:
            arguments = data_in(call.arguments) if call.name == SEND else None
            if isinstance(arguments, dict):
                yield str(arguments.get("message", ""))
