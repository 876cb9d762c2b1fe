"""Files that ChatGPT, Claude, Open WebUI and mem0 export: read one chat at a time, of which the branch that was shown is taken.

Nothing in them is trusted: what is no chat is left out with a reason, and what is too much to read is an error.
"""

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import PurePosixPath
from typing import IO, Any

import orjson

from ricordo.domain.clock import SECOND, parse_timestamp
from ricordo.errors import Invalid
from ricordo.features.imports.queries import Outcome
from ricordo.features.imports.webui_answers import WebuiAnswer, read_outputs, split_answer

Json = dict[str, Any]
MOST_UNPACKED = 2**31  # bytes of JSON, however small they were packed
LONGEST = 32 * 2**20  # bytes of one chat
_BLOCK = 2**16
_MOST_MESSAGES = 100_000  # of one chat
_MEMBER = re.compile(
    r"(conversations|chats?-export|chats?|memories)([-_]\d+)?\.json", re.IGNORECASE
)
_IN_TEXT, _OUTSIDE = re.compile(rb'["\\]'), re.compile(rb'["{}\[\],]')
_LISTS = ("conversations", "results", "memories", "chats")
_TOOLS = "what tools were asked and gave is not taken, what was said is"
_LATEST = 253_370_764_800  # seconds: a time beyond is one in milliseconds


@dataclass(frozen=True, slots=True)
class ExportedMessage:
    """Something that the user or the assistant said; `at` is in microseconds, where it is known."""

    id: str
    role: str
    text: str
    at: int | None = None
    thoughts: str = ""
    model: str | None = None


@dataclass(slots=True)
class ExportedChat:
    """A chat, or with `memory` something that was remembered; `left` is what of it cannot be taken."""

    id: str
    title: str
    at: int | None = None
    messages: list[ExportedMessage] = field(default_factory=list)
    memory: Json | None = None
    left: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True)
class SkippedMember:
    """A file in an export's zip file of which nothing is taken."""

    name: str


TITLES: Mapping[str, str] = {
    "chatgpt": "ChatGPT",
    "claude": "Claude",
    "openwebui": "Open WebUI",
    "mem0": "mem0",
}


def kind_of(sent: Json) -> str | None:
    """Return the kind of export that an element is of, by the fields that no other kind has; None where that is not clear."""
    chat: Json = sent["chat"] if isinstance(sent.get("chat"), dict) else sent
    if isinstance(sent.get("mapping"), dict):
        return "chatgpt"
    if isinstance(sent.get("chat_messages"), list) or "conversations_memory" in sent:
        return "claude"
    if isinstance(chat.get("history"), dict) or chat is not sent:
        return "openwebui"
    return "mem0" if isinstance(sent.get("memory"), str) else None


def read_chats(kind: str, file: IO[bytes]) -> Iterator[ExportedChat | SkippedMember | str]:
    """Yield what is in the file; for what cannot be read the reason. Raises Invalid where the rest cannot be read at all."""
    parse = PARSERS[kind]
    for stream in _streams(file):
        if isinstance(stream, SkippedMember):
            yield stream
            continue
        for data in _elements(stream):
            if data is None:
                yield f"it is longer than {LONGEST // 2**20} MB"
                continue
            try:
                sent = orjson.loads(data)
                if not isinstance(sent, dict):
                    yield "it is no JSON object"
                elif (other := kind_of(sent)) not in (None, kind):
                    yield f"it looks like an export of {TITLES[str(other)]}: import it as {other}"
                else:
                    parsed = parse(sent)
                    yield from parsed if isinstance(parsed, list) else (parsed,)
            except (KeyError, TypeError, ValueError, AttributeError, Invalid) as error:
                yield f"it cannot be read ({type(error).__name__}: {str(error)[:100]})"


class _Bounded:
    """A stream that, with the others of its file, has no more bytes than are `left`; damage in it is an error of ours."""

    def __init__(self, stream: IO[bytes], left: list[int]) -> None:
        self._stream, self._left = stream, left

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
        self._left[0] -= len(data)
        if self._left[0] < 0:
            raise Invalid(
                f"The file holds more than {MOST_UNPACKED // 2**30} GB. Take it apart, and import the parts."
            )
        return data


