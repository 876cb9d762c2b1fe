"""All chat and embedding models that can be used here, by their handles `provider/name`. Calls nobody who is not configured."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches

from ricordo.domain.model import LIBRARIAN, EmbeddingInfo, ModelInfo
from ricordo.errors import NotFound
from ricordo.llm.adaptation import lessons_of
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel, Embedder
from ricordo.llm.directory import ModelDirectory, Registry
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.remote import google_embedder, openai_embedder
from ricordo.llm.learned_dialect import LearnedDialects
from ricordo.llm.model_lists import KNOWN_MODELS, ModelList, embedding_of, info_of, takes_tools
from ricordo.llm.policy import CallPolicy, policy_from
from ricordo.llm.provider_sdks import build_model, install_command, missing_extra
from ricordo.llm.provider_table import LOCAL_SERVERS, Provider, configured, what_to_set
from ricordo.llm.registry.default_model import UNLISTED, DefaultModel, choose, undated
from ricordo.settings import ProviderSettings, Settings

NONE = "none"
LOOK_SECONDS = 5.0  # for all providers and servers of this machine together
LOOK_AGAIN_SECONDS = 30.0
LONGEST_COMPARED = 200  # characters of a handle
PROBED = ("vllm", "llamacpp")  # whose lists do not tell whether they were started to take tools
# What clients of the retired Letta V1 server name to get that server's own default.
ALIASES = ("letta/letta-free",)
# Their lists hold chat models only, though they have others.
_INCOMPLETE = ("openrouter",)
_ADAPTERS = {"openai": openai_embedder, "google": google_embedder}

_log = logging.getLogger(__name__)


class Embedders(Registry[Embedder]):
    """The embedded model where it is installed, those of the providers in the directory, and those added one by one."""

    def __init__(
        self,
        settings: Settings,
        directory: ModelDirectory,
        connections: Connections,
        policy: CallPolicy,
        *,
        has_embedded: Callable[[], bool] = embedded.is_installed,
    ) -> None:
        super().__init__(directory)
        self._settings = settings
        self._connections = connections
        self._policy = policy
        self._embedded = embedded.EmbeddedModel() if has_embedded() else None
        if self._embedded:
            self.add(self._embedded)

    async def require(self, handle: str) -> EmbeddingInfo:
        """What is known of an embedding model. Raises NotFound where its provider lists its models and this is not among them."""
        if handle in self._added:
            return self._added[handle].info
        provider, name, listed = await self._find(handle)
        # A name may not tell what a model is for, and who chooses it may know: then it need only be there.
        names = (
            {info.name for info in listed.embedding} | {info.name for info in listed.chat}
            if listed
            else {name}
        )
        if not names & {name, f"{name}:latest"} and provider.name not in _INCOMPLETE:
            raise self._not_found(handle)
        return self._known(embedding_of(provider, name))

    async def choose(self, handle: str | None) -> str | None:
        """The handle to keep; None for the default, also the retired server's. Raises NotFound: another model would surprise."""
        if handle is None or handle in ALIASES:
            return None
        return (await self.require(handle)).handle

    async def list(self) -> list[EmbeddingInfo]:
        """All embedding models: the added ones, then each provider's, which is asked at most every five minutes."""
        added = [embedder.info for embedder in self._added.values()]
        listed = await self._directory.ask_all()
        return added + [self._known(info) for each in listed for info in self._infos(each)]

    def info(self, handle: str) -> EmbeddingInfo:
        """What is known of a handle without asking anybody, also where it can be used no more."""
        try:
            return self.get(handle).info
        except NotFound:
            provider, _, name = handle.partition("/")
            return EmbeddingInfo(handle, provider, name, "openai")

    def default_handle(self) -> str | None:
        """The handle for archives and messages: the setting, else the embedded model; None where there shall be or is none."""
        handle = self._settings.embedding or (self._embedded.handle if self._embedded else None)
        return None if handle == NONE else handle

    async def close(self) -> None:
        self._built.clear()

    def _known(self, info: EmbeddingInfo) -> EmbeddingInfo:
        built = self._built.get(info.handle)
        known = built.info.dimensions if built else None
        usual = KNOWN_MODELS["dimensions"].get(info.name.split(":")[0])
        return replace(info, dimensions=known or info.dimensions or usual)

    def _split(self, handle: str, *, may_be_down: bool = False) -> tuple[Provider, str]:
        provider, name = super()._split(handle, may_be_down=may_be_down)
        if provider.adapter not in _ADAPTERS:
            raise self._not_found(handle)
        return provider, name

    def _infos(self, listed: ModelList) -> Sequence[EmbeddingInfo]:
        split = ((info, self._directory.split(info.handle)) for info in listed.embedding)
        return [info for info, found in split if found and found[0].adapter in _ADAPTERS]

    def _not_found(self, handle: str) -> NotFound:
        if handle == embedded.HANDLE:
            return NotFound(
                f"Handle {handle} not found, its package is missing. {embedded.INSTALL}"
            )
        return NotFound(
            f"{super()._not_found(handle)}. Leave the embedding out to use the default, or configure its provider."
        )

    def _build(self, provider: Provider, name: str) -> Embedder:
        return _ADAPTERS[provider.adapter](
            embedding_of(provider, name), self._connections, self._policy, provider
        )


