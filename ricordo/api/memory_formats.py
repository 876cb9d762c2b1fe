"""A block as people read and write it over HTTP: JSON, Markdown with a front matter, or TOML."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import orjson
from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from ricordo.api.call import Call, Here
from ricordo.api.memory_bodies import PutBody
from ricordo.domain.block import Block
from ricordo.domain.block_schema import BlockSchema
from ricordo.errors import Invalid, NotFound, Unsupported
from ricordo.memory import owning
from ricordo.memory.formats import Parsed, from_markdown, from_toml, to_markdown, to_toml
from ricordo.memory.schemas import FOLDER, read_schema, schema_names
from ricordo.storage.store import Transaction

_MARKDOWN, _TOML = "text/markdown", "application/toml"
_READERS: dict[str, Callable[[str, BlockSchema | None], Parsed]] = {_MARKDOWN: from_markdown, _TOML: from_toml}
_TEXT = {"schema": {"type": "string"}}
PUT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": PutBody.model_json_schema()}, _MARKDOWN: _TEXT, _TOML: _TEXT},
    }
}
Message = Annotated[
    str | None, Query(max_length=10_000, description="Why, as its history will say, where no JSON tells it.")
]


async def view_of(here: Call, block: Block, format: Literal["markdown", "toml"]) -> tuple[str, str]:
    """The block in this format, and its media type."""
    schema = await _schema(here, block.schema_ref)
    if format == "markdown":
        return to_markdown(block.label, block.value, schema), f"{_MARKDOWN}; charset=utf-8"
    return to_toml(block.label, block.value, schema), f"{_TOML}; charset=utf-8"


async def read_sent(here: Here, request: Request, user_id: str, label: str, message: Message = None) -> PutBody:
    """What was sent to be written, in whichever format. Raises Invalid with the lines that are wrong, Unsupported."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    content = await request.body()
    if media_type == "application/json" or media_type.endswith("+json"):
        return _checked(_decoded(content))
    if media_type not in _READERS:
        raise Unsupported(f"A block cannot be sent as {media_type[:80]}. Use application/json, {_MARKDOWN} or {_TOML}.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid("The text is not UTF-8. Save it as UTF-8.") from error
    parsed = _READERS[media_type](text, await _schema(here, await _schema_ref(here, user_id, label)))
    if parsed.label not in (None, label):
        raise Invalid(
            f'The text says that it is block "{parsed.label}", and it was sent to "{label}". Correct one of them.'
        )
    return _checked({"body": parsed.text} | ({"message": message} if message else {}))


def _decoded(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        fault = {"type": "json_invalid", "loc": ("body", error.pos), "msg": f"JSON decode error: {error.msg}"}
        raise RequestValidationError([fault]) from error


def _checked(sent: Any) -> PutBody:
    try:
        return PutBody.model_validate(sent)
    except ValidationError as error:
        raise RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]) from error


async def _schema_ref(here: Call, user_id: str, label: str) -> str | None:
    def read(tx: Transaction) -> str | None:
        try:
            block = owning.find(tx, owning.open_memory(tx, here.scope, user_id), label)
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
