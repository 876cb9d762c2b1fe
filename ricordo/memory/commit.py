"""Store a step's memory edits in the transaction that saves the step.

If someone else changed a block meanwhile, both changes are merged by lines. If that is impossible,
the tool calls that edited the block fail, and the agent reads the reason. Nothing is overwritten
unseen.

Some steps create, remove, rename or describe blocks, or change several blocks by one call. Their
edits form groups: edits with a common call, block or label are stored together or not at all. Under
locks, each group is planned on the stored memory before any of its edits is written.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory.edits import (
    READ_ONLY,
    EditContext,
    MemoryEdit,
    WorkingMemory,
    by_block,
    require_free,
)
from ricordo.memory.local_user import share_facts
from ricordo.memory.proposals import LABEL_TAKEN, propose_edits
from ricordo.memory.rotation import KEY as ROTATION
from ricordo.memory.rotation import new_passage, rotate
from ricordo.memory.text import edit_summary, merge_lines
from ricordo.memory.unwanted import unwanted_calls
from ricordo.memory.user_copies import needs_copy, users_chain, with_copies
from ricordo.search.index import insert_archive, insert_passages
from ricordo.storage import agents, archives, blocks, versions
from ricordo.storage.engine.store import Overtaken, Transaction
from ricordo.storage.quotas import require_room

DELETED_MEANWHILE = (
    'Memory block "{}" was deleted while you edited it, so there is nothing to edit.'
)
SAME_LINES_CHANGED = (
    'Memory block "{}" was changed by someone else in the same lines while you edited it. '
    "Read it again in your instructions and repeat the edit."
)
CHANGED_MEANWHILE = (
    'Memory block "{}" was changed by someone else in the meantime. '
    "Read it again in your instructions first."
)
_PARTLY_APPLIED = "The rest was applied."
APPLIED = 'Applied to memory block "{}" as version {}.'

# Blocks by id, in the order of their attachment.
_Blocks = Mapping[str, Block]


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The outcome of a step's effects on memory.

    `results` are changed results of calls, and `failed` are the errors of failed calls, both by
    call id.
    """

    blocks: tuple[Block, ...]
    archives: tuple[Archive, ...]
    results: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _StoredMemory:
    """The stored memory: the agent's blocks, and the chain for new blocks.

    The chain is the agent's or the user's; None if it does not exist yet.
    """

    tx: Transaction
    scope: Scope
    agent_id: str
    chain: Chain | None
    blocks: _Blocks
    context: EditContext

    @property
    def chain_id(self) -> str | None:
        if self.chain:
            return self.chain.id
        return None


def store_plan(
    tx: Transaction,
    state: AgentState,
    edits: Sequence[MemoryEdit],
    scope: Scope,
    context: EditContext,
    home_chain: Chain | None,
) -> CommitOutcome:
    """Store the edits, except those that conflict with changes of others.

    The caller has locked the chains of the edited blocks. If an edit does more than change a text,
    the caller has locked the agent too.

    Args:
        tx: The transaction.
        state: The agent as the step began.
        edits: The edits that the policies allow; those of one block are in the order of their
            calls.
        scope: The scope of the turn.
        context: The author of the edits, and the rules that apply to them.
        home_chain: The chain for the agent's new blocks; None if it does not exist yet.
    """
    agent_id = state.agent.id
    user_id = scope.subject_id or state.conversation.user_id
    visible_blocks = blocks.of_agent(
        tx, agent_id, user_id, state.agent.course, memory_id=state.agent.memory_id
    )
    blocks_by_id = {
        block.id: block
        for block in visible_blocks
        if block.organization_id == scope.organization_id
    }
    stored_memory = _StoredMemory(
        tx=tx,
        scope=scope,
        agent_id=agent_id,
        chain=home_chain,
        blocks=blocks_by_id,
        context=context,
    )
    results: dict[str, str] = {}
    failed: dict[str, str] = {}
    for group in _group_edits(edits):
        try:
            stored_memory = _store_group(stored_memory, group)
        except Overtaken:
            raise  # the store runs the step's transaction again
        except (NotFound, Forbidden, Invalid, Conflict) as error:
            failed |= {edit.call_id: str(error) for edit in group}
            continue
        after = stored_memory.blocks
        for block_id, changes in by_block(group).items():
            shown_edits = [
                edit
                for edit in changes
                if edit.result_kind == "text" and edit.value == changes[-1].value
            ]
            if shown_edits and block_id in after and after[block_id].value != shown_edits[-1].value:
                results[shown_edits[-1].call_id] = after[block_id].value
    return CommitOutcome(tuple(stored_memory.blocks.values()), state.archives, results, failed)