def _streams(file: IO[bytes]) -> Iterator["_Bounded | SkippedMember"]:
    """Yield the JSON of the file, or of those in it that hold chats where it is a zip file; others by name alone."""
    begin = file.read(4)
    file.seek(0)
    if begin != b"PK\x03\x04":
        yield _Bounded(file, [MOST_UNPACKED])
        return
    try:
        packed = zipfile.ZipFile(file)
        listed = sorted(name for name in packed.namelist() if not name.endswith("/"))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise Invalid(f"The zip file is damaged: {error}. Download it again.") from error
    names = [name for name in listed if _MEMBER.fullmatch(PurePosixPath(name).name)]
    if not names:
        raise Invalid(
            "The zip file holds no conversations.json. Choose the file as it was exported."
        )
    yield from (SkippedMember(name) for name in listed if name not in names)
    left = [MOST_UNPACKED]
    for name in names:
        try:
            stream = packed.open(name)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
            raise Invalid(f"The zip file cannot be unpacked: {error}") from error
        with stream:
            yield _Bounded(stream, left)


def _elements(stream: _Bounded) -> Iterator[bytes | None]:
    """Yield the JSON of each element of the list, None for one that is too long. No more than one is held at a time."""
    block = stream.read(_BLOCK)
    if not (begin := block.lstrip(b"\xef\xbb\xbf \t\r\n")).startswith(b"["):
        yield from _elements_of_object(begin, stream)
        return
    piece, depth, is_text, skips, is_long = bytearray(), 0, False, False, False
    while block:
        start, at = 0, int(skips)
        while found := (_IN_TEXT if is_text else _OUTSIDE).search(block, at):
            at, sign = found.end(), found.group()
            if is_text:
                at += sign == b"\\"  # and what stands behind it, maybe in the next block
                is_text = sign == b"\\"
            elif sign == b'"':
                is_text = True
            elif sign in b"[{":
                depth += 1
                start = at if depth == 1 else start
            else:
                if depth == 1:
                    piece += block[start : found.start()]
                    if is_long or piece.strip():
                        yield None if is_long else bytes(piece)
                    piece.clear()
                    start, is_long = at, False
                depth -= sign != b","
                if depth == 0:
                    return
        skips = at > len(block)
        piece += block[start:]
        if is_long := is_long or len(piece) > LONGEST:
            piece.clear()
        block = stream.read(_BLOCK)
    raise Invalid("The file ends in the middle. Download it again; what was read of it is taken.")


def _elements_of_object(begin: bytes, stream: _Bounded) -> Iterator[bytes]:
    """A file that is one object: a chat, or with a list of them."""
    whole = bytearray(begin)
    while (block := stream.read(_BLOCK)) and len(whole) <= LONGEST:
        whole += block
    if len(whole) > LONGEST:
        raise Invalid(
            f"The file is one object of more than {LONGEST // 2**20} MB. Export the chats as a list."
        )
    try:
        sent = orjson.loads(bytes(whole))
    except orjson.JSONDecodeError as error:
        raise Invalid(
            f"The file is no JSON: {error}. Choose the file as it was exported."
        ) from error
    if not isinstance(sent, dict):
        raise Invalid("The file holds no list of chats. Choose the file as it was exported.")
    listed = next((sent[name] for name in _LISTS if isinstance(sent.get(name), list)), [sent])
    yield from (orjson.dumps(one) for one in listed)


