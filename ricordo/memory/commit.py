"""Storing what a step did to memory, inside the step's own transaction.

A block that someone else changed meanwhile is merged by lines; where that is impossible the tool calls that edited it fail, and
the agent is told. Nothing is overwritten unseen. A step that makes, removes or renames blocks is for `memory.reshaping`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.scope import Scope
from ricordo.errors import Forbidden, Invalid, NotFound
from ricordo.memory.merge import merge_lines
from ricordo.memory.reshaping import CLOSE, GONE, Reshaped, reshape
from ricordo.memory.working import BlockEdit, MemoryEdit, PassageDraft, WorkingMemory, require_writable
from ricordo.storage import agents, archives, blocks
from ricordo.storage.store import Transaction

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a step's effects: the memory as it now stands, results to correct and calls that failed, by call id."""

    blocks: tuple[Block, ...]
    archives: tuple[Archive, ...]
    merged: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def commit(tx: Transaction, state: AgentState, memory: WorkingMemory, scope: Scope, step_id: str) -> Committed:
    """Store the step's edits and passages."""
    texts = _texts_by_block(memory.edits)
    done = reshape(tx, state, memory.edits, scope) if texts is None else _write_texts(tx, state, texts, scope)
    held = _store_passages(tx, state, memory.passages, scope, step_id)
    return Committed(done.blocks, held, done.merged, done.failed)


def _texts_by_block(edits: Sequence[MemoryEdit]) -> dict[str, list[BlockEdit]] | None:
    """The edits by block, where each call gave one block another text and did nothing else: then no block depends on another."""
    groups: dict[str, list[BlockEdit]] = {}
    touched: dict[str, str] = {}
    for edit in edits:
        if not isinstance(edit, BlockEdit) or touched.setdefault(edit.call_id, edit.base.id) != edit.base.id:
            return None
        groups.setdefault(edit.base.id, []).append(edit)
    return groups


def _write_texts(
    tx: Transaction, state: AgentState, texts: Mapping[str, Sequence[BlockEdit]], scope: Scope
) -> Reshaped:
    current: dict[str, Block | None] = {block.id: block for block in state.blocks}
    merged: dict[str, str] = {}
    failed: dict[str, str] = {}
    for block_id, edits in texts.items():
        try:
            written = _write(tx, scope, edits, by=state.agent.id)
        except (NotFound, Forbidden, Invalid) as error:
            failed |= {edit.call_id: str(error) for edit in edits}
            # The next step has to begin with what is there, or its edit would meet the same conflict.
            current[block_id] = _reread(tx, scope, block_id)
            continue
        current[block_id] = written
        if written.value != edits[-1].value and edits[-1].is_shown:
            merged[edits[-1].call_id] = written.value
    return Reshaped(tuple(block for block in current.values() if block), merged, failed)


def _write(tx: Transaction, scope: Scope, edits: Sequence[BlockEdit], *, by: str) -> Block:
    """Several edits of one block in one step are one write: their last text against the text the step began with."""
    base, value = edits[0].base, edits[-1].value
    expected = base
    for _ in range(_ATTEMPTS):
        if written := blocks.write(tx, expected, value, by=by):
            return written
        blocks.hold(tx, base.id)  # so that the next attempt finds what is read here
        now = _reread(tx, scope, base.id)
        if now is None:
            raise NotFound(GONE.format(base.label))
        expected = now
        require_writable(expected)
        merged = merge_lines(base.value, edits[-1].value, expected.value)
        if merged is None:
            raise Invalid(CLOSE.format(base.label))
        expected.require_fits(merged)
        value = merged
    raise Invalid(f'Memory block "{base.label}" keeps changing. Read it again and repeat the edit.')


def _reread(tx: Transaction, scope: Scope, block_id: str) -> Block | None:
    try:
        return blocks.get(tx, scope, block_id)
    except NotFound:
        return None


def _store_passages(
    tx: Transaction, state: AgentState, drafts: Sequence[PassageDraft], scope: Scope, step_id: str
) -> tuple[Archive, ...]:
    if not drafts:
        return state.archives
    now = tx.clock.now()
    new = [
        Passage(
            id=draft.id,
            organization_id=scope.organization_id,
            archive_id="",
            text=draft.text,
            tags=draft.tags,
            user_id=state.conversation.user_id,
            created_by=state.agent.id,
            step_id=step_id,
            created_at=now,
            updated_at=now,
        )
        for draft in drafts
    ]
    return file_passages(tx, state, new)


def file_passages(tx: Transaction, state: AgentState, new: Sequence[Passage]) -> tuple[Archive, ...]:
    """Put passages into the agent's first archive, which is made where it has none; returns its archives as they are then.

    Whatever `archive_id` the passages bring is replaced by that archive's.
    """
    if filed := _file(tx, state.agent.id, state.archives, new):
        return filed
    # Since `state` was loaded, another turn of this agent may have made an archive, or somebody deleted or detached the one
    # there was. One transaction at a time does that.
    agents.hold(tx, Scope(state.agent.organization_id), state.agent.id)
    if filed := _file(tx, state.agent.id, archives.of_agent(tx, state.agent.id), new):
        return filed
    now = tx.clock.now()
    archive = Archive(
        id=new_id("archive"),
        organization_id=state.agent.organization_id,
        name=f"{state.agent.name}'s archive",
        embedding=state.agent.embedding,
        created_by=state.agent.id,
        created_at=now,
        updated_at=now,
    )
    holding = [replace(passage, archive_id=archive.id) for passage in new]
    return (archives.insert_one(tx, archive, owner=state.agent.id, holding=holding),)


def _file(
    tx: Transaction, agent_id: str, attached: Sequence[Archive], new: Sequence[Passage]
) -> tuple[Archive, ...] | None:
    if not attached:
        return None
    filed = [replace(passage, archive_id=attached[0].id) for passage in new]
    try:
        return (archives.insert_passages(tx, attached[0], filed, attached_to=agent_id), *attached[1:])
    except NotFound:
        return None
