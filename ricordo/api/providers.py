"""Routes of an organization's providers: create, list, change, check and delete them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ricordo.api.call import Paged, RequestContext, note
from ricordo.api.models.base import (
    NoteResponse,
    RequestModel,
    ResponseModel,
    Timestamp,
    without_none,
)
from ricordo.api.routing import Routes
from ricordo.domain.ids import new_id
from ricordo.domain.model import OrganizationProvider
from ricordo.domain.text import Json
from ricordo.errors import Collision, Invalid
from ricordo.llm.provider_table import Keys
from ricordo.storage import providers
from ricordo.storage.engine.store import Transaction

T = TypeVar("T")
router = Routes(prefix="/v1/providers", tags=["providers"], scope="providers")


def _require_name(name: str) -> str:
    if "/" in name or not name.isprintable() or name.strip() != name:
        raise ValueError(
            "must not hold a slash or a line break, nor begin or end with a space: it is the "
            "first part of its models' handles"
        )
    return name


Line = Annotated[str, Field(max_length=2000)]
Key = Annotated[SecretStr, Field(max_length=10_000)]


class ProviderUpdate(RequestModel):
    """Keys, and the address for which they are. Empty texts count as omitted."""

    api_key: Key | None = None
    access_key: Key | None = None
    base_url: Line | None = None
    region: Line | None = None
    api_version: Annotated[str, Field(max_length=50, pattern=r"^[A-Za-z0-9.-]+$")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_texts(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: field for name, field in body.items() if field != ""}

    def keys(self, before: Keys | None = None) -> Keys:
        before = before or Keys()
        return Keys(
            _plain(self.api_key) or before.api_key, _plain(self.access_key) or before.access_key
        )


class ProviderCheckRequest(ProviderUpdate):
    """Keys to try."""

    provider_type: str = Field(max_length=50)


class ProviderRequest(ProviderCheckRequest):
    """A provider to add."""

    name: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_require_name)]


class ProviderResponse(ResponseModel):
    """A provider with an API key of the organization.

    The fields for keys are always null.
    """

    id: str
    name: str
    provider_type: str
    provider_category: Literal["byok"] = "byok"
    base_url: str | None
    region: str | None
    api_version: str | None
    api_key: None = None
    access_key: None = None
    api_key_enc: None = None
    access_key_enc: None = None
    organization_id: str
    created_at: Timestamp
    updated_at: Timestamp
    last_synced: Timestamp | None


ProviderUpdate.take_back(ProviderResponse)


def _plain(key: SecretStr | None) -> str | None:
    if key:
        return str(key.get_secret_value())
    return None


@router.get("/", response_model=list[ProviderResponse])
def list_providers(
    tx: Transaction,
    context: RequestContext,
    paging: Paged,
    name: str | None = None,
    provider_type: str | None = None,
) -> Sequence[OrganizationProvider]:
    """List the organization's providers, by default newest first.

    Filters are the name and the type.
    """
    return providers.page(tx, context.scope, paging.page(), name=name, provider_type=provider_type)


@router.post("/", response_model=ProviderResponse)
async def create(context: RequestContext, body: ProviderRequest) -> OrganizationProvider:
    """Add a provider.

    Only this organization can then use its models, as `<name>/<model>`.
    """
    keys = body.keys()
    provider = _new(context, body.name, body)
    models = context.runtime.organization_providers
    models.require_usable(provider, keys)
    models.require_free(body.name)
    provider = replace(provider, secret=models.seal(keys))

    def insert(tx: Transaction) -> OrganizationProvider:
        now = tx.clock.now()
        row = replace(provider, id=new_id("provider"), created_at=now, updated_at=now)
        providers.insert_one(tx, row)
        return row

    return await _changed(context, insert)


@router.post("/check", response_model=NoteResponse)
async def check(context: RequestContext, body: ProviderCheckRequest) -> Json:
    """Check these keys with their provider; nothing is stored."""
    return await _checked(context, _new(context, body.provider_type, body), body.keys())


@router.get("/{provider_id}", response_model=ProviderResponse)
def retrieve(tx: Transaction, context: RequestContext, provider_id: str) -> OrganizationProvider:
    """Return one provider."""
    return providers.get(tx, context.scope, provider_id)


@router.patch("/{provider_id}", response_model=ProviderResponse)
async def modify(
    context: RequestContext, provider_id: str, body: ProviderUpdate
) -> OrganizationProvider:
    """Change a provider's keys or address; omitted fields keep their values.

    The change applies from the next call of its models.
    """
    models = context.runtime.organization_providers
    before = await _stored(context, provider_id)
    moved = body.base_url is not None and body.base_url != before.base_url
    if moved and before.secret and body.api_key is None:
        # Without this check, a caller who does not know the key could send it to any address.
        raise Invalid(
            "Send api_key together with a new base_url: a stored key is never sent to another "
            "address."
        )
    # If this server cannot decrypt the stored key, it can still be replaced.
    if body.api_key and (body.access_key or before.provider_type != "bedrock"):
        old = Keys()
    else:
        old = models.keys_of(before)
    keys = body.keys(old)
    models.require_usable(_with_address(before, body), keys)
    secret = models.seal(keys)

    def change(tx: Transaction) -> OrganizationProvider:
        stored = providers.get_for_change(tx, context.scope, provider_id)
        if (stored.secret, stored.base_url) != (before.secret, before.base_url):
            raise Collision(
                "The provider was changed by another request. Read it again, then repeat the "
                "change."
            )
        changed = replace(
            _with_address(stored, body),
            secret=secret,
            updated_at=tx.clock.now(),
            updated_by=context.scope.user_id,
        )
        providers.update(tx, changed)
        return changed

    return await _changed(context, change)


@router.post("/{provider_id}/check", response_model=NoteResponse)
async def check_stored(context: RequestContext, provider_id: str) -> Json:
    """Check the stored keys with their provider."""
    provider = await _stored(context, provider_id)
    return await _checked(
        context, provider, context.runtime.organization_providers.keys_of(provider)
    )


@router.patch("/{provider_id}/refresh", response_model=ProviderResponse)
async def refresh(context: RequestContext, provider_id: str) -> OrganizationProvider:
    """Read the provider's list of models again."""
    models = context.runtime.organization_providers
    provider = await _stored(context, provider_id)
    await models.ask(provider)

    def save(tx: Transaction) -> OrganizationProvider:
        # The new timestamp marks the provider as changed, so every process reads its list again.
        stored = providers.get_for_change(tx, context.scope, provider_id)
        synced = replace(stored, last_synced=tx.clock.now())
        providers.update(tx, synced)
        return synced

    return await _changed(context, save)


