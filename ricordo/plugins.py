"""Plugins: packages that offer tools, providers, vector indexes, remotes, routes or jobs; the group is `ricordo.plugins`.

A plugin is any object with some of the methods in HOOKS; the built-in tools and integrations come through the same door:

    class Weather:
        def tools(self): return [ServerTool(forecast, "custom", acts_outside=True)]
        def providers(self): return [MyModel()]                      # ChatModels, or Providers that speak a known format
        def vector_indexes(self, settings): return [MyIndex()]       # VectorIndexes, by the names archives choose them with
        def memory_remotes(self): return [MyRemotes()]               # RemoteKinds, by the names remotes are added with
        def routes(self): return [router]                            # FastAPI routers
        def jobs(self): return [JobHandler("weather.fetch", fetch)]  # how jobs of these kinds are done
        async def after_turn(self, runtime, run): ...                # runs in the background once a turn has ended
"""

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

from ricordo.domain.job import JobHandler
from ricordo.errors import Invalid
from ricordo.llm.chat import ChatModel
from ricordo.llm.provider_table import Provider
from ricordo.memory.remotes import RemoteKind
from ricordo.settings import VectorSettings
from ricordo.storage.vector_index import VectorIndex
from ricordo.tools.toolbox import ServerTool

GROUP = "ricordo.plugins"
HOOKS = ("tools", "providers", "vector_indexes", "memory_remotes", "routes", "jobs", "after_turn")


class Plugins:
    """The plugins of this server, and what they offer."""

    def __init__(self, plugins: Iterable[tuple[str, Any]]) -> None:
        self._plugins = list(plugins)
        for name, plugin in self._plugins:
            if not any(hasattr(plugin, hook) for hook in HOOKS):
                raise Invalid(f'Plugin "{name}" offers none of {", ".join(HOOKS)}. Remove it or update it.')

    @property
    def names(self) -> list[str]:
        """The plugins' names."""
        return [name for name, _ in self._plugins]

    def tools(self) -> list[ServerTool]:
        """Every tool that is offered."""
        return self._collect("tools")

    def providers(self) -> list[ChatModel | Provider]:
        """Every chat model and every provider that is offered."""
        return self._collect("providers")

    def vector_indexes(self, settings: VectorSettings) -> dict[str, VectorIndex]:
        """Every vector index that is offered, by name; raises Invalid where two have one name."""
        indexes: dict[str, VectorIndex] = {}
        for index in self._collect("vector_indexes", settings):
            if index.name in indexes:
                raise Invalid(f'Two plugins offer a vector index named "{index.name}". Remove one of them.')
            indexes[index.name] = index
        return indexes

    def memory_remotes(self) -> dict[str, RemoteKind]:
        """Every kind of remote that is offered, by name; raises Invalid where two have one name, or one is none."""
        kinds: dict[str, RemoteKind] = {}
        for offered in self._collect("memory_remotes"):
            if not isinstance(offered, RemoteKind) or not isinstance(offered.kind, str) or not offered.kind:
                raise Invalid(f"{type(offered).__name__} is no kind of remote: it needs kind, read and follow.")
            if offered.kind in kinds:
                raise Invalid(f'Two plugins offer remotes of the kind "{offered.kind}". Remove one of them.')
            kinds[offered.kind] = offered
        return kinds

    def routes(self) -> list[Any]:
        """Every router that is offered."""
        return self._collect("routes")

    def jobs(self) -> list[JobHandler]:
        """Every handler of jobs that is offered."""
        return self._collect("jobs")

    def after_turn(self) -> list[Callable[..., Any]]:
        """What to call when a turn has ended."""
        return [plugin.after_turn for _, plugin in self._plugins if hasattr(plugin, "after_turn")]

    def _collect(self, hook: str, *given: Any) -> list[Any]:
        offered: list[Sequence[Any]] = [
            getattr(plugin, hook)(*given) for _, plugin in self._plugins if hasattr(plugin, hook)
        ]
        return [item for items in offered for item in items]


def load_plugins() -> Plugins:
    """The installed plugins; raises Invalid with its name where one cannot be loaded."""
    loaded = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name != "builtin", entry.name)):
        try:
            loaded.append((entry.name, entry.load()))
        except Exception as error:
            raise Invalid(
                f'Plugin "{entry.name}" ({entry.value}) cannot be loaded: {error}. Remove it or mend it.'
            ) from error
    return Plugins(loaded)