def _store_group(stored_memory: _StoredMemory, edits: Sequence[MemoryEdit]) -> _StoredMemory:
    """Store a group of edits, all or none; return the memory with them.

    Raises the error that their calls get as result. If a write fails although the plan allowed it,
    all writes of the group are undone.
    """
    after = _plan_group(stored_memory, stored_memory.blocks, edits)
    if after == stored_memory.blocks:
        return stored_memory
    tx = stored_memory.tx
    with tx.savepoint():
        stored_blocks = _store(stored_memory, after, edits)
    chain = stored_memory.chain
    if chain is None and any(block.id not in stored_memory.blocks for block in stored_blocks):
        chain = versions.of_owner(tx, stored_memory.scope, "agent", stored_memory.agent_id)
    blocks_by_id = {block.id: block for block in stored_blocks}
    return replace(stored_memory, blocks=blocks_by_id, chain=chain)


def _with_versions(outcome: CommitOutcome, edits: Iterable[MemoryEdit]) -> CommitOutcome:
    """Return the outcome with the version of each edit whose tool shows it.

    Args:
        outcome: The outcome of the edits.
        edits: The edits that were stored, or failed. Failed ones get no sentence.
    """
    heads = {block.id: block.head for block in outcome.blocks}
    notes = {
        edit.call_id: APPLIED.format(
            edit.base.shown_label, (heads.get(edit.base.id) or b"").hex()[:12]
        )
        for edit in edits
        if edit.result_kind == "version" and edit.call_id not in outcome.failed
    }
    return replace(outcome, results={**outcome.results, **notes})


def _group_edits(edits: Sequence[MemoryEdit]) -> list[list[MemoryEdit]]:
    """Group the edits so that groups share no call, no block and no label.

    Within a group the edits keep their order.
    """
    groups: list[set[tuple[str, str]]] = []
    for edit in edits:
        keys = _shared_keys(edit)
        joined = keys.union(*(group for group in groups if not group.isdisjoint(keys)))
        groups = [*(group for group in groups if group.isdisjoint(keys)), joined]
    return [
        [edit for edit in edits if not group.isdisjoint(_shared_keys(edit))] for group in groups
    ]


def _shared_keys(edit: MemoryEdit) -> set[tuple[str, str]]:
    keys = {("call", edit.call_id), ("block", edit.base.id)}
    labels = {edit.base.shown_label} | ({edit.after.shown_label} if edit.after else set())
    changes_labels = edit.is_new or edit.after is None or len(labels) > 1
    if changes_labels:
        return keys | {("label", label) for label in labels}
    return keys


