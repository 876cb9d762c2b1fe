"""The librarian's view of a request.

The view contains the blocks in the prompt, the person's last words, and the results of the turn's
calls.
"""

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
# For the agent that keeps a voice agent's memory: the lines of its transcript, and the heading
# above the lines that the voice agent still sees.
_NUMBERED = re.compile(r"^ {4}\d+\. ")
_NUMBERED_WORDS = re.compile(r"^ {4}(\d+)\. user: (.*)$", re.MULTILINE)
_NEWER_LINES = "(Newer) In-Context Messages:"
_BLOCK = re.compile(
    # The search ends at the next opening tag, so its time is linear in the prompt's length.
    r"^<(?P<label>[^<>\n/][^<>\n]*)>\n<description>\n"
    r"(?>(?:(?!<(?:metadata|description)>\n)[\s\S])*)<metadata>\n"
    r"(?P<metadata>(?:- .*\n)*)</metadata>\n<value>\n",
    re.MULTILINE,
)
# The end of a value. No value contains this text, since closing tags in values are escaped.
_VALUE_END = "</value>\n</"
_LIMIT = re.compile(r"^- chars_limit=(\d+)", re.MULTILINE)
_TODAY = re.compile(r"current system date is: *(?:\w+, )?(\w+ \d+, \d{4})", re.IGNORECASE)
_QUOTED = re.compile(r'^(\d{4}-\d\d-\d\d): "(.*)"$')
_SOURCE = re.compile(
    r"\[(?:sources?|file|passage|score|id|tool|function)\b[^\[\]\n]{0,200}\]", re.IGNORECASE
)
# Older types of agents have other names of tools for the same edits.
_NEWER = {"core_memory_append": "memory_insert", "core_memory_replace": "memory_replace"}
_PERSON_LABELS = ("human", "user", "student", "person", "profile", "notes")


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a block.

    `text` is its content; `said_on` is the ISO date if the line quotes a person.
    """

    label: str
    line: str
    text: str
    said_on: str = ""

    @property
    def is_statement(self) -> bool:
        """Return True if the line states something.

        A heading, a rule and a line of brackets state nothing.
        """
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
    """A call to make, or a call of this turn with its result.

    `message` is None if there is no result.
    """

    tool: str
    arguments: Mapping[str, Any]
    failed: bool = False
    message: object = None

    @property
    def text(self) -> str:
        if isinstance(self.message, str):
            return self.message
        return json.dumps(self.message, ensure_ascii=False)

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
    """One request, as the librarian reads it.

    `person_text` is the person's last text, and `earlier_texts` are the person's earlier texts in
    view. `last_answer` is the librarian's answer before `person_text`, and `own_words` are all its
    answers. `rounds` counts the librarian's replies with calls in this turn.
    """

    person_text: str
    last_answer: str
    today: date
    blocks: tuple[ShownBlock, ...]
    tools: Mapping[str, ToolSchema]
    outcomes: tuple[LibrarianCall, ...]
    rounds: int
    own_words: tuple[str, ...]
    may_call_in_parallel: bool
    key: str
    # True if the request is a transcript, so that no person reads the answer.
    is_alone: bool = False
    # The transcript if its lines are numbered, else "".
    numbered: str = ""
    earlier_texts: tuple[str, ...] = ()

    @property
    def person_block(self) -> ShownBlock | None:
        # A block that begins with a heading has fields, so the librarian adds no lines to it.
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
            if note.is_statement
        )

    def leaving(self) -> list[tuple[int, str]]:
        """Return the person's lines that leave a voice agent's view.

        Each has its number in the transcript.
        """
        older = self.numbered.partition(_NEWER_LINES)[0]
        return [(int(match[1]), match[2]) for match in _NUMBERED_WORDS.finditer(older)]

    def calls_of(self, *names: str) -> list[LibrarianCall]:
        """Return the calls of this turn to these tools."""
        return [outcome for outcome in self.outcomes if outcome.tool in names]


def view_of(request: ModelRequest) -> LibrarianView:
    """Return the librarian's view of a request.

    Args:
        request: The request as any model gets it.
    """
    messages = request.messages
    system = next((message.text for message in messages if message.role == "system"), "")
    spoken = _spoken_texts(messages)
    last = max(spoken, default=len(messages))
    question = messages[last] if spoken else None
    answered = _last_answered(messages[:last], question)
    answers = [
        (index, text) for index, message in enumerate(messages) for text in _answers_in(message)
    ]
    turn = messages[last + 1 :]
    return LibrarianView(
        person_text="\n".join(text for index, text in spoken.items() if index > answered),
        last_answer=next((text for index, text in reversed(answers) if index < last), ""),
        today=_today(system, question),
        blocks=shown_blocks(system),
        tools={newer_name(tool.name): tool for tool in request.tools},
        outcomes=tuple(_outcomes(turn)),
        rounds=sum(1 for message in turn if any(call.name != SEND for call in message.tool_calls)),
        own_words=tuple(text for _, text in answers),
        may_call_in_parallel=request.settings.parallel_tool_calls is not False,
        key=_key(messages),
        is_alone=question is not None and is_transcript(question),
        earlier_texts=tuple(text for index, text in spoken.items() if index <= answered),
        numbered=_numbered_lines(question),
    )


def _spoken_texts(messages: Sequence[Message]) -> dict[int, str]:
    """Return what people said, by the index of their message."""
    texts = ((index, _spoken_words(message)) for index, message in enumerate(messages))
    return {index: text for index, text in texts if text is not None}


def _last_answered(earlier: Sequence[Message], question: Message | None) -> int:
    """Return the index of this agent's last answer before the question; -1 if there is none.

    A client may send several messages at once, including answers by other assistants. The person's
    words are all messages of the person since this agent's last answer.
    """
    if question is None:
        return -1
    indexes = (index for index, message in enumerate(earlier) if _is_answer(message, question))
    return max(indexes, default=-1)


def _numbered_lines(question: Message | None) -> str:
    """Return the text of a transcript whose lines have numbers; empty for any other message."""
    if question is None or _NEWER_LINES not in question.text:
        return ""
    return question.text


def _key(messages: Sequence[Message]) -> str:
    if not messages:
        return ""
    return re.sub(r"[^0-9A-Za-z]", "", messages[-1].id.removeprefix("message-"))[:24]


def _is_answer(message: Message, last: Message) -> bool:
    """Return True if this agent answered earlier messages with this message.

    A client may also send an assistant's message together with the person's message `last`.
    """
    is_from_client = (
        message.step_id is None and message.run_id is not None and message.run_id == last.run_id
    )
    return message.role == "assistant" and not is_from_client


def _spoken_words(message: Message) -> str | None:
    """Return the words of a person in this message.

    Returns None if no person speaks, as in a system event.
    """
    if is_transcript(message):
        lines = [_NUMBERED.sub("", line) for line in message.text.split("\n")]
        return "\n".join(line.removeprefix(_USER) for line in lines if line.startswith(_USER))
    if message.role != "user" or message.is_event:
        return None
    # Some types of agents get people's texts as JSON.
    package = object_in(message.text)
    if package.get("type") != "user_message":
        return message.text
    return str(package.get("message", ""))


def is_transcript(message: Message) -> bool:
    """Return True if the message is a transcript of another agent's conversation.

    An agent that works on another agent's memory gets such a message.

    Args:
        message: A message of the request.
    """
    return any(isinstance(part, EventPart) and part.event == "transcript" for part in message.parts)


def stored_words(text: str) -> str:
    """Return the words of a message or passage.

    JSON from programs and notes about a source are left out.

    Args:
        text: The text of a search result.
    """
    content = read_json(text)
    if isinstance(content, dict) and content.get("type") == "user_message":
        text = str(content.get("message", ""))
    elif isinstance(content, dict | list):
        text = ""
    return _SOURCE.sub(" ", text).strip()


def shown_blocks(system: str) -> tuple[ShownBlock, ...]:
    """Return the blocks that the system prompt shows.

    Args:
        system: The text of the system message.

    Returns:
        The blocks in their order; none if the prompt has no section of memory.
    """
    _, _, section = system[: max(system.rfind("</memory_blocks>"), 0)].partition("<memory_blocks>")
    return tuple(_shown_blocks(section))


def _shown_blocks(section: str) -> Iterator[ShownBlock]:
    value_end = end = 0
    for match in _BLOCK.finditer(section):
        label = match["label"]
        metadata = match["metadata"]
        if value_end < match.end() and (value_end := section.find(_VALUE_END, match.end())) < 0:
            return
        if match.start() < end or not section.startswith(f"{label}>", value_end + len(_VALUE_END)):
            continue
        end = value_end
        limit = _LIMIT.search(metadata)
        value = section[match.end() : value_end].removesuffix("\n")
        yield ShownBlock(
            label, value, int(limit[1]) if limit else 100_000, "- read_only=true\n" in metadata
        )


def newer_name(tool: str) -> str:
    """Return the present name of a tool that had another name; other names are returned unchanged.

    Args:
        tool: The name of a tool.
    """
    return _NEWER.get(tool, tool)


def note_of(label: str, line: str) -> Note:
    """Return the note that a line of a block contains.

    Args:
        label: The label of the block.
        line: The line as it is in the block.
    """
    match = _QUOTED.match(line.strip())
    if match:
        return Note(label, line, match[2], match[1])
    return Note(label, line, line.strip(" -*•\t"))


def object_in(text: str) -> dict[str, Any]:
    """Return the JSON object in the text; an empty one if there is none.

    Args:
        text: A text that may hold JSON, even damaged JSON.
    """
    content = read_json(text)
    if isinstance(content, dict):
        return content
    return {}


def _today(system: str, message: Message | None) -> date:
    """Return the agent's date from its prompt, which uses its time zone.

    If the prompt has none, it is the day of the message in UTC.
    """
    # Take the last match, since dates in blocks come before the prompt's line with the date.
    for text in _TODAY.findall(system)[-1:]:
        with suppress(ValueError):
            return datetime.strptime(text, "%B %d, %Y").date()  # noqa: DTZ007 (a day has no zone)
    return to_datetime(message.created_at if message else 0).date()


def _outcomes(turn: Sequence[Message]) -> Iterator[LibrarianCall]:
    tool_returns = {
        tool_return.call_id: tool_return for message in turn for tool_return in message.tool_returns
    }
    for call in (call for message in turn for call in message.tool_calls):
        arguments = object_in(call.arguments)
        tool_return = tool_returns.get(call.call_id)
        if tool_return is None:
            yield LibrarianCall(newer_name(call.name), arguments)
            continue
        # Results are packaged: `{"status", "message", "time"}`.
        package = object_in(tool_return.content)
        failed = tool_return.status == "error" or package.get("status") == "Failed"
        yield LibrarianCall(
            newer_name(call.name), arguments, failed, package.get("message", tool_return.content)
        )


def _answers_in(message: Message) -> Iterator[str]:
    if message.role == "assistant":
        if message.text:
            yield message.text
        for call in message.tool_calls:
            if call.name == SEND:
                yield str(object_in(call.arguments).get("message", ""))


def rows_of(outcome: LibrarianCall) -> list[dict[str, Any]]:
    """Return the results of a search that are users' words or passages.

    Args:
        outcome: A call of a search tool with its result.
    """
    listed = outcome.message
    if isinstance(listed, dict):
        listed = listed.get("results")
    rows = []
    if isinstance(listed, list):
        rows = [row for row in listed if isinstance(row, dict) and row.get("content")]
    # Consecutive messages form one result with one time. The result keeps their order.
    exchanges = [row for row in rows if row.get("before") or row.get("after")]
    rows = [row for row in rows if row not in exchanges]
    rows += [turn for exchange in exchanges for turn in _in_order(exchange)]
    return [row for row in rows if row.get("role", "user") == "user"]


def _in_order(exchange: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of one result, each with a time that sorts them in their order."""
    turns = [*_turns(exchange.get("before")), exchange, *_turns(exchange.get("after"))]
    said_at = str(exchange.get("timestamp") or "")
    return [
        {**exchange, **turn, "timestamp": f"{said_at} {number:03}"}
        for number, turn in enumerate(turns)
    ]


def _turns(neighbours: object) -> list[dict[str, Any]]:
    if isinstance(neighbours, list):
        turns = neighbours
    else:
        turns = []
    return [turn for turn in turns if isinstance(turn, dict) and turn.get("content")]
