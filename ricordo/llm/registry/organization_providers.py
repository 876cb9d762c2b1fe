"""Models of providers that an organization added with its own key.

Other organizations do not see them. They are used in addition to the providers of the settings.
Each call looks the key up here, so a changed key is used at once, even within a running turn. Other
processes read the providers again after `fresh_for` seconds, and when a caller names a model of an
unknown provider.
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
from ricordo.llm.directory import MOST_BUILT, ListCache
from ricordo.llm.model_lists import ModelList, info_of, list_models
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Keys, added_provider, require_usable
from ricordo.llm.registry.models import Models
from ricordo.secret import Secret

FRESH_SECONDS = 5.0
LOOK_UP_SECONDS = 2.0  # the longest time that a starting turn waits for a list
RESERVED = frozenset({"ricordo", "none"})

Load = Callable[[str], Awaitable[Sequence[OrganizationProvider]]]
"""Reads an organization's providers from the store."""


@dataclass(slots=True)
class _CachedProvider:
    """An organization's provider, with its list of models and the built models.

    A change of the provider creates a new object.
    """

    stored: OrganizationProvider
    list: ListCache
    models: dict[str, ChatModel] = field(default_factory=dict)

    def info(self, name: str) -> ModelInfo:
        """Describe one of its models without a request."""
        listed = self.list.last.chat if self.list.last else ()
        model = next((info for info in listed if info.name == name), None)
        return model or info_of(added_provider(self.stored, Keys()), name)


