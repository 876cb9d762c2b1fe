"""The directory of models: configured providers and servers on this machine with their lists.

Chat models and embedding models come from the same lists, so both registries use this directory
and each provider is asked once.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from ricordo.domain.model import EmbeddingInfo, ModelInfo
from ricordo.errors import ModelError, NotFound, RicordoError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel, Embedder
from ricordo.llm.model_lists import ModelList, list_models, probe
from ricordo.llm.provider_table import Provider

KEPT_SECONDS = 300.0
# Seconds before a provider that did not answer is asked again.
FAILURE_KEPT_SECONDS = 30.0
# The most handles that an error for an unknown handle names.
NAMED_HANDLES = 60
MOST_BUILT = 1_000  # models; their names come from clients

Model = TypeVar("Model", ChatModel, Embedder)

_log = logging.getLogger(__name__)


class ListCache:
    """A provider's list of models, requested again after five minutes.

    After a failure it is requested again after half a minute. `listed` is None before the first
    request and after a failed one.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.listed: ModelList | None = None
        self.last: ModelList | None = None
        """The newest list that was read."""
        self._until = float("-inf")
        self._now = now
        self._asking = asyncio.Lock()

    async def read(self, ask: Callable[[], Awaitable[ModelList]]) -> ModelList | None:
        """Return the list, requested again if it is old.

        Returns None after a failure; a later call of the model reports the cause.
        """
        async with self._asking:
            if self._now() >= self._until:
                # Set the time before the request, since the caller may be cancelled during it.
                self._until = self._now() + FAILURE_KEPT_SECONDS
                try:
                    self.keep(await ask())
                except RicordoError:
                    self.listed = None
                    self._until = self._now() + FAILURE_KEPT_SECONDS
            return self.listed

    def is_missing(self) -> bool:
        """Return whether no list was ever read and a request may help."""
        return self.last is None and self._now() >= self._until

    def keep(self, listed: ModelList) -> None:
        self.listed = self.last = listed
        self._until = self._now() + KEPT_SECONDS


class ModelDirectory:
    """The usable providers and their lists.

    `on_listed` holds the listeners that are called after a list was read.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        connections: Connections,
        *,
        local_servers: Sequence[Provider] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_listed: list[Callable[[ModelList], None]] = []
        self.local_models: tuple[ModelInfo, ...] = ()
        """The chat models of the servers found on this machine."""
        self.empty: list[Provider] = []
        """The servers found on this machine that have no model yet."""
        self._providers = {provider.name: provider for provider in providers}
        self._connections = connections
        self._local_servers = {server.name: server for server in local_servers}
        self._lists: defaultdict[str, ListCache] = defaultdict(partial(ListCache, now))

    def split(self, handle: str, *, may_be_down: bool = False) -> tuple[Provider, str] | None:
        """Return the provider and the model's name of a handle.

        Returns None for an unknown provider. With `may_be_down`, local servers that were not found
        yet are known too.
        """
        name, _, model = handle.partition("/")
        provider = self._providers.get(name) or (
            self._local_servers.get(name) if may_be_down else None
        )
        if provider and model:
            return (provider, model)
        return None

    def listed(self, provider: Provider) -> ModelList:
        """Return the provider's last list, without a request."""
        return self._lists[provider.name].last or ModelList()

    def offers(self) -> list[tuple[Provider, ModelList | None]]:
        """Return each provider with its last list or None, without a request."""
        return [(provider, self._lists[name].last) for name, provider in self._providers.items()]

    def is_unlisted(self, handle: str) -> bool:
        """Return whether the handle's provider has no list yet but may give one."""
        target = self.split(handle, may_be_down=True)
        return target is not None and self._lists[target[0].name].is_missing()

    def all_listed(self) -> list[ModelList]:
        return [cache.listed for cache in self._lists.values() if cache.listed]

    async def ask(self, provider: Provider) -> ModelList | None:
        """Return the provider's list, requested again if the cached one is old.

        Returns None after a failure.
        """
        return await self._lists[provider.name].read(partial(self._list, provider))

    async def ask_all(self) -> list[ModelList]:
        lists = await asyncio.gather(*map(self.ask, tuple(self._providers.values())))
        return [listed for listed in lists if listed]

    async def find_local(self, handle: str | None = None) -> tuple[ModelInfo, ...]:
        """Search this machine for servers not found yet: for all, or for the handle's server.

        Returns the chat models of all servers found on this machine so far.
        """
        if handle is None:
            provider_name = None
        else:
            provider_name = handle.partition("/")[0]
        servers = [
            server
            for name, server in self._local_servers.items()
            if name not in self._providers and provider_name in (None, name)
        ]
        if provider_name is None:
            self.empty.clear()
        await asyncio.gather(*map(self._probe, servers))
        return self.local_models

    async def _list(self, provider: Provider) -> ModelList:
        try:
            listed = await list_models(self._connections.client(), provider)
        except ModelError as error:
            _log.warning("The models of %s cannot be listed: %s", provider.name, error)
            raise
        for listener in self.on_listed:
            listener(listed)
        return listed

    async def _probe(self, server: Provider) -> None:
        listed = await probe(self._connections.client(), server)
        if listed == ModelList() and not server.owner and server not in self.empty:
            self.empty.append(server)
        if listed and (listed.chat or listed.embedding) and server.name not in self._providers:
            self._providers[server.name] = server
            self._lists[server.name].keep(listed)
            for listener in self.on_listed:
                listener(listed)
            self.local_models += listed.chat
            count = len(listed.chat) + len(listed.embedding)
            _log.info("Found %s at %s with %d models.", server.name, server.base_url, count)


class Registry(Generic[Model]):
    """Models by handle, `provider/name`: added ones and those of the directory's providers."""

    def __init__(self, directory: ModelDirectory) -> None:
        self._directory = directory
        self._added: dict[str, Model] = {}
        self._built: dict[str, Model] = {}

    def add(self, model: Model) -> None:
        self._added[model.info.handle] = model

    def get(self, handle: str) -> Model:
        """Return the model with this handle, without a request.

        If it is a model of a local server, that server may be down. Raises NotFound for an unknown
        provider.
        """
        model = self._added.get(handle) or self._built.get(handle)
        if model is None:
            model = self._built[handle] = self._build(*self._split(handle, may_be_down=True))
            if len(self._built) > MOST_BUILT:
                del self._built[next(iter(self._built))]
        return model

    def is_unlisted(self, handle: str) -> bool:
        """Return whether the provider's list was never read but may describe the model."""
        return handle not in self._added and self._directory.is_unlisted(handle)

    async def _find(self, handle: str) -> tuple[Provider, str, ModelList | None]:
        await self._directory.find_local(handle)
        provider, name = self._split(handle)
        return provider, name, await self._directory.ask(provider)

    def _split(self, handle: str, *, may_be_down: bool = False) -> tuple[Provider, str]:
        if (target := self._directory.split(handle, may_be_down=may_be_down)) is None:
            raise self._not_found(handle)
        return target

    def _build(self, provider: Provider, name: str) -> Model:
        raise NotImplementedError

    def _not_found(self, handle: str) -> NotFound:
        handles: list[str] = []
        for listed in self._directory.all_listed():
            handles += [info.handle for info in self._infos(listed)]
        # wire fact: clients of the retired Letta V1 server match this sentence
        return NotFound(
            f"Handle {handle} not found, must be one of {[*self._added, *handles][:NAMED_HANDLES]}"
        )

    def _infos(self, listed: ModelList) -> Sequence[ModelInfo | EmbeddingInfo]:
        raise NotImplementedError
