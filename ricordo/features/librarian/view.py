"""What the librarian sees of a request: the blocks on show, what was just said, and what its calls gave so far."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from ricordo.domain.clock import to_datetime
from ricordo.domain.message import EventPart, Message
from ricordo.domain.model import ModelRequest, ToolSchema
from ricordo.llm.loose_json import read_json

SEND = "send_message"
_USER = "user: "
# Lines of the transcript for one that keeps a voice agent's memory, and the heading of those that the agent still sees.
_NUMBERED = re.compile(r"^ {4}\d+\. ")
_NUMBERED_WORDS = re.compile(r"^ {4}(\d+)\. user: (.*)$", re.MULTILINE)
_NEWER_LINES = "(Newer) In-Context Messages:"
_BLOCK = re.compile(
    # Nothing is searched beyond the next opening, so that a prompt full of them is read in time that grows with its length.
    r"^<(?P<label>[^<>\n/][^<>\n]*)>\n<description>\n(?>(?:(?!<(?:metadata|description)>\n)[\s\S])*)<metadata>\n"
    r"(?P<metadata>(?:- .*\n)*)</metadata>\n<value>\n",
    re.MULTILINE,
)
# No value holds it: closing tags within values are disarmed.
_VALUE_END = "</value>\n</"
_LIMIT = re.compile(r"^- chars_limit=(\d+)", re.MULTILINE)
_TODAY = re.compile(r"current system date is: *(?:\w+, )?(\w+ \d+, \d{4})", re.IGNORECASE)
_QUOTED = re.compile(r'^(\d{4}-\d\d-\d\d): "(.*)"$')
_SOURCE = re.compile(
    r"\[(?:sources?|file|passage|score|id|tool|function)\b[^\[\]\n]{0,200}\]", re.IGNORECASE
)
# Older types of agents have tools of other names, and with other names of parameters, for the same edits.
_NEWER = {"core_memory_append": "memory_insert", "core_memory_replace": "memory_replace"}
_PERSON_LABELS = ("human", "user", "student", "person", "profile", "notes")


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a block. `words` is what it says; `said_on` is the ISO date where the line quotes a person."""

    label: str
    line: str
    words: str
    said_on: str = ""

    @property
    def is_told(self) -> bool:
        """Whether the line tells something: a heading, a rule or a line of brackets does not."""
        return not self.line.startswith("#") and any(map(str.isalnum, self.line))


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
class LibrarianCall:
    """A call to make, or one made in this turn with what it gave; `message` is None while no result is there."""

    tool: str
    arguments: Mapping[str, Any]
    failed: bool = False
    message: object = None

    @property
    def text(self) -> str:
        return (
            self.message
            if isinstance(self.message, str)
            else json.dumps(self.message, ensure_ascii=False)
        )

    @property
    def new_words(self) -> str:
        return self._argument("new_string", "new_content", "content")

    @property
    def old_words(self) -> str:
        return self._argument("old_string", "old_content")

    def _argument(self, *names: str) -> str:
        return next((str(self.arguments[name]) for name in names if name in self.arguments), "")


@dataclass(frozen=True, slots=True)
class LibrarianView:
    """One request, as the librarian reads it. `words` is what the person just said, `rounds` counts replies with calls."""

    words: str
    said_before: str
    today: date
    blocks: tuple[ShownBlock, ...]
    tools: Mapping[str, ToolSchema]
    outcomes: tuple[LibrarianCall, ...]
    rounds: int
    own_words: tuple[str, ...]
    may_call_in_parallel: bool
    key: str
    # Whether nobody reads an answer: what was said is in a transcript.
    is_alone: bool = False
    # The transcript, where its lines are numbered.
    numbered: str = ""

    @property
    def person_block(self) -> ShownBlock | None:
        # A text that begins with a heading has fields, and takes no line like the librarian's.
        usable = (
            block
            for block in self.blocks
            if not block.is_read_only and not block.value.startswith("## ")
        )
        by_name = {block.name: block for block in usable}
        return next((by_name[label] for label in _PERSON_LABELS if label in by_name), None)

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(
            note
            for block in self.blocks
            if block.name != "persona"
            for note in block.notes
            if note.is_told
        )

    def leaving(self) -> list[tuple[int, str]]:
        """Return what the person said of what leaves the view of a voice agent, with its numbers in the transcript."""
        older = self.numbered.partition(_NEWER_LINES)[0]
        return [(int(found[1]), found[2]) for found in _NUMBERED_WORDS.finditer(older)]

    def made(self, *names: str) -> list[LibrarianCall]:
        return [outcome for outcome in self.outcomes if outcome.tool in names]


