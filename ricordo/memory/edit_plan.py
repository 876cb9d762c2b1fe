"""Stores a step that makes, removes, renames or describes blocks, or whose calls change several at once.

The step is planned against what is stored now, under locks, before anything is written. Edits that share a call, a block or a label
are all stored or none of them, and what others did meanwhile is not overwritten unseen.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory.line_changes import edit_summary
from ricordo.memory.merge import merge_lines
from ricordo.memory.proposals import TAKEN
from ricordo.memory.working_memory import (
    EditContext,
    MemoryEdit,
    by_block,
    require_free,
    require_writable,
)
from ricordo.storage import blocks, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.quotas import require_room

GONE = 'Memory block "{}" was deleted while you edited it, so there is nothing to edit.'
CLOSE = (
    'Memory block "{}" was changed by someone else in the same lines while you edited it. '
    "Read it again in your instructions and repeat the edit."
)
CHANGED = 'Memory block "{}" was changed by someone else in the meantime. Read it again in your instructions first.'
APPLIED = 'Applied to memory block "{}" as version {}.'

# Blocks by id, in the order of their attachment.
_Blocks = Mapping[str, Block]


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a step's effects: the memory now, changed texts of calls' results, and failed calls, by call id."""

    blocks: tuple[Block, ...]
    archives: tuple[Archive, ...]
    results: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ground:
    """What is stored now: the agent's blocks, and the chain in which it makes new ones, its own or the user's, if there is one."""

    tx: Transaction
    scope: Scope
    agent_id: str
    chain: Chain | None
    there: _Blocks
    context: EditContext

    @property
    def chain_id(self) -> str | None:
        return self.chain.id if self.chain else None


def store_plan(
    tx: Transaction,
    state: AgentState,
    edits: Sequence[MemoryEdit],
    scope: Scope,
    context: EditContext,
    own: Chain | None,
) -> Committed:
    """Store what others' changes do not make impossible; agent and chains are locked, `own` is that for the agent's new blocks."""
    agent_id = state.agent.id
    user_id = scope.subject_id or state.conversation.user_id
    seen = blocks.of_agent(
        tx, agent_id, user_id, state.agent.course, memory_id=state.agent.memory_id
    )
    there = {block.id: block for block in seen if block.organization_id == scope.organization_id}
    ground = _Ground(tx, scope, agent_id, own, there, context)
    after: _Blocks = there
    results: dict[str, str] = {}
    failed: dict[str, str] = {}
    for group in _connected(edits):
        try:
            after = _planned(ground, after, group)
        except (NotFound, Forbidden, Invalid, Conflict) as error:
            failed |= {edit.call_id: str(error) for edit in group}
            continue
        for block_id, changes in by_block(group).items():
            told = [
                edit for edit in changes if edit.shown == "text" and edit.value == changes[-1].value
            ]
            if told and block_id in after and after[block_id].value != told[-1].value:
                results[told[-1].call_id] = after[block_id].value
    stored = _store(ground, after, edits)
    results |= version_notes(edits, stored, failed)
    return Committed(stored, state.archives, results, failed)


def version_notes(
    edits: Iterable[MemoryEdit], stored: Iterable[Block], failed: Container[str]
) -> dict[str, str]:
    """Return by call id the version that an edit became, for the calls that show it."""
    heads = {block.id: block.head for block in stored}
    return {
        edit.call_id: APPLIED.format(
            edit.base.shown_label, (heads.get(edit.base.id) or b"").hex()[:12]
        )
        for edit in edits
        if edit.shown == "version" and edit.call_id not in failed
    }


def _connected(edits: Sequence[MemoryEdit]) -> list[list[MemoryEdit]]:
    """The edits in groups that share no call, no block and no label; within a group they keep their order."""
    groups: list[set[tuple[str, str]]] = []
    for edit in edits:
        ties = _ties(edit)
        joined = ties.union(*(group for group in groups if not group.isdisjoint(ties)))
        groups = [*(group for group in groups if group.isdisjoint(ties)), joined]
    return [[edit for edit in edits if not group.isdisjoint(_ties(edit))] for group in groups]


def _ties(edit: MemoryEdit) -> set[tuple[str, str]]:
    ties = {("call", edit.call_id), ("block", edit.base.id)}
    labels = {edit.base.shown_label} | ({edit.after.shown_label} if edit.after else set())
    is_reshaped = edit.is_new or edit.after is None or len(labels) > 1
    return ties | {("label", label) for label in labels} if is_reshaped else ties


def _planned(ground: _Ground, before: _Blocks, edits: Sequence[MemoryEdit]) -> _Blocks:
    """The blocks as they will be with these edits; raises the error that their calls get as result."""
    after = dict(before)
    relabelled: list[Block] = []
    for id, own in by_block(edits).items():
        base, wanted = own[0].base, own[-1].after
        if own[0].is_new:
            if wanted:
                after[id] = wanted
                relabelled.append(wanted)
            continue
        if id not in after:
            if wanted is None:
                continue  # someone else was faster
            raise NotFound(GONE.format(base.shown_label))
        now = after[id]
        require_writable(now)
        # The policy may have been tightened since the step began.
        ground.context.metadata([edit.reason for edit in own], "").require(
            now.shown_label, now.rule, None
        )
        if wanted is None:
            _require_same(base.value, now.value, base)
            del after[id]
            continue
        after[id] = _changed(ground.context, base, wanted, now)
        if after[id].label != now.label:
            relabelled.append(after[id])
    for block in relabelled:
        _require_free(ground, after, block)
    _require_room(ground, after)
    return after


