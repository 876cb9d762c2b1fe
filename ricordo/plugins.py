"""Plugins: packages that add parts to a server, each declared by a `Feature` value.

The built-in features and other packages declare their parts in the same way:

    feature = Feature(
        requires=("files",),
        tools=(ServerTool(forecast, "custom", acts_outside=True),),
        routes=("weather.routes",),
        commands=(Commands("weather", "weather.cli", help="Ask for the weather."),),
    )

An object is a plugin too if it has methods with the names of these fields. Such a method returns
parts, or it is the function that the field would hold. The object may have two more methods.
`complete_agent` completes one agent. The coroutine function `at_end` gets the settings when the
server stops.
"""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ricordo.errors import Invalid
from ricordo.installed_plugins import load_part, read_entries, read_feature

# Every command of `ricordo` imports this module, so slow modules are imported only for types.
if TYPE_CHECKING:
    from pydantic import BaseModel
    from starlette.types import ASGIApp

    from ricordo.domain.agent import Agent, AgentState
    from ricordo.domain.block_format import BlockFormat
    from ricordo.domain.job import JobHandler
    from ricordo.domain.known_facts import FactQuery, KnownFact
    from ricordo.domain.scope import Scope, User
    from ricordo.llm.chat import ChatModel
    from ricordo.llm.provider_table import Provider
    from ricordo.memory.remote_kind import RemoteKind
    from ricordo.sandbox.service import Sandbox
    from ricordo.search.vector_index import VectorIndex
    from ricordo.settings import Settings
    from ricordo.storage.engine.store import Transaction
    from ricordo.tools.toolbox import ServerTool, ToolRunner

T = TypeVar("T")


