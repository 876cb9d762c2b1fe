"""Who offers which models: the configured providers and the servers found on this machine, with what they last listed.

Chat models and embedding models come from the same lists, so both registries ask here and a provider is asked once.
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
# A provider that did not answer is asked again sooner, but not by every request.
FAILURE_KEPT_SECONDS = 30.0
# At most so many are named to somebody who asked for another.
NAMED_HANDLES = 60
MOST_BUILT = 1_000  # models; clients name them

Model = TypeVar("Model", ChatModel, Embedder)

_log = logging.getLogger(__name__)


class ListCache:
    """A provider's list, asked for at most every five minutes. `listed` is None where it could not be read."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.listed: ModelList | None = None
        self.last: ModelList | None = None
        """The newest list that could be read."""
        self._until = float("-inf")
        self._now = now
        self._asking = asyncio.Lock()

    async def read(self, ask: Callable[[], Awaitable[ModelList]]) -> ModelList | None:
        """Return the list, after asking where it is old. A failure is none: the call of a model tells what is wrong."""
        async with self._asking:
            if self._now() >= self._until:
                # Already now: a caller may stop waiting.
                self._until = self._now() + FAILURE_KEPT_SECONDS
                try:
                    self.keep(await ask())
                except RicordoError:
                    self.listed, self._until = None, self._now() + FAILURE_KEPT_SECONDS
            return self.listed

    def is_missing(self) -> bool:
        """Return whether no list was read yet, and to ask for it may help."""
        return self.last is None and self._now() >= self._until

    def keep(self, listed: ModelList) -> None:
        self.listed = self.last = listed
        self._until = self._now() + KEPT_SECONDS


class ModelDirectory:
    """The providers that may be called, and their lists. `on_listed` holds what to call when a list was read."""

    def __init__(
        self,
        providers: Sequence[Provider],
        connections: Connections,
        *,
        local_servers: Sequence[Provider] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_listed: list[Callable[[ModelList], None]] = []
        self.found: tuple[ModelInfo, ...] = ()
        """The chat models of the servers found on this machine."""
        self.empty: list[Provider] = []
        """The servers found on this machine that have no model yet."""
        self._providers = {provider.name: provider for provider in providers}
        self._connections = connections
        self._local_servers = {server.name: server for server in local_servers}
        self._lists: defaultdict[str, ListCache] = defaultdict(partial(ListCache, now))

    def split(self, handle: str, *, may_be_down: bool = False) -> tuple[Provider, str] | None:
        """Return provider and name of a handle, None without such; `may_be_down` counts local servers not found yet."""
        name, _, model = handle.partition("/")
        provider = self._providers.get(name) or (
            self._local_servers.get(name) if may_be_down else None
        )
        return (provider, model) if provider and model else None

    def listed(self, provider: Provider) -> ModelList:
        """Return what the provider last listed, without asking it."""
        return self._lists[provider.name].last or ModelList()

    def offers(self) -> list[tuple[Provider, ModelList | None]]:
        """Return each provider with the newest list of its that could be read, without asking it; None where there is none."""
        return [(provider, self._lists[name].last) for name, provider in self._providers.items()]

    def is_unlisted(self, handle: str) -> bool:
        """Return whether the handle's provider has listed nothing yet, and may do so when it is asked."""
        found = self.split(handle, may_be_down=True)
        return found is not None and self._lists[found[0].name].is_missing()

    def all_listed(self) -> list[ModelList]:
        return [each.listed for each in self._lists.values() if each.listed]

    async def ask(self, provider: Provider) -> ModelList | None:
        """Return what the provider lists, asked at most every five minutes; None where the list cannot be read."""
        return await self._lists[provider.name].read(partial(self._list, provider))

    async def ask_all(self) -> list[ModelList]:
        return [
            each
            for each in await asyncio.gather(*map(self.ask, tuple(self._providers.values())))
            if each
        ]

    async def find_local(self, handle: str | None = None) -> tuple[ModelInfo, ...]:
        """Look for the servers of this machine that are not known yet: all of them, or the one that the handle names."""
        named = None if handle is None else handle.partition("/")[0]
        wanted = [
            server for name, server in self._local_servers.items() if name not in self._providers
        ]
        if named is None:
            self.empty.clear()
        await asyncio.gather(
            *(self._probe(server) for server in wanted if named in (None, server.name))
        )
        return self.found

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
            self.found += listed.chat
            count = len(listed.chat) + len(listed.embedding)
            _log.info("Found %s at %s with %d models.", server.name, server.base_url, count)


class Registry(Generic[Model]):
    """Models by their handles `provider/name`: those added one by one, and those of the providers in the directory."""

    def __init__(self, directory: ModelDirectory) -> None:
        self._directory = directory
        self._added: dict[str, Model] = {}
        self._built: dict[str, Model] = {}

    def add(self, model: Model) -> None:
        self._added[model.info.handle] = model

    def get(self, handle: str) -> Model:
        """The model with this handle, without asking; a local server that is down counts. Raises NotFound for no provider."""
        model = self._added.get(handle) or self._built.get(handle)
        if model is None:
            model = self._built[handle] = self._build(*self._split(handle, may_be_down=True))
            if len(self._built) > MOST_BUILT:
                del self._built[next(iter(self._built))]
        return model

    def is_unlisted(self, handle: str) -> bool:
        """Return whether more may be known of the model once its provider is asked for its list, which was never read."""
        return handle not in self._added and self._directory.is_unlisted(handle)

    async def _find(self, handle: str) -> tuple[Provider, str, ModelList | None]:
        await self._directory.find_local(handle)
        provider, name = self._split(handle)
        return provider, name, await self._directory.ask(provider)

    def _split(self, handle: str, *, may_be_down: bool = False) -> tuple[Provider, str]:
        if (found := self._directory.split(handle, may_be_down=may_be_down)) is None:
            raise self._not_found(handle)
        return found

    def _build(self, provider: Provider, name: str) -> Model:
        raise NotImplementedError

    def _not_found(self, handle: str) -> NotFound:
        known: list[str] = []
        for listed in self._directory.all_listed():
            known += [info.handle for info in self._infos(listed)]
        # The sentence is a wire fact: clients of the retired Letta V1 server match it.
        return NotFound(
            f"Handle {handle} not found, must be one of {[*self._added, *known][:NAMED_HANDLES]}"
        )

    def _infos(self, listed: ModelList) -> Sequence[ModelInfo | EmbeddingInfo]:
        raise NotImplementedError
