"""The models that can be used here."""

from typing import Annotated

from fastapi import Query, Response

from ricordo.api.call import Here, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.models import embedding_model_to_wire, model_to_wire
from ricordo.api.wire.schemas import EmbeddingModelShape, ModelShape

router = Routes(prefix="/v1/models", tags=["models"])


@router.get("/", response_model=list[ModelShape])
async def list_models(
    here: Here,
    provider_name: str | None = None,
    provider_type: str | None = None,
    provider_category: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Every chat model of the configured providers and of the servers found on this machine, and the librarian."""
    wires = [
        model_to_wire(info)
        for info in await (await here.runtime.organization_providers.of(here.scope.organization_id)).list()
    ]
    return answer(
        [
            wire
            for wire in wires
            if provider_name in (None, wire["provider_name"])
            and provider_type in (None, wire["provider_type"])
            and (not provider_category or wire["provider_category"] in provider_category)
        ]
    )


@router.get("/embedding", response_model=list[EmbeddingModelShape])
async def list_embedding_models(here: Here) -> Response:
    """Every embedding model: the built-in one, and those of the configured providers and of servers on this machine."""
    return answer([embedding_model_to_wire(info) for info in await here.runtime.models.embedders.list()])
