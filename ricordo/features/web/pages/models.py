"""The models that agents can use, and the providers that were added while the server runs."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.model import LIBRARIAN
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, done, form_of, render

router = Pages("/ui/models", scope="providers")
# Those of a provider that need a key of their own, as `provider_type` names them.
_FIELDS = ("name", "provider_type", "api_key", "base_url", "region", "api_version", "access_key")


@router.get("")
@needs("agents:read", "providers:read")
async def list_models(request: Request) -> Response:
    """The models, the default among them, and the providers of this organization."""
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
    made = await Api(request).ask("POST", "/v1/providers/", body)
    return done(request, "/ui/models", f"{made['name']} was added.")


@router.post("/providers/{provider_id}/check")
async def check_provider(request: Request, provider_id: str) -> Response:
    """Ask the provider whether its key is right."""
    api, words = Api(request), "The provider answers, and its key is right."
    await api.get(f"/v1/providers/{provider_id}")
    try:
        await api.ask("POST", f"/v1/providers/{provider_id}/check")
    except RefusedByApi as error:
        words = str(error)
    return done(request, "/ui/models", words)


@router.post("/providers/{provider_id}/delete")
async def delete_provider(request: Request, provider_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/providers/{provider_id}")
    return done(request, "/ui/models", "The provider and its key were removed.")
