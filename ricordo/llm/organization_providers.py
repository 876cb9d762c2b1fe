"""Models of providers that an organisation brought with its own key, beside those of the settings. No other organisation sees them.

A change of a key counts at the next call of a model, also within a turn that runs: each call asks here for the key of now.
Other processes read the providers again when what they read is older than `fresh_for` seconds.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.provider import OrganizationProvider
from ricordo.errors import Conflict, ModelError, NotFound, RicordoError
from ricordo.llm.chat import ChatModel
from ricordo.llm.connections import Connections
from ricordo.llm.guarded import PublicConnections, require_public
from ricordo.llm.keys import Cipher, Keys, seal, unseal
from ricordo.llm.kinds import build, models_of, provider_of, require_usable
from ricordo.llm.listing import info_of
from ricordo.llm.policy import CallPolicy
from ricordo.llm.registry import Models

FRESH_SECONDS = 5.0
RESERVED = frozenset({"ricordo", "none"})
LISTED_SECONDS = 300.0
UNLISTED_SECONDS = 30.0

Load = Callable[[str], Awaitable[Sequence[OrganizationProvider]]]
"""Reads the providers of an organisation from where they are kept."""


@dataclass(slots=True)
class _Owned:
    """One provider of an organisation, with what was made of it. A change makes another."""

    provider: OrganizationProvider
    listed: tuple[ModelInfo, ...] | None = None
    listed_until: float = 0.0
    models: dict[str, ChatModel] = field(default_factory=dict)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Organization:
    """What is known of one organisation. The connections are its own, so that no cookie goes to another."""

    connections: Connections
    owned: dict[str, _Owned] = field(default_factory=dict)
    read_at: float | None = None
    changes: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class OrganizationProviders:
    """The models of all organisations. `load` reads their providers, `cipher` decrypts their keys.

    `fresh_for` is in seconds; None where no other process can change a provider. Without
    `allow_private` their addresses must be public ones.
    """

    def __init__(
        self,
        models: Models,
        policy: CallPolicy,
        load: Load,
        cipher: Cipher,
        *,
        fresh_for: float | None = None,
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
        make = Connections if allow_private else PublicConnections
        self._organizations: defaultdict[str, _Organization] = defaultdict(lambda: _Organization(make(policy.timeout)))

    async def of(self, organization_id: str) -> "OrganizationModels":
        """The models that an organisation can use, its providers read again where they may have changed."""
        known = self._organizations[organization_id]
        if not self._is_fresh(known):
            async with known.reading:
                if not self._is_fresh(known):
                    await self._read(organization_id, known)
        return OrganizationModels(self, self._base, organization_id)

    def known(self, organization_id: str) -> "OrganizationModels":
        """The same by what was read last, without reading anything."""
        return OrganizationModels(self, self._base, organization_id)

    def forget(self, organization_id: str) -> None:
        """Say that a provider of the organisation has changed: this process counts with it from now on."""
        known = self._organizations[organization_id]
        known.read_at = None
        known.changes += 1

    def require_usable(self, provider: OrganizationProvider, keys: Keys) -> None:
        """Raise Invalid or Unsupported with what is missing where no call could be made."""
        require_usable(provider, keys)
        if provider.base_url and not self._allow_private:
            require_public(provider.base_url)

    def seal(self, keys: Keys) -> str | None:
        """The keys as they are stored."""
        return seal(keys, self._cipher)

    def keys_of(self, provider: OrganizationProvider) -> Keys:
        """The keys of a stored provider. Raises Unavailable where this server cannot read them."""
        return unseal(provider, self._cipher)

    def require_free(self, name: str) -> None:
        """Raise Conflict where the server itself offers models under this name."""
        is_taken = name in RESERVED
        with suppress(NotFound):
            self._base.get(f"{name}/-")
            is_taken = True
        if is_taken:
            raise Conflict(f'"{name}" is a provider of this server. Choose another name, as my-{name}.')

    async def ask(self, provider: OrganizationProvider, keys: Keys) -> tuple[ModelInfo, ...]:
        """The chat models that the provider lists now. Raises ModelError where it refuses the keys, Unsupported without a list."""
        client = self._organizations[provider.organization_id].connections.client()
        try:
            return await models_of(client, provider_of(provider, keys))
        except ModelError as error:
            raise keys.without(error) from None

    async def close(self) -> None:
        """Close all connections."""
        for known in self._organizations.values():
            await known.connections.close()
        self._organizations.clear()

    def _is_fresh(self, known: _Organization) -> bool:
        if known.read_at is None:
            return False
        return self._fresh_for is None or self._now() - known.read_at < self._fresh_for

    async def _read(self, organization_id: str, known: _Organization) -> None:
        moment, changes = self._now(), known.changes
        providers = await self._load(organization_id)
        before = known.owned
        known.owned = {
            provider.name: before[provider.name]
            if provider.name in before and before[provider.name].provider == provider
            else _Owned(provider)
            for provider in providers
        }
        # What changed while it was read is read again by the next who asks.
        known.read_at = moment if known.changes == changes else None

    # What OrganizationModels asks for.

    def find(self, organization_id: str, handle: str) -> tuple[_Owned, str] | None:
        """The provider of the organisation that the handle names, and the model's name."""
        name, _, model = handle.partition("/")
        known = self._organizations.get(organization_id)
        owned = known.owned.get(name) if known else None
        return (owned, model) if owned and model else None

    def all_of(self, organization_id: str) -> list[_Owned]:
        """The providers of the organisation."""
        known = self._organizations.get(organization_id)
        return [*known.owned.values()] if known else []

    async def listed(self, owned: _Owned) -> tuple[ModelInfo, ...] | None:
        """What the provider lists, asked at most every five minutes; None where it lists nothing or cannot be asked."""
        async with owned.asking:
            if self._now() >= owned.listed_until:
                try:
                    owned.listed = await self.ask(owned.provider, self.keys_of(owned.provider))
                    owned.listed_until = self._now() + LISTED_SECONDS
                except RicordoError:  # A list is a help: the call itself tells what is wrong.
                    owned.listed, owned.listed_until = None, self._now() + UNLISTED_SECONDS
            return owned.listed

    async def answer(
        self, organization_id: str, info: ModelInfo, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply]:
        """Ask a model with the key of now."""
        await self.of(organization_id)
        found = self.find(organization_id, info.handle)
        if found is None:
            raise ModelError("llm_authentication", f"The provider of {info.handle} was removed. Choose another model.")
        owned, _ = found
        keys = self.keys_of(owned.provider)
        model = owned.models.get(info.name)
        if model is None:
            connections = self._organizations[organization_id].connections
            model = owned.models[info.name] = build(provider_of(owned.provider, keys), info, connections, self._policy)
        try:
            async with aclosing(model.answer(request)) as items:  # type: ignore[type-var]
                async for item in items:
                    yield item
        except ModelError as error:
            raise keys.without(error) from None


