"""Plugins: packages that add parts to a server through hooks.

A plugin is any object with some of the methods in HOOKS. The built-in tools and features use the
same hooks as anyone's package:

    class Weather:
        def tools(self): return [ServerTool(forecast, "custom", acts_outside=True)]
        # ToolRunners, which run stored tools of some types.
        def tool_runners(self, settings, sandbox): return [MyRunner()]
        # ChatModels, or Providers with a known format.
        def providers(self): return [MyModel()]
        # VectorIndexes; archives choose them by name.
        def vector_indexes(self, settings): return [MyIndex()]
        # RemoteKinds; remotes are added by their names.
        def memory_remotes(self): return [MyRemotes()]
        # BlockFormats, in which blocks are read and written.
        def block_formats(self): return [org_mode]
        # FastAPI routers, or names of modules with a `router`.
        def routes(self): return [router]
        # ASGI middleware around all requests, also refused ones.
        def middleware(self): return [Counter]
        # Handlers of jobs, by kind.
        def jobs(self): return [JobHandler("weather.fetch", fetch)]
        # The AgentState with the plugin's additions to its prompt.
        def complete_agent(self, tx, state): ...
        # The same for a list of agents, in a few statements for all.
        def complete_agents(self, tx, states): ...
        # Replaces an agent's folders of files.
        def set_folders(self, tx, scope, agent_id, folder_ids): ...
        # Creates an empty folder of files for a new agent.
        def make_folder(self, tx, scope, agent): ...
        # Runs in the background after a turn.
        async def after_turn(self, runtime, run): ...
        # Deletes a user's data in other services; returns the remains.
        async def at_erasure(self, runtime, user_id): ...
        # AgentFollowers, which change other agents together with one.
        def agent_followers(self): return [MyFollower()]
        # typer apps for `ricordo weather …`.
        def commands(self): return [Commands("weather", "weather.cli")]
        # SQLAlchemy tables; missing ones are created.
        def tables(self): return [forecasts]
        # Pages that `/` links to; `routes` serves them.
        def pages(self): return [PluginPage("Weather", "/weather")]
        # Packages of features; the server refuses to start without them.
        requires = ("files",)
        # Lines of `ricordo doctor`; one that begins with ! is a warning.
        def findings(self, settings): return ["reachable"]
        # Stops background work; turns and jobs have ended already.
        async def at_end(self, settings): ...
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from ricordo.errors import Invalid

# Every command of `ricordo` imports this module, so slow modules are imported for types only.
if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ricordo.domain.agent import Agent, AgentState
    from ricordo.domain.block_format import BlockFormat
    from ricordo.domain.job import JobHandler
    from ricordo.domain.scope import Scope
    from ricordo.llm.chat import ChatModel
    from ricordo.llm.provider_table import Provider
    from ricordo.memory.remote_kind import RemoteKind
    from ricordo.sandbox.service import Sandbox
    from ricordo.search.vector_index import VectorIndex
    from ricordo.settings import Settings, VectorSettings
    from ricordo.storage.engine.store import Transaction
    from ricordo.tools.toolbox import ServerTool, ToolRunner

GROUP = "ricordo.plugins"
HOOKS = (
    *(
        "tools",
        "tool_runners",
        "providers",
        "vector_indexes",
        "memory_remotes",
        "block_formats",
        "routes",
        "middleware",
    ),
    *(
        "jobs",
        "complete_agent",
        "complete_agents",
        "set_folders",
        "make_folder",
        "after_turn",
        "agent_followers",
        "commands",
        "tables",
        "pages",
        "findings",
        "at_erasure",
        "at_end",
    ),
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands of `ricordo`: the typer app named `app` of `module`, as the group `name`.

    If a group of that name exists, its commands join it. An empty name adds them to `ricordo`
    itself. The module is imported with every command, so it imports slow modules inside its
    functions.
    """

    name: str
    module: str


@dataclass(frozen=True, slots=True)
class PluginPage:
    """A page for people, linked on the home page.

    Callers with one of the scopes see the link. The plugin's `routes` serve the page.
    """

    title: str
    path: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeaturePackage:
    """A package of `ricordo.features`: one plugin, or one in each of its `PARTS`.

    Attributes:
        requires: The names of the packages that it needs, its `REQUIRES`.
        plugins: Its plugins with their names.
    """

    requires: Sequence[str]
    plugins: Sequence[tuple[str, Any]]


