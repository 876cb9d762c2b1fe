"""Whether the server answers, and which models can be used here."""

from typing import Annotated

from fastapi import Query, Response

from ricordo import __version__
from ricordo.api.call import Here, answer
from ricordo.api.models.base import HealthResponse
from ricordo.api.models.models import EmbeddingModelResponse, ModelResponse
from ricordo.api.routing import Routes

router = Routes(prefix="/v1")


@router.get("/health", response_model=HealthResponse, include_in_schema=False, tags=["health"])
@router.get("/health/", response_model=HealthResponse, tags=["health"])
async def health() -> Response:
    """The version, once the server is ready for turns."""
    return answer(HealthResponse.of(None, version=__version__))


@router.get("/models/", response_model=list[ModelResponse], tags=["models"])
async def list_models(
    here: Here,
    provider_name: str | None = None,
    provider_type: str | None = None,
    provider_category: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Every chat model of the configured providers and of the servers found on this machine, and the librarian."""
    usable = await here.runtime.organization_providers.of(here.scope.organization_id)
    models = [ModelResponse.from_info(info) for info in await usable.list()]
    return answer(
        [
            model
            for model in models
            if provider_name in (None, model["provider_name"])
            and provider_type in (None, model["provider_type"])
            and (not provider_category or model["provider_category"] in provider_category)
        ]
    )


@router.get("/models/embedding", response_model=list[EmbeddingModelResponse], tags=["models"])
async def list_embedding_models(here: Here) -> Response:
    """Every embedding model: the built-in one, and those of the configured providers and of servers on this machine."""
    return answer([EmbeddingModelResponse.from_model(info) for info in await here.runtime.models.embedders.list()])