class OrganizationModel:
    """A chat model of an organisation's own provider."""

    def __init__(self, owned: OrganizationProviders, organization_id: str, info: ModelInfo) -> None:
        self._owned = owned
        self._organization_id = organization_id
        self._info = info

    @property
    def info(self) -> ModelInfo:
        """Which model this is."""
        return self._info

    def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply]:
        """Yield chunks where `request.stream` asks for them, and last of all the whole reply."""
        return self._owned.answer(self._organization_id, self._info, request)


class OrganizationModels:
    """The models that one organisation can use: its own, then those that the settings configure."""

    def __init__(self, owned: OrganizationProviders, base: Models, organization_id: str) -> None:
        self._owned = owned
        self._base = base
        self._organization_id = organization_id

    def get(self, handle: str) -> ChatModel:
        """The model with this handle, without asking anybody. Raises NotFound."""
        found = self._owned.find(self._organization_id, handle)
        if found is None:
            return self._base.get(handle)
        return OrganizationModel(self._owned, self._organization_id, self._known(*found))

    async def require(self, handle: str) -> ModelInfo:
        """What is known of a model. Raises NotFound where its provider lists its models and this is not among them."""
        found = self._owned.find(self._organization_id, handle)
        if found is None:
            return await self._base.require(handle)
        listed = await self._owned.listed(found[0])
        if listed is not None and all(info.handle != handle for info in listed):
            # The sentence is a wire fact: clients of the retired Letta V1 server match it.
            raise NotFound(f"Handle {handle} not found, must be one of {[info.handle for info in listed[:60]]}")
        return self._known(*found)

    async def list(self) -> list[ModelInfo]:
        """All models, the organisation's own after the others."""
        own = await asyncio.gather(*(self._owned.listed(each) for each in self._owned.all_of(self._organization_id)))
        return [*await self._base.list(), *(info for listed in own for info in listed or ())]

    def provider(self, handle: str) -> OrganizationProvider | None:
        """The organisation's own provider that the handle names; None where it is one of the settings."""
        found = self._owned.find(self._organization_id, handle)
        return found and found[0].provider

    def default_handle(self) -> str:
        """The handle for agents made without one."""
        return self._base.default_handle()

    def _known(self, owned: _Owned, name: str) -> ModelInfo:
        listed = next((info for info in owned.listed or () if info.name == name), None)
        return listed or info_of(provider_of(owned.provider, Keys()), name)