@dataclass(slots=True)
class _OrganizationConnections:
    """The cached providers of one organization.

    Each organization has separate connections, so that no cookie reaches another organization.
    """

    connections: Connections
    providers: dict[str, _CachedProvider] = field(default_factory=dict)
    read_at: float = -math.inf
    changes: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class OrganizationProviders:
    """The providers of all organizations.

    They are read again from the store after `fresh_for` seconds. Addresses must be public, except
    with `allow_private`.
    """

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
        if allow_private:
            connect = Connections
        else:
            connect = PublicConnections
        self._organizations: defaultdict[str, _OrganizationConnections] = defaultdict(
            lambda: _OrganizationConnections(connect(policy.timeout))
        )

    async def of(self, organization_id: str) -> "OrganizationModels":
        """Return an organization's models; providers are read again if the last reading is old.

        Args:
            organization_id: The organization.
        """
        organization = self._organizations[organization_id]
        async with organization.reading:
            if self._now() - organization.read_at >= self._fresh_for:
                await self._read(organization_id, organization)
        return OrganizationModels(self, self._base, organization_id, organization.providers)

    def known(self, organization_id: str) -> "OrganizationModels":
        """Return an organization's models from the last reading, without reading anything now.

        Args:
            organization_id: The organization. Without an earlier reading it has only the models of
                the settings.
        """
        return OrganizationModels(
            self, self._base, organization_id, self._organizations[organization_id].providers
        )

    async def find_again(
        self, organization_id: str, handle: str
    ) -> tuple[_CachedProvider, str] | None:
        """Return the provider of a model that another process may have added just now.

        Args:
            organization_id: The organization.
            handle: The handle of a model whose provider the last reading lacked.

        Returns:
            The provider and the model's name; None if the store lacks the provider too.
        """
        if self._fresh_for == math.inf:
            return None  # No other process changes the providers.
        self.forget(organization_id)
        return (await self.of(organization_id)).find(handle)

    def forget(self, organization_id: str) -> None:
        """Let the next call read the organization's providers again.

        Args:
            organization_id: The organization, after a change of its providers was stored.
        """
        organization = self._organizations[organization_id]
        organization.read_at = -math.inf
        organization.changes += 1

    def require_usable(self, provider: OrganizationProvider, keys: Keys) -> None:
        """Refuse a provider with which no call could be made, and name the missing setting.

        Args:
            provider: The provider before it is stored.
            keys: Its keys.

        Raises:
            Invalid: A key, the address or the region is missing or malformed, or the address is
                private.
            Unsupported: Providers of this type cannot be called here.
        """
        require_usable(provider, keys)
        if provider.base_url and not self._allow_private:
            require_public_host(httpx2.URL(provider.base_url).host, setting=PROVIDERS)

    def seal(self, keys: Keys) -> str | None:
        """Return the keys encrypted for the store; None without keys.

        Args:
            keys: The keys that a caller sent.
        """
        secrets = {name: key for name, key in asdict(keys).items() if key}
        if secrets:
            return self._cipher.encrypt(orjson.dumps(secrets).decode())
        return None

    def keys_of(self, provider: OrganizationProvider) -> Keys:
        """Return a stored provider's keys.

        Args:
            provider: The stored provider, with its encrypted keys.

        Raises:
            Unavailable: This server cannot decrypt them.
        """
        if provider.secret is None:
            return Keys()
        try:
            return Keys(**orjson.loads(self._cipher.decrypt(provider.secret)))
        except (RicordoError, ValueError, TypeError):
            # `from None`, since the cause may contain the decrypted text.
            raise Unavailable(
                f'The key of provider "{provider.name}" cannot be read: it was encrypted with another secret.key. Put the file '
                "secret.key of the server that saved it into this server's data folder, or save the key again."
            ) from None

    def require_free(self, name: str) -> None:
        """Refuse the name of a provider that the server itself has.

        Args:
            name: The name that an organization chose.

        Raises:
            Conflict: The server has a provider of this name, or the name is reserved.
        """
        is_taken = name in RESERVED
        with suppress(NotFound):
            self._base.get(f"{name}/-")
            is_taken = True
        if is_taken:
            raise Conflict(
                f'"{name}" is reserved, or a provider of this server. Choose another name, such as '
                f"my-{name}."
            )

    async def ask(self, provider: OrganizationProvider, keys: Keys | None = None) -> ModelList:
        """Return the provider's list of models.

        Args:
            provider: The provider, perhaps not stored yet.
            keys: The keys to use; None for the stored ones.

        Raises:
            ModelError: The list cannot be read.
            Unsupported: This kind of provider has no list.
            Unavailable: The stored keys cannot be decrypted.
        """
        keys = self.keys_of(provider) if keys is None else keys
        target = added_provider(provider, keys)
        if target.adapter == "bedrock":
            raise Unsupported(
                "Bedrock has no list of models here: its keys are only checked at the first "
                "request to a model."
            )
        client = self._organizations[provider.organization_id].connections.client()
        try:
            return await list_models(client, target, checks_key=True)
        except ModelError as error:
            raise keys.without(error) from None

    async def close(self) -> None:
        for organization in self._organizations.values():
            await organization.connections.close()
        self._organizations.clear()

    def lessons_of(self, organization_id: str, info: ModelInfo) -> LearnedModel:
        """Return a model's lessons; other organizations cannot add to them.

        Args:
            organization_id: The organization whose provider it is.
            info: The model.
        """
        return lessons_of(info, self._base.learned, organization_id)

    async def _read(self, organization_id: str, organization: _OrganizationConnections) -> None:
        read_at = self._now()
        changes = organization.changes
        before = organization.providers
        providers: dict[str, _CachedProvider] = {}
        for stored in await self._load(organization_id):
            cached = before.get(stored.name)
            if cached is None or cached.stored != stored:
                cached = _CachedProvider(stored, ListCache(self._now))
            providers[stored.name] = cached
        organization.providers = providers
        # If providers changed during the reading, the next caller reads again.
        if organization.changes == changes:
            organization.read_at = read_at
        else:
            organization.read_at = -math.inf

    async def listed(self, provider: _CachedProvider) -> tuple[ModelInfo, ...] | None:
        """Return the provider's chat models, requested again if the cached list is old.

        Args:
            provider: A provider of the last reading.

        Returns:
            The models; None if the list cannot be read.
        """
        models = await provider.list.read(lambda: self.ask(provider.stored))
        return models.chat if models else None

    async def answer(
        self, organization_id: str, info: ModelInfo, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply]:
        """Call a model with the current key.

        Args:
            organization_id: The organization that pays for the call.
            info: The model.
            request: The request of the call.

        Raises:
            ModelError: The provider was removed, or the call failed. Its message quotes no key.
            Unavailable: The stored key cannot be decrypted.
        """
        models = await self.of(organization_id)
        if (match := models.find(info.handle)) is None:
            raise ModelError(
                "llm_authentication",
                f"The provider of {info.handle} was removed. Choose another model.",
            )
        provider, _ = match
        keys = self.keys_of(provider.stored)
        model = provider.models.get(info.name)
        if model is None:
            connections = self._organizations[organization_id].connections
            target = added_provider(provider.stored, keys)
            model = build_model(
                target, info, connections, self._policy, self.lessons_of(organization_id, info)
            )
            provider.models[info.name] = model
            if len(provider.models) > MOST_BUILT:
                del provider.models[next(iter(provider.models))]
        try:
            async with aclosing(model.answer(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
        except ModelError as error:
            raise keys.without(error) from None


@dataclass(frozen=True, slots=True)
class OrganizationModel:
    """A chat model of an organization's own provider."""

    info: ModelInfo
    answer: Callable[[ModelRequest], AsyncGenerator[Chunk | ModelReply]]
    learned: LearnedModel


@dataclass(frozen=True, slots=True)
class OrganizationModels:
    """The models of one organization: those of its providers, and those of the settings.

    If two providers have the same name, the organization's provider takes precedence.
    """

    _providers: OrganizationProviders
    _base: Models
    _organization_id: str
    _own_providers: Mapping[str, _CachedProvider]

    def get(self, handle: str) -> ChatModel:
        """Return the model with this handle, without a request.

        Args:
            handle: A stored handle. The model itself may no longer exist.

        Raises:
            NotFound: The provider is unknown.
        """
        match = self.find(handle) if self._own_providers else None
        if match is None:
            return self._base.get(handle)
        provider, name = match
        info = provider.info(name)
        answer = partial(self._providers.answer, self._organization_id, info)
        return OrganizationModel(
            info, answer, self._providers.lessons_of(self._organization_id, info)
        )

    async def require(self, handle: str) -> ModelInfo:
        """Describe a model.

        Args:
            handle: A handle of a caller.

        Raises:
            NotFound: There is no such provider, or its list lacks the model.
        """
        if (match := self.find(handle)) is None:
            try:
                return await self._base.require(handle)
            except NotFound:
                match = await self._providers.find_again(self._organization_id, handle)
                if match is None:
                    raise
        provider, name = match
        listed = await self._providers.listed(provider)
        if listed is not None and all(info.handle != handle for info in listed):
            # wire fact: clients of the retired Letta V1 server match this sentence
            raise NotFound(
                f"Handle {handle} not found, must be one of {[info.handle for info in listed[:60]]}"
            )
        return provider.info(name)

    def is_unlisted(self, handle: str) -> bool:
        """Return whether the provider's list was never read but may say more about the model.

        Args:
            handle: The handle of a model.
        """
        match = self.find(handle) if self._own_providers else None
        return match[0].list.is_missing() if match else self._base.is_unlisted(handle)

    async def look_up(self, handle: str) -> None:
        """Request the list of the model's provider, and wait at most two seconds.

        Args:
            handle: The handle of a model. An unknown one is no error here.
        """
        with suppress(NotFound, TimeoutError):
            async with asyncio.timeout(LOOK_UP_SECONDS):
                await self.require(handle)

    async def list(self) -> list[ModelInfo]:
        lists = await asyncio.gather(*map(self._providers.listed, self._own_providers.values()))
        return [*await self._base.list(), *(info for listed in lists for info in listed or ())]

    def find(self, handle: str) -> tuple[_CachedProvider, str] | None:
        """Return the organization's provider of this model, and the model's name.

        Args:
            handle: The handle of a model.

        Returns:
            None if no provider of the organization has the handle's first part as its name.
        """
        name, _, model = handle.partition("/")
        provider = self._own_providers.get(name)
        return (provider, model) if provider and model else None