def _plan_group(
    stored_memory: _StoredMemory, before: _Blocks, edits: Sequence[MemoryEdit]
) -> _Blocks:
    """Return the blocks as they will be after these edits.

    Raises the error that their calls get as result.
    """
    after = dict(before)
    relabelled: list[Block] = []
    for id, block_edits in by_block(edits).items():
        base = block_edits[0].base
        target = block_edits[-1].after
        if block_edits[0].is_new:
            if target:
                after[id] = target
                relabelled.append(target)
            continue
        if id not in after:
            if target is None:
                continue  # someone else deleted it first
            raise NotFound(DELETED_MEANWHILE.format(base.shown_label))
        current = after[id]
        if current.rule == "read_only":
            raise Forbidden(READ_ONLY)
        # The policy may have been tightened since the step began.
        stored_memory.context.metadata([edit.reason for edit in block_edits], "").require(
            current.shown_label, current.rule, None
        )
        if target is None:
            _require_same(base.value, current.value, base)
            del after[id]
            continue
        after[id] = _merge_change(stored_memory.context, base, target, current)
        if after[id].label != current.label:
            relabelled.append(after[id])
    for block in relabelled:
        _require_free(stored_memory, after, block)
    _require_room(stored_memory, after)
    return after


def _require_room(stored_memory: _StoredMemory, after: _Blocks) -> None:
    """Raise TooLong if the planned memory would be larger than allowed."""
    changed: dict[str, list[tuple[Block | None, Block]]] = {}
    for id, block in after.items():
        if block != stored_memory.blocks.get(id):
            home = block.chain_id or stored_memory.chain_id or ""
            changed.setdefault(home, []).append((stored_memory.blocks.get(id), block))
    for chain_id, pairs in changed.items():
        new = Chain(chain_id, stored_memory.scope.organization_id, "agent", stored_memory.agent_id)
        require_room(
            stored_memory.tx,
            (versions.lock(stored_memory.tx, chain_id) if chain_id else None) or new,
            pairs,
        )


def _merge_change(context: EditContext, base: Block, target: Block, current: Block) -> Block:
    """Return the stored block with the step's change of `base`.

    Raises Invalid if someone else changed the same part.
    """
    for name in ("label", "description"):
        if getattr(target, name) != getattr(base, name):
            _require_same(getattr(base, name), getattr(current, name), base)
            current = replace(current, **{name: getattr(target, name)}, seen_as=target.seen_as)
    if target.value == base.value:
        return current
    merged = merge_lines(base.value, target.value, current.value)
    if merged is None:
        raise Invalid(SAME_LINES_CHANGED.format(base.shown_label))
    current.require_fits(merged)
    context.require_follows(current, merged)
    return replace(current, value=merged)


def _require_same(base_text: str | None, stored_text: str | None, base: Block) -> None:
    if base_text != stored_text:
        raise Invalid(CHANGED_MEANWHILE.format(base.shown_label))


def _require_free(stored_memory: _StoredMemory, after: _Blocks, block: Block) -> None:
    """Raise Conflict if another block has the block's new label.

    The label is compared with blocks of the agent, of the chain, and of other agents that see this
    block.
    """
    tx = stored_memory.tx
    label = block.label
    other_blocks = [other_block for id, other_block in after.items() if id != block.id]
    require_free(label, {other_block.shown_label for other_block in other_blocks})
    if chain_id := block.chain_id or stored_memory.chain_id:
        _require_free_in_chain(stored_memory, after, label, chain_id)
    stored_block = stored_memory.blocks.get(block.id)
    # In a user's chain new blocks are checked too; their chain is set when they are stored.
    chain_of_block = block.chain_id if stored_block else chain_id
    if stored_block or (stored_memory.chain and stored_memory.chain.owner_kind == "user"):
        old_label = stored_block.label if stored_block else None
        if chain := versions.lock(tx, chain_of_block or ""):
            _require_distinct_label(chain, other_blocks, label, old_label)
    agent_ids: Sequence[str] = ()
    if stored_block:
        agent_ids = blocks.agent_ids(tx, block.id)
    elif stored_memory.chain is None or stored_memory.chain.owner_kind == "agent":
        agent_ids = [stored_memory.agent_id]
    for agent_id in agent_ids:
        _require_free_at_agent(stored_memory, label, agent_id)


