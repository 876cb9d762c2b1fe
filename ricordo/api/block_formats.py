"""A block over HTTP in JSON, or in a format that a plugin offers: Markdown and TOML are built in."""

import asyncio
from typing import Annotated, Any

import orjson
from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from ricordo.api.call import Call, Here
from ricordo.api.models.memory import PutBlockRequest
from ricordo.domain.block import Block
from ricordo.domain.block_format import BlockFormat
from ricordo.domain.block_schema import BlockSchema
from ricordo.errors import Invalid, NotFound, Unsupported
from ricordo.memory import user_memory
from ricordo.memory.schemas import FOLDER, read_schema, schema_names
from ricordo.storage.store import Transaction

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
    str | None, Query(max_length=10_000, description="Why, as its history will say, where no JSON tells it.")
]


async def view_of(here: Call, block: Block, format: str) -> tuple[str, str]:
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
        return _checked(_decoded(content))
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


def _formats(here: Call) -> list[BlockFormat]:
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


async def _schema_ref(here: Call, user_id: str, label: str) -> str | None:
    def read(tx: Transaction) -> str | None:
        try:
            block = user_memory.find(tx, user_memory.open_memory(tx, here.scope, user_id), label)
        except NotFound:
            return None  # it is about to be made
        return block.schema_ref if block else None

    return await here.store.read(read)


async def _schema(here: Call, name: str | None) -> BlockSchema | None:
    """The schema of this name, where there is one here: a block may name one that only another system has."""
    folder = here.runtime.settings.data_dir / FOLDER

    def read() -> BlockSchema | None:
        return read_schema(name, folder) if name in schema_names(folder) else None

    return await asyncio.to_thread(read) if name else None
