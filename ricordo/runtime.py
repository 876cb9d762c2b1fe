"""The opened parts of a server. They are passed as a value and are never global."""

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.clock import Clock
from ricordo.domain.egress import DEFAULT_NETWORKS, Clearance, LocalNetworks
from ricordo.domain.event import Event
from ricordo.domain.message import Message
from ricordo.domain.model import OrganizationProvider
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Unsupported
from ricordo.llm.answer_limits import ModelSpeeds
from ricordo.llm.policy import policy_from
from ricordo.llm.registry.models import Models
from ricordo.llm.registry.organization_providers import FRESH_SECONDS, OrganizationProviders
from ricordo.memory.recall import Recall, VectorCache
from ricordo.memory.remote_kind import RemoteKind
from ricordo.memory.summary import RestingWriters
from ricordo.plugins import AfterTurn, Plugins, PromptAddition
from ricordo.sandbox.service import Sandbox
from ricordo.search.embedding_costs import EmbeddingAccount
from ricordo.search.indexer import Indexer
from ricordo.search.vector_index import VectorIndex
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import providers
from ricordo.storage.engine.store import Store, Transaction
from ricordo.tools.toolbox import Toolbox

T = TypeVar("T")


class LiveTurn(Protocol):
    """A turn that runs in this process."""

    def events(self) -> AsyncGenerator[Event]:
        """Return all events from the start.

        A late reader first gets the saved events.
        """

    async def cancel(self) -> None:
        """Stop the turn; return when its end is saved."""

    async def wait(self) -> None:
        """Wait for the end of the turn."""

    @property
    def has_readers(self) -> bool:
        """True if its events have a reader, or if that is unknown."""


class LiveRecording(Protocol):
    """A stream that this process stores; readers may come and leave."""

    @property
    def changed(self) -> asyncio.Event:
        """An event that is set when more of the stream is stored, and when the stream ends."""

    async def finish(self) -> None:
        """Return when the stream is stored completely, after its turn has ended."""


class StreamEncoder(Protocol):
    """Encodes the events of one turn for its stored stream."""

    def encode(self, event: Event) -> Sequence[bytes]:
        """Return the stream's events for an event of the turn; often there are none."""