def _require_distinct_label(
    chain: Chain, other_blocks: Sequence[Block], label: str, old_label: str | None
) -> None:
    # The chain, with the labels that this step gives to other blocks.
    renamed = {
        other_block.label: (b"", 0)
        for other_block in other_blocks
        if other_block.chain_id in (chain.id, "")
    }
    replace(chain, files={**chain.files, **renamed}).require_distinct_label(label, old_label)


def _require_free_in_chain(
    stored_memory: _StoredMemory, after: _Blocks, label: str, chain_id: str
) -> None:
    """Raise Conflict if a block that stays in the chain has the label."""
    has_label = blocks.BlockFilter(label=label, chain_id=chain_id)
    for other in blocks.page(stored_memory.tx, stored_memory.scope, blocks.ONE, has_label):
        # A block that this step deletes or renames first does not block the label.
        leaves = other.id in after or (
            other.id in stored_memory.blocks and _is_own(stored_memory, other)
        )
        if not leaves:
            raise Conflict(LABEL_TAKEN.format(label))


def _require_free_at_agent(stored_memory: _StoredMemory, label: str, agent_id: str) -> None:
    """Raise Conflict if another block that is attached to the agent has the label."""
    # Users' blocks may be attached to this agent even if this conversation does not show them.
    visible_ids = stored_memory.blocks if agent_id == stored_memory.agent_id else ()
    for other in blocks.attached(stored_memory.tx, agent_id):
        if other.label == label and other.id not in visible_ids:
            raise Conflict(LABEL_TAKEN.format(label))


def _is_own(stored_memory: _StoredMemory, block: Block) -> bool:
    return block.chain_id == stored_memory.chain_id and blocks.agent_ids(
        stored_memory.tx, block.id
    ) == [stored_memory.agent_id]


def _may_remove(stored_memory: _StoredMemory, block: Block) -> bool:
    """Return whether the agent may delete the block, rather than only detach it."""
    if _is_own(stored_memory, block):
        return True
    # A block that is not attached belongs to the user, and its policy lets the agent delete it.
    return stored_memory.agent_id not in blocks.agent_ids(stored_memory.tx, block.id)


def _store(
    stored_memory: _StoredMemory, after: _Blocks, edits: Sequence[MemoryEdit]
) -> tuple[Block, ...]:
    tx = stored_memory.tx
    before_by_id = stored_memory.blocks

    def metadata(before: Block | None, block: Block | None) -> ChangeMetadata:
        edited_block = before or block
        id = edited_block.id if edited_block else ""
        reasons = [edit.reason for edit in edits if edit.base.id == id]
        return stored_memory.context.metadata(reasons, edit_summary(before, block))

    for id in before_by_id.keys() - after.keys():
        if _may_remove(stored_memory, before_by_id[id]):
            blocks.remove(tx, before_by_id[id], metadata(before_by_id[id], None))
        else:
            blocks.detach(tx, stored_memory.agent_id, id)
    stored_by_id = {id: before_by_id[id] for id in after if id in before_by_id}
    changed = [block for id, block in after.items() if block != before_by_id.get(id, block)]
    # Blocks that shrink make room for those that grow.
    changed.sort(key=lambda block: block.size - before_by_id[block.id].size)
    new_labels = {block.label for block in after.values()}
    for block in changed:
        if block.label != stored_by_id[block.id].label in new_labels:
            # Another block gets this block's old label, so use a temporary label. Then two blocks
            # can swap labels.
            with_id_as_label = replace(stored_by_id[block.id], label=block.id)
            stored_by_id[block.id] = blocks.update(
                tx,
                stored_by_id[block.id],
                with_id_as_label,
                metadata(before_by_id[block.id], block),
            )
    for block in changed:
        stored_by_id[block.id] = blocks.update(
            tx, stored_by_id[block.id], block, metadata(before_by_id[block.id], block)
        )
    new_blocks = [block for id, block in after.items() if id not in before_by_id]
    return (*stored_by_id.values(), *_insert_new(stored_memory, new_blocks, metadata))


