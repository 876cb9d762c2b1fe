"""Models of providers that an organization brought with its own key, beside those of the settings. No other organization sees them.

A change of a key counts at the next call of a model, also within a turn that runs: each call asks here for the key of now.
Other processes read the providers again when what they read is older than `fresh_for` seconds.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial

import httpx2
import orjson

from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest, OrganizationProvider
from ricordo.errors import Conflict, ModelError, NotFound, RicordoError, Unavailable, Unsupported
from ricordo.llm.adaptation import LearnedModel, lessons_of
from ricordo.llm.addresses import PROVIDERS, Connections, PublicConnections, require_public_host
from ricordo.llm.chat import ChatModel
from ricordo.llm.directory import ListCache
from ricordo.llm.model_lists import ModelList, info_of, list_models
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Keys, brought_provider, require_usable
from ricordo.llm.registry.models import Models
from ricordo.secret import Secret

FRESH_SECONDS = 5.0
LOOK_UP_SECONDS = 2.0  # of a turn that begins
RESERVED = frozenset({"ricordo", "none"})

Load = Callable[[str], Awaitable[Sequence[OrganizationProvider]]]
"""Reads the providers of an organization from where they are kept."""


@dataclass(slots=True)
class _CachedProvider:
    """One provider of an organization, with what was made of it. A change makes another."""

    stored: OrganizationProvider
    list: ListCache
    models: dict[str, ChatModel] = field(default_factory=dict)

    def info(self, name: str) -> ModelInfo:
        """Return what is known of one of its models without asking it."""
        listed = self.list.last.chat if self.list.last else ()
        known = next((info for info in listed if info.name == name), None)
        return known or info_of(brought_provider(self.stored, Keys()), name)


@dataclass(slots=True)
class _OrganizationConnections:
    """What is known of one organization. The connections are its own, so that no cookie goes to another."""

    connections: Connections
    providers: dict[str, _CachedProvider] = field(default_factory=dict)
    read_at: float = -math.inf
    changes: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class OrganizationProviders:
    """The providers of all organizations; lists are `fresh_for` seconds, addresses public unless `allow_private`."""

    def __init__(
        self,
        models: Models,
        policy: CallPolicy,
        load: Load,
        cipher: Secret,
        *,
        fresh_for: float = math.inf,
        allow_private: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base = models
        self._policy = policy
        self._load = load
        self._cipher = cipher
        self._fresh_for = fresh_for
        self._now = now
        self._allow_private = allow_private
        connect = Connections if allow_private else PublicConnections
        self._organizations: defaultdict[str, _OrganizationConnections] = defaultdict(
            lambda: _OrganizationConnections(connect(policy.timeout))
        )

    async def of(self, organization_id: str) -> "OrganizationModels":
        """Return the models that an organization can use, its providers read again where they may have changed."""
        organization = self._organizations[organization_id]
        async with organization.reading:
            if self._now() - organization.read_at >= self._fresh_for:
                await self._read(organization_id, organization)
        return self.known(organization_id)

    def known(self, organization_id: str) -> "OrganizationModels":
        """Return the same by what was read last, without reading anything."""
        return OrganizationModels(
            self, self._base, organization_id, self._organizations[organization_id].providers
        )

    def forget(self, organization_id: str) -> None:
        organization = self._organizations[organization_id]
        organization.read_at = -math.inf
        organization.changes += 1

    def require_usable(self, provider: OrganizationProvider, keys: Keys) -> None:
        """Raise Invalid or Unsupported with what is missing where no call could be made."""
        require_usable(provider, keys)
        if provider.base_url and not self._allow_private:
            require_public_host(httpx2.URL(provider.base_url).host, setting=PROVIDERS)

    def seal(self, keys: Keys) -> str | None:
        """Return the keys as they are stored; None where there are none."""
        given = {name: key for name, key in asdict(keys).items() if key}
        return self._cipher.encrypt(orjson.dumps(given).decode()) if given else None

    def keys_of(self, provider: OrganizationProvider) -> Keys:
        """Return the keys of a stored provider. Raises Unavailable where this server cannot read them."""
        if provider.secret is None:
            return Keys()
        try:
            return Keys(**orjson.loads(self._cipher.decrypt(provider.secret)))
        except (RicordoError, ValueError, TypeError):
            # `from None`: the cause may hold what was decrypted.
            raise Unavailable(
                f'The key of provider "{provider.name}" cannot be read: it was encrypted with another secret.key. Put the file '
                "secret.key of the server that saved it into this server's data folder, or save the key again."
            ) from None

    def require_free(self, name: str) -> None:
        """Raise Conflict where the server itself offers models under this name."""
        is_taken = name in RESERVED
        with suppress(NotFound):
            self._base.get(f"{name}/-")
            is_taken = True
        if is_taken:
            raise Conflict(
                f'"{name}" is a provider of this server. Choose another name, as my-{name}.'
            )

    async def ask(self, provider: OrganizationProvider, keys: Keys | None = None) -> ModelList:
        """Ask for the provider's models with these keys, else its stored ones. Raises ModelError, or Unsupported without a list."""
        keys = self.keys_of(provider) if keys is None else keys
        called = brought_provider(provider, keys)
        if called.adapter == "bedrock":
            raise Unsupported(
                "Bedrock gives no list of models here: its keys prove themselves when a model is first asked."
            )
        client = self._organizations[provider.organization_id].connections.client()
        try:
            return await list_models(client, called, checks_key=True)
        except ModelError as error:
            raise keys.without(error) from None

    async def close(self) -> None:
        for organization in self._organizations.values():
            await organization.connections.close()
        self._organizations.clear()

    def lessons_of(self, organization_id: str, info: ModelInfo) -> LearnedModel:
        """Return what a model was learned to need; no other organization can teach anything about it."""
        return lessons_of(info, self._base.learned, organization_id)

    async def _read(self, organization_id: str, organization: _OrganizationConnections) -> None:
        read_at, changes, before = self._now(), organization.changes, organization.providers
        organization.providers = {
            stored.name: known
            if (known := before.get(stored.name)) and known.stored == stored
            else _CachedProvider(stored, ListCache(self._now))
            for stored in await self._load(organization_id)
        }
        # What changed while it was read is read again by the next who asks.
        organization.read_at = read_at if organization.changes == changes else -math.inf

    async def listed(self, provider: _CachedProvider) -> tuple[ModelInfo, ...] | None:
        """Return what the provider lists, asked at most every five minutes; None where it lists nothing or cannot be asked."""
        found = await provider.list.read(lambda: self.ask(provider.stored))
        return found.chat if found else None

    async def answer(
        self, organization_id: str, info: ModelInfo, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply]:
        """Ask a model with the key of now."""
        models = await self.of(organization_id)
        if (found := models.find(info.handle)) is None:
            raise ModelError(
                "llm_authentication",
                f"The provider of {info.handle} was removed. Choose another model.",
            )
        provider, _ = found
        keys = self.keys_of(provider.stored)
        model = provider.models.get(info.name)
        if model is None:
            connections = self._organizations[organization_id].connections
            called = brought_provider(provider.stored, keys)
            model = build_model(
                called, info, connections, self._policy, self.lessons_of(organization_id, info)
            )
            provider.models[info.name] = model
        try:
            async with aclosing(model.answer(request)) as items:  # type: ignore[type-var]
                async for item in items:
                    yield item
        except ModelError as error:
            raise keys.without(error) from None


