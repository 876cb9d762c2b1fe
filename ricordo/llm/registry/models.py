"""All usable chat and embedding models, by handle, `provider/name`.

Only configured providers and model servers on this machine are called.
"""

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
LOOK_SECONDS = 5.0  # seconds for all providers and local servers together
LOOK_AGAIN_SECONDS = 30.0
LONGEST_COMPARED = 200  # characters of a handle
# The lists of these servers do not tell whether they were started with support for tools.
PROBED = ("vllm", "llamacpp")
# Clients of the retired Letta V1 server send these names to mean that server's default.
ALIASES = ("letta/letta-free",)
# Lists of these providers hold only chat models, although they have others.
_INCOMPLETE = ("openrouter",)
_ADAPTERS = {"openai": openai_embedder, "google": google_embedder}

_log = logging.getLogger(__name__)


class Embedders(Registry[Embedder]):
    """The embedding models: the embedded one if installed, the providers', and added ones."""

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
        """Describe an embedding model.

        Args:
            handle: A handle of a caller.

        Raises:
            NotFound: There is no such provider, or its list lacks the model.
        """
        if handle in self._added:
            return self._added[handle].info
        provider, name, listed = await self._find(handle)
        names = {name}
        if listed:
            # A name may not show a model's purpose, so models from the list of chat models are
            # accepted too.
            names = {model.name for model in listed.embedding}
            names |= {model.name for model in listed.chat}
        if not names & {name, f"{name}:latest"} and provider.name not in _INCOMPLETE:
            raise self._not_found(handle)
        return self._complete(embedding_of(provider, name))

    async def choose(self, handle: str | None) -> str | None:
        """Return the handle to store.

        Args:
            handle: A handle of a caller; None for the default.

        Returns:
            The handle; None for the default, and for the retired server's default.

        Raises:
            NotFound: The handle is unknown. The default does not replace it, since that would
                surprise the caller.
        """
        if handle is None or handle in ALIASES:
            return None
        return (await self.require(handle)).handle

    async def list(self) -> list[EmbeddingInfo]:
        """Return all embedding models.

        Added models come first. A provider's list is requested again after five minutes.
        """
        added = [embedder.info for embedder in self._added.values()]
        listed = await self._directory.ask_all()
        return added + [self._complete(info) for models in listed for info in self._infos(models)]

    def info(self, handle: str) -> EmbeddingInfo:
        """Describe the model of a handle without a request, even if it is no longer usable.

        Args:
            handle: The handle that an agent or archive stores.
        """
        try:
            return self.get(handle).info
        except NotFound:
            provider, _, name = handle.partition("/")
            return EmbeddingInfo(handle, provider, name, "openai")

    def default_handle(self) -> str | None:
        """Return the default handle: the setting, else the embedded model, else None."""
        handle = self._settings.embedding or (self._embedded.handle if self._embedded else None)
        return None if handle == NONE else handle

    async def close(self) -> None:
        self._built.clear()

    def _complete(self, info: EmbeddingInfo) -> EmbeddingInfo:
        """Return the description with its dimensions, if those are known."""
        embedder = self._built.get(info.handle)
        measured = embedder.info.dimensions if embedder else None
        usual = KNOWN_MODELS["dimensions"].get(info.name.split(":")[0])
        return replace(info, dimensions=measured or info.dimensions or usual)

    def _split(self, handle: str, *, may_be_down: bool = False) -> tuple[Provider, str]:
        provider, name = super()._split(handle, may_be_down=may_be_down)
        if provider.adapter not in _ADAPTERS:
            raise self._not_found(handle)
        return provider, name

    def _infos(self, listed: ModelList) -> Sequence[EmbeddingInfo]:
        targets = ((info, self._directory.split(info.handle)) for info in listed.embedding)
        return [info for info, target in targets if target and target[0].adapter in _ADAPTERS]

    def _not_found(self, handle: str) -> NotFound:
        if handle == embedded.HANDLE:
            return NotFound(
                f"Handle {handle} not found, its package is missing. {embedded.INSTALL}"
            )
        return NotFound(
            f"{super()._not_found(handle)}. Leave the embedding out to use the default, or "
            "configure its provider."
        )

    def _build(self, provider: Provider, name: str) -> Embedder:
        return _ADAPTERS[provider.adapter](
            embedding_of(provider, name), self._connections, self._policy, provider
        )


