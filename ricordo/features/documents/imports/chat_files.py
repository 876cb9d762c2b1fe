"""Read exported files of ChatGPT, Claude, Open WebUI and mem0, chat by chat.

If a chat has branches, only the branch that was last shown is read. No content is trusted. An entry
that is not a chat is skipped with a reason, and a file that is too large is an error.
"""

import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import PurePosixPath
from typing import IO, Any

import orjson

from ricordo.domain.clock import SECOND, parse_timestamp
from ricordo.domain.text import storable_json
from ricordo.errors import Invalid
from ricordo.features.documents.imports.queries import Outcome
from ricordo.features.documents.imports.remembered import (
    RememberedText,
    lines_of,
    paragraphs_of,
    remembered_in_message,
)
from ricordo.features.documents.imports.webui_answers import WebuiAnswer, read_outputs, split_answer
from ricordo.features.files.folders.texts import decoded_text

Json = dict[str, Any]
MOST_UNPACKED = 2**31  # bytes of JSON after unpacking
LONGEST = 32 * 2**20  # bytes of one chat
_BLOCK = 2**16
_MOST_MESSAGES = 100_000  # of one chat
_MOST_PASTED = 2**20  # bytes of a list
_MEMBER = re.compile(
    r"(conversations|chats?-export|chats?|memories)([-_]\d+)?\.json", re.IGNORECASE
)
# Patterns of the next byte that matters to the scanner: inside a JSON string, and outside of
# strings.
_IN_TEXT = re.compile(rb'["\\]')
_OUTSIDE = re.compile(rb'["{}\[\],]')
_LISTS = ("conversations", "results", "memories", "chats")
_TOOLS = "only the messages are imported, not the calls and results of tools"
_LATEST = 253_370_764_800  # seconds; a greater number counts as milliseconds


@dataclass(frozen=True, slots=True)
class ExportedMessage:
    """A message of the user or the assistant; `created_at` is in microseconds."""

    id: str
    role: str
    text: str
    created_at: int | None = None
    thoughts: str = ""
    model: str | None = None


@dataclass(slots=True)
class ExportedChat:
    """A chat; or, with `memory`, a text to remember.

    `remembered` holds the memories of the other assistant that the chat shows. `left_out` notes
    parts that cannot be imported.
    """

    id: str
    title: str
    created_at: int | None = None
    messages: list[ExportedMessage] = field(default_factory=list)
    memory: Json | None = None
    remembered: list[RememberedText] = field(default_factory=list)
    left_out: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True)
class SkippedMember:
    """A file in an export's zip file that is not imported."""

    name: str


TITLES: Mapping[str, str] = {
    "chatgpt": "ChatGPT",
    "claude": "Claude",
    "openwebui": "Open WebUI",
    "mem0": "mem0",
    "pasted": "Pasted list",
}


def kind_of(entry: Json) -> str | None:
    """Return the kind of export that an entry belongs to; None if it is unclear.

    The kind is recognized by fields that no other kind has.
    """
    if isinstance(entry.get("chat"), dict):
        chat: Json = entry["chat"]
    else:
        chat = entry
    if isinstance(entry.get("mapping"), dict):
        return "chatgpt"
    if isinstance(entry.get("chat_messages"), list) or "conversations_memory" in entry:
        return "claude"
    if isinstance(chat.get("history"), dict) or chat is not entry:
        return "openwebui"
    if isinstance(entry.get("memory"), str):
        return "mem0"
    return None


