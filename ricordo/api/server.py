"""Routes of the server's health and its usable models."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from ricordo import __version__
from ricordo.api.call import RequestContext
from ricordo.api.models.base import HealthResponse
from ricordo.api.models.models import EmbeddingModelResponse, ModelResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.model import EmbeddingInfo
from ricordo.domain.text import Json

router = Routes(prefix="/v1", scope="agents")


@router.get("/health", response_model=HealthResponse, include_in_schema=False, tags=["health"])
@router.get("/health/", response_model=HealthResponse, tags=["health"])
@needs()
async def health() -> Json:
    """Return the version, once the server is ready for turns."""
    return HealthResponse.of(None, version=__version__)


@router.get("/models/", response_model=list[ModelResponse], tags=["models"])
async def list_models(
    context: RequestContext,
    provider_name: str | None = None,
    provider_type: str | None = None,
    provider_category: Annotated[list[str] | None, Query()] = None,
) -> list[Json]:
    """List every chat model of the configured providers and local servers, and the librarian.

    Agents that name no model use the model with `is_default`.
    """
    usable = await context.runtime.organization_providers.of(context.scope.organization_id)
    default = await context.runtime.models.find_default()
    infos = await usable.list()
    is_missing = all(info.handle != default.handle for info in infos)
    if is_missing and not default.fault and context.runtime.models.has_default():
        # The provider has no list, or its list has another name for the model.
        infos = [context.runtime.models.get(default.handle).info, *infos]
    models = [
        ModelResponse.of(info) | {"is_default": info.handle == default.handle} for info in infos
    ]
    return [
        model
        for model in models
        if provider_name in (None, model["provider_name"])
        and provider_type in (None, model["provider_type"])
        and (not provider_category or model["provider_category"] in provider_category)
    ]


@router.get("/models/embedding", response_model=list[EmbeddingModelResponse], tags=["models"])
async def list_embedding_models(context: RequestContext) -> Sequence[EmbeddingInfo]:
    """List every embedding model: the built-in model, and those of providers and local servers."""
    return await context.runtime.models.embedders.list()