def _insert_new(
    stored_memory: _StoredMemory,
    new_blocks: Sequence[Block],
    metadata: Callable[[Block | None, Block | None], ChangeMetadata],
) -> list[Block]:
    if not new_blocks:
        return []
    tx = stored_memory.tx
    organization = new_blocks[0].organization_id
    chain = stored_memory.chain or Chain(
        new_id("chain"), organization, "agent", stored_memory.agent_id
    )
    new_chains = [] if stored_memory.chain else [chain]
    now = tx.clock.now()
    stored_blocks: list[Block] = []
    for block in new_blocks:
        new_block = replace(block, chain_id=chain.id, created_at=now, updated_at=now)
        stored_blocks += blocks.insert_all(tx, [new_block], new_chains, metadata(None, block))
        new_chains = []
    if chain.owner_kind == "agent":  # the agent sees users' blocks in conversations with them
        blocks.attach(tx, stored_memory.agent_id, stored_blocks)
    return stored_blocks


@dataclass(frozen=True, slots=True)
class _SplitEdits:
    """A step's edits, separated by the policies of their blocks.

    Attributes:
        direct: Edits to apply at once.
        waiting: Edits that need approval.
        texts: Direct edits by block. They are set only if each call changes just the text of one
            block, because then no block depends on another. Otherwise they are None.
    """

    edits: Sequence[MemoryEdit]
    direct: Sequence[MemoryEdit]
    waiting: Sequence[MemoryEdit]
    texts: Mapping[str, Sequence[MemoryEdit]] | None


def _split_by_policy(edits: Sequence[MemoryEdit], context: EditContext) -> _SplitEdits:
    """Split the edits into direct ones and ones that need approval.

    If one edit of a block needs approval, all edits of that block do.
    """
    waiting_ids = {edit.base.id for edit in edits if context.policy_decision(edit) == "propose"}
    direct = [edit for edit in edits if edit.base.id not in waiting_ids]
    waiting = [edit for edit in edits if edit.base.id in waiting_ids]
    blocks_by_call = {(edit.call_id, edit.base.id) for edit in direct}
    is_simple = len(blocks_by_call) == len({call_id for call_id, _ in blocks_by_call})
    texts = None
    if is_simple and all(edit.changes_text_alone for edit in direct):
        texts = by_block(direct)
    return _SplitEdits(edits, direct, waiting, texts)


def commit(
    tx: Transaction, state: AgentState, memory: WorkingMemory, scope: Scope, context: EditContext
) -> CommitOutcome:
    """Store the step's edits and passages.

    Edits that need approval by the block's policy become proposals to its owner.

    Args:
        tx: The transaction that saves the step.
        state: The agent as the step began.
        memory: The step's edits and passages. It is not changed.
        scope: The scope of the turn.
        context: The author of the edits, and the rules that apply to them.
    """
    user_id = state.conversation.user_id
    unwanted = unwanted_calls(tx, state, memory.edits, memory.passages) if user_id else {}
    passage_drafts = [draft for draft in memory.passages if draft.call_id not in unwanted]
    split = _split_by_policy(
        [edit for edit in memory.edits if edit.call_id not in unwanted], context
    )
    makes_blocks = any(
        edit.is_new or (user_id and needs_copy(edit.base, user_id)) for edit in split.edits
    )
    home_chain = _lock(
        tx, state, split, files_passages=bool(passage_drafts), makes_blocks=makes_blocks
    )
    if home_chain and makes_blocks and user_id:
        state, edits = with_copies(tx, state, split.edits, home_chain.id, context.author)
        reshapes = split.texts is None
        split = _split_by_policy(edits, context)
        split = replace(split, texts=None) if reshapes else split
    if split.texts is None:
        outcome = store_plan(
            tx, state, split.direct, scope=scope, context=context, home_chain=home_chain
        )
    else:
        outcome = _write_texts(tx, state, split.texts, scope, context)
    if any(edit.result_kind == "version" for edit in split.direct):
        outcome = _with_versions(outcome, split.direct)
    edited_ids = {edit.base.id for edit in split.direct if edit.call_id not in outcome.failed}
    if split.waiting:
        outcome = _propose_waiting(
            tx, state, split.waiting, outcome=outcome, context=context, home_chain=home_chain
        )
    step_blocks, rotated = outcome.blocks, list[Passage]()
    if any(ROTATION in block.metadata for block in step_blocks):
        step_blocks, rotated = _rotate_filled(tx, state, step_blocks, edited_ids, context)
    drafts = [
        new_passage(tx, state, context, text=draft.text, tags=draft.tags, id=draft.id)
        for draft in passage_drafts
    ]
    passages = [*drafts, *rotated]
    archives_now = file_passages(tx, state, passages) if passages else state.archives
    failed = {**outcome.failed, **unwanted}
    if scope.is_local_user:
        direct = [edit for edit in split.direct if edit.call_id not in failed]
        share_facts(tx, state, direct, scope, context)
    return replace(outcome, blocks=step_blocks, archives=archives_now, failed=failed)