@router.delete("/{provider_id}", response_model=NoteResponse)
async def delete(context: RequestContext, provider_id: str) -> Json:
    """Delete a provider with its keys.

    Agents that use one of its models are not deleted. To answer, they need another model.
    """
    await _changed(context, lambda tx: providers.delete_one(tx, context.scope, provider_id))
    return note(f"Provider id={provider_id} successfully deleted")


async def _stored(context: RequestContext, provider_id: str) -> OrganizationProvider:
    return await context.store.read(lambda tx: providers.get(tx, context.scope, provider_id))


async def _changed(context: RequestContext, change: Callable[[Transaction], T]) -> T:
    changed = await context.store.write(change)
    context.runtime.organization_providers.forget(context.scope.organization_id)
    return changed


async def _checked(context: RequestContext, provider: OrganizationProvider, keys: Keys) -> Json:
    models = context.runtime.organization_providers
    models.require_usable(provider, keys)
    await models.ask(provider, keys)
    return note(f"Valid api key for provider_type={provider.provider_type}")


def _new(context: RequestContext, name: str, body: ProviderCheckRequest) -> OrganizationProvider:
    return OrganizationProvider(
        id="",
        organization_id=context.scope.organization_id,
        name=name,
        provider_type=body.provider_type,
        created_at=0,
        updated_at=0,
        base_url=body.base_url,
        region=body.region,
        api_version=body.api_version,
        created_by=context.scope.user_id,
        updated_by=context.scope.user_id,
    )


def _with_address(provider: OrganizationProvider, body: ProviderUpdate) -> OrganizationProvider:
    fields = {name: getattr(body, name) for name in ("base_url", "region", "api_version")}
    return replace(provider, **without_none(**fields))