def view_of(request: ModelRequest) -> LibrarianView:
    messages = request.messages
    system = next((message.text for message in messages if message.role == "system"), "")
    spoken = [at for at, message in enumerate(messages) if _spoken_words(message) is not None]
    last = spoken[-1] if spoken else len(messages)
    # A client may send several messages at once, others' answers among them: all since the last answer here are what is said.
    before = messages[:last] if spoken else ()
    answered = max(
        (at for at, one in enumerate(before) if _is_answer(one, messages[last])), default=-1
    )
    own = [(at, text) for at, message in enumerate(messages) for text in _own_words(message)]
    turn = messages[last + 1 :]
    return LibrarianView(
        words="\n".join(_spoken_words(messages[at]) or "" for at in spoken if at > answered),
        said_before=next((text for at, text in reversed(own) if at < last), ""),
        today=_today(system, messages[last] if spoken else None),
        blocks=shown_blocks(system),
        tools={newer_name(tool.name): tool for tool in request.tools},
        outcomes=tuple(_outcomes(turn)),
        rounds=sum(1 for message in turn if any(call.name != SEND for call in message.tool_calls)),
        own_words=tuple(text for _, text in own),
        may_call_in_parallel=request.settings.parallel_tool_calls is not False,
        key=re.sub(r"[^0-9A-Za-z]", "", messages[-1].id.removeprefix("message-"))[:24]
        if messages
        else "",
        is_alone=bool(spoken) and is_transcript(messages[last]),
        numbered=messages[last].text if spoken and _NEWER_LINES in messages[last].text else "",
    )


def _is_answer(message: Message, said: Message) -> bool:
    """Whether this is an answer to what came before, and was not sent together with what is said now."""
    is_sent = (
        message.step_id is None and message.run_id is not None and message.run_id == said.run_id
    )
    return message.role == "assistant" and not is_sent


def _spoken_words(message: Message) -> str | None:
    """Return what a person said in this message; None where no person speaks, as in a system event."""
    if is_transcript(message):
        lines = [_NUMBERED.sub("", line) for line in message.text.split("\n")]
        return "\n".join(line.removeprefix(_USER) for line in lines if line.startswith(_USER))
    if message.role != "user" or message.is_event:
        return None
    # Some types of agents read what people say as JSON.
    packaged = object_in(message.text)
    return (
        str(packaged.get("message", "")) if packaged.get("type") == "user_message" else message.text
    )


def is_transcript(message: Message) -> bool:
    """Return whether the message is what another agent's talk was, for one that works on its memory."""
    return any(isinstance(part, EventPart) and part.event == "transcript" for part in message.parts)


def stored_words(text: str) -> str:
    """Return what a message or passage says, without what only programs read: nothing of data, no note of its source."""
    found = read_json(text)
    if isinstance(found, dict | list):
        text = (
            str(found.get("message", ""))
            if isinstance(found, dict) and found.get("type") == "user_message"
            else ""
        )
    return _SOURCE.sub(" ", text).strip()


def shown_blocks(system: str) -> tuple[ShownBlock, ...]:
    _, _, section = system[: max(system.rfind("</memory_blocks>"), 0)].partition("<memory_blocks>")
    return tuple(_shown_blocks(section))


def _shown_blocks(section: str) -> Iterator[ShownBlock]:
    value_end = end = 0
    for found in _BLOCK.finditer(section):
        label, metadata = found["label"], found["metadata"]
        if value_end < found.end() and (value_end := section.find(_VALUE_END, found.end())) < 0:
            return
        if found.start() < end or not section.startswith(f"{label}>", value_end + len(_VALUE_END)):
            continue
        end = value_end
        limit = _LIMIT.search(metadata)
        value = section[found.end() : value_end].removesuffix("\n")
        yield ShownBlock(
            label, value, int(limit[1]) if limit else 100_000, "- read_only=true\n" in metadata
        )


def newer_name(tool: str) -> str:
    return _NEWER.get(tool, tool)


def note_of(label: str, line: str) -> Note:
    match = _QUOTED.match(line.strip())
    return (
        Note(label, line, match[2], match[1]) if match else Note(label, line, line.strip(" -*•\t"))
    )


def object_in(text: str) -> dict[str, Any]:
    """Return the JSON object that the text is; an empty one where it is none."""
    found = read_json(text)
    return found if isinstance(found, dict) else {}


def _today(system: str, message: Message | None) -> date:
    """Return the agent's date from its prompt, which knows its time zone; else the day the message came in, UTC."""
    # The last one: what a block says about dates comes before the prompt's own line.
    for text in _TODAY.findall(system)[-1:]:
        with suppress(ValueError):
            return datetime.strptime(text, "%B %d, %Y").date()  # noqa: DTZ007 (a calendar day has no zone)
    return to_datetime(message.created_at if message else 0).date()


def _outcomes(turn: Sequence[Message]) -> Iterator[LibrarianCall]:
    results = {result.call_id: result for message in turn for result in message.tool_returns}
    for call in (call for message in turn for call in message.tool_calls):
        arguments, result = object_in(call.arguments), results.get(call.call_id)
        if result is None:
            yield LibrarianCall(newer_name(call.name), arguments)
            continue
        # Results are packaged: `{"status", "message", "time"}`.
        told = object_in(result.content)
        failed = result.status == "error" or told.get("status") == "Failed"
        yield LibrarianCall(
            newer_name(call.name), arguments, failed, told.get("message", result.content)
        )


def _own_words(message: Message) -> Iterator[str]:
    if message.role == "assistant":
        if message.text:
            yield message.text
        for call in message.tool_calls:
            if call.name == SEND:
                yield str(object_in(call.arguments).get("message", ""))
