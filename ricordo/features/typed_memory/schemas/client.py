"""A client for typed memory on a runtime in this process, without a server.

`letta_client.Letta` is another client. Typed memory calls `agents.create`, `agents.blocks.retrieve`
and `update`, `agents.passages.create`, `list` and `search`. For a block that the agent lacks,
`retrieve` raises NotFound, or an error whose `status_code` is 404.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, create_agent
from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Passage
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound, PreconditionFailed
from ricordo.memory import submission
from ricordo.memory.commit import file_passages
from ricordo.memory.proposals import expiry_of
from ricordo.memory.submission import Submission
from ricordo.memory.user_copies import copy_of, needs_copy, users_chain
from ricordo.runtime import Runtime, Wait
from ricordo.search.index import PassageFilter
from ricordo.storage import agents, archives
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

T = TypeVar("T")
# Options of `letta_client` for a new agent that this client supports.
_OPTIONS = (
    "model",
    "embedding",
    "description",
    "system",
    "tags",
    "timezone",
    "metadata",
    "user_id",
)


class _Calls:
    def __init__(self, runtime: Runtime, wait: Wait) -> None:
        self._runtime = runtime
        self._wait = wait
        self._scope = Scope()

    def _write(self, work: Callable[[Transaction], T]) -> T:
        return self._wait(self._runtime.store.write(work))

    def _archives(self, tx: Transaction, agent_id: str) -> tuple[tuple[str, ...], Scope]:
        """Return the agent's archives, and the scope that reads them.

        For an agent of a user, the scope excludes data of other users.
        """
        state = agents.load(tx, self._scope, agent_id)
        scope = replace(self._scope, subject_id=state.conversation.user_id)
        return tuple(archive.id for archive in state.archives), scope


class BlockCalls(_Calls):
    """An agent's core memory."""

    def retrieve(self, block_label: str, /, *, agent_id: str) -> Block:
        """Return the agent's block with this label.

        Args:
            block_label: The label by which the agent sees the block.
            agent_id: The agent.

        Raises:
            NotFound: There is no such agent, or it has no such block.
        """
        return self._wait(
            self._runtime.store.read(lambda tx: self._labelled(tx, agent_id, block_label)[1])
        )

    def update(
        self,
        block_label: str,
        /,
        *,
        agent_id: str,
        value: str,
        extra_headers: Mapping[str, str] | None = None,
    ) -> Block:
        """Set the block's text, or propose it if the block's policy requires that.

        If the agent belongs to a user, the user's copy of the block is changed. The policy decides
        only about blocks of users.

        Args:
            block_label: The label by which the agent sees the block.
            agent_id: The agent.
            value: The new text.
            extra_headers: Headers of a request. Only `If-Match` has an effect, in upper or lower
                case: the version from which the text was edited, in quotes, or "*" for any.

        Returns:
            The block as it is now, which is unchanged if the text was proposed.

        Raises:
            NotFound: if there is no such agent or block.
            TooLong: if the text is longer than the block's limit.
            Forbidden: if the block is read-only.
            PreconditionFailed: if the block no longer has the version in `If-Match`.
        """
        headers = {name.lower(): header for name, header in (extra_headers or {}).items()}
        if_match = headers.get("if-match", "*")

        def work(tx: Transaction) -> Block:
            state, block = self._labelled(tx, agent_id, block_label)
            if if_match not in ("*", f'"{block.version}"'):
                raise PreconditionFailed(
                    f'Block "{block_label}" changed since you read it. Read it again and retry.'
                )
            block.require_fits(value)
            if value == block.value:
                return block
            user_id = state.conversation.user_id
            if user_id and needs_copy(block, user_id):
                chain = users_chain(tx, state.agent, user_id)
                block = copy_of(tx, state.agent, block, chain.id, self._scope.actor)
            edit = Submission(self._scope.actor, expires_after=expiry_of(self._runtime.settings))
            return submission.change(tx, block, replace(block, value=value), edit).block or block

        return self._write(work)

    def _labelled(self, tx: Transaction, agent_id: str, label: str) -> tuple[AgentState, Block]:
        state = agents.load(tx, self._scope, agent_id)
        for block in state.blocks:
            if block.shown_label == label:
                return state, block
        raise NotFound(f'{agent_id} has no block "{label}". Attach one with that label.')