class Models(Registry[ChatModel]):
    """The models of all providers, of servers found on this machine, and added ones, with the same providers' `embedders`."""

    def __init__(
        self,
        settings: Settings,
        providers: ProviderSettings,
        extra: Sequence[Provider] = (),
        *,
        policy: CallPolicy | None = None,
        local_servers: Sequence[Provider] = LOCAL_SERVERS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.learned = LearnedDialects()
        """What models were learned to need."""
        self._settings = settings
        self._policy = policy or policy_from(settings)
        self._connections = Connections(self._policy.timeout)
        window = providers.ollama_context_length
        local = (
            [replace(each, window=window) for each in local_servers]
            if settings.find_local_models
            else []
        )
        directory = ModelDirectory(
            (*configured(providers), *extra), self._connections, local_servers=local, now=now
        )
        super().__init__(directory)
        self._now = now
        self._looking = asyncio.Lock()
        self._look_again_at = float("-inf")
        self._takes_tools: dict[str, bool] = {}  # by provider
        self._fault: str | None = None  # of RICORDO_MODEL
        directory.on_listed.append(self._believe)
        self.embedders = Embedders(settings, directory, self._connections, self._policy)

    async def require(self, handle: str) -> ModelInfo:
        """What is known of a model. Raises NotFound where its provider lists its models and this is not among them."""
        if handle in self._added:
            return self._added[handle].info
        provider, name, listed = await self._find(handle)
        known = self._known(provider, name)
        if known is None and listed is not None:
            raise self._not_found(handle)
        return known or info_of(provider, name)

    async def list(self) -> list[ModelInfo]:
        """All models: the added ones, then each provider's, which is asked at most every five minutes."""
        added = [model.info for model in self._added.values()]
        return added + [info for listed in await self._directory.ask_all() for info in listed.chat]

    def default(self) -> DefaultModel:
        """The model for agents made without one, by what is known now: the setting, a provider's, a local one, the librarian."""
        if self._settings.model:
            return DefaultModel(self._settings.model, "by RICORDO_MODEL", fault=self._fault)
        found = {info.provider for info in self._directory.found}
        offers = [
            (provider, listed if self._takes_tools.get(provider.name, True) else ModelList())
            for provider, listed in self._directory.offers()
        ]
        return choose(
            [*offers, *((server, ModelList()) for server in self._directory.empty)], found
        )

    async def find_default(self) -> DefaultModel:
        """The same, after asking the providers that have listed nothing yet, and looking on this machine; it waits 5 s at most."""
        async with self._looking:
            if self._now() >= self._look_again_at:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._look()
                except TimeoutError:
                    _log.warning(
                        "Not every provider has listed its models within %g seconds.", LOOK_SECONDS
                    )
                finally:
                    self._look_again_at = self._now() + LOOK_AGAIN_SECONDS
        return self.default()

    def better_than(self, handle: str) -> str | None:
        """The default model, where this one is the librarian and the default is another that can be used; else None."""
        default = self.default()
        return (
            default.handle if handle == LIBRARIAN != default.handle and not default.fault else None
        )

    async def _look(self) -> None:
        if self._settings.model:
            _, self._fault = await asyncio.gather(
                self.find_local(), self._examine(self._settings.model)
            )
            return
        offers = [
            (each, listed)
            for each, listed in self._directory.offers()
            if each.adapter not in UNLISTED
        ]
        wants_better = self.default().handle == LIBRARIAN
        asked_again = [each for each, listed in offers if listed is None or wants_better]
        await asyncio.gather(self.find_local(), *map(self._directory.ask, asked_again))
        silent = [
            (each, listed)
            for each, listed in self._directory.offers()
            if each.name not in self._takes_tools
        ]
        asked = [
            (each, listed.chat[0].name)
            for each, listed in silent
            if each.name in PROBED and listed and listed.chat
        ]
        for provider, name in asked:
            answer = await takes_tools(self._connections.client(), provider, name)
            if answer is not None:
                self._takes_tools[provider.name] = answer

    async def _examine(self, handle: str) -> str | None:
        """Return why the model with this handle cannot be used; None where nothing is wrong with it."""
        try:
            await self.require(handle)
        except NotFound:
            return self._hint(handle) or "No provider that is set up here has it."
        found = None if handle in self._added else self._directory.split(handle)
        extra = found and missing_extra(*found)
        return (
            f"Its library is missing. Install it with: {install_command(extra)}" if extra else None
        )

    def _hint(self, handle: str) -> str:
        """Return what to do about a handle that is not found."""
        name = handle.partition("/")[0]
        if self._directory.split(f"{name}/-") is None and (setting := what_to_set(name)):
            return setting
        known = [
            *self._added,
            *(info.handle for each in self._directory.all_listed() for info in each.chat),
        ]
        close = get_close_matches(handle[:LONGEST_COMPARED], known, n=3, cutoff=0.75)
        return f"Did you mean {' or '.join(close)}?" if close else ""

    def default_handle(self) -> str:
        return self.default().handle

    async def find_local(self) -> tuple[ModelInfo, ...]:
        """Look for model servers on this machine's own ports, unless the settings forbid it; their models become usable."""
        return await self._directory.find_local()

    async def close(self) -> None:
        self._built.clear()
        await self.embedders.close()
        await self._connections.close()

    def has_default(self) -> bool:
        """Whether the model of `default_handle` can be asked here."""
        try:
            self.get(self.default_handle())
        except NotFound:
            return False
        return True

    def _not_found(self, handle: str) -> NotFound:
        if handle == LIBRARIAN:
            return NotFound(
                f"Handle {handle} not found, no model is configured. Set a provider's key, or start a model server."
            )
        hint = self._hint(handle)
        return NotFound(f"{super()._not_found(handle)}{f'. {hint}' if hint else ''}")

    def _infos(self, listed: ModelList) -> Sequence[ModelInfo]:
        return listed.chat

    def _build(self, provider: Provider, name: str) -> ChatModel:
        info = self._known(provider, name) or info_of(provider, name)
        return build_model(
            provider, info, self._connections, self._policy, lessons_of(info, self.learned)
        )

    def _known(self, provider: Provider, name: str) -> ModelInfo | None:
        # Ollama lists "llama3.2:latest" for "llama3.2", Anthropic "claude-x-20260101" for "claude-x"; OpenRouter leaves out
        # variants such as ":online".
        others = {f"{name}:latest"} if provider.name == "ollama" else set()
        if provider.name == "openrouter":
            others.add(name.partition(":")[0])
        listed = self._directory.listed(provider).chat
        near = min(
            (info for info in listed if {info.name, undated(info.name)} & {name, *others}),
            key=lambda info: info.name != name,
            default=None,
        )
        return near and replace(near, handle=f"{provider.name}/{name}", name=name)

    def _believe(self, listed: ModelList) -> None:
        # Built by name alone until now: what the list says of a model counts from here on.
        for info in listed.chat:
            if (model := self._built.get(info.handle)) is not None and model.info != info:
                del self._built[info.handle]
