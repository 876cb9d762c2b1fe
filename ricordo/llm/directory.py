"""Who offers which models: the configured providers and the servers found on this machine, with what they last listed.

Chat models and embedding models come from the same lists, so both registries ask here and a provider is asked once.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ricordo.domain.model import ModelInfo
from ricordo.errors import ModelError
from ricordo.llm.connections import Connections
from ricordo.llm.listing import Listed, list_models, probe
from ricordo.llm.provider_table import LocalServer, Provider, local_provider

KEPT_SECONDS = 300.0
# A provider that did not answer is asked again sooner, but not by every request.
FAILURE_KEPT_SECONDS = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a provider said it has, and until when that is believed. `listed` is None where it could not be read."""

    listed: Listed | None
    until: float


class Directory:
    """The providers that may be called, and their lists. `on_listed` holds what to call when a list was read."""

    def __init__(
        self,
        providers: Sequence[Provider],
        connections: Connections,
        *,
        local_servers: Sequence[LocalServer] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_listed: list[Callable[[Listed], None]] = []
        self._providers = {provider.name: provider for provider in providers}
        self._connections = connections
        self._local_servers = tuple(local_servers)
        self._now = now
        self._listings: dict[str, Listing] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._found: tuple[ModelInfo, ...] = ()

    @property
    def found(self) -> tuple[ModelInfo, ...]:
        """The chat models of the servers found on this machine."""
        return self._found

    def split(self, handle: str) -> tuple[Provider, str] | None:
        """Provider and name of a handle; None where no such provider is configured or was found."""
        name, _, model = handle.partition("/")
        provider = self._providers.get(name)
        return (provider, model) if provider and model else None

    def reachable(self, handle: str) -> tuple[Provider, str] | None:
        """The same, where a server that may run on this machine counts as configured even while it is down."""
        if server := self._local_server(handle):
            return local_provider(server), handle.partition("/")[2]
        return self.split(handle)

    def listed(self, provider: Provider) -> Listed:
        """What the provider last listed, without asking it."""
        listing = self._listings.get(provider.name)
        return (listing and listing.listed) or Listed()

    def all_listed(self) -> list[Listed]:
        """What every provider last listed, without asking anybody."""
        return [listing.listed for listing in self._listings.values() if listing.listed]

    async def ask(self, provider: Provider) -> Listed | None:
        """What the provider lists, asked at most every five minutes; None where the list cannot be read."""
        if (listing := self._fresh(provider)) is not None:
            return listing.listed
        async with self._asking[provider.name]:
            if (listing := self._fresh(provider)) is not None:
                return listing.listed
            try:
                listed = await list_models(self._connections.client(), provider)
            except ModelError as error:
                _log.warning("The models of %s cannot be listed: %s", provider.name, error)
                return self._keep(provider, None, FAILURE_KEPT_SECONDS)
            return self._keep(provider, listed, KEPT_SECONDS)

    async def ask_all(self) -> list[Listed]:
        """What all providers list."""
        listed = await asyncio.gather(*(self.ask(provider) for provider in tuple(self._providers.values())))
        return [each for each in listed if each]

    async def look_for(self, handle: str) -> None:
        """Look whether the server that the handle names runs on this machine, where that is not known yet."""
        if server := self._local_server(handle):
            await self._probe([server])

    async def find_local(self) -> tuple[ModelInfo, ...]:
        """Look for all model servers on this machine's own ports; their models become usable."""
        await self._probe([server for server in self._local_servers if server.name not in self._providers])
        return self._found

    async def _probe(self, servers: Sequence[LocalServer]) -> None:
        if not servers:
            return
        client = self._connections.client()
        answers = await asyncio.gather(*(probe(client, server, local_provider(server)) for server in servers))
        for server, listed in zip(servers, answers, strict=True):
            if listed and (listed.chat or listed.embedding) and server.name not in self._providers:
                provider = local_provider(server)
                self._providers[server.name] = provider
                self._keep(provider, listed, KEPT_SECONDS)
                self._found += listed.chat
                count = len(listed.chat) + len(listed.embedding)
                _log.info("Found %s on port %d with %d models.", server.name, server.port, count)

    def _local_server(self, handle: str) -> LocalServer | None:
        """The server on this machine that the handle names, where none of that name is configured or was found."""
        name, _, model = handle.partition("/")
        if not model or name in self._providers:
            return None
        return next((server for server in self._local_servers if server.name == name), None)

    def _fresh(self, provider: Provider) -> Listing | None:
        listing = self._listings.get(provider.name)
        return listing if listing is not None and self._now() < listing.until else None

    def _keep(self, provider: Provider, listed: Listed | None, seconds: float) -> Listed | None:
        self._listings[provider.name] = Listing(listed, self._now() + seconds)
        if listed is not None:
            for hear in self.on_listed:
                hear(listed)
        return listed