class Plugins:
    """The plugins of this server, and the results of their hooks."""

    def __init__(self, plugins: Iterable[tuple[str, Any]]) -> None:
        self._plugins = list(plugins)
        for name, plugin in self._plugins:
            if not any(hasattr(plugin, hook) for hook in HOOKS):
                raise Invalid(
                    f'Plugin "{name}" offers none of {", ".join(HOOKS)}. Remove it or update it.'
                )

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._plugins]

    def tools(self) -> "list[ServerTool]":
        return self._collect("tools")

    def tool_runners(self, settings: "Settings", sandbox: "Sandbox") -> "list[ToolRunner]":
        return self._collect("tool_runners", settings, sandbox)

    def providers(self) -> "list[ChatModel | Provider]":
        return self._collect("providers")

    def vector_indexes(self, settings: "VectorSettings") -> "dict[str, VectorIndex]":
        """The vector indexes by name. Raises Invalid if two have the same name."""
        indexes = self._collect("vector_indexes", settings)
        return _by_name("a vector index named", ((index.name, index) for index in indexes))

    def memory_remotes(self) -> "dict[str, RemoteKind]":
        """The kinds of remotes by name.

        Raises Invalid for a repeated name or a wrong type.
        """
        offered = self._collect("memory_remotes")
        for kind in offered:
            has_methods = callable(getattr(kind, "read", None)) and callable(
                getattr(kind, "sync", None)
            )
            if not has_methods or not isinstance(getattr(kind, "kind", None), str) or not kind.kind:
                raise Invalid(
                    f"{type(kind).__name__} is no kind of remote: it needs kind, read and sync."
                )
        return _by_name("remotes of the kind", ((kind.kind, kind) for kind in offered))

    def block_formats(self) -> "list[BlockFormat]":
        return self._collect("block_formats")

    def routes(self) -> list[Any]:
        """Return the routers, or the names of the modules that have one."""
        return self._collect("routes")

    def middleware(self) -> "list[Callable[[ASGIApp], ASGIApp]]":
        """The middleware around all requests, the last one outermost."""
        return self._collect("middleware")

    def jobs(self) -> "list[JobHandler]":
        return self._collect("jobs")

    def complete_agent(self) -> "list[Callable[[Transaction, AgentState], AgentState]]":
        """The hooks that add to an agent loaded for a prompt or an answer.

        They take no statement for agents that they have nothing for.
        """
        return [
            plugin.complete_agent
            for _, plugin in self._plugins
            if hasattr(plugin, "complete_agent")
        ]

    def complete_agents(
        self,
    ) -> "list[Callable[[Transaction, Sequence[AgentState]], Sequence[AgentState]]]":
        """The hooks that add to many agents.

        A plugin that handles only single agents is called for each.
        """

        def for_each(
            plugin: Any,
        ) -> "Callable[[Transaction, Sequence[AgentState]], Sequence[AgentState]]":
            return lambda tx, states: [plugin.complete_agent(tx, state) for state in states]

        able = [plugin for _, plugin in self._plugins if hasattr(plugin, "complete_agent")]
        return [getattr(plugin, "complete_agents", None) or for_each(plugin) for plugin in able]

    def set_folders(self) -> "list[Callable[[Transaction, Scope, str, Sequence[str]], None]]":
        """The hooks that give agents folders of files."""
        return [plugin.set_folders for _, plugin in self._plugins if hasattr(plugin, "set_folders")]

    def make_folder(self) -> "list[Callable[[Transaction, Scope, Agent], None]]":
        """The hooks that make folders of files for new agents."""
        return [plugin.make_folder for _, plugin in self._plugins if hasattr(plugin, "make_folder")]

    def after_turn(self) -> list[Callable[..., Any]]:
        """The hooks to call after a turn."""
        return [plugin.after_turn for _, plugin in self._plugins if hasattr(plugin, "after_turn")]

    def agent_followers(self) -> list[Any]:
        """The AgentFollowers of plugins.

        They update other agents when one is created, changed or deleted, or ends a turn.
        """
        return self._collect("agent_followers")

    def at_erasure(self) -> list[Callable[..., Any]]:
        """The hooks that report a forgotten user's remains at other services.

        They are called with the runtime and the user's id.
        """
        return [plugin.at_erasure for _, plugin in self._plugins if hasattr(plugin, "at_erasure")]

    def commands(self) -> list[Commands]:
        return self._collect("commands")

    def tables(self) -> list[Any]:
        return self._collect("tables")

    def pages(self) -> list[PluginPage]:
        return self._collect("pages")

    def findings(self, settings: "Settings") -> list[tuple[str, str]]:
        """Return the findings of plugins about this installation, by plugin name."""
        named = [(name, plugin) for name, plugin in self._plugins if hasattr(plugin, "findings")]
        return [(name, text) for name, plugin in named for text in plugin.findings(settings)]

    async def at_end(self, settings: "Settings") -> None:
        """Stop the plugins' background work for the server with these settings."""
        for _, plugin in self._plugins:
            if hasattr(plugin, "at_end"):
                await plugin.at_end(settings)

    def _collect(self, hook: str, *arguments: Any) -> list[Any]:
        """Return all results of this hook."""
        parts: list[Any] = []
        for _, plugin in self._plugins:
            if hasattr(plugin, hook):
                parts += getattr(plugin, hook)(*arguments)
        return parts