def _propose_waiting(
    tx: Transaction,
    state: AgentState,
    waiting: Sequence[MemoryEdit],
    outcome: CommitOutcome,
    context: EditContext,
    home_chain: Chain | None,
) -> CommitOutcome:
    """Propose the edits that need approval; return the outcome with their results."""
    dropped_failures = _failed_with(outcome.failed, waiting)
    proposable = [edit for edit in waiting if edit.call_id not in dropped_failures]
    proposal_texts, refusals = propose_edits(tx, proposable, context, home_chain, state.blocks)
    proposal_results = {
        call_id: f"{text} {_PARTLY_APPLIED}" if call_id in outcome.results else text
        for call_id, text in proposal_texts.items()
    }
    return replace(
        outcome,
        results={**outcome.results, **proposal_results},
        failed={**outcome.failed, **dropped_failures, **refusals},
    )


def _lock(
    tx: Transaction,
    state: AgentState,
    split: _SplitEdits,
    *,
    files_passages: bool,
    makes_blocks: bool,
) -> Chain | None:
    """Lock the agent if needed, then the chains in the common order.

    Returns the chain for new blocks (the user's or the agent's); None if the step needs none, or if
    the agent has none yet.
    """
    edits = split.edits
    reshapes = split.texts is None
    is_mixed = bool(split.direct and split.waiting)
    rotates = any(edit.base.metadata.get(ROTATION) for edit in split.direct)
    files_passages = files_passages or rotates
    if not (reshapes or files_passages or makes_blocks or is_mixed):
        return None
    scope = Scope(state.agent.organization_id)
    user_id = state.conversation.user_id
    home_chain = None
    if reshapes or (files_passages and edits):
        agents.lock(tx, scope, state.agent.id)
    if user_id and (reshapes or makes_blocks):
        home_chain = users_chain(tx, state.agent, user_id)
    elif reshapes:
        home_chain = versions.of_owner(tx, scope, "agent", state.agent.id)
    if reshapes or makes_blocks or is_mixed:
        chain_ids = {edit.base.chain_id for edit in edits if edit.base.chain_id}
        versions.lock_all(tx, chain_ids | {home_chain.id} if home_chain else chain_ids)
    return home_chain


def _rotate_filled(
    tx: Transaction,
    state: AgentState,
    stored: Sequence[Block],
    edited_ids: Container[str],
    context: EditContext,
) -> tuple[tuple[Block, ...], list[Passage]]:
    """Rotate blocks that this step filled up.

    A block that its owner has filled is not changed.

    Returns:
        All blocks, and new passages with the texts that were moved out of them.
    """
    before = {block.id: block.version for block in state.blocks}
    blocks_now: list[Block] = []
    removed_passages: list[Passage] = []
    for block in stored:
        is_written = block.id in edited_ids and block.version != before.get(block.id)
        if is_written:
            rotated = rotate(tx, state, block, context)
        else:
            rotated = None
        blocks_now.append(rotated[0] if rotated else block)
        removed_passages += [rotated[1]] if rotated else []
    return tuple(blocks_now), removed_passages


