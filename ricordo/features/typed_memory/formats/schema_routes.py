"""Block schemas over HTTP, from files that course designers put into the data folder."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ricordo.api.call import RequestContext
from ricordo.api.models.base import ResponseModel
from ricordo.api.routing import Routes
from ricordo.domain.block import Policy
from ricordo.domain.block_schema import FieldKind
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.memory.schemas import FOLDER, read_schema, schema_names
from ricordo.memory.sections import starting_text

router = Routes(prefix="/v1/schemas", tags=["schemas"], scope="agents")


class SchemaFieldResponse(ResponseModel):
    """One field of a schema."""

    name: str
    kind: FieldKind
    title: str
    description: str
    required: bool
    max_length: int | None
    max_items: int | None
    default: Any


class SchemaResponse(ResponseModel):
    """A block schema. `text` is the initial text of its blocks.

    `policy` is null if the owner's usual policy applies.
    """

    name: str
    title: str
    description: str
    policy: Policy | None
    limit: int
    fields: list[SchemaFieldResponse]
    text: str


class ListedSchemaResponse(ResponseModel):
    """A listed schema. `error` is the reason why its file cannot be used."""

    name: str
    title: str | None = None
    description: str | None = None
    error: str | None = None


@router.get("/", response_model=list[ListedSchemaResponse])
async def list_schemas(context: RequestContext) -> Sequence[Json]:
    """List the block schemas that a block can name, by name."""
    return await asyncio.to_thread(_listed, context.runtime.settings.data_dir / FOLDER)


@router.get("/{schema_name}", response_model=SchemaResponse)
async def retrieve(context: RequestContext, schema_name: str) -> Json:
    """Return one block schema with its fields."""
    schema = await asyncio.to_thread(
        read_schema, schema_name, context.runtime.settings.data_dir / FOLDER
    )
    return SchemaResponse.of(schema, text=starting_text(schema))


def _listed(folder: Path) -> list[Json]:
    responses = []
    for name in schema_names(folder):
        try:
            responses.append(ListedSchemaResponse.of(read_schema(name, folder)))
        except Invalid as error:
            responses.append(ListedSchemaResponse.of(error, name=name, error=str(error)))
    return responses