def _by_name(noun: str, named_parts: Iterable[tuple[str, T]]) -> dict[str, T]:
    parts: dict[str, T] = {}
    for name, part in named_parts:
        if parts.setdefault(name, part) is not part:
            raise Invalid(f'Two plugins offer {noun} "{name}". Remove one of them.')
    return parts


def load_plugins(features: Iterable[str] = ()) -> Plugins:
    """Return the built-in tools, these features, then the installed plugins by name.

    Features are packages of `ricordo.features`.

    Raises:
        Invalid: A plugin cannot be loaded, or needs a feature that is not installed.
    """
    built_in = ("builtin", import_module("ricordo.tools.builtin").plugin)
    plugins = [built_in, *_features(features), *_installed()]
    if fault := missing_requirements(plugins):
        raise Invalid(fault)
    return Plugins(_without_packages(plugins))


def load_commands(features: Iterable[str] = ()) -> tuple[list[Commands], str | None]:
    """Return the commands of features and installed plugins, and errors of plugins.

    A feature whose requirements are missing offers no commands.
    """
    plugins: list[tuple[str, Any]] = []
    faults: list[str] = []
    for name in features:
        try:
            plugins.append((name, _feature(f"ricordo.features.{name}", name)))
        except Invalid as error:
            faults.append(str(error))
    try:
        installed = _installed()
        Plugins(installed)
        plugins += installed
    except Invalid as error:
        faults.append(str(error))
    fault = " ".join([*faults, *filter(None, [missing_requirements(plugins)])]) or None
    while lacking := [name for name, plugin in plugins if _missing(plugin, plugins)]:
        plugins = [(name, plugin) for name, plugin in plugins if name not in lacking]
    return Plugins(_without_packages(plugins)).commands(), fault


def missing_requirements(plugins: Sequence[tuple[str, Any]]) -> str | None:
    """Return what to tell the operator of plugins whose required features are not among them.

    It is asked before any hook is called, so that no module looks for a feature in vain.
    """
    needing: dict[tuple[str, ...], list[str]] = {}
    for name, plugin in plugins:
        if missing := _missing(plugin, plugins):
            needing.setdefault(missing, []).append(name)
    sentences = [_requirement(names, missing) for missing, names in needing.items()]
    return " ".join(sentences) or None


def _requirement(names: Sequence[str], missing: Sequence[str]) -> str:
    subject = f"Feature {names[0]} needs" if len(names) == 1 else f"Features {_listed(names)} need"
    are = "is" if len(missing) == 1 else "are"
    return f"{subject} {_listed(missing)}, which {are} not installed."


def _missing(plugin: Any, plugins: Sequence[tuple[str, Any]]) -> tuple[str, ...]:
    """Return the features that the plugin requires and that are not among the plugins."""
    names = {name for name, _ in plugins}
    return tuple(needed for needed in getattr(plugin, "requires", ()) if needed not in names)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _without_packages(plugins: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the plugins with those of packages in the place of the packages."""
    flat: list[tuple[str, Any]] = []
    for name, plugin in plugins:
        flat += plugin.plugins if isinstance(plugin, FeaturePackage) else [(name, plugin)]
    return flat


def _features(names: Iterable[str]) -> list[tuple[str, Any]]:
    return [(name, _feature(f"ricordo.features.{name}", name)) for name in names]


def _feature(module: str, name: str) -> FeaturePackage:
    try:
        package = import_module(module)
        parts = getattr(package, "PARTS", None)
        if parts is None:
            plugins = [(name, package.plugin)]
        else:
            plugins = [
                (f"{name}.{part}", import_module(f"{module}.{part}").plugin) for part in parts
            ]
        return FeaturePackage(getattr(package, "REQUIRES", ()), plugins)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise Invalid(
                f"Feature {name} is in the list of features, but its package is not installed. "
                "Install it, or remove its name from ricordo/features/__init__.py."
            ) from None
        needed = str(error.name).removeprefix("ricordo.features.")
        if needed == error.name:  # no feature, but a library
            raise
        raise Invalid(f"Feature {name} needs {needed}, which is not installed.") from None


def _installed() -> list[tuple[str, Any]]:
    loaded = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            loaded.append((entry.name, entry.load()))
        except Exception as error:
            raise Invalid(
                f'Plugin "{entry.name}" ({entry.value}) cannot be loaded: {error}. Remove it or '
                "repair it."
            ) from error
    return loaded