# A part of a feature: the object itself, or its name, such as "weather.tools:forecast". A name is
# imported when a server or a command needs the part. It may name a tuple or a list of parts.
Part = Any


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of a typer app, as the group `name` of `ricordo`.

    If a group of that name exists, its commands join it. An empty name adds them to `ricordo`
    itself.

    Attributes:
        name: The name of the group.
        module: The module that contains the typer app under the name `app`. The name may follow the
            module's, as in "weather.cli:app". The module is imported when one of its commands runs.
        help: The group's description in `ricordo --help`.
        commands: The names of the commands, each with its description. Commands that join another
            group must be named here. Otherwise the module is imported for every command of
            `ricordo`.
    """

    name: str
    module: str
    help: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PluginPage:
    """A page for people, with a link in the navigation of all pages.

    Callers with one of the scopes see the link; without scopes, every caller sees it. The plugin's
    `routes` serve the page.
    """

    title: str
    path: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The parts that a package adds to a server, by kind. Each part is a value or its name.

    Attributes:
        requires: Packages of `ricordo.features`; the server refuses to start without them.
        settings: Classes of `FeatureSettings`. `ricordo settings` lists their fields. A variable
            that no class declares stops the start.
        tables: SQLAlchemy tables; missing ones are created.
        routes: FastAPI routers, or names of modules with a `router`.
        middleware: ASGI middleware around all requests, including refused ones.
        jobs: JobHandlers, each for one kind of job.
        tools: ServerTools, which agents can be given.
        tool_runners: Functions of settings and sandbox that return a ToolRunner, which runs stored
            tools of some types.
        providers: ChatModels, or Providers with a known format.
        vector_indexes: Functions of the settings that return VectorIndexes, which archives choose
            by name.
        memory_remotes: RemoteKinds. A remote is added by the name of its kind.
        block_formats: BlockFormats, in which blocks are read and written.
        complete_agents: PromptAdditions, or functions of a transaction and AgentStates. They return
            the states with the feature's additions to prompts.
        set_folders: Functions that replace an agent's folders of files.
        make_folder: Functions that create an empty folder of files for a new agent.
        agent_followers: AgentFollowers, which change other agents when an agent changes.
        after_turn: AfterTurns, or coroutine functions of the runtime and a run that are called
            after each turn.
        at_erasure: Coroutine functions of the runtime and a user's id. They delete the user's data
            in other services, and return the data that remains there.
        at_forgetting: Coroutine functions of the runtime, a user's id and a Needle
            (`features/memory_care/forgetting/needle.py`). They remove one fact from other services,
            and return sentences for the receipt.
        forget_sources: Sources of users' texts
            (`features/memory_care/forgetting/source_queries.py`). A table needs one if the settings
            of its columns do not fully describe its texts.
        audits: AuditSources (`features/memory_care/audit/hygiene.py`). The audit of memory counts
            their texts in addition to blocks.
        waiting: Functions of a transaction, an organization's id and a user's id. Each returns None
            or a Waiting, which the user's pages and messages about suggestions show.
        known_facts: Functions of a transaction and a FactQuery. Each returns KnownFacts. A
            search of messages shows them with its hits.
        user_files: UserFiles, which become files in the archive of a user's memory.
        pages: PluginPages, to which the navigation of all pages links; `routes` serves them.
        commands: Commands of `ricordo`.
        findings: Functions of the settings that return lines for `ricordo doctor`; a line that
            begins with ! is a warning.
        gauges: Functions of a transaction that return values for `/metrics`. Each name maps to a
            help text and a value.
        open: A function of the runtime that returns an async context manager. It is entered when
            the server starts and left after turns and jobs have ended. Its value is kept in
            `runtime.features` under the feature's name.
    """

    requires: tuple[str, ...] = ()
    settings: tuple[Part, ...] = ()
    tables: tuple[Part, ...] = ()
    routes: tuple[Part, ...] = ()
    middleware: tuple[Part, ...] = ()
    jobs: tuple[Part, ...] = ()
    tools: tuple[Part, ...] = ()
    tool_runners: tuple[Part, ...] = ()
    providers: tuple[Part, ...] = ()
    vector_indexes: tuple[Part, ...] = ()
    memory_remotes: tuple[Part, ...] = ()
    block_formats: tuple[Part, ...] = ()
    complete_agents: tuple[Part, ...] = ()
    set_folders: tuple[Part, ...] = ()
    make_folder: tuple[Part, ...] = ()
    agent_followers: tuple[Part, ...] = ()
    after_turn: tuple[Part, ...] = ()
    at_erasure: tuple[Part, ...] = ()
    at_forgetting: tuple[Part, ...] = ()
    forget_sources: tuple[Part, ...] = ()
    audits: tuple[Part, ...] = ()
    waiting: tuple[Part, ...] = ()
    known_facts: tuple[Part, ...] = ()
    user_files: tuple[Part, ...] = ()
    pages: tuple[PluginPage, ...] = ()
    commands: tuple[Commands, ...] = ()
    findings: tuple[Part, ...] = ()
    gauges: tuple[Part, ...] = ()
    open: Part = None


@dataclass(frozen=True, slots=True)
class PromptAddition:
    """A feature's addition to the prompts of some agents.

    Attributes:
        complete: Returns the states with the addition.
        setting: Agents with this setting get it.
        tools: Agents with one of these tools get it.
        label: Agents with a block of this label get it. Without setting, tools and label, all
            agents get it.
    """

    complete: "Callable[[Transaction, Sequence[AgentState]], Sequence[AgentState]]"
    setting: str = ""
    tools: frozenset[str] = frozenset()
    label: str = ""