class WireFormat(Protocol):
    """The format of stored streams and callbacks."""

    def stream_encoder(
        self, options: Mapping[str, Any], clock: Clock, *, has_tokens: bool
    ) -> StreamEncoder:
        """Return an encoder with the options of the run's request.

        Args:
            options: The parts of the request that change the format, as stored JSON.
            clock: The clock for the times in events.
            has_tokens: The stream contains deltas of messages, not only whole messages.
        """

    def result_of(self, run: Run, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the result of an ended run as JSON."""


class Wait(Protocol):
    """A function that waits in another thread for a coroutine of the event loop."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """Return the coroutine's result."""


@dataclass(slots=True)
class Runtime:
    """The parts of a running server.

    Attributes:
        models: The chat models of the server's providers, and the embedding models.
        sandbox: Runs programs of users and models. It starts with its first program.
        wire: The format of streams and callbacks.
        indexes: External vector indexes by name.
        remotes: Kinds of remotes by name.
        features: The parts that features opened, by feature.
        live: This process's turns by run id.
        recordings: The stored streams of these turns, by run id.
        unended: The tasks that save the ends of runs again, by run id. The database refused them.
        is_stopping: The server is about to stop, and refuses new turns.
        networks: The addresses that egress policies call local.
        organization_providers: The models of organizations' providers, and those in `models`.
        additions: The plugins' additions to prompts, for `complete`.
        after_turn: Functions of plugins to call after turns, each with the turns that it is for.
    """

    settings: Settings
    store: Store
    models: Models
    toolbox: Toolbox
    plugins: Plugins
    sandbox: Sandbox
    wire: WireFormat = field(kw_only=True)
    indexes: Mapping[str, VectorIndex] = field(default_factory=dict)
    remotes: Mapping[str, RemoteKind] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)
    live: dict[str, LiveTurn] = field(default_factory=dict)
    recordings: dict[str, LiveRecording] = field(default_factory=dict)
    unended: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    resting_writers: RestingWriters = field(default_factory=RestingWriters)
    speeds: ModelSpeeds = field(default_factory=ModelSpeeds)
    is_stopping: bool = False
    networks: LocalNetworks = field(init=False)
    organization_providers: OrganizationProviders = field(init=False)
    _vector_cache: VectorCache = field(init=False, default_factory=VectorCache)
    additions: list[PromptAddition] = field(init=False)
    after_turn: list[AfterTurn] = field(init=False)
    indexing: Indexer = field(init=False)

    def __post_init__(self) -> None:
        # Looked up once, since these functions are called for every turn.
        self.additions = self.plugins.complete_agents()
        self.after_turn = self.plugins.after_turn()

        async def load(organization_id: str) -> Sequence[OrganizationProvider]:
            return await self.store.read(lambda tx: providers.of_organization(tx, organization_id))

        settings = self.settings
        self.networks = DEFAULT_NETWORKS
        if settings.egress_local is not None:
            self.networks = LocalNetworks.parse(settings.egress_local)
        self.organization_providers = OrganizationProviders(
            self.models,
            policy_from(settings),
            load,
            Secret(settings.data_dir),
            fresh_for=FRESH_SECONDS if settings.postgres_url else math.inf,
            allow_private=settings.allow_private_providers,
        )
        embedders = self.models.embedders
        index_name = settings.message_vectors
        networks = self.networks
        self.indexing = Indexer(
            self.store, embedders, self.indexes, messages_index=index_name, networks=networks
        )

    def complete(self, tx: Transaction, states: Sequence[AgentState]) -> Sequence[AgentState]:
        """Return agents with the additions of plugins, such as their folders.

        A few statements serve all agents; agents without additions need none.
        """
        all_settings = [item for state in states for item in state.agent.settings.items()]
        settings = {name for name, setting in all_settings if setting}
        tools = {tool.name for state in states for tool in state.tools}
        labels = {block.shown_label for state in states for block in state.blocks}
        for addition in self.additions:
            is_for_all = not (addition.setting or addition.tools or addition.label)
            is_used = addition.setting in settings or addition.label in labels
            if is_for_all or is_used or not tools.isdisjoint(addition.tools):
                states = addition.complete(tx, states)
        return states

    def embedding_account(
        self, scope: Scope, agent_id: str | None = None, user_id: str | None = None
    ) -> EmbeddingAccount:
        """Return the account that pays for the embeddings of a request or a turn.

        Args:
            scope: The caller, with the organization that pays and the user of the work.
            agent_id: The agent that is searched, whose budget is checked too; None without one.
            user_id: The user of the turn; None: the user of the scope.
        """
        return EmbeddingAccount(
            self.store,
            self.settings,
            scope,
            user_id=user_id or scope.subject,
            agent_id=agent_id,
        )

    def recall_for(
        self, scope: Scope, agent_id: str | None = None, user_id: str | None = None
    ) -> Recall:
        """Return the searches for a request or a turn.

        Args:
            scope: The caller, whose organization pays for embeddings.
            agent_id: The agent that is searched; None for a search of several agents.
            user_id: The user of the turn; None: the user of the scope.
        """
        return Recall(
            self.store,
            self.models.embedders,
            self.indexes,
            payer=self.embedding_account(scope, agent_id, user_id),
            cache=self._vector_cache,
            messages_index=self.settings.message_vectors,
            networks=self.networks,
        )

    def new_clearance(self) -> Clearance:
        """Return a clearance for a piece of work whose sources are not yet read."""
        return Clearance(self.networks)

    def set_folders(
        self, tx: Transaction, scope: Scope, agent_id: str, folder_ids: Sequence[str]
    ) -> None:
        """Replace the agent's folders of files.

        Args:
            tx: The transaction.
            scope: The caller. Folders that the caller cannot see stay attached.
            agent_id: The agent.
            folder_ids: All folders that the agent is to have; empty detaches them.

        Raises:
            NotFound: The agent or a folder does not exist.
            Forbidden: The caller may not attach or detach a folder.
            Unsupported: No feature for files is loaded, and `folder_ids` is not empty.
        """
        setters = self.plugins.set_folders()
        if folder_ids and not setters:
            raise Unsupported(
                "This server has no folders of files. Leave folder_ids and source_ids out."
            )
        for change in setters:
            change(tx, scope, agent_id, folder_ids)

    def make_folder(self, tx: Transaction, scope: Scope, agent: Agent) -> None:
        """Make an empty folder of files for a new agent.

        Raises:
            Forbidden: The caller may not make folders.
            Unsupported: No feature for files is loaded.
        """
        makers = self.plugins.make_folder()
        if not makers:
            raise Unsupported(
                "This server has no folders of files. Leave include_default_source out."
            )
        for make in makers:
            make(tx, scope, agent)