def read_chats(kind: str, file: IO[bytes]) -> Iterator[ExportedChat | SkippedMember | str]:
    """Yield the file's chats.

    For an unreadable entry it yields the reason as a text. For a zip file it also yields the files
    in it that are not imported. Raises Invalid if the rest of the file cannot be read.
    """
    if kind == "pasted":
        yield _pasted(file)
        return
    parse = PARSERS[kind]
    for stream in _streams(file):
        if isinstance(stream, SkippedMember):
            yield stream
            continue
        for data in _entries(stream):
            if data is None:
                yield f"it is longer than {LONGEST // 2**20} MB"
                continue
            try:
                entry = _loads(data)
                if not isinstance(entry, dict):
                    yield "it is not a JSON object"
                elif (actual_kind := kind_of(entry)) not in (None, kind):
                    title = TITLES[str(actual_kind)]
                    yield f"it looks like an export of {title}: import it as {actual_kind}"
                else:
                    parsed = parse(entry)
                    yield from parsed if isinstance(parsed, list) else (parsed,)
            except (KeyError, TypeError, ValueError, AttributeError, Invalid) as error:
                yield f"it cannot be read ({type(error).__name__}: {str(error)[:100]})"


class _Bounded:
    """A stream with a limit of bytes.

    All streams of a file share one limit. Beyond the limit, or if the stream is damaged, `read`
    raises Invalid.
    """

    def __init__(self, stream: IO[bytes], limit: list[int]) -> None:
        self._stream = stream
        self._limit = limit

    def read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            OSError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise Invalid(f"The zip file is damaged: {error}. Download it again.") from error
        self._limit[0] -= len(data)
        if self._limit[0] < 0:
            raise Invalid(
                f"The file holds more than {MOST_UNPACKED // 2**30} GB. Split it, and import the "
                "parts."
            )
        return data


def _streams(file: IO[bytes]) -> Iterator["_Bounded | SkippedMember"]:
    """Yield the JSON streams of the file.

    Of a zip file, it yields the content of members with chats, and only the names of other members.
    """
    magic = file.read(4)
    file.seek(0)
    if magic != b"PK\x03\x04":
        yield _Bounded(file, [MOST_UNPACKED])
        return
    try:
        archive = zipfile.ZipFile(file)
        listed = sorted(name for name in archive.namelist() if not name.endswith("/"))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise Invalid(f"The zip file is damaged: {error}. Download it again.") from error
    names = [name for name in listed if _MEMBER.fullmatch(PurePosixPath(name).name)]
    if not names:
        raise Invalid("The zip file holds no conversations.json. Choose the unchanged export.")
    yield from (SkippedMember(name) for name in listed if name not in names)
    limit = [MOST_UNPACKED]
    for name in names:
        try:
            stream = archive.open(name)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
            raise Invalid(f"The zip file cannot be unpacked: {error}") from error
        with stream:
            yield _Bounded(stream, limit)


def _entries(stream: _Bounded) -> Iterator[bytes | None]:
    """Yield the JSON of each entry of the file's list; None for an entry longer than `LONGEST`.

    Only one entry is in memory at a time. A file that is one object is read whole.
    """
    block = stream.read(_BLOCK)
    if not (first := block.lstrip(b"\xef\xbb\xbf \t\r\n")).startswith(b"["):
        yield from _entries_of_object(first, stream)
        return
    entry = bytearray()
    depth = 0
    is_text = False
    skips = False
    is_long = False
    while block:
        start = 0
        position = int(skips)
        while match := (_IN_TEXT if is_text else _OUTSIDE).search(block, position):
            position = match.end()
            token = match.group()
            if is_text:
                # Skip an escaped byte, which may be the first byte of the next read.
                position += token == b"\\"
                is_text = token == b"\\"
            elif token == b'"':
                is_text = True
            elif token in b"[{":
                depth += 1
                if depth == 1:
                    start = position
            else:
                if depth == 1:
                    entry += block[start : match.start()]
                    if is_long or entry.strip():
                        yield None if is_long else bytes(entry)
                    entry.clear()
                    start = position
                    is_long = False
                depth -= token != b","
                if depth == 0:
                    return
        skips = position > len(block)
        entry += block[start:]
        if is_long := is_long or len(entry) > LONGEST:
            entry.clear()
        block = stream.read(_BLOCK)
    raise Invalid(
        "The file is cut off. The complete chats in it were imported. Download it again for "
        "the others."
    )