@dataclass(frozen=True, slots=True)
class AfterTurn:
    """A coroutine function of the runtime and a run, called after turns.

    Attributes:
        call: The function.
        about_users: Whether the function is called only after turns about a user.
        in_groups: Whether the function is called only after turns in a group of agents.
    """

    call: Callable[..., Awaitable[None]]
    about_users: bool = False
    in_groups: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A number of items that wait for a user's decision, in addition to proposals.

    Attributes:
        text: The number and its noun, as in "2 facts".
        path: The page on which the user decides.
    """

    text: str
    path: str


@dataclass(frozen=True, slots=True)
class UserFile:
    """A file of JSON lines in the archive of a user's memory.

    Attributes:
        name: The name of the file.
        read: A function of a transaction, a Scope, the user's id and a mark. It returns the next
            records and the next mark. The first mark is None, and a returned None ends the file.
            Records must not contain the user's id or values that change by themselves. Then the
            archive of a restored memory is the same.
        record: The Pydantic class of a record. The reader of the archive checks each record by it.
            Its class variable `later_words` may name, by field, the value to take for a word that
            only a later server knows.
        store: A function of a transaction, a user and the records. The user has no such records
            yet. The records are untrusted. It returns the number of stored records, and raises
            Invalid or Conflict.
    """

    name: str
    read: "Callable[[Transaction, Scope, str, str | None], tuple[Sequence[Mapping[str, Any]], str | None]]"
    record: "type[BaseModel]"
    store: "Callable[[Transaction, User, Iterable[Any]], int]"


# The names of methods that make an object a plugin.
HOOKS = (
    *(kind.name for kind in fields(Feature) if kind.name != "requires"),
    "complete_agent",
    "at_end",
)


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
        """Return the runners of stored tools, made for this server.

        Args:
            settings: The settings of the server.
            sandbox: The sandbox in which runners may run programs.
        """
        return self._results("tool_runners", settings, sandbox)

    def providers(self) -> "list[ChatModel | Provider]":
        return self._collect("providers")

    def vector_indexes(self, settings: "Settings") -> "dict[str, VectorIndex]":
        """Return the vector indexes by name.

        Args:
            settings: The settings of the server. Each plugin offers an index only if it is set up
                there.

        Raises:
            Invalid: Two indexes have the same name.
        """
        indexes = self._results("vector_indexes", settings)
        return _by_name("a vector index named", ((index.name, index) for index in indexes))

    def memory_remotes(self) -> "dict[str, RemoteKind]":
        """The kinds of remotes by name.

        Raises:
            Invalid: Two kinds have the same name, or one lacks a method.
        """
        offered = self._collect("memory_remotes")
        for kind in offered:
            has_methods = callable(getattr(kind, "read", None)) and callable(
                getattr(kind, "sync", None)
            )
            if not has_methods or not isinstance(getattr(kind, "kind", None), str) or not kind.kind:
                raise Invalid(
                    f"{type(kind).__name__} is not a kind of remote: it needs kind, read and sync."
                )
        return _by_name("remotes of the kind", ((kind.kind, kind) for kind in offered))

    def block_formats(self) -> "list[BlockFormat]":
        return self._collect("block_formats")

    def routes(self) -> list[Any]:
        """Return the routers, or the names of the modules that have one."""
        offered: list[Any] = []
        for _, plugin in self._plugins:
            if isinstance(plugin, Feature):
                offered += plugin.routes
            elif hasattr(plugin, "routes"):
                offered += plugin.routes()
        return offered

    def middleware(self) -> "list[Callable[[ASGIApp], ASGIApp]]":
        """The middleware around all requests, the last one outermost."""
        return self._collect("middleware")

    def jobs(self) -> "list[JobHandler]":
        return self._collect("jobs")

    def complete_agents(self) -> "list[PromptAddition]":
        """The additions to agents that are loaded for prompts or answers.

        They run no SQL statement for agents that have no addition.
        """
        functions: list[Callable[..., Any] | PromptAddition] = []
        for _, plugin in self._plugins:
            if isinstance(plugin, Feature):
                functions += _loaded(plugin.complete_agents)
            elif hasattr(plugin, "complete_agents"):
                functions.append(plugin.complete_agents)
            elif hasattr(plugin, "complete_agent"):
                functions.append(partial(_complete_each, plugin.complete_agent))
        return [
            function if isinstance(function, PromptAddition) else PromptAddition(function)
            for function in functions
        ]

    def set_folders(self) -> "list[Callable[[Transaction, Scope, str, Sequence[str]], None]]":
        """The functions that give agents folders of files."""
        return [function for _, function in self._functions("set_folders")]

    def make_folder(self) -> "list[Callable[[Transaction, Scope, Agent], None]]":
        """The functions that make folders of files for new agents."""
        return [function for _, function in self._functions("make_folder")]

    def after_turn(self) -> "list[AfterTurn]":
        """The functions to call after turns, each with the kinds of turns that lead to a call."""
        return [
            function if isinstance(function, AfterTurn) else AfterTurn(function)
            for _, function in self._functions("after_turn")
        ]

    def agent_followers(self) -> list[Any]:
        """The AgentFollowers of plugins.

        They update other agents when an agent is created, changed, deleted or ends a turn.
        """
        return self._collect("agent_followers")

    def audits(self) -> list[Callable[..., Any]]:
        """The sources of texts that the audit of memory counts in addition to blocks."""
        return [function for _, function in self._functions("audits")]

    def at_erasure(self) -> list[Callable[..., Any]]:
        """The functions that delete an erased user's data in other services.

        They get the runtime and the user's id, and return the data that remains there.
        """
        return [function for _, function in self._functions("at_erasure")]

    def at_forgetting(self) -> list[Callable[..., Any]]:
        """The functions that remove one fact about a user from other services."""
        return [function for _, function in self._functions("at_forgetting")]

    def forget_sources(self) -> list[Any]:
        """The sources that are searched when a user asks to forget one fact."""
        return self._collect("forget_sources")

    def waiting(self, tx: "Transaction", organization_id: str, user_id: str) -> list[Waiting]:
        """The items that wait for a user's decision, in addition to proposals.

        Args:
            tx: The transaction, or a read.
            organization_id: The user's organization.
            user_id: The user who decides.
        """
        functions = (function for _, function in self._functions("waiting"))
        counted = (function(tx, organization_id, user_id) for function in functions)
        return [waiting for waiting in counted if waiting]

    def known_facts(self, tx: "Transaction", query: "FactQuery") -> "list[KnownFact]":
        """The facts to show with the hits of a search, best first.

        Args:
            tx: The transaction, or a read.
            query: The search, with the user whom the facts are about.
        """
        functions = (function for _, function in self._functions("known_facts"))
        return [fact for function in functions for fact in function(tx, query)]

    def user_files(self) -> dict[str, UserFile]:
        """The files of features in archives of users' memory, by name."""
        return {file.name: file for file in self._collect("user_files")}

    def commands(self) -> list[Commands]:
        return self._collect("commands")

    def tables(self) -> list[Any]:
        return self._collect("tables")

    def pages(self) -> list[PluginPage]:
        return self._collect("pages")

    def gauges(self) -> "list[Callable[[Transaction], dict[str, tuple[str, float]]]]":
        """The functions that return values for `/metrics`, each with its help, by name."""
        return [function for _, function in self._functions("gauges")]

    def findings(self, settings: "Settings") -> list[tuple[str, str]]:
        """Return the findings of plugins about this installation, by plugin name.

        Args:
            settings: The settings of the server.
        """
        functions = self._functions("findings")
        return [(name, text) for name, function in functions for text in function(settings)]

    def openings(self) -> list[tuple[str, Callable[..., AbstractAsyncContextManager[Any]]]]:
        """The functions that open plugins' parts of a runtime, by plugin name."""
        functions: list[tuple[str, Callable[..., AbstractAsyncContextManager[Any]]]] = []
        for name, plugin in self._plugins:
            if opening := getattr(plugin, "open", None):
                functions.append((name, load_part(opening)))
            elif hasattr(plugin, "at_end"):
                functions.append((name, partial(_ending, plugin.at_end)))
        return functions

    def _collect(self, kind: str) -> list[Any]:
        """Return all parts of this kind."""
        parts: list[Any] = []
        for _, plugin in self._plugins:
            if isinstance(plugin, Feature):
                parts += _loaded(getattr(plugin, kind))
            elif hasattr(plugin, kind):
                parts += getattr(plugin, kind)()
        return parts

    def _functions(self, kind: str) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield all functions of this kind with the names of their plugins."""
        for name, plugin in self._plugins:
            if isinstance(plugin, Feature):
                for function in _loaded(getattr(plugin, kind)):
                    yield name, function
            elif hasattr(plugin, kind):
                yield name, getattr(plugin, kind)

    def _results(self, kind: str, *arguments: Any) -> list[Any]:
        """Return the results of all functions of this kind, called with these arguments."""
        results: list[Any] = []
        for _, function in self._functions(kind):
            result = function(*arguments)
            results += result if isinstance(result, list | tuple) else [result]
        return results


def _loaded(parts: Iterable[Part]) -> Iterator[Any]:
    """Yield the parts. If a part is a tuple or a list, yield its items."""
    for part in parts:
        loaded = load_part(part)
        if isinstance(loaded, list | tuple):
            yield from loaded
        else:
            yield loaded


def _complete_each(
    complete_agent: "Callable[[Transaction, AgentState], AgentState]",
    tx: "Transaction",
    states: "Sequence[AgentState]",
) -> "list[AgentState]":
    return [complete_agent(tx, state) for state in states]


@asynccontextmanager
async def _ending(at_end: Callable[..., Any], runtime: Any) -> AsyncIterator[None]:
    """Call the plugin's `at_end` when the server stops."""
    try:
        yield
    finally:
        await at_end(runtime.settings)


