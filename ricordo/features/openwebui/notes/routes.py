"""`/api/you/notes`: the caller's memory blocks as notes with versions.

An edit becomes a version, or a proposal if the caller may only propose. The format is that of Open
WebUI 0.12.4: times are nanoseconds, and `data.content` holds Markdown, HTML and JSON (here always
null). A note's id is the block's id without its prefix.
"""

from typing import Any

from fastapi import Response
from pydantic import Field

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext, with_outcome
from ricordo.api.models.base import ResponseModel
from ricordo.api.routing import Routes
from ricordo.domain.block import Block
from ricordo.domain.ids import is_id
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.openai.models import LenientRequest
from ricordo.memory import submission, user_memory
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.pages.filters import editable_markdown
from ricordo.storage import history
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/api/you/notes", tags=["notes"], scope="memory")
_VERSIONS = 50
_EMPTIED = (
    "This would empty a note that has a text. Some editors send an empty text by mistake while "
    "they load. To delete the memory, use DELETE /users/{user}/blocks/{label}."
)
_NO_USER = (
    "Notes belong to a user. Send the key of a user, "
    "or name one in x-ricordo-user with a service's key."
)


class NoteContent(LenientRequest):
    """The text of a note; only the Markdown is read."""

    md: str | None = Field(None, max_length=1_000_000)


class NoteData(LenientRequest):
    """The content of a note."""

    content: NoteContent | None = None


class NoteUpdate(LenientRequest):
    """A change of a note; an omitted field keeps its value."""

    title: str | None = Field(None, max_length=500)
    data: NoteData | None = None


class OpenWebUINote(ResponseModel):
    """A note in Open WebUI's format."""

    id: str
    user_id: str
    title: str
    data: Json
    meta: Json
    is_pinned: bool
    access_grants: list[Json]
    write_access: bool
    created_at: int
    updated_at: int


@router.get("/", response_model=list[OpenWebUINote])
def list_notes(tx: Transaction, context: RequestContext) -> list[Json]:
    """List the caller's blocks as notes, without their versions."""
    if context.scope.subject is None:
        raise Invalid(_NO_USER)
    memory = _memory(tx, context)
    return [_note(memory, block) for block in user_memory.listed(tx, memory)]


@router.get("/{note_id}", response_model=OpenWebUINote)
def retrieve(tx: Transaction, context: RequestContext, note_id: str) -> Json:
    """Return a note with its newest 50 versions, the newest first."""
    memory = _memory(tx, context)
    block = _block(tx, memory, note_id)
    return _note(memory, block, _versions(tx, block))


@router.post("/{note_id}/update", response_model=OpenWebUINote)
def update(tx: Transaction, context: RequestContext, note_id: str, body: NoteUpdate) -> Response:
    """Change the text and title of a note. A program that may only propose proposes the change.

    For a note that has text, an empty text is refused.
    """
    memory = _memory(tx, context)
    block = _block(tx, memory, note_id)
    text = body.data.content.md if body.data and body.data.content else None
    options = PutOptions()
    if body.title is not None and body.title != _title(block):
        options = PutOptions(title=body.title)
    if text is not None and not text.strip() and block.value.strip():
        raise Conflict(_EMPTIED)
    new_text = block.value if text is None else _with_same_end(text, block.value)
    edit = context.submission(memory.user, "Edited as a note")
    outcome = submission.put(tx, memory, block.label, text=new_text, options=options, edit=edit)
    changed = user_memory.require(tx, memory, block.label)
    return with_outcome(answer(_note(memory, changed, _versions(tx, changed))), outcome)


def _memory(tx: Transaction, context: RequestContext) -> UserMemory:
    """Return the memory of the caller's user. Raises NotFound."""
    if context.scope.subject is None:
        raise NotFound(_NO_USER)
    return user_memory.open_memory(tx, context.scope, context.scope.subject)


def _block(tx: Transaction, memory: UserMemory, note_id: str) -> Block:
    block_id = f"block-{note_id}"
    if is_id(block_id, "block"):
        for block in user_memory.listed(tx, memory):
            if block.id == block_id:
                return block
    raise NotFound("There is no such note.")


def _versions(tx: Transaction, block: Block) -> list[Json]:
    notes = []
    for version in history.page(tx, block.chain_id, label=block.label, limit=_VERSIONS):
        text = history.text_at(tx, block.chain_id, block.label, version) or ""
        ids = {"id": version.id.hex(), "author": version.author.shown_name}
        notes.append(_content(text) | ids)
    return notes


def _note(memory: UserMemory, block: Block, versions: list[Json] | None = None) -> Json:
    content: dict[str, Any] = {"content": _content(block.value)}
    if versions is not None:
        content["versions"] = versions
    return OpenWebUINote.of(
        None,
        id=block.id.removeprefix("block-"),
        user_id=memory.user.id,
        title=_title(block),
        data=content,
        meta={"label": block.label, "policy": block.policy, "description": block.description},
        is_pinned=False,
        access_grants=[],
        write_access=not block.read_only,
        created_at=block.created_at * 1000,
        updated_at=block.updated_at * 1000,
    )


def _title(block: Block) -> str:
    return block.title or block.label.replace("_", " ").replace("/", ": ").capitalize()


def _content(text: str) -> Json:
    return {"json": None, "html": str(editable_markdown(text)), "md": text}


def _with_same_end(text: str, before: str) -> str:
    """Return the new text with the final line ends of the old text.

    Editors remove or add final line ends.
    """
    text = text.replace("\r\n", "\n")
    if not text.strip("\n"):
        return text
    return text.rstrip("\n") + before[len(before.rstrip("\n")) :]
