"""How a block is read and written over HTTP: JSON or a format of a plugin (Markdown and TOML are built in), and entity tags.

By entity tags a reader is not sent what it has, and a writer overwrites only what it has seen (RFC 9110, §13). A tag is
`"<version id>.<count of writes>.<digest of the answer>"`. What `If-Match` compares are the first two: the text and the settings
that a write would replace, in whichever format they were read. The version id alone is enough too.
"""

import asyncio
import hashlib
import re
from typing import Annotated, Any

import orjson
from fastapi import Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from ricordo.api.call import Here, RequestContext
from ricordo.api.models.memory import PutBlockRequest
from ricordo.domain.block import Block
from ricordo.domain.block_format import BlockFormat
from ricordo.domain.block_schema import BlockSchema
from ricordo.errors import Invalid, NotFound, PreconditionFailed, Unsupported
from ricordo.memory import user_memory
from ricordo.memory.schemas import FOLDER, read_schema, schema_names
from ricordo.memory.sections import starting_text
from ricordo.storage.engine.store import Transaction

_TEXT = {"schema": {"type": "string"}}
PUT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PutBlockRequest.model_json_schema()},
            "text/markdown": _TEXT,
            "application/toml": _TEXT,
        },
    }
}
Message = Annotated[
    str | None,
    Query(max_length=10_000, description="Why, as its history will say; for formats that have no field for it."),
]


async def show_as(here: RequestContext, block: Block, format: str) -> tuple[str, str]:
    """The block in this format, and its media type. Raises Unsupported where no plugin offers it."""
    for offered in _formats(here):
        if offered.name == format:
            text = offered.write(block.label, block.value, await _schema(here, block.schema_ref))
            return text, f"{offered.media_type}; charset=utf-8"
    raise Unsupported(f"This server cannot show a block as {format}. Use json.")


async def read_sent(here: Here, request: Request, user_id: str, label: str, message: Message = None) -> PutBlockRequest:
    """What was sent to be written, in whichever format. Raises Invalid with the lines that are wrong, Unsupported."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    content = await request.body()
    if media_type == "application/json" or media_type.endswith("+json"):
        return _checked(await _with_defaults(here, user_id, label, _decoded(content)))
    formats = _formats(here)
    format = next((offered for offered in formats if offered.media_type == media_type), None)
    if format is None:
        *types, last = ["application/json", *(offered.media_type for offered in formats)]
        known = f"{', '.join(types)} or {last}" if types else last
        raise Unsupported(f"A block cannot be sent as {media_type[:80]}. Use {known}.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid("The text is not UTF-8. Save it as UTF-8.") from error
    parsed = format.read(text, await _schema(here, await _schema_ref(here, user_id, label)))
    if parsed.label not in (None, label):
        raise Invalid(
            f'The text says that it is block "{parsed.label}", and it was sent to "{label}". Correct one of them.'
        )
    return _checked({"body": parsed.text} | ({"message": message} if message else {}))


async def _with_defaults(here: RequestContext, user_id: str, label: str, sent: Any) -> Any:
    """A new block that names a schema begins with its headings, defaults and settings, as far as they are not sent."""
    ref = sent.get("schema_ref") if isinstance(sent, dict) else None
    schema = await _schema(here, ref) if isinstance(ref, str) else None
    existing = await here.store.read(lambda tx: _find(tx, here, user_id, label)) if schema else None
    if schema is None or existing is not None:
        return sent
    settings = {name: getattr(schema, name) for name in ("title", "description", "policy", "limit")}
    return {
        "body": starting_text(schema),
        **{name: value for name, value in settings.items() if value not in (None, "")},
        **sent,
    }


def _find(tx: Transaction, here: RequestContext, user_id: str, label: str) -> Block | None:
    try:
        return user_memory.find(tx, user_memory.open_memory(tx, here.scope, user_id), label)
    except NotFound:
        return None  # the user is about to be created


def _formats(here: RequestContext) -> list[BlockFormat]:
    return here.runtime.plugins.block_formats()


def _decoded(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        fault = {"type": "json_invalid", "loc": ("body", error.pos), "msg": f"JSON decode error: {error.msg}"}
        raise RequestValidationError([fault]) from error


def _checked(sent: Any) -> PutBlockRequest:
    try:
        return PutBlockRequest.model_validate(sent)
    except ValidationError as error:
        raise RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]) from error


async def _schema_ref(here: RequestContext, user_id: str, label: str) -> str | None:
    block = await here.store.read(lambda tx: _find(tx, here, user_id, label))
    return block.schema_ref if block else None


async def _schema(here: RequestContext, name: str | None) -> BlockSchema | None:
    """The schema of this name, where there is one here: a block may name one that only another system has."""
    folder = here.runtime.settings.data_dir / FOLDER

    def read() -> BlockSchema | None:
        return read_schema(name, folder) if name in schema_names(folder) else None

    return await asyncio.to_thread(read) if name else None


IfMatch = Annotated[str | None, Header(description="Write only where this is still the block's ETag, or its version.")]
IfNoneMatch = Annotated[
    str | None, Header(description='On reading: the ETag that is known. On writing, "*": only where it is new.')
]
_TAG = re.compile(r'(?:W/)?"([^"]*)"')
# A tag that was made weak on its way is too little to write by.
_STRONG_TAG = re.compile(r'(?<!W/)"([^"]*)"(?=\s*(?:,|$))')


def tagged(block: Block, content: bytes, media_type: str, known: str | None = None) -> Response:
    """The answer with its tag, or 304 without a body where that is among the tags that the caller knows."""
    digest = hashlib.blake2b(content, digest_size=6).hexdigest()
    tag = f"{_version_of(block)}.{digest}"
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if known is not None and (known.strip() == "*" or tag in _TAG.findall(known)):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


def require_match(block: Block | None, if_match: str | None, if_none_match: str | None = None) -> None:
    """Raise PreconditionFailed unless the block is as the caller believes it to be; None is a block that is not there."""
    if if_none_match is not None and block is not None and _names(if_none_match, block, _TAG):
        raise PreconditionFailed(f'There is such a block "{block.label}" already. Read it, or leave If-None-Match out.')
    if if_match is None:
        return
    if block is None:
        raise PreconditionFailed("The block that If-Match speaks of is not there. Leave If-Match out to make it.")
    if not _names(if_match, block, _STRONG_TAG):
        raise PreconditionFailed(f'Block "{block.label}" changed since you read it. Read it again and retry.')


def _names(tags: str, block: Block, pattern: re.Pattern[str]) -> bool:
    named = {tag.rsplit(".", 1)[0] if tag.count(".") == 2 else tag for tag in pattern.findall(tags)}
    return tags.strip() == "*" or bool(named & {_version_of(block), block.head.hex() if block.head else ""})


def _version_of(block: Block) -> str:
    return f"{block.head.hex() if block.head else 'none'}.{block.version}"