def _chatgpt(sent: Json) -> ExportedChat:
    chat = _chat(
        sent.get("conversation_id") or sent["id"], sent.get("title"), sent.get("create_time")
    )
    nodes = sent["mapping"]
    leaf = sent.get("current_node") or next(reversed(nodes), None)
    for id, node in _branch(nodes, leaf, "parent"):
        message = node.get("message")
        if not message or (message.get("metadata") or {}).get(
            "is_visually_hidden_from_conversation"
        ):
            continue
        role, content = message["author"]["role"], message.get("content") or {}
        kind = content.get("content_type")
        if role == "system" or kind in (
            "user_editable_context",
            "model_editable_context",
            "reasoning_recap",
        ):
            continue
        if role == "tool" or message.get("recipient") not in (None, "all"):
            chat.left.leave("uses of tools", "", _TOOLS)
            continue
        thoughts = "\n".join(str(one.get("content") or "") for one in content.get("thoughts") or ())
        texts = [_text_of(part, chat) for part in content.get("parts") or (content.get("text"),)]
        model = (message.get("metadata") or {}).get("model_slug")
        _add(
            chat,
            id,
            role,
            "\n".join(filter(None, texts)),
            message.get("create_time"),
            thoughts,
            model,
        )
    return chat


def _claude(sent: Json) -> ExportedChat | list[ExportedChat]:
    if "conversations_memory" in sent or "project_memories" in sent:
        return _claude_memories(sent)
    chat = _chat(sent["uuid"], sent.get("name"), sent.get("created_at"))
    listed = sent["chat_messages"]
    nodes = {one["uuid"]: one for one in listed}
    # Edited questions and repeated answers are in the list too, where messages name their parents.
    is_tree = any(one.get("parent_message_uuid") in nodes for one in listed)
    leaf = sent.get("current_leaf_message_uuid") or (listed[-1]["uuid"] if listed else None)
    for id, one in _branch(nodes, leaf, "parent_message_uuid") if is_tree else nodes.items():
        pieces = [piece for piece in one.get("content") or () if isinstance(piece, dict)]
        texts = [str(piece.get("text") or "") for piece in pieces if piece.get("type") == "text"]
        thoughts = [
            str(piece.get("thinking") or "") for piece in pieces if piece.get("type") == "thinking"
        ]
        texts = texts or [str(one.get("text") or "")]
        for attached in one.get("attachments") or ():
            texts.append(
                f"{attached.get('file_name') or 'Attachment'}:\n{attached.get('extracted_content') or ''}"
            )
        if any(piece.get("type") in ("tool_use", "tool_result") for piece in pieces):
            chat.left.leave("uses of tools", "", _TOOLS)
        for _ in one.get("files") or ():
            chat.left.leave(
                "pictures and files", "", "the export names them, and does not hold them"
            )
        role = {"human": "user"}.get(one["sender"], one["sender"])
        _add(
            chat,
            id,
            role,
            "\n".join(filter(None, texts)),
            one.get("created_at"),
            "\n".join(thoughts),
        )
    return chat


def _claude_memories(sent: Json) -> list[ExportedChat]:
    """What Claude remembers of the person: of all chats, and of those in each project."""
    account = str(sent.get("account_uuid") or "")
    projects = sent.get("project_memories")
    texts = [("chats", sent.get("conversations_memory"))]
    texts += [*projects.items()] if isinstance(projects, dict) else []
    memories = []
    for place, text in texts:
        if isinstance(text, str) and text.strip():
            metadata = {"account_uuid": account} | (
                {} if place == "chats" else {"project_uuid": str(place)}
            )
            memory = {"text": text.strip(), "tags": ["memory"], "metadata": metadata}
            memories.append(ExportedChat(f"memory/{account}/{place}", text.strip(), memory=memory))
    if not memories:
        raise Invalid("it has no memory")
    return memories


