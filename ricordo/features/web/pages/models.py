"""The pages of models and of providers that were added at run time."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.model import LIBRARIAN
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, done, form_of, render

router = Pages("/ui/models", scope="providers")
# Fields of the form; some types of providers need only a few of them.
_FIELDS = ("name", "provider_type", "api_key", "base_url", "region", "api_version", "access_key")


@router.get("")
@needs("agents:read", "providers:read")
async def list_models(request: Request) -> Response:
    """Show the models, the default one, and the organization's providers."""
    api = Api(request)
    default = request.app.state.runtime.models.default_handle()
    return await render(
        request,
        "models.html",
        models=await api.get("/v1/models/"),
        embeddings=await api.find("/v1/models/embedding") or [],
        providers=await api.find("/v1/providers/"),
        default=default,
        is_librarian=default == LIBRARIAN,
    )


@router.post("/providers")
async def add_provider(request: Request) -> Response:
    form = await form_of(request)
    body = {name: form[name].strip() for name in _FIELDS if form.get(name, "").strip()}
    provider = await Api(request).ask("POST", "/v1/providers/", body)
    return done(request, "/ui/models", f"{provider['name']} was added.")


@router.post("/providers/{provider_id}/check")
async def check_provider(request: Request, provider_id: str) -> Response:
    """Check the provider's key."""
    api = Api(request)
    notice = "The provider answers, and its key is right."
    await api.get(f"/v1/providers/{provider_id}")
    try:
        await api.ask("POST", f"/v1/providers/{provider_id}/check")
    except RefusedByApi as error:
        notice = str(error)
    return done(request, "/ui/models", notice)


@router.post("/providers/{provider_id}/delete")
async def delete_provider(request: Request, provider_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/providers/{provider_id}")
    return done(request, "/ui/models", "The provider and its key were removed.")
