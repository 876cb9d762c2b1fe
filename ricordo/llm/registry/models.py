"""All models that can be used here, by their handles `provider/name`. Calls nobody who is not configured or on this machine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ricordo.domain.model import ModelInfo
from ricordo.errors import NotFound
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel
from ricordo.llm.directory import ModelDirectory, Registry
from ricordo.llm.model_lists import ModelList, info_of
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.policy import CallPolicy, policy_from
from ricordo.llm.provider_sdks import sdk_model
from ricordo.llm.provider_table import LOCAL_SERVERS, LocalServer, Provider, configured
from ricordo.llm.provider_table import local_servers as started
from ricordo.llm.registry.embedders import Embedders
from ricordo.settings import ProviderSettings, Settings

# The model of a built-in feature, for a server where no other is configured or found.
LIBRARIAN = "ricordo/librarian"


class Models(Registry[ChatModel]):
    """The models of all configured providers, of servers found on this machine, and those added one by one.

    `embedders` holds the embedding models of the same providers.
    """

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
        self._connections = Connections(self._policy.timeout)
        directory = ModelDirectory(
            (*configured(providers), *extra),
            self._connections,
            local_servers=started(local_servers, providers) if settings.find_local_models else (),
            now=now,
        )
        super().__init__(directory)
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

    def default_handle(self) -> str:
        """The handle for agents made without one: the setting, else a model found on this machine, else the librarian."""
        if self._settings.model:
            return self._settings.model
        return next((info.handle for info in self._directory.found), LIBRARIAN)

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
        return super()._not_found(handle)

    def _infos(self, listed: ModelList) -> Sequence[ModelInfo]:
        return listed.chat

    def _build(self, provider: Provider, name: str) -> ChatModel:
        info = self._known(provider, name) or info_of(provider, name)
        return build_model(provider, info, self._connections, self._policy)

    def _known(self, provider: Provider, name: str) -> ModelInfo | None:
        # Ollama lists "llama3.2:latest" for "llama3.2"; OpenRouter leaves out variants such as ":online".
        others = {f"{name}:latest"} if provider.name == "ollama" else set()
        if provider.name == "openrouter":
            others.add(name.partition(":")[0])
        listed = self._directory.listed(provider).chat
        near = min(
            (info for info in listed if info.name in {name, *others}), key=lambda info: info.name != name, default=None
        )
        return near and replace(near, handle=f"{provider.name}/{name}", name=name)

    def _believe(self, listed: ModelList) -> None:
        # Built by name alone until now: what the list says of a model counts from here on.
        for info in listed.chat:
            if (model := self._built.get(info.handle)) is not None and model.info != info:
                del self._built[info.handle]


def build_model(provider: Provider, info: ModelInfo, connections: Connections, policy: CallPolicy) -> ChatModel:
    """Return a model of this provider."""
    if provider.adapter == "openai" and not provider.uses_responses(info.name):
        key, version = provider.api_key, provider.api_version
        return OpenAICompatibleModel(info, connections, policy, api_key=key, api_version=version)
    return sdk_model(provider, info, connections, policy)