class Models(Registry[ChatModel]):
    """The chat models of all providers, of local servers and added ones, with the `embedders`."""

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
        """The dialects learned from refusals."""
        self._settings = settings
        self._policy = policy or policy_from(settings)
        self._connections = Connections(self._policy.timeout)
        local = []
        if settings.find_local_models:
            window = providers.ollama_context_length
            local = [replace(server, window=window) for server in local_servers]
        directory = ModelDirectory(
            (*configured(providers), *extra), self._connections, local_servers=local, now=now
        )
        super().__init__(directory)
        self._now = now
        self._looking = asyncio.Lock()
        self._look_again_at = float("-inf")
        self._takes_tools: dict[str, bool] = {}  # by provider
        self._fault: str | None = None  # of RICORDO_MODEL
        directory.on_listed.append(self._drop_outdated)
        self.embedders = Embedders(settings, directory, self._connections, self._policy)

    async def require(self, handle: str) -> ModelInfo:
        """Describe a model.

        Args:
            handle: A handle of a caller.

        Raises:
            NotFound: There is no such provider, or its list lacks the model.
        """
        if handle in self._added:
            return self._added[handle].info
        provider, name, listed = await self._find(handle)
        model = self._find_listed(provider, name)
        if model is None and listed is not None:
            raise self._not_found(handle)
        return model or info_of(provider, name)

    async def list(self) -> list[ModelInfo]:
        """Return all models: added ones, then those of the providers.

        A provider's list is requested again after five minutes.
        """
        added = [model.info for model in self._added.values()]
        return added + [info for listed in await self._directory.ask_all() for info in listed.chat]

    def default(self) -> DefaultModel:
        """Return the default model: the setting, a provider's, a local one, the librarian.

        No provider is asked.
        """
        if self._settings.model:
            return DefaultModel(self._settings.model, "by RICORDO_MODEL", fault=self._fault)
        local = {info.provider for info in self._directory.local_models}
        offers = [
            (provider, listed if self._takes_tools.get(provider.name, True) else ModelList())
            for provider, listed in self._directory.offers()
        ]
        empty_servers = ((server, ModelList()) for server in self._directory.empty)
        return choose([*offers, *empty_servers], local)

    async def find_default(self) -> DefaultModel:
        """Return the default model after a search for more models.

        Local servers are looked for. With RICORDO_MODEL, only its provider is asked. Otherwise
        providers without a list are asked, or all providers if the librarian is the default so far.
        All this takes at most 5 seconds, and is repeated at most every 30 seconds.
        """
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
        """Return the default model if it is usable and better than the librarian.

        Args:
            handle: The handle of an agent's model.

        Returns:
            The default's handle; None if it is no better, or if `handle` is not the librarian.
        """
        default = self.default()
        is_better = handle == LIBRARIAN and default.handle != LIBRARIAN and not default.fault
        return default.handle if is_better else None

    async def _look(self) -> None:
        if self._settings.model:
            _, self._fault = await asyncio.gather(
                self.find_local(), self._examine(self._settings.model)
            )
            return
        wants_better = self.default().handle == LIBRARIAN
        providers = [
            provider
            for provider, listed in self._directory.offers()
            if provider.adapter not in UNLISTED and (listed is None or wants_better)
        ]
        await asyncio.gather(self.find_local(), *map(self._directory.ask, providers))
        for provider, listed in self._directory.offers():
            is_unclear = provider.name in PROBED and provider.name not in self._takes_tools
            if is_unclear and listed and listed.chat:
                model = listed.chat[0].name
                answer = await takes_tools(self._connections.client(), provider, model)
                if answer is not None:
                    self._takes_tools[provider.name] = answer

    async def _examine(self, handle: str) -> str | None:
        """Return the fault of the model with this handle.

        Returns None if it is usable.
        """
        try:
            await self.require(handle)
        except NotFound:
            return self._hint(handle) or "None of the configured providers has it."
        if handle in self._added:
            target = None
        else:
            target = self._directory.split(handle)
        extra = target and missing_extra(*target)
        if not extra:
            return None
        return f"Its library is missing. Install it with: {install_command(extra)}"

    def _hint(self, handle: str) -> str:
        """Return advice about an unknown handle."""
        name = handle.partition("/")[0]
        if self._directory.split(f"{name}/-") is None and (setting := what_to_set(name)):
            return setting
        handles = list(self._added)
        for listed in self._directory.all_listed():
            handles += [model.handle for model in listed.chat]
        similar = get_close_matches(handle[:LONGEST_COMPARED], handles, n=3, cutoff=0.75)
        if similar:
            return f"Did you mean {' or '.join(similar)}?"
        return ""

    def default_handle(self) -> str:
        return self.default().handle

    async def find_local(self) -> tuple[ModelInfo, ...]:
        """Search this machine's ports for model servers; their models become usable.

        The settings may forbid it.
        """
        return await self._directory.find_local()

    async def close(self) -> None:
        self._built.clear()
        await self.embedders.close()
        await self._connections.close()

    def has_default(self) -> bool:
        """Return whether the default model was added, or its provider is known."""
        try:
            self.get(self.default_handle())
        except NotFound:
            return False
        return True

    def _not_found(self, handle: str) -> NotFound:
        if handle == LIBRARIAN:
            return NotFound(
                f"Handle {handle} not found, no model is configured. Set a provider's key, or "
                "start a model server."
            )
        message = str(super()._not_found(handle))
        hint = self._hint(handle)
        return NotFound(f"{message}. {hint}" if hint else message)

    def _infos(self, listed: ModelList) -> Sequence[ModelInfo]:
        return listed.chat

    def _build(self, provider: Provider, name: str) -> ChatModel:
        info = self._find_listed(provider, name) or info_of(provider, name)
        return build_model(
            provider, info, self._connections, self._policy, lessons_of(info, self.learned)
        )

    def _find_listed(self, provider: Provider, name: str) -> ModelInfo | None:
        """Return the model with this name, or an equivalent name, in the provider's last list."""
        # Ollama lists "llama3.2:latest" for "llama3.2", Anthropic "claude-x-20260101" for
        # "claude-x"; OpenRouter leaves out variants such as ":online".
        names = {name}
        if provider.name == "ollama":
            names.add(f"{name}:latest")
        elif provider.name == "openrouter":
            names.add(name.partition(":")[0])
        listed = self._directory.listed(provider).chat
        matches = (model for model in listed if {model.name, undated(model.name)} & names)
        best = min(matches, key=lambda model: model.name != name, default=None)
        return best and replace(best, handle=f"{provider.name}/{name}", name=name)

    def _drop_outdated(self, listed: ModelList) -> None:
        # Models that were built from a name alone are built again with the list's facts.
        for info in listed.chat:
            if (model := self._built.get(info.handle)) is not None and model.info != info:
                del self._built[info.handle]
