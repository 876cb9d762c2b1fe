"""All embedding models that can be used here, by their handles `provider/name`. Calls nobody who is not configured."""

from collections.abc import Callable
from dataclasses import replace

from ricordo.domain.model import EmbeddingInfo
from ricordo.errors import NotFound
from ricordo.llm.chat import Embedder
from ricordo.llm.connections import Connections
from ricordo.llm.directory import Directory
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.providers import google_embedder, openai_embedder
from ricordo.llm.model_lists import embedding_of
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_table import Provider
from ricordo.settings import Settings

NONE = "none"
# What clients of the retired Letta V1 server name to get that server's own default.
ALIASES = ("letta/letta-free",)
NAMED_HANDLES = 60
# Their lists hold chat models only, though they have others.
_INCOMPLETE = ("openrouter",)


class Embedders:
    """The embedded model where it is installed, those of the providers in the directory, and those added one by one."""

    def __init__(
        self,
        settings: Settings,
        directory: Directory,
        connections: Connections,
        policy: CallPolicy,
        *,
        has_embedded: Callable[[], bool] = embedded.is_installed,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._connections = connections
        self._policy = policy
        self._embedded = embedded.EmbeddedModel() if has_embedded() else None
        self._added: dict[str, Embedder] = {}
        self._built: dict[str, Embedder] = {}
        if self._embedded:
            self.add(self._embedded)

    def add(self, embedder: Embedder) -> None:
        """Make a single embedding model usable by its handle."""
        self._added[embedder.handle] = embedder

    def get(self, handle: str) -> Embedder:
        """The embedding model with this handle, without asking anybody. Raises NotFound for a provider without any here.

        A server that may run on this machine counts as configured: while it is down, its models fail when they are asked.
        """
        embedder = self._added.get(handle) or self._built.get(handle)
        if embedder is not None:
            return embedder
        found = self._directory.reachable(handle)
        if found is None or found[0].adapter not in ("openai", "google"):
            raise self._not_found(handle)
        embedder = self._built[handle] = self._build(*found)
        return embedder

    async def require(self, handle: str) -> EmbeddingInfo:
        """What is known of an embedding model. Raises NotFound where its provider lists its models and this is not among them."""
        if handle in self._added:
            return self._added[handle].info
        await self._directory.look_for(handle)
        found = self._directory.split(handle)
        if found is None or found[0].adapter not in ("openai", "google"):
            raise self._not_found(handle)
        provider, name = found
        listed = await self._directory.ask(provider)
        # A name may not tell what a model is for, and who chooses it may know: then it need only be there.
        names = {info.name for info in listed.embedding} | {info.name for info in listed.chat} if listed else {name}
        if not names & {name, f"{name}:latest"} and provider.name not in _INCOMPLETE:
            raise self._not_found(handle)
        return self._known(embedding_of(provider, name))

    async def choose(self, handle: str | None) -> str | None:
        """The handle to keep for what a client asked for; None, which follows the default, also for the retired server's own.

        Raises NotFound for a model that cannot be used here: another one in its place would surprise.
        """
        if handle is None or handle in ALIASES:
            return None
        return (await self.require(handle)).handle

    async def list(self) -> list[EmbeddingInfo]:
        """All embedding models: the added ones, then each provider's, which is asked at most every five minutes."""
        added = [embedder.info for embedder in self._added.values()]
        listed = [info for each in await self._directory.ask_all() for info in each.embedding]
        return added + [self._known(info) for info in listed if self._is_usable(info)]

    def info(self, handle: str) -> EmbeddingInfo:
        """What is known of a handle without asking anybody, also where it can be used no more."""
        try:
            return self.get(handle).info
        except NotFound:
            provider, _, name = handle.partition("/")
            return EmbeddingInfo(handle, provider, name, "openai")

    def default_handle(self) -> str | None:
        """The handle for archives and messages: the setting, else the embedded model; None where there shall be or is none."""
        if self._settings.embedding == NONE:
            return None
        if self._settings.embedding:
            return self._settings.embedding
        return self._embedded.handle if self._embedded else None

    async def close(self) -> None:
        """Forget what was built; the connections are closed by who opened them."""
        self._built.clear()

    def _known(self, info: EmbeddingInfo) -> EmbeddingInfo:
        built = self._built.get(info.handle)
        return replace(info, dimensions=built.info.dimensions) if built else info

    def _is_usable(self, info: EmbeddingInfo) -> bool:
        found = self._directory.split(info.handle)
        return found is not None and found[0].adapter in ("openai", "google")

    def _not_found(self, handle: str) -> NotFound:
        if handle == embedded.HANDLE:
            return NotFound(f"Handle {handle} not found, its package is missing. {embedded.INSTALL}")
        handles = [*self._added]
        for listed in self._directory.all_listed():
            handles += [info.handle for info in listed.embedding if self._is_usable(info)]
        # The first sentence is a wire fact: clients of the retired Letta V1 server match it.
        return NotFound(
            f"Handle {handle} not found, must be one of {handles[:NAMED_HANDLES]}. "
            "Leave the embedding out to use the default, or configure its provider."
        )

    def _build(self, provider: Provider, name: str) -> Embedder:
        make = google_embedder if provider.adapter == "google" else openai_embedder
        return make(embedding_of(provider, name), self._connections, self._policy, api_key=provider.api_key)