@dataclass(frozen=True, slots=True)
class OrganizationModel:
    """A chat model of an organization's own provider."""

    info: ModelInfo
    answer: Callable[[ModelRequest], AsyncGenerator[Chunk | ModelReply]]
    learned: LearnedModel


class OrganizationModels:
    """The models that one organization can use: its own, then those that the settings configure."""

    def __init__(
        self,
        providers: OrganizationProviders,
        base: Models,
        organization_id: str,
        own: Mapping[str, _CachedProvider],
    ) -> None:
        self._providers = providers
        self._base = base
        self._organization_id = organization_id
        self._own = own

    def get(self, handle: str) -> ChatModel:
        """Return the model with this handle, without asking anybody. Raises NotFound."""
        if (found := self.find(handle)) is None:
            return self._base.get(handle)
        provider, name = found
        info = provider.info(name)
        answer = partial(self._providers.answer, self._organization_id, info)
        return OrganizationModel(
            info, answer, self._providers.lessons_of(self._organization_id, info)
        )

    async def require(self, handle: str) -> ModelInfo:
        """Return what is known of a model. Raises NotFound where its provider lists its models and this is not among them."""
        if (found := self.find(handle)) is None:
            return await self._base.require(handle)
        provider, name = found
        listed = await self._providers.listed(provider)
        if listed is not None and all(info.handle != handle for info in listed):
            # The sentence is a wire fact: clients of the retired Letta V1 server match it.
            raise NotFound(
                f"Handle {handle} not found, must be one of {[info.handle for info in listed[:60]]}"
            )
        return provider.info(name)

    def is_unlisted(self, handle: str) -> bool:
        """Return whether more may be known of the model once its provider is asked for its list, which was never read."""
        found = self.find(handle)
        return found[0].list.is_missing() if found else self._base.is_unlisted(handle)

    async def look_up(self, handle: str) -> None:
        """Ask the model's provider for its list, and wait for it two seconds at most."""
        with suppress(NotFound, TimeoutError):
            async with asyncio.timeout(LOOK_UP_SECONDS):
                await self.require(handle)

    async def list(self) -> list[ModelInfo]:
        own = await asyncio.gather(*map(self._providers.listed, self._own.values()))
        return [*await self._base.list(), *(info for listed in own for info in listed or ())]

    def find(self, handle: str) -> tuple[_CachedProvider, str] | None:
        name, _, model = handle.partition("/")
        provider = self._own.get(name)
        return (provider, model) if provider and model else None
