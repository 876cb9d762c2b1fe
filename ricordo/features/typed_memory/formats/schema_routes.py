"""Block schemas over HTTP: those that course designers put into the data folder."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ricordo.api.call import RequestContext
from ricordo.api.models.base import Json, ResponseModel
from ricordo.api.routing import Routes
from ricordo.domain.block import Policy
from ricordo.domain.block_schema import FieldKind
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
    """A block schema, and the `text` with which a block of it begins. `policy` is null where it is the usual one of the owner."""

    name: str
    title: str
    description: str
    policy: Policy | None
    limit: int
    fields: list[SchemaFieldResponse]
    text: str


class ListedSchemaResponse(ResponseModel):
    """The name of a schema, and what it is; `error` says why its file cannot be used."""

    name: str
    title: str | None = None
    description: str | None = None
    error: str | None = None


@router.get("/", response_model=list[ListedSchemaResponse])
async def list_schemas(context: RequestContext) -> Sequence[Json]:
    """The block schemas that a block can name, by name."""
    return await asyncio.to_thread(_listed, context.runtime.settings.data_dir / FOLDER)


@router.get("/{schema_name}", response_model=SchemaResponse)
async def retrieve(context: RequestContext, schema_name: str) -> Json:
    """One block schema with its fields."""
    schema = await asyncio.to_thread(
        read_schema, schema_name, context.runtime.settings.data_dir / FOLDER
    )
    return SchemaResponse.of(schema, text=starting_text(schema))


def _listed(folder: Path) -> list[Json]:
    found = []
    for name in schema_names(folder):
        try:
            found.append(ListedSchemaResponse.of(read_schema(name, folder)))
        except Invalid as error:
            found.append(ListedSchemaResponse.of(error, name=name, error=str(error)))
    return found