def _require_room(ground: _Ground, after: _Blocks) -> None:
    """Raise TooLong where the memory that is changed would be larger than it may be, with all that is planned so far."""
    changed: dict[str, list[tuple[Block | None, Block]]] = {}
    for id, block in after.items():
        if block != ground.there.get(id):
            home = block.chain_id or ground.chain_id or ""
            changed.setdefault(home, []).append((ground.there.get(id), block))
    for chain_id, pairs in changed.items():
        new = Chain(chain_id, ground.scope.organization_id, "agent", ground.agent_id)
        require_room(
            ground.tx, (versions.lock(ground.tx, chain_id) if chain_id else None) or new, pairs
        )


def _changed(context: EditContext, base: Block, wanted: Block, now: Block) -> Block:
    """The stored block with what the step changed of `base`; raises Invalid where someone else changed the same."""
    for name in ("label", "description"):
        if getattr(wanted, name) != getattr(base, name):
            _require_same(getattr(base, name), getattr(now, name), base)
            now = replace(now, **{name: getattr(wanted, name)}, seen_as=wanted.seen_as)
    if wanted.value == base.value:
        return now
    merged = merge_lines(base.value, wanted.value, now.value)
    if merged is None:
        raise Invalid(CLOSE.format(base.shown_label))
    now.require_fits(merged)
    context.require_follows(now, merged)
    return replace(now, value=merged)


def _require_same(seen: str | None, stored: str | None, base: Block) -> None:
    if seen != stored:
        raise Invalid(CHANGED.format(base.shown_label))


def _require_free(ground: _Ground, after: _Blocks, block: Block) -> None:
    """Raise Conflict where another block of the agent, of the chain or of another agent that sees this one has its new label."""
    tx, label = ground.tx, block.label
    beside = [one for id, one in after.items() if id != block.id]
    require_free(label, {one.shown_label for one in beside})
    if chain_id := block.chain_id or ground.chain_id:
        for other in blocks.page(
            tx, ground.scope, blocks.ONE, blocks.BlockFilter(label=label, chain_id=chain_id)
        ):
            # One of the agent's that has it still, but will be deleted or renamed first, is not in the way.
            leaves = other.id in after or (other.id in ground.there and _is_own(ground, other))
            if not leaves:
                raise Conflict(TAKEN.format(label))
    there = ground.there.get(block.id)
    # A user's chain is asked about new blocks too, whose chain is not theirs before they are stored.
    home = block.chain_id if there else chain_id
    if (there or (ground.chain and ground.chain.owner_kind == "user")) and (
        chain := versions.lock(tx, home or "")
    ):
        # As it is, and with what others are renamed to or made in this step.
        renamed = {one.label: (b"", 0) for one in beside if one.chain_id in (chain.id, "")}
        replace(chain, files={**chain.files, **renamed}).require_told_apart(
            label, there.label if there else None
        )
    is_attached = there is None and (ground.chain is None or ground.chain.owner_kind == "agent")
    for agent_id in (
        [ground.agent_id] if is_attached else blocks.agent_ids(tx, block.id) if there else ()
    ):
        # Users' blocks may be attached to this agent too, though it does not see them here.
        known = ground.there if agent_id == ground.agent_id else ()
        if any(
            other.label == label and other.id not in known
            for other in blocks.attached(tx, agent_id)
        ):
            raise Conflict(TAKEN.format(label))


def _is_own(ground: _Ground, block: Block) -> bool:
    return block.chain_id == ground.chain_id and blocks.agent_ids(ground.tx, block.id) == [
        ground.agent_id
    ]


def _store(ground: _Ground, after: _Blocks, edits: Sequence[MemoryEdit]) -> tuple[Block, ...]:
    tx, there = ground.tx, ground.there

    def metadata(before: Block | None, block: Block | None) -> ChangeMetadata:
        id = before.id if before else block.id if block else ""
        reasons = [edit.reason for edit in edits if edit.base.id == id]
        return ground.context.metadata(reasons, edit_summary(before, block))

    for id in there.keys() - after.keys():
        # A block that nobody attached is the user's, whose policy lets the agent delete it.
        if _is_own(ground, there[id]) or ground.agent_id not in blocks.agent_ids(tx, id):
            blocks.remove(tx, there[id], metadata(there[id], None))
        else:
            blocks.detach(tx, ground.agent_id, id)
    stored = {id: there[id] for id in after if id in there}
    changed = [block for id, block in after.items() if id in there and block != there[id]]
    wanted = {block.label for block in after.values()}
    for block in changed:
        if block.label != stored[block.id].label in wanted:
            # Its old label is another's new one; out of the way, so that blocks can change places.
            aside = replace(stored[block.id], label=block.id)
            stored[block.id] = blocks.update(
                tx, stored[block.id], aside, metadata(there[block.id], block)
            )
    for block in changed:
        stored[block.id] = blocks.update(
            tx, stored[block.id], block, metadata(there[block.id], block)
        )
    made = [block for id, block in after.items() if id not in there]
    return (*stored.values(), *_make(ground, made, metadata))


def _make(
    ground: _Ground,
    made: Sequence[Block],
    metadata: Callable[[Block | None, Block | None], ChangeMetadata],
) -> list[Block]:
    if not made:
        return []
    tx, organization = ground.tx, made[0].organization_id
    chain = ground.chain or Chain(new_id("chain"), organization, "agent", ground.agent_id)
    new_chains = [] if ground.chain else [chain]
    now = tx.clock.now()
    stored: list[Block] = []
    for block in made:
        new = replace(block, chain_id=chain.id, created_at=now, updated_at=now)
        stored += blocks.insert_all(tx, [new], new_chains, metadata(None, block))
        new_chains = []
    if chain.owner_kind == "agent":  # a user's block is seen where its agent talks with the user
        blocks.attach(tx, ground.agent_id, stored)
    return stored