def _entries_of_object(first: bytes, stream: _Bounded) -> Iterator[bytes]:
    """Yield the entries of a file that is one object.

    The object is a chat, or contains a list of chats.
    """
    whole = bytearray(first)
    while (block := stream.read(_BLOCK)) and len(whole) <= LONGEST:
        whole += block
    if len(whole) > LONGEST:
        raise Invalid(
            f"The file holds one object of more than {LONGEST // 2**20} MB. Export the chats as a "
            "list."
        )
    try:
        content = _loads(bytes(whole))
    except ValueError as error:
        raise Invalid(f"The file is not JSON: {error}. Choose the unchanged export.") from error
    if not isinstance(content, dict):
        raise Invalid("The file holds no list of chats. Choose the unchanged export.")
    listed = next(
        (content[name] for name in _LISTS if isinstance(content.get(name), list)), [content]
    )
    yield from (orjson.dumps(entry) for entry in listed)


def _loads(data: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError.

    Exports hold halves of characters, where titles and texts were cut, and numbers such as NaN.
    Both are replaced, so that the rest can be read (see `storable_json`).
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        strict_error = error
    try:
        lenient = json.loads(data, strict=False, parse_constant=lambda _: None, parse_float=_finite)
        return storable_json(lenient)
    except (ValueError, RecursionError):
        raise strict_error from None


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _is_hidden(message: Json) -> bool:
    metadata = message.get("metadata") or {}
    return bool(metadata.get("is_visually_hidden_from_conversation"))


def _thoughts_of(content: Json) -> str:
    thoughts = content.get("thoughts") or ()
    return "\n".join(str(thought.get("content") or "") for thought in thoughts)


def _leave_files(chat: ExportedChat, message: Json) -> None:
    for _ in message.get("files") or ():
        chat.left_out.leave(
            "pictures and files", "", "the export names them, but does not contain them"
        )


def _chatgpt(entry: Json) -> ExportedChat:
    chat = _chat(
        entry.get("conversation_id") or entry["id"], entry.get("title"), entry.get("create_time")
    )
    nodes = entry["mapping"]
    leaf = entry.get("current_node") or next(reversed(nodes), None)
    for id, node in _branch(nodes, leaf, "parent"):
        message = node.get("message")
        if not message:
            continue
        remembered = remembered_in_message(message, _time(message.get("create_time")))
        chat.remembered += remembered
        if remembered or _is_hidden(message):
            continue
        role = message["author"]["role"]
        content = message.get("content") or {}
        kind = content.get("content_type")
        if role == "system" or kind in (
            "user_editable_context",
            "model_editable_context",
            "reasoning_recap",
        ):
            continue
        if role == "tool" or message.get("recipient") not in (None, "all"):
            chat.left_out.leave("uses of tools", "", _TOOLS)
            continue
        thoughts = _thoughts_of(content)
        texts = [_text_of(part, chat) for part in content.get("parts") or (content.get("text"),)]
        model = (message.get("metadata") or {}).get("model_slug")
        text = "\n".join(filter(None, texts))
        created = message.get("create_time")
        _add(chat, id, role, text=text, created=created, thoughts=thoughts, model=model)
    return chat


def _claude(entry: Json) -> ExportedChat | list[ExportedChat]:
    if "conversations_memory" in entry or "project_memories" in entry:
        return _claude_memories(entry)
    chat = _chat(entry["uuid"], entry.get("name"), entry.get("created_at"))
    listed = entry["chat_messages"]
    nodes = {message["uuid"]: message for message in listed}
    # If messages name their parents, the list also contains edited questions and repeated answers.
    is_tree = any(message.get("parent_message_uuid") in nodes for message in listed)
    leaf = entry.get("current_leaf_message_uuid") or (listed[-1]["uuid"] if listed else None)
    for id, message in _branch(nodes, leaf, "parent_message_uuid") if is_tree else nodes.items():
        _add_claude_message(chat, id, message)
    return chat


def _add_claude_message(chat: ExportedChat, id: str, message: Json) -> None:
    pieces = [piece for piece in message.get("content") or () if isinstance(piece, dict)]
    texts = _field_texts(pieces, "text", "text") or [str(message.get("text") or "")]
    for attachment in message.get("attachments") or ():
        name = attachment.get("file_name") or "Attachment"
        texts.append(f"{name}:\n{attachment.get('extracted_content') or ''}")
    if any(piece.get("type") in ("tool_use", "tool_result") for piece in pieces):
        chat.left_out.leave("uses of tools", "", _TOOLS)
    _leave_files(chat, message)
    role = {"human": "user"}.get(message["sender"], message["sender"])
    text = "\n".join(filter(None, texts))
    thoughts = "\n".join(_field_texts(pieces, "thinking", "thinking"))
    _add(chat, id, role, text=text, created=message.get("created_at"), thoughts=thoughts)


def _field_texts(pieces: Iterable[Json], kind: str, name: str) -> list[str]:
    """Return the values of this field as texts, one for each piece of the kind."""
    return [str(piece.get(name) or "") for piece in pieces if piece.get("type") == kind]


def _claude_memories(entry: Json) -> list[ExportedChat]:
    """Return Claude's memories about the person, for all chats and for each project."""
    account = str(entry.get("account_uuid") or "")
    projects = entry.get("project_memories")
    texts = [("chats", entry.get("conversations_memory"))]
    texts += [*projects.items()] if isinstance(projects, dict) else []
    memories = []
    for source, text in texts:
        if isinstance(text, str) and text.strip():
            metadata = {"account_uuid": account}
            if source != "chats":
                metadata["project_uuid"] = str(source)
            memory = {"text": text.strip(), "tags": ["memory"], "metadata": metadata}
            exported = ExportedChat(f"memory/{account}/{source}", text.strip(), memory=memory)
            if source == "chats":
                exported.remembered += (
                    RememberedText(paragraph, "memory") for paragraph in paragraphs_of(text)
                )
            memories.append(exported)
    if not memories:
        raise Invalid("it has no memory")
    return memories


def _by_id(messages: Iterable[Json]) -> Json:
    return {message["id"]: message for message in messages}


def _openwebui(entry: Json) -> ExportedChat:
    if isinstance(entry.get("chat"), dict):
        fields: Json = entry["chat"]
    else:
        fields = entry
    history = fields.get("history") or {}
    chat = _chat(
        entry["id"],
        fields.get("title") or entry.get("title"),
        entry.get("created_at") or fields.get("timestamp"),
    )
    nodes = history.get("messages") or _by_id(fields.get("messages") or ())
    leaf = history.get("currentId") or next(reversed(nodes), None)
    for id, message in _branch(nodes, leaf, "parentId"):
        _add_openwebui(chat, id, message)
    return chat


def _add_openwebui(chat: ExportedChat, id: str, message: Json) -> None:
    """Add a message of Open WebUI to the chat, and count the parts that are left out."""
    content = message.get("content")
    if isinstance(content, list):
        parts = content
    else:
        parts = [content]
    _leave_files(chat, message)
    text = "\n".join(filter(None, (_text_of(part, chat) for part in parts)))
    if message["role"] == "system":
        return
    answer = WebuiAnswer(text)
    outputs = read_outputs(message.get("output"))
    if message["role"] == "assistant":
        answer = split_answer(text) if text.strip() else outputs
    for _ in range(max(answer.tools, outputs.tools)):
        chat.left_out.leave("uses of tools", "", _TOOLS)
    _add(
        chat,
        id,
        message["role"],
        text=answer.text or outputs.text,
        created=message.get("timestamp"),
        thoughts="\n\n".join(answer.thoughts or outputs.thoughts),
        model=message.get("model"),
    )


def _mem0(entry: Json) -> ExportedChat:
    text = entry.get("memory") or entry.get("text") or entry.get("data")
    if not isinstance(text, str) or not text.strip():
        raise Invalid("it has no memory")
    if isinstance(entry.get("metadata"), dict):
        metadata: Json = entry["metadata"]
    else:
        metadata = {}
    ids = {
        name: entry[name]
        for name in ("user_id", "agent_id", "run_id")
        if isinstance(entry.get(name), str)
    }
    tags = [category for category in entry.get("categories") or () if isinstance(category, str)]
    created_at = _time(entry.get("created_at"))
    return ExportedChat(
        str(entry.get("id") or text),
        text,
        created_at,
        memory={"text": text, "tags": tags, "metadata": {**metadata, **ids}},
    )


def _pasted(file: IO[bytes]) -> ExportedChat:
    """Return the lines of a text file. Raises Invalid if it is not text, or is too long."""
    content = file.read(_MOST_PASTED + 1)
    if len(content) > _MOST_PASTED:
        raise Invalid(
            f"The list is longer than {_MOST_PASTED // 2**20} MB. Send a file with one memory "
            "on each line."
        )
    try:
        text, _ = decoded_text(content)
    except Invalid:
        raise Invalid("The list is not text. Send a file with one memory on each line.") from None
    if not any(character.isalnum() for character in text):
        raise Invalid("The list has no words. Send a file with one memory on each line.")
    lines = [RememberedText(line, "memory") for line in lines_of(text.replace("\0", ""))]
    if not lines:
        raise Invalid("The list is empty. Send a file with one memory on each line.")
    return ExportedChat("pasted", "", memory={}, remembered=lines)


def _chat(id: Any, title: Any, created: Any) -> ExportedChat:
    if not isinstance(id, str) or not id:
        raise Invalid("it has no id")
    if isinstance(title, str):
        clean_title = title.replace("\0", "")[:500]
    else:
        clean_title = ""
    return ExportedChat(id, clean_title, _time(created))


def _branch(nodes: Mapping[str, Json], leaf: Any, parent: str) -> list[tuple[str, Json]]:
    """Return the nodes from the first to the leaf, in order.

    A cycle ends the branch.
    """
    branch: dict[str, Json] = {}
    while isinstance(leaf, str) and leaf in nodes and leaf not in branch:
        branch[leaf] = nodes[leaf]
        leaf = nodes[leaf].get(parent)
    return [*reversed(branch.items())]


def _add(
    chat: ExportedChat,
    id: str,
    role: Any,
    *,
    text: str,
    created: Any,
    thoughts: str = "",
    model: Any = None,
) -> None:
    if role not in ("user", "assistant"):
        chat.left_out.leave("messages", chat.title, "neither the user nor the assistant wrote them")
    elif len(chat.messages) >= _MOST_MESSAGES:
        chat.left_out.leave("messages", chat.title, f"the chat has more than {_MOST_MESSAGES:,}")
    elif text or thoughts:
        message = ExportedMessage(
            str(id),
            role,
            text,
            _time(created),
            thoughts=thoughts,
            model=model[:200] if isinstance(model, str) else None,
        )
        chat.messages.append(message)


def _text_of(part: Any, chat: ExportedChat) -> str:
    """Return the text of a part; it is empty for a picture or a sound."""
    if isinstance(part, str) or part is None:
        return part or ""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    chat.left_out.leave(
        "pictures and files", "", "the export names them, but does not contain them"
    )
    return ""


def _time(exported: Any) -> int | None:
    """Return the time in microseconds, or None.

    The export has seconds or milliseconds since 1970, or an ISO time.
    """
    try:
        if isinstance(exported, str):
            return parse_timestamp(exported, UTC)
        if isinstance(exported, int | float) and not isinstance(exported, bool) and exported > 0:
            if exported > _LATEST:
                seconds = exported / 1000
            else:
                seconds = exported
            if seconds < _LATEST:
                return round(seconds * SECOND)
            return None
    except (Invalid, ValueError, OverflowError):
        pass
    return None


PARSERS: Mapping[str, Callable[[Json], ExportedChat | list[ExportedChat]]] = {
    "chatgpt": _chatgpt,
    "claude": _claude,
    "openwebui": _openwebui,
    "mem0": _mem0,
}