class PassageCalls(_Calls):
    """An agent's archival memory."""

    def create(self, agent_id: str, /, *, text: str) -> list[Passage]:
        """Archive a text, and return it in a list.

        Args:
            agent_id: The agent. Its archive is created if it has none.
            text: The text; secrets in it are removed.

        Raises:
            NotFound: There is no such agent.
        """

        def work(tx: Transaction) -> list[Passage]:
            state = agents.load(tx, self._scope, agent_id)
            now = tx.clock.now()
            draft = Passage(
                new_id("passage"),
                self._scope.organization_id,
                archive_id="",
                text=text,
                user_id=state.conversation.user_id,
                created_by=self._scope.user_id,
                created_at=now,
                updated_at=now,
            )
            (passage,) = archives.redacted([draft])
            return [replace(passage, archive_id=file_passages(tx, state, [passage])[0].id)]

        return self._write(work)

    def list(
        self, agent_id: str, /, *, search: str, limit: int, ascending: bool
    ) -> Sequence[Passage]:
        """Return passages that contain the text `search`, by age.

        Args:
            agent_id: The agent whose archives are searched.
            search: A text that each passage contains.
            limit: The most passages that are returned.
            ascending: Whether the oldest passage comes first.

        Raises:
            NotFound: if there is no such agent.
        """
        page = Page(limit=limit, order="asc" if ascending else "desc")

        def work(tx: Transaction) -> Sequence[Passage]:
            ids, scope = self._archives(tx, agent_id)
            return archives.page_of_passages(tx, ids, page, search_text=search, scope=scope)

        return self._wait(self._runtime.store.read(work))

    def search(self, agent_id: str, /, *, query: str, top_k: int) -> SimpleNamespace:
        """Return the passages that match the query best.

        Args:
            agent_id: The agent whose archives are searched.
            query: The words or the question to search for.
            top_k: The most passages that are returned.

        Returns:
            An object whose `results` each have the passage's text as `content`.

        Raises:
            NotFound: if there is no such agent.
        """

        def readable(tx: Transaction) -> PassageFilter:
            ids, scope = self._archives(tx, agent_id)
            return PassageFilter(ids, subject_id=scope.subject_id)

        recall = self._runtime.recall_for(self._scope, agent_id)
        hits = self._wait(recall.passages(query, readable, top_k))
        return SimpleNamespace(results=[SimpleNamespace(content=hit.passage.text) for hit in hits])


class AgentCalls(_Calls):
    """Agents and their memory."""

    def __init__(self, runtime: Runtime, wait: Wait) -> None:
        super().__init__(runtime, wait)
        self.blocks = BlockCalls(runtime, wait)
        self.passages = PassageCalls(runtime, wait)

    def create(
        self, *, name: str, memory_blocks: Sequence[Mapping[str, str]] = (), **options: Any
    ) -> SimpleNamespace:
        """Create an agent with blocks of `label` and `value`.

        Args:
            name: The agent's name.
            memory_blocks: The blocks, each with its `label` and `value`.
            **options: Options of `letta_client`, and `user_id`: the user with whom the agent talks.
                None is the same as leaving an option out.

        Returns:
            An object with the agent's `id`.

        Raises:
            Invalid: for an unknown option.
        """
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise Invalid(
                f'"{unknown[0]}" cannot be set here. Use: {", ".join(_OPTIONS)}, or a server and '
                "its client."
            )
        fields = {name: option for name, option in options.items() if option is not None}
        user = fields.pop("user_id", None)
        tags = tuple(fields.pop("tags", ()))
        specs = tuple(BlockSpec(block["label"], block["value"]) for block in memory_blocks)
        spec = AgentSpec(name=name, blocks=specs, user=user, tags=tags, **fields)
        return SimpleNamespace(
            id=self._wait(create_agent(self._runtime, self._scope, spec)).agent.id
        )


class InProcessClient:
    """A client without a server, as local administrator.

    Use: `with open_in_thread(settings) as opened: InProcessClient(*opened)`.
    """

    def __init__(self, runtime: Runtime, wait: Wait) -> None:
        self.agents = AgentCalls(runtime, wait)
