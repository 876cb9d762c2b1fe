"""All models that can be used here, by their handles `provider/name`. Calls nobody who is not configured or on this machine."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ricordo.domain.model import ModelInfo
from ricordo.errors import ModelError, NotFound
from ricordo.llm.chat import ChatModel
from ricordo.llm.connections import Connections
from ricordo.llm.listing import info_of, list_models, probe
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.policy import CallPolicy, policy_from
from ricordo.llm.provider_table import LOCAL_SERVERS, LocalServer, Provider, configured, local_provider
from ricordo.llm.providers import anthropic_model, bedrock_model, google_model
from ricordo.settings import ProviderSettings, Settings

LIBRARIAN = "ricordo/librarian"
KEPT_SECONDS = 300.0
# A provider that did not answer is asked again sooner, but not by every request.
FAILURE_KEPT_SECONDS = 30.0
NAMED_HANDLES = 60

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Listing:
    """What a provider said it has, and until when that is believed. `infos` is None where it could not be read."""

    infos: tuple[ModelInfo, ...] | None
    until: float


class Models:
    """The models of all configured providers, of servers found on this machine, and those added one by one."""

    def __init__(
        self,
        settings: Settings,
        providers: ProviderSettings,
        extra: Sequence[Provider] = (),
        *,
        policy: CallPolicy | None = None,
        local_servers: Sequence[LocalServer] = LOCAL_SERVERS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._policy = policy or policy_from(settings)
        self._providers = {provider.name: provider for provider in (*configured(providers), *extra)}
        self._local_servers = tuple(local_servers)
        self._now = now
        self._connections = Connections(self._policy.timeout)
        self._added: dict[str, ChatModel] = {}
        self._built: dict[str, ChatModel] = {}
        self._listings: dict[str, _Listing] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._found: tuple[ModelInfo, ...] = ()

    def add(self, model: ChatModel) -> None:
        """Make a single model usable by its handle."""
        self._added[model.info.handle] = model

    def get(self, handle: str) -> ChatModel:
        """The model with this handle, without asking anybody. Raises NotFound for a provider that is not configured.

        A server that may run on this machine counts as configured: while it is down, its models fail when they are asked.
        """
        model = self._added.get(handle) or self._built.get(handle)
        if model is not None:
            return model
        server = self._local_server(handle)
        provider, name = (local_provider(server), handle.partition("/")[2]) if server else self._split(handle)
        model = self._built[handle] = self._build(provider, self._known(provider, name) or info_of(provider, name))
        return model

    async def require(self, handle: str) -> ModelInfo:
        """What is known of a model. Raises NotFound where its provider lists its models and this is not among them."""
        if handle in self._added:
            return self._added[handle].info
        if server := self._local_server(handle):
            await self._look_for([server])
        provider, name = self._split(handle)
        listing = await self._read(provider)
        known = self._known(provider, name)
        if known is None and listing.infos is not None:
            raise self._not_found(handle)
        return known or info_of(provider, name)

    async def list(self) -> list[ModelInfo]:
        """All models: the added ones, then each provider's, which is asked at most every five minutes."""
        listings = await asyncio.gather(*(self._read(provider) for provider in tuple(self._providers.values())))
        added = [model.info for model in self._added.values()]
        return added + [info for listing in listings for info in listing.infos or ()]

    def default_handle(self) -> str:
        """The handle for agents made without one: the setting, else a model found on this machine, else the librarian."""
        if self._settings.model:
            return self._settings.model
        return self._found[0].handle if self._found else LIBRARIAN

    async def find_local(self) -> tuple[ModelInfo, ...]:
        """Look for model servers on this machine's own ports, unless the settings forbid it; their models become usable."""
        if self._settings.find_local_models:
            await self._look_for([server for server in self._local_servers if server.name not in self._providers])
        return self._found

    async def _look_for(self, servers: Sequence[LocalServer]) -> None:
        client = self._connections.client()
        answers = await asyncio.gather(*(probe(client, server, local_provider(server)) for server in servers))
        for server, infos in zip(servers, answers, strict=True):
            if infos and server.name not in self._providers:
                provider = local_provider(server)
                self._providers[server.name] = provider
                self._keep(provider, tuple(infos), KEPT_SECONDS)
                self._found += tuple(infos)
                _log.info("Found %s on port %d with %d models.", server.name, server.port, len(infos))

    async def close(self) -> None:
        """Close all connections."""
        self._built.clear()
        await self._connections.close()

    def _local_server(self, handle: str) -> LocalServer | None:
        """The server on this machine that the handle names, where none of that name is configured or was found."""
        name, _, model = handle.partition("/")
        if not model or name in self._providers or not self._settings.find_local_models:
            return None
        return next((server for server in self._local_servers if server.name == name), None)

    def _split(self, handle: str) -> tuple[Provider, str]:
        name, _, model = handle.partition("/")
        provider = self._providers.get(name)
        if provider is None or not model:
            raise self._not_found(handle)
        return provider, model

    def _not_found(self, handle: str) -> NotFound:
        handles = [*self._added]
        for listing in self._listings.values():
            handles += [info.handle for info in listing.infos or ()]
        # The sentence is a wire fact: clients of the retired Letta V1 server match it.
        return NotFound(f"Handle {handle} not found, must be one of {handles[:NAMED_HANDLES]}")

    def _known(self, provider: Provider, name: str) -> ModelInfo | None:
        listing = self._listings.get(provider.name)
        infos = (listing.infos if listing else None) or ()
        # Ollama lists "llama3.2:latest" for "llama3.2"; OpenRouter leaves out variants such as ":online".
        others = {f"{name}:latest"} if provider.name == "ollama" else set()
        if provider.name == "openrouter":
            others.add(name.partition(":")[0])
        found = {info.name: info for info in infos if info.name == name or info.name in others}
        if name in found:
            return found[name]
        near = next(iter(found.values()), None)
        return near and ModelInfo(
            f"{provider.name}/{name}", provider.name, name, near.endpoint_type, near.context_window, near.endpoint
        )

    async def _read(self, provider: Provider) -> _Listing:
        if (listing := self._fresh(provider)) is not None:
            return listing
        async with self._asking[provider.name]:
            if (listing := self._fresh(provider)) is not None:
                return listing
            try:
                infos = await list_models(self._connections.client(), provider)
            except ModelError as error:
                _log.warning("The models of %s cannot be listed: %s", provider.name, error)
                return self._keep(provider, None, FAILURE_KEPT_SECONDS)
            return self._keep(provider, tuple(infos), KEPT_SECONDS)

    def _fresh(self, provider: Provider) -> _Listing | None:
        listing = self._listings.get(provider.name)
        return listing if listing is not None and self._now() < listing.until else None

    def _keep(self, provider: Provider, infos: tuple[ModelInfo, ...] | None, seconds: float) -> _Listing:
        listing = self._listings[provider.name] = _Listing(infos, self._now() + seconds)
        if infos is not None:
            # Built by name alone until now: what the list says of a model counts from here on.
            listed = {info.handle: info for info in infos}
            for handle, model in tuple(self._built.items()):
                if handle in listed and listed[handle] != model.info:
                    del self._built[handle]
        return listing

    def _build(self, provider: Provider, info: ModelInfo) -> ChatModel:
        match provider.door:
            case "anthropic":
                return anthropic_model(info, self._connections, self._policy, api_key=provider.api_key)
            case "google":
                return google_model(info, self._connections, self._policy, api_key=provider.api_key)
            case "bedrock":
                return bedrock_model(info, self._policy, region=provider.api_key or "")
            case _:
                return OpenAICompatibleModel(info, self._connections, self._policy, api_key=provider.api_key)
