"""Providers with keys of an organization's own: made, listed, changed, checked, refreshed, deleted."""

from dataclasses import replace
from typing import cast

from fastapi import Response

from ricordo.api.call import Here, Paged, RequestContext, answer, note
from ricordo.api.models.base import NoteResponse
from ricordo.api.models.providers import ProviderCheckRequest, ProviderRequest, ProviderResponse, ProviderUpdate
from ricordo.api.routing import Routes
from ricordo.domain.ids import new_id
from ricordo.domain.model import OrganizationProvider
from ricordo.errors import Collision, Invalid
from ricordo.llm.provider_table import Keys
from ricordo.llm.registry.organization_providers import OrganizationProviders
from ricordo.storage import providers
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/providers", tags=["providers"])


@router.get("/", response_model=list[ProviderResponse])
async def list_providers(
    here: Here, paging: Paged, name: str | None = None, provider_type: str | None = None
) -> Response:
    """The organization's own providers, by default newest first; those of this name, or of this type."""
    page = paging.page()
    rows = await here.store.read(
        lambda tx: providers.page(tx, here.scope, page, name=name, provider_type=provider_type)
    )
    return answer([ProviderResponse.of(row) for row in rows])


@router.post("/", response_model=ProviderResponse)
async def create(here: Here, body: ProviderRequest) -> Response:
    """Add a provider. Its models can be used from now on, by this organization alone, as `<name>/<model>`."""
    keys = body.keys()
    provider = _new(here, body.name, body)
    models = _models(here)
    models.require_usable(provider, keys)
    models.require_free(body.name)
    provider = replace(provider, secret=models.seal(keys))

    def insert(tx: Transaction) -> OrganizationProvider:
        now = tx.clock.now()
        made = replace(provider, id=new_id("provider"), created_at=now, updated_at=now)
        providers.insert_one(tx, made)
        return made

    made = await here.store.write(insert)
    models.forget(here.scope.organization_id)
    return answer(ProviderResponse.of(made))


@router.post("/check", response_model=NoteResponse)
async def check(here: Here, body: ProviderCheckRequest) -> Response:
    """Ask a provider whether it takes these keys; nothing is stored."""
    return await _checked(here, _new(here, body.provider_type, body), body.keys())


@router.get("/{provider_id}", response_model=ProviderResponse)
async def retrieve(here: Here, provider_id: str) -> Response:
    """One provider."""
    return answer(ProviderResponse.of(await _stored(here, provider_id)))


@router.patch("/{provider_id}", response_model=ProviderResponse)
async def modify(here: Here, provider_id: str, body: ProviderUpdate) -> Response:
    """Change a provider's keys or where it is; what is left out stays. It counts at the next call of its models."""
    models = _models(here)
    before = await _stored(here, provider_id)
    moved = body.base_url is not None and body.base_url != before.base_url
    if moved and before.secret and body.api_key is None:
        # Else a caller who may change the address, but does not know the key, could have it sent to an address of theirs.
        raise Invalid("Send api_key together with a new base_url: a stored key goes to no other address.")
    # A key that this server cannot read can still be replaced.
    old = Keys() if body.api_key and (body.access_key or before.provider_type != "bedrock") else models.keys_of(before)
    keys = body.keys(old)
    models.require_usable(_with(before, body), keys)
    secret = models.seal(keys)

    def change(tx: Transaction) -> OrganizationProvider:
        stored = providers.get(tx, here.scope, provider_id)
        if (stored.secret, stored.base_url) != (before.secret, before.base_url):
            raise Collision("The provider was changed by another request. Read it again, then repeat the change.")
        changed = replace(_with(stored, body), secret=secret, updated_at=tx.clock.now(), updated_by=here.scope.user_id)
        providers.update(tx, changed)
        return changed

    changed = await here.store.write(change)
    models.forget(here.scope.organization_id)
    return answer(ProviderResponse.of(changed))


@router.post("/{provider_id}/check", response_model=NoteResponse)
async def check_stored(here: Here, provider_id: str) -> Response:
    """Ask a provider whether it still takes the stored keys."""
    provider = await _stored(here, provider_id)
    return await _checked(here, provider, _models(here).keys_of(provider))


@router.patch("/{provider_id}/refresh", response_model=ProviderResponse)
async def refresh(here: Here, provider_id: str) -> Response:
    """Read the provider's list of models again."""
    models = _models(here)
    provider = await _stored(here, provider_id)
    await models.ask(provider)

    def note(tx: Transaction) -> OrganizationProvider:
        stored = replace(providers.get(tx, here.scope, provider_id), last_synced=tx.clock.now())
        providers.update(tx, stored)
        return stored

    # With the new moment the provider counts as changed, so that every process reads its list again.
    noted = await here.store.write(note)
    models.forget(here.scope.organization_id)
    return answer(ProviderResponse.of(noted))


@router.delete("/{provider_id}", response_model=NoteResponse)
async def delete(here: Here, provider_id: str) -> Response:
    """Delete a provider with its keys. Agents that use one of its models stay, and need another model to answer."""
    await here.store.write(lambda tx: providers.delete_one(tx, here.scope, provider_id))
    _models(here).forget(here.scope.organization_id)
    return note(f"Provider id={provider_id} successfully deleted")


async def _stored(here: RequestContext, provider_id: str) -> OrganizationProvider:
    return await here.store.read(lambda tx: providers.get(tx, here.scope, provider_id))


async def _checked(here: RequestContext, provider: OrganizationProvider, keys: Keys) -> Response:
    models = _models(here)
    models.require_usable(provider, keys)
    await models.ask(provider, keys)
    return note(f"Valid api key for provider_type={provider.provider_type}")


def _new(here: RequestContext, name: str, body: ProviderRequest | ProviderCheckRequest) -> OrganizationProvider:
    scope = here.scope
    return OrganizationProvider(
        "",
        scope.organization_id,
        name,
        body.provider_type,
        0,
        0,
        body.base_url,
        body.region,
        body.api_version,
        created_by=scope.user_id,
        updated_by=scope.user_id,
    )


def _with(provider: OrganizationProvider, body: ProviderUpdate) -> OrganizationProvider:
    given = {name: getattr(body, name) for name in ("base_url", "region", "api_version")}
    return replace(provider, **{name: value for name, value in given.items() if value is not None})


def _models(here: RequestContext) -> OrganizationProviders:
    return cast("OrganizationProviders", here.request.app.state.runtime.organization_providers)