def _by_name(noun: str, named_parts: Iterable[tuple[str, T]]) -> dict[str, T]:
    parts: dict[str, T] = {}
    for name, part in named_parts:
        if parts.setdefault(name, part) is not part:
            raise Invalid(f'Two plugins offer {noun} "{name}". Remove one of them.')
    return parts


def load_plugins(features: Iterable[str] = ()) -> Plugins:
    """Return the plugins: the built-in tools, these features, then installed plugins by name.

    Args:
        features: Packages of `ricordo.features`.

    Raises:
        Invalid: A plugin cannot be loaded, or needs a feature that is not installed.
    """
    built_in = Feature(tools=("ricordo.tools.builtin:TOOLS",))
    plugins = [
        ("builtin", built_in),
        *((name, read_feature(name)) for name in features),
        *_installed(),
    ]
    if fault := missing_requirements(plugins):
        raise Invalid(fault)
    return Plugins(plugins)


def load_commands(features: Iterable[str] = ()) -> tuple[list[Commands], str | None]:
    """Return the commands of features and installed plugins, and the errors of plugins.

    A feature whose requirements are missing offers no commands.

    Args:
        features: Packages of `ricordo.features`.

    Returns:
        The commands, and the errors as one text, or None.
    """
    plugins: list[tuple[str, Any]] = []
    faults: list[str] = []
    for name in features:
        try:
            plugins.append((name, read_feature(name)))
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
    return Plugins(plugins).commands(), fault


def missing_requirements(plugins: Sequence[tuple[str, Any]]) -> str | None:
    """Return sentences that name each missing feature and its plugin; None if none is missing.

    Call this before any hook, so that no module imports a missing feature.

    Args:
        plugins: The plugins with their names.
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
    """Return the features that the plugin requires but that are not among the plugins."""
    names = {name for name, _ in plugins}
    return tuple(needed for needed in getattr(plugin, "requires", ()) if needed not in names)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _installed() -> list[tuple[str, Any]]:
    """Return the installed plugins. Raises Invalid if one is broken."""
    plugins, faults = read_entries()
    if faults:
        raise faults[0]
    return plugins