def _failed_with(failed: Mapping[str, str], waiting: Sequence[MemoryEdit]) -> dict[str, str]:
    """Return failure texts, by call id, for waiting edits that cannot be proposed.

    The reason is that their call failed, or that another call on the same block failed.
    """
    reasons = {edit.base.id: failed[edit.call_id] for edit in waiting if edit.call_id in failed}
    return {edit.call_id: reasons[edit.base.id] for edit in waiting if edit.base.id in reasons}


def _write_texts(
    tx: Transaction,
    state: AgentState,
    texts: Mapping[str, Sequence[MemoryEdit]],
    scope: Scope,
    context: EditContext,
) -> CommitOutcome:
    """Write each block's edits of one step as one version.

    The version's change leads from the text at the start of the step to the text after its last
    edit.
    """
    written: dict[str, Block] = {}
    overtaken_edits: list[MemoryEdit] = []
    # Lock in the order of chains, as all code does: otherwise two steps could wait for each other.
    for block_id, edits in sorted(texts.items(), key=lambda item: item[1][0].base.chain_id):
        base = edits[0].base
        metadata = context.metadata(
            (edit.reason for edit in edits), edit_summary(base, edits[-1].after)
        )
        try:
            block = blocks.write(tx, base, edits[-1].value, metadata)
        except (Forbidden, Invalid):
            block = None  # `store_plan` reports the reason
        if block:
            written[block_id] = block
        else:
            # Someone else changed the block first, or the write was refused. `store_plan` finds out
            # which.
            overtaken_edits += edits
    blocks_now = tuple(written.get(block.id, block) for block in state.blocks)
    if overtaken_edits:
        return store_plan(tx, state, overtaken_edits, scope=scope, context=context, home_chain=None)
    return CommitOutcome(blocks_now, state.archives)


def file_passages(
    tx: Transaction, state: AgentState, new_passages: Sequence[Passage]
) -> tuple[Archive, ...]:
    """Put passages into the agent's first archive, and ignore their `archive_id`.

    An agent that works on another agent's memory files them in the other agent's archive.

    Args:
        tx: The transaction.
        state: The agent with its archives.
        new_passages: The passages to store.

    Returns:
        The agent's archives; one is created if it has none.
    """
    owner = state.agent
    scope = Scope(state.agent.organization_id)
    if archives_now := _file(tx, owner.memory_id, state.archives, new_passages):
        return archives_now
    # Read again under the lock. Since `state` was loaded, another turn may have created an archive,
    # or another write may have deleted or detached the first one.
    agents.lock(tx, scope, owner.memory_id)
    if archives_now := _file(
        tx, owner.memory_id, archives.of_agent(tx, owner.memory_id), new_passages
    ):
        return archives_now
    if owner.is_asleep_for:
        owner = agents.find(tx, scope, owner.is_asleep_for) or owner
    now = tx.clock.now()
    archive = Archive(
        id=new_id("archive"),
        organization_id=owner.organization_id,
        name=f"{owner.name}'s archive",
        embedding=owner.embedding,
        created_by=owner.id,
        created_at=now,
        updated_at=now,
    )
    filed_passages = [replace(passage, archive_id=archive.id) for passage in new_passages]
    return (insert_archive(tx, archive, owner=owner.id, new_passages=filed_passages),)


def _file(
    tx: Transaction, agent_id: str, attached: Sequence[Archive], new_passages: Sequence[Passage]
) -> tuple[Archive, ...] | None:
    if not attached:
        return None
    filed_passages = [replace(passage, archive_id=attached[0].id) for passage in new_passages]
    try:
        return (
            insert_passages(tx, attached[0], filed_passages, attached_to=agent_id),
            *attached[1:],
        )
    except NotFound:
        return None