def _openwebui(sent: Json) -> ExportedChat:
    held: Json = sent["chat"] if isinstance(sent.get("chat"), dict) else sent
    history = held.get("history") or {}
    chat = _chat(
        sent["id"],
        held.get("title") or sent.get("title"),
        sent.get("created_at") or held.get("timestamp"),
    )
    nodes = history.get("messages") or {one["id"]: one for one in held.get("messages") or ()}
    leaf = history.get("currentId") or next(reversed(nodes), None)
    for id, one in _branch(nodes, leaf, "parentId"):
        content = one.get("content")
        parts = content if isinstance(content, list) else [content]
        for _ in one.get("files") or ():
            chat.left.leave(
                "pictures and files", "", "the export names them, and does not hold them"
            )
        text = "\n".join(filter(None, (_text_of(part, chat) for part in parts)))
        if one["role"] == "system":
            continue
        answer, outputs = WebuiAnswer(text), read_outputs(one.get("output"))
        if one["role"] == "assistant":
            answer = split_answer(text) if text.strip() else outputs
        for _ in range(max(answer.tools, outputs.tools)):
            chat.left.leave("uses of tools", "", _TOOLS)
        thoughts = "\n\n".join(answer.thoughts or outputs.thoughts)
        _add(
            chat,
            id,
            one["role"],
            answer.text or outputs.text,
            one.get("timestamp"),
            thoughts,
            one.get("model"),
        )
    return chat


def _mem0(sent: Json) -> ExportedChat:
    text = sent.get("memory") or sent.get("text") or sent.get("data")
    if not isinstance(text, str) or not text.strip():
        raise Invalid("it has no memory")
    metadata: Json = sent["metadata"] if isinstance(sent.get("metadata"), dict) else {}
    named = {
        name: sent[name]
        for name in ("user_id", "agent_id", "run_id")
        if isinstance(sent.get(name), str)
    }
    tags = [one for one in sent.get("categories") or () if isinstance(one, str)]
    at = _time(sent.get("created_at"))
    return ExportedChat(
        str(sent.get("id") or text),
        text,
        at,
        memory={"text": text, "tags": tags, "metadata": {**metadata, **named}},
    )


def _chat(id: Any, title: Any, at: Any) -> ExportedChat:
    if not isinstance(id, str) or not id:
        raise Invalid("it has no id")
    return ExportedChat(
        id, title.replace("\0", "")[:500] if isinstance(title, str) else "", _time(at)
    )


def _branch(nodes: Mapping[str, Json], leaf: Any, parent: str) -> list[tuple[str, Json]]:
    """Return the nodes from the first to the leaf. A tree that bites its own tail ends there."""
    found: dict[str, Json] = {}
    while isinstance(leaf, str) and leaf in nodes and leaf not in found:
        found[leaf] = nodes[leaf]
        leaf = nodes[leaf].get(parent)
    return [*reversed(found.items())]


def _add(
    chat: ExportedChat,
    id: str,
    role: Any,
    text: str,
    at: Any,
    thoughts: str = "",
    model: Any = None,
) -> None:
    if role not in ("user", "assistant"):
        chat.left.leave("messages", chat.title, "neither the user nor the assistant said them")
    elif len(chat.messages) >= _MOST_MESSAGES:
        chat.left.leave("messages", chat.title, f"the chat has more than {_MOST_MESSAGES:,}")
    elif text or thoughts:
        named = model[:200] if isinstance(model, str) else None
        chat.messages.append(ExportedMessage(str(id), role, text, _time(at), thoughts, named))


def _text_of(part: Any, chat: ExportedChat) -> str:
    """The text of a part; of a picture or a sound there is none."""
    if isinstance(part, str) or part is None:
        return part or ""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    chat.left.leave("pictures and files", "", "the export names them, and does not hold them")
    return ""


def _time(at: Any) -> int | None:
    """Seconds or milliseconds since 1970, or an ISO time, in microseconds; None where it is neither."""
    try:
        if isinstance(at, str):
            return parse_timestamp(at, UTC)
        if isinstance(at, int | float) and not isinstance(at, bool) and at > 0:
            seconds = at / 1000 if at > _LATEST else at
            return round(seconds * SECOND) if seconds < _LATEST else None
    except (Invalid, ValueError, OverflowError):
        pass
    return None


PARSERS: Mapping[str, Callable[[Json], ExportedChat | list[ExportedChat]]] = {
    "chatgpt": _chatgpt,
    "claude": _claude,
    "openwebui": _openwebui,
    "mem0": _mem0,
}
