"""What typed memory asks of a client (`memory.typed.client`), on an opened runtime in this process: plain calls, no server.

Whoever holds it acts as the local administrator: her edits are an owner's, whatever a block's policy is.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, create_agent
from ricordo.domain.block import Block
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Passage
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Invalid, NotFound
from ricordo.memory.step_commit import file_passages
from ricordo.runtime import Runtime
from ricordo.search.index import PassageFilter
from ricordo.storage import agents, archives, blocks
from ricordo.storage.paging import Page
from ricordo.storage.store import Transaction

T = TypeVar("T")
# Of what `letta_client` takes for a new agent.
_OPTIONS = ("model", "embedding", "description", "system", "tags", "timezone", "metadata", "user_id")


class Waits(Protocol):
    """Runs a coroutine where the runtime lives, and waits for what it returns."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """Wait for it."""


@dataclass(frozen=True, slots=True)
class Made:
    """An agent that was made."""

    id: str


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that a search found."""

    content: str


@dataclass(frozen=True, slots=True)
class FoundList:
    """What a search found, the best first."""

    results: tuple[Found, ...]


class _Door:
    def __init__(self, runtime: Runtime, wait: Waits) -> None:
        self._runtime = runtime
        self._wait = wait
        self._scope = Scope()

    def _read(self, work: Callable[[Transaction], T]) -> T:
        return self._wait(self._runtime.store.read(work))

    def _write(self, work: Callable[[Transaction], T]) -> T:
        return self._wait(self._runtime.store.write(work))


class BlockCalls(_Door):
    """An agent's core memory."""

    def retrieve(self, block_label: str, /, *, agent_id: str) -> Block:
        """The agent's block with this label; raises NotFound."""
        return self._read(lambda tx: self._labelled(tx, agent_id, block_label))

    def update(self, block_label: str, /, *, agent_id: str, value: str) -> Block:
        """Make `value` the block's text; raises NotFound, TooLong."""

        def work(tx: Transaction) -> Block:
            block = self._labelled(tx, agent_id, block_label)
            block.require_fits(value)
            changed = replace(block, value=value)
            return block if value == block.value else blocks.update(tx, block, changed, self._metadata(block_label))

        return self._write(work)

    def _labelled(self, tx: Transaction, agent_id: str, label: str) -> Block:
        for block in agents.load(tx, self._scope, agent_id).blocks:
            if block.label == label:
                return block
        raise NotFound(f'{agent_id} has no block "{label}". Attach one with that label.')

    def _metadata(self, label: str) -> ChangeMetadata:
        return ChangeMetadata(self._scope.actor, f"Change {label}")


class PassageCalls(_Door):
    """An agent's archival memory."""

    def create(self, agent_id: str, /, *, text: str) -> list[Passage]:
        """Archive a text; the answer is a list of it. Raises NotFound."""

        def work(tx: Transaction) -> list[Passage]:
            state, now = agents.load(tx, self._scope, agent_id), tx.clock.now()
            passage = Passage(
                id=new_id("passage"),
                organization_id=self._scope.organization_id,
                archive_id="",
                text=text,
                created_by=self._scope.user_id,
                created_at=now,
                updated_at=now,
            )
            return [replace(passage, archive_id=file_passages(tx, state, [passage])[0].id)]

        return self._write(work)

    def list(self, agent_id: str, /, *, search: str, limit: int, ascending: bool) -> Sequence[Passage]:
        """Passages that hold the piece `search`, by age. Raises NotFound."""
        page = Page(limit=limit, order="asc" if ascending else "desc")

        def work(tx: Transaction) -> Sequence[Passage]:
            held = [archive.id for archive in agents.load(tx, self._scope, agent_id).archives]
            return archives.page_of_passages(tx, held, page, search_text=search)

        return self._read(work)

    def search(self, agent_id: str, /, *, query: str, top_k: int) -> FoundList:
        """The passages that match the query best. Raises NotFound."""

        def wanted(tx: Transaction) -> PassageFilter:
            return PassageFilter(tuple(archive.id for archive in agents.load(tx, self._scope, agent_id).archives))

        found = self._wait(self._runtime.recall.passages(query, wanted, top_k))
        return FoundList(tuple(Found(hit.passage.text) for hit in found))


class AgentCalls(_Door):
    """Agents and their memory."""

    def __init__(self, runtime: Runtime, wait: Waits) -> None:
        super().__init__(runtime, wait)
        self.blocks = BlockCalls(runtime, wait)
        self.passages = PassageCalls(runtime, wait)

    def create(self, *, name: str, memory_blocks: Sequence[Mapping[str, str]] = (), **options: Any) -> Made:
        """Make an agent with blocks of `label` and `value`. Raises Invalid for an option that is not known here."""
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise Invalid(f'"{unknown[0]}" cannot be set here. Use: {", ".join(_OPTIONS)}, or a server and its client.')
        given = {key: value for key, value in options.items() if value is not None}
        user, tags = given.pop("user_id", None), tuple(given.pop("tags", ()))
        specs = tuple(BlockSpec(block["label"], block["value"]) for block in memory_blocks)
        spec = AgentSpec(name=name, blocks=specs, user=user, tags=tags, **given)
        return Made(self._wait(create_agent(self._runtime, self._scope, spec)).agent.id)


class InProcessClient:
    """A client of typed memory that needs no server: `MemoryManager(client, agent_id)`, `BaseAgent(client)`."""

    def __init__(self, runtime: Runtime, wait: Waits) -> None:
        self.agents = AgentCalls(runtime, wait)
