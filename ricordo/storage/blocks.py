"""Current blocks, and their attachment to agents.

Edits of core memory are written here. The caller passes the metadata of its change. Each write
checks the block's policy, brings texts into normal form, removes secrets, and adds a version to the
block's chain, all in one transaction. Changes of settings go into a log. No policy applies to
copies and to `normalise`. Three other writers check less: commits that come by git
(`git_objects.py`), restored memory archives, and erasure (`rewriting.py`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    Row,
    String,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
)

from ricordo.domain.block import (
    NEVER_REMEMBER,
    Block,
    Chain,
    OwnerKind,
    require_no_secret,
)
from ricordo.domain.redaction import redact, redact_values
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.text import normal_json, normal_name, normal_text
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, NotFound
from ricordo.storage import block_filter, proposals, versions
from ricordo.storage.engine.repository import (
    Missing,
    Page,
    Repository,
    equal,
    one_of,
    seen_by,
    setter,
)
from ricordo.storage.engine.store import Overtaken, Transaction
from ricordo.storage.history_size import grow, size_of_log
from ricordo.storage.listed_texts import LENGTH, LISTED_COLUMNS, listed_texts, require_whole
from ricordo.storage.quotas import require_room, require_room_to_attach
from ricordo.storage.schema.core_tables import agents, agents_tags
from ricordo.storage.schema.memory_tables import (
    agents_blocks,
    agents_pairs,
    blocks,
    blocks_log,
    blocks_tags,
    chains,
)
from ricordo.storage.skill_labels import is_skill_label
from ricordo.storage.versions import Change

_log = logging.getLogger(__name__)
ROWS = Repository(Block, blocks)
_NORMALISED = ChangeMetadata(
    Actor("system", "ricordo", "Ricordo"), "Bring the text into its normal form"
)
# The texts of a block that people and agents write. The label is a path and cannot be rewritten.
_TEXTS = ("value", "description", "title", "metadata", "tags", "schema_ref", "agent_id", "course")
# Of a change's metadata, the log stores only the author.
_LOG = Repository(ChangeMetadata, blocks_log)
_COLUMNS = ROWS.columns
# Each tag of a block gives one row; a block without tags gives one row too. Few blocks have many
# tags, so this costs less than a second statement.
_TAGGED = (
    select(*_COLUMNS, blocks_tags.c.tag)
    .outerjoin(blocks_tags, blocks_tags.c.block_id == blocks.c.id)
    .order_by(blocks_tags.c.tag)
)
_BY_IDS = _TAGGED.where(one_of(blocks.c.id, "ids"), equal(blocks, "organization_id"))
_BY_IDS_FOR_ONE = _BY_IDS.where(*seen_by(blocks, bindparam("subject_id")))
_LISTED = (
    select(*LISTED_COLUMNS, LENGTH, blocks_tags.c.tag)
    .select_from(blocks)
    .outerjoin(blocks_tags, blocks_tags.c.block_id == blocks.c.id)
    .where(one_of(blocks.c.id, "ids"), equal(blocks, "organization_id"))
    .order_by(blocks_tags.c.tag)
)
_LABELLED = _TAGGED.where(equal(blocks, "chain_id", "label"))
_COPY = ROWS.select.where(
    equal(blocks, "chain_id", "agent_id"),
    func.coalesce(blocks.c.seen_as, blocks.c.label) == bindparam("shown_label"),
)
IS_SKILL = is_skill_label(blocks.c.label)
# A user's blocks are parts of prompts, except skills and the rules against remembering.
IS_IN_PROMPTS = and_(blocks.c.label != NEVER_REMEMBER, ~IS_SKILL)
_LOCK = select(blocks.c.id).where(equal(blocks, "id")).with_for_update(key_share=True)
# The owner of a block: 0 no user, 1 this user, 2 another user.
_WHOSE = case(
    (chains.c.owner_kind != "user", 0), (chains.c.owner_id == bindparam("user_id"), 1), else_=2
).label("whose")
_OF_AGENT = (
    select(*_COLUMNS, _WHOSE, literal_column("0").label("rank"), agents_blocks.c.seq.label("place"))
    .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
    .join(chains, chains.c.id == blocks.c.chain_id)
    .where(equal(agents_blocks, "agent_id"))
    .union_all(
        select(*_COLUMNS, literal_column("1"), literal_column("1"), blocks.c.seq)
        .join(chains, chains.c.id == blocks.c.chain_id)
        .where(
            chains.c.owner_kind == "user",
            chains.c.owner_id == bindparam("user_id"),
            IS_IN_PROMPTS,
            or_(blocks.c.agent_id.is_(None), blocks.c.agent_id == bindparam("memory_id")),
            or_(blocks.c.course.is_(None), blocks.c.course == bindparam("course")),
        )
    )
    .order_by("rank", "place")
)
_ATTACHED = ROWS.select.join(agents_blocks, agents_blocks.c.block_id == blocks.c.id).where(
    equal(agents_blocks, "agent_id")
)
_OF_TAGGED_AGENTS = (
    ROWS.select.join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
    .join(chains, (chains.c.id == blocks.c.chain_id) & (chains.c.owner_kind == "agent"))
    .join(agents_tags, agents_tags.c.agent_id == agents_blocks.c.agent_id)
    .join(agents, agents.c.id == agents_blocks.c.agent_id)
    .where(equal(agents_tags, "tag"), equal(blocks, "organization_id", "label"))
    .where(~agents.c.hidden)
    .order_by(blocks.c.seq)
)
_INSERT_TAG = insert(blocks_tags)
_INSERT_LOG = insert(blocks_log)
_ATTACH = insert(agents_blocks)
_PAIR = Missing(agents_pairs)
_PAIRED = select(agents_pairs.c.other_id).where(equal(agents_pairs, "agent_id"))
# If the other agent has another block with the same label, it keeps that block.
_HAS_IT = select(agents_blocks.c.seq).where(
    agents_blocks.c.agent_id == agents_pairs.c.other_id,
    or_(
        agents_blocks.c.block_id == bindparam("new_block"),
        agents_blocks.c.label == bindparam("new_label"),
    ),
)
_ATTACH_TO_PAIRED = insert(agents_blocks).from_select(
    ["agent_id", "block_id", "label"],
    select(
        agents_pairs.c.other_id,
        bindparam("new_block", type_=String),
        bindparam("new_label", type_=agents_blocks.c.label.type),
    ).where(agents_pairs.c.agent_id == bindparam("to_agent"), ~_HAS_IT.exists()),
)
_IS_AS_READ = blocks.c.version == bindparam("expected")
_WRITTEN = ("value", "version", "head", "is_untrusted", "updated_by", "updated_at")
_write = ROWS.updates(*_WRITTEN, where=_IS_AS_READ)
_OTHER_USERS = 2
# The columns that versions do not contain. Their changes go into a log.
SETTINGS = (
    *("title", "description", "limit", "policy", "schema_ref"),
    *("agent_id", "course", "metadata", "hidden", "read_only", "shared", "seen_as", "egress"),
)
# Settings that a block can be without. Each other setting always has a value.
OPTIONAL_SETTINGS = frozenset(
    field.name for field in fields(Block) if field.name in SETTINGS and field.default is None
)
_update = ROWS.updates("label", *_WRITTEN, *SETTINGS, where=_IS_AS_READ)
_RELABEL = setter(agents_blocks, "label", where=agents_blocks.c.block_id == bindparam("relabelled"))
_DELETE = delete(blocks).where(blocks.c.id == bindparam("block_id"), _IS_AS_READ)
_DELETE_CHAIN = delete(chains).where(chains.c.id == bindparam("chain_id"))
_OF_USER = (
    select(*_COLUMNS)
    .join(chains, chains.c.id == blocks.c.chain_id)
    .where(
        chains.c.owner_kind == "user",
        chains.c.owner_id == bindparam("user_id"),
        equal(blocks, "organization_id"),
    )
    .order_by(blocks.c.label)
)
_WITH_SCHEMA = ROWS.select.where(blocks.c.schema_ref.is_not(None)).order_by(
    blocks.c.chain_id, blocks.c.label
)
_DELETE_TAGS = delete(blocks_tags).where(equal(blocks_tags, "block_id"))
_DETACH = delete(agents_blocks).where(
    equal(agents_blocks, "block_id"),
    or_(equal(agents_blocks, "agent_id"), agents_blocks.c.agent_id.in_(_PAIRED)),
)
_AGENT_IDS = (
    select(agents_blocks.c.agent_id)
    .where(equal(agents_blocks, "block_id"))
    .order_by(agents_blocks.c.seq)
)


_PORTION = (
    select(blocks.c.seq, blocks.c.id, blocks.c.label, blocks.c.value)
    .where(blocks.c.seq > bindparam("after"))
    .order_by(blocks.c.seq)
    .limit(500)
)
ONE = Page(limit=1)
BlockFilter = block_filter.BlockFilter


def _by_chain(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Return the blocks of each chain, in the common order of locking."""
    groups: dict[str, list[Block]] = {}
    for block in blocks:
        groups.setdefault(block.chain_id, []).append(block)
    return sorted(groups.items(), key=itemgetter(0))


def _insert_versions(
    tx: Transaction,
    chain: Chain,
    group: Sequence[Block],
    metadata: ChangeMetadata,
    *,
    is_new_chain: bool,
) -> list[Block]:
    """Store the first versions of a chain's new blocks, and return the blocks with them."""
    changes = [Change(block.label, block.value, before=None) for block in group]
    if is_new_chain:
        ids = versions.begin(tx, chain, changes, metadata)
    else:
        _, ids = versions.record(tx, chain, changes, metadata)
    is_untrusted = metadata.is_untrusted and not metadata.is_owners_of(chain)
    return [
        replace(block, head=id, is_untrusted=is_untrusted) if id else block
        for block, id in zip(group, ids, strict=True)
    ]


def insert_all(
    tx: Transaction,
    new: Sequence[Block],
    chains_of: Sequence[Chain],
    metadata: ChangeMetadata,
    *,
    is_copy: bool = False,
    is_revival: bool = False,
) -> list[Block]:
    """Store new blocks with their first versions and new chains.

    Args:
        tx: The transaction.
        new: The blocks, each in a chain of `chains_of` or in a stored one.
        chains_of: New chains. One without a new block is stored empty.
        metadata: The author and the reason of the first versions.
        is_copy: The texts are not new, so no policy and no quota applies.
        is_revival: The blocks have their former texts and settings, so even a full history accepts
            them.

    Returns:
        The stored blocks in order. If a chain has a block's text under its label already, the block
            gets no new version and keeps its `head`.

    Raises:
        Forbidden: A block's policy does not let the author create it.
        Conflict: A chain was erased, or a label differs only in case from another one of a user.
        TooLong: A block or its owner's memory exceeds a quota.
        Invalid: A label holds a secret.
    """
    new_chains = {chain.id: chain for chain in chains_of}
    if not is_copy:
        for block in new:
            tx.quotas.require_block(block.label, block.size)
    new = [as_stored(block) for block in new]
    metadata = metadata_without_secrets(metadata)
    stored: dict[str, Block] = {}
    for chain_id, group in _by_chain(new):
        new_chain = new_chains.pop(chain_id, None)
        chain = new_chain or _locked(tx, chain_id, [block.label for block in group])
        if not is_copy:
            for block in group:
                metadata.require(block.label, block.rule, chain)
            require_room(tx, chain, [(None, block) for block in group], is_revival=is_revival)
        for block in _insert_versions(tx, chain, group, metadata, is_new_chain=bool(new_chain)):
            stored[block.id] = block
    for chain in new_chains.values():
        versions.insert_chain(tx, chain)
    entities = [stored[block.id] for block in new]
    ROWS.insert(tx, *entities)
    tx.run(
        _INSERT_TAG,
        [{"block_id": block.id, "tag": tag} for block in entities for tag in block.tags],
    )
    return entities


def get(tx: Transaction, scope: Scope, id: str) -> Block:
    """Return the block with this id, with its tags.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The block's id.

    Raises:
        NotFound: The block does not exist, or the caller may not see it.
    """
    return by_ids(tx, scope, [id])[0]


def by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[Block]:
    """Return the blocks with these ids, in order.

    Args:
        tx: The transaction.
        scope: The caller.
        ids: The blocks' ids; one may occur several times.

    Raises:
        NotFound: One of the blocks does not exist, or the caller may not see it.
    """
    stored = _find_all(tx, scope, ids)
    for id in ids:
        if id not in stored:
            raise NotFound(f"Block with id '{id}' not found")  # wire fact
    return [stored[id] for id in ids]


def labelled(tx: Transaction, chain_id: str, label: str) -> Block | None:
    """Return the chain's block with this label, with its tags; None if there is none.

    Args:
        tx: The transaction.
        chain_id: The chain; the caller's access to it is checked before.
        label: The block's label, not the label under which an agent sees a copy.
    """
    blocks_by_id = _tagged(tx.all(_LABELLED, {"chain_id": chain_id, "label": label}))
    return next(iter(blocks_by_id.values()), None)


def copy_in(tx: Transaction, chain_id: str, agent_id: str, shown_label: str) -> Block | None:
    """Return the block of a user's chain that only this agent sees, under this label, or None.

    Args:
        tx: The transaction.
        chain_id: The user's chain.
        agent_id: The agent.
        shown_label: The label under which the agent sees the block. The block itself may have
            another one.
    """
    return ROWS.first(
        tx, _COPY, {"chain_id": chain_id, "agent_id": agent_id, "shown_label": shown_label}
    )


def with_schema(tx: Transaction) -> list[Block]:
    """Return the blocks of all organizations that name a schema, without their tags.

    Args:
        tx: The transaction.
    """
    return ROWS.all(tx, _WITH_SCHEMA)


def owners(tx: Transaction, scope: Scope) -> dict[str, tuple[OwnerKind, str]]:
    """Return kind and id of the owner of each chain in the organization, by chain id.

    Args:
        tx: The transaction.
        scope: The organization; the caller's user does not matter.
    """
    statement = select(chains.c.id, chains.c.owner_kind, chains.c.owner_id)
    rows = tx.all(statement.where(chains.c.organization_id == scope.organization_id))
    return {row.id: (row.owner_kind, row.owner_id) for row in rows}


def lock(tx: Transaction, id: str) -> None:
    """Lock a block until the transaction ends. Does nothing on SQLite.

    Args:
        tx: The transaction.
        id: The block. If it does not exist, nothing is locked.
    """
    tx.lock(_LOCK, {"id": id})


def lock_if_exists(tx: Transaction, id: str) -> bool:
    """Lock the block, and return True; return False if it does not exist.

    Args:
        tx: The transaction.
        id: The block's id.
    """
    return tx.first(_LOCK, {"id": id}) is not None


def of_user(tx: Transaction, scope: Scope, user_id: str) -> tuple[Block, ...]:
    """Return the blocks of the user's chain, ordered by label, without their tags.

    Args:
        tx: The transaction.
        scope: The organization; the caller's right to read this memory is checked before.
        user_id: The user who owns the chain.
    """
    parameters = {"user_id": user_id, "organization_id": scope.organization_id}
    return tuple(ROWS.all(tx, _OF_USER, parameters))


def of_agent(
    tx: Transaction,
    agent_id: str,
    user_id: str | None = None,
    course: str | None = None,
    *,
    memory_id: str | None = None,
) -> tuple[Block, ...]:
    """Return the agent's blocks in order of attachment, then those of its user.

    Tags are not loaded. A user's block replaces an unshared block of the agent with the same label.
    A user's block that is attached to the agent is shown only in conversations with that user. The
    agent's other conversations may be read by everybody.

    Args:
        tx: The transaction.
        agent_id: The agent.
        user_id: The user of the conversation; None or "": there is none.
        course: The agent's course. A user's blocks of other courses are left out; None leaves out
            those of all courses.
        memory_id: The agent that owns the user's copies, if it is another one (see
            `Agent.memory_id`).
    """
    visible: dict[str, Block] = {}
    parameters = {
        "agent_id": agent_id,
        "user_id": user_id or "",
        "course": course,
        "memory_id": memory_id or agent_id,
    }
    for row in tx.all(_OF_AGENT, parameters):
        block = ROWS.of(row[: len(_COLUMNS)])
        if row.whose != _OTHER_USERS:
            add_seen(visible, replace(block, is_users=True) if row.whose else block)
    return tuple(visible.values())


def of_tagged_agents(tx: Transaction, scope: Scope, label: str, tag: str) -> list[Block]:
    """Return blocks with this label that belong to agents with this tag, oldest first.

    Hidden agents are left out.

    Args:
        tx: The transaction.
        scope: The organization; the caller's user does not matter.
        label: The block's label.
        tag: The agent's tag.
    """
    return ROWS.all(
        tx,
        _OF_TAGGED_AGENTS,
        {"organization_id": scope.organization_id, "label": label, "tag": tag},
    )


def page_of_users(
    tx: Transaction, scope: Scope, label: str, after: int, limit: int
) -> list[tuple[int, Block]]:
    """Return some of the users' blocks with this label that all agents see, with their seqs.

    Args:
        tx: The transaction.
        scope: The caller, who must be allowed to see all users' blocks.
        label: The block's label.
        after: The seq of the last block of the page before; 0 for the first page.
        limit: The most blocks.

    Raises:
        NotFound: The caller may not see one of the blocks.
    """
    users_chains = select(chains.c.id).where(
        chains.c.organization_id == scope.organization_id, chains.c.owner_kind == "user"
    )
    statement = (
        select(blocks.c.seq, blocks.c.id)
        .where(blocks.c.chain_id.in_(users_chains), blocks.c.label == label)
        .where(blocks.c.agent_id.is_(None), blocks.c.course.is_(None), blocks.c.seq > after)
        .order_by(blocks.c.seq)
        .limit(limit)
    )
    rows = tx.all(statement)
    blocks_by_id = {block.id: block for block in by_ids(tx, scope, [row.id for row in rows])}
    return [(row.seq, blocks_by_id[row.id]) for row in rows]


def attached(tx: Transaction, agent_id: str) -> list[Block]:
    """Return all blocks that are attached to the agent, those of users included.

    No two of them may have the same label.

    Args:
        tx: The transaction.
        agent_id: The agent.
    """
    return ROWS.all(tx, _ATTACHED, {"agent_id": agent_id})


def add_seen(visible: dict[str, Block], block: Block) -> None:
    """Add a block to the visible blocks by label.

    It replaces an unshared block with the same label.

    Args:
        visible: The visible blocks by the labels under which they are shown. It is changed.
        block: The block to add.
    """
    if block.shown_label not in visible or not visible[block.shown_label].shared:
        visible[block.shown_label] = block


def page(tx: Transaction, scope: Scope, page: Page, filters: BlockFilter) -> list[Block]:
    """Return one page of blocks with their tags and whole texts.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        filters: The conditions.
    """
    rows = ROWS.page(
        tx, scope, page, *filters.conditions(scope), label=filters.label, chain_id=filters.chain_id
    )
    if rows:
        blocks_by_id = _find_all(tx, scope, [block.id for block in rows])
    else:
        blocks_by_id = {}
    return [blocks_by_id[block.id] for block in rows]


def listed(tx: Transaction, scope: Scope, page: Page, filters: BlockFilter) -> list[Block]:
    """Return one page of blocks for a list: long texts are cut.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        filters: The conditions.
    """
    ids = ROWS.page_of_ids(
        tx, scope, page, *filters.conditions(scope), label=filters.label, chain_id=filters.chain_id
    )
    if ids:
        rows = tx.all(_LISTED, {"ids": ids, "organization_id": scope.organization_id})
    else:
        rows = []
    blocks_by_id = _tagged(rows)
    lengths = {row.id: row.length for row in rows}
    cut_blocks = listed_texts(tx, blocks_by_id.values(), lengths)
    return [cut_blocks[id] for id in ids if id in cut_blocks]


count = ROWS.count


def write(tx: Transaction, block: Block, value: str, metadata: ChangeMetadata) -> Block | None:
    """Make `value` the block's text, and return the block.

    Args:
        tx: The transaction.
        block: The block as it was read, perhaps in an earlier transaction.
        value: The new text, of which secrets are redacted.
        metadata: The author and the reason of the new version.

    Returns:
        The stored block; None if it was written or erased since it was read. If its chain was not
            erased, the chain is then locked, so the caller can read the block again.

    Raises:
        Forbidden: The block's policy does not let the author write it.
        TooLong: The block, its owner's memory or its history exceeds a quota.
        Invalid: The text is a list's shortened text of this block.
    """
    tx.quotas.require_text(block.label, value, block.value)
    if block.id in value:
        require_whole(block, value)
    value = redact(normal_text(value)).text
    metadata = metadata_without_secrets(metadata)
    chain = versions.lock(tx, block.chain_id)
    if chain is None:
        return None
    metadata.require(block.label, block.rule, chain)
    require_room(tx, chain, [(block, replace(block, value=value))])
    changes = [Change(block.label, value, before=block.value)]
    planned = versions.plan(chain, changes, metadata, tx.clock.now())
    written = _written(
        tx,
        block,
        block,
        metadata=metadata,
        chain=chain,
        new_version=planned.ids[0],
        value=value,
    )
    if not _write(tx, written, expected=block.version):
        return None
    versions.store(tx, chain, changes, metadata, planned)
    return written


def update(tx: Transaction, block: Block, changed: Block, metadata: ChangeMetadata) -> Block:
    """Store changes of a block that was read in this transaction.

    Changed tags are stored too. A new label is also written to the block's attachments and open
    proposals.

    Args:
        tx: The transaction.
        block: The block as it was read.
        changed: The same block with all its new fields; secrets in changed texts are redacted.
        metadata: The author and the reason.

    Raises:
        Forbidden: The block's policy does not let the author write it.
        Overtaken: Another transaction wrote the block meanwhile.
        Conflict: The chain was erased, or the new label differs only in case from another one of a
            user.
        TooLong: The block or its owner's memory exceeds a quota.
        Invalid: The label holds a secret, or the text is a list's shortened text of this block.
    """
    tx.quotas.require_block(changed.label, changed.size, block.size)
    if block.id in changed.value:
        require_whole(block, changed.value)
    changed = as_stored(changed, block)
    metadata = metadata_without_secrets(metadata)
    if changed.label != block.label:
        old_label = block.label
    else:
        old_label = None
    chain = _locked(tx, block.chain_id, [changed.label] if old_label else [], old_label)
    metadata.require(block.label, block.rule, chain)
    require_room(tx, chain, [(block, changed)])
    new_version = None
    if old_label or changed.value != block.value:
        change = Change(changed.label, changed.value, before=block.value, old_label=old_label)
        _, (new_version,) = versions.record(tx, chain, [change], metadata)
    changed = _written(tx, changed, block, metadata=metadata, chain=chain, new_version=new_version)
    if not _update(tx, changed, expected=block.version):
        raise Overtaken(
            f'Block "{block.label}" changed since you read it. Read it again and retry.'
        )
    if changed.label != block.label:
        tx.run(_RELABEL, {"new_label": changed.label, "relabelled": block.id})
        proposals.follow(tx, block.chain_id, block.label, changed.label)
    if changed.tags != block.tags:
        tx.run(_DELETE_TAGS, {"block_id": block.id})
        tx.run(_INSERT_TAG, [{"block_id": block.id, "tag": tag} for tag in changed.tags])
    settings = {
        name: getattr(changed, name)
        for name in SETTINGS
        if getattr(changed, name) != getattr(block, name)
    }
    if settings:
        log(tx, block, settings, metadata)
    return changed


def not_normal(tx: Transaction, after: int) -> tuple[list[str], int | None]:
    """Return the ids of blocks that are not in normal form, from the portion after this number.

    Args:
        tx: The transaction.
        after: The number (`seq`) of the last block of the portion before; 0 for the first portion.

    Returns:
        The ids, and the portion's last number; None at the end.
    """
    rows = tx.all(_PORTION, {"after": after})
    odd_ids = [
        row.id
        for row in rows
        if normal_name(row.label) != row.label or normal_text(row.value) != row.value
    ]
    return odd_ids, rows[-1].seq if rows else None


def normalise(tx: Transaction, block: Block) -> Block:
    """Store label and text in normal form if they are not, and return the block.

    The change becomes a version by the system, whatever the policy is. Imported blocks with version
    ids, and blocks that are older than the normal form, may need this. If another block has the
    label, this block's label gets a number.

    Args:
        tx: The transaction.
        block: The block as it was read in this transaction.

    Raises:
        Conflict: The chain was erased.
        Overtaken: Another transaction wrote the block meanwhile.
    """
    chain = _locked(tx, block.chain_id)
    # The row may already have the label in its normal form.
    in_chain = block.label
    if in_chain not in chain.files:
        same = (each for each in chain.files if normal_name(each) == normal_name(block.label))
        in_chain = next(same, block.label)
    label = _free_label(tx, chain, block, in_chain)
    value = normal_text(block.value)
    if (label, value) == (in_chain, block.value):
        return block
    old_label = in_chain if label != in_chain else None
    change = Change(label, value, before=block.value, old_label=old_label)
    _, (new_version,) = versions.record(tx, chain, [change], _NORMALISED)
    now = tx.clock.now()
    changed = replace(
        block,
        label=label,
        value=value,
        version=block.version + 1,
        head=new_version or block.head,
        updated_at=now,
    )
    if not _update(tx, changed, expected=block.version):
        raise Overtaken(
            f'Block "{block.label}" changed since you read it. Read it again and retry.'
        )
    if old_label:
        tx.run(_RELABEL, {"new_label": label, "relabelled": block.id})
        proposals.follow(tx, block.chain_id, old_label, label)
    return changed


def _free_label(tx: Transaction, chain: Chain, block: Block, in_chain: str) -> str:
    """Return the label in normal form, with a number if another block has it.

    That block is in the same chain, or is attached to an agent that this block is attached to.
    """
    label = plain = normal_name(block.label)
    if label == in_chain:
        return label
    used_labels = {other for other in chain.files if other != in_chain}
    for agent_id in agent_ids(tx, block.id):
        used_labels |= {other.label for other in attached(tx, agent_id) if other.id != block.id}
    number = 1
    while label in used_labels:
        number += 1
        label = f"{plain}_{number}"
    if number > 1:
        _log.warning("a block was renamed", extra={"block": block.id, "number": number})
    return label


def remove(tx: Transaction, block: Block, metadata: ChangeMetadata) -> None:
    """Delete the block as it was read in this transaction, its attachments and its tags.

    The block's chain is deleted too if it holds only this block. Open proposals expire. A chain of
    a user or an agent keeps the block's history and the settings that a restore needs.

    Args:
        tx: The transaction.
        block: The block as it was read. If it is deleted already, but not its chain, nothing
            happens.
        metadata: The author and the reason.

    Raises:
        Forbidden: The block's policy does not let the author write it.
        Overtaken: Another transaction wrote the block meanwhile.
        Conflict: The chain was erased.
    """
    metadata = metadata_without_secrets(metadata)
    chain = _locked(tx, block.chain_id)
    metadata.require(block.label, block.rule, chain)
    if not tx.run(_DELETE, {"block_id": block.id, "expected": block.version}):
        if not lock_if_exists(tx, block.id):
            return  # another transaction was faster
        # Do not delete a block that has changed, since its last version would record a state that
        # never existed.
        raise Overtaken(
            f'Block "{block.label}" changed since you read it. Read it again and retry.'
        )
    if chain.owner_kind == "block":
        tx.run(_DELETE_CHAIN, {"chain_id": chain.id})
        return
    versions.record(tx, chain, [Change(block.label, None, before=block.value)], metadata)
    proposals.end_of_deleted(tx, chain.id, block.label)
    log(tx, block, {"deleted": {name: getattr(block, name) for name in SETTINGS}}, metadata)


def metadata_without_secrets(metadata: ChangeMetadata) -> ChangeMetadata:
    """Return the metadata with secrets redacted in its reason and its author.

    Args:
        metadata: The metadata as the caller of a write gave it. A client or a remote can send any
            author name.
    """
    author = metadata.author
    author = replace(author, id=redact(author.id).text, name=redact(author.name).text)
    return replace(metadata, reason=redact(normal_text(metadata.reason)).text, author=author)


def as_stored(block: Block, before: Block | None = None) -> Block:
    """Return the block with its texts in normal form and without secrets.

    Args:
        block: The block to store.
        before: The stored block. Texts that are the same in it stay unchanged. None: the block is
            new.

    Raises:
        Invalid: The new label holds a secret.
    """
    if before is None or block.label != before.label:
        block = replace(block, label=normal_name(block.label))
    if before is None or block.label != before.label:
        require_no_secret(block.label)
    texts = {name: getattr(block, name) for name in _TEXTS}
    changed = {
        name: redact_values(normal_json(text, name))
        for name, text in texts.items()
        if before is None or text != getattr(before, name)
    }
    return replace(block, **changed)


def _locked(
    tx: Transaction, chain_id: str, new_labels: Sequence[str] = (), old_label: str | None = None
) -> Chain:
    """Return the chain, locked.

    Raises:
        Conflict: The chain was deleted, or one of the new labels differs only in case from another
            label of a user.
    """
    chain = versions.lock(tx, chain_id)
    if chain is None:
        raise Conflict("The memory of this block was just erased, so nothing was changed.")
    for label in new_labels:
        chain.require_distinct_label(label, old_label)
    return chain


def _written(
    tx: Transaction,
    changed: Block,
    block: Block,
    *,
    metadata: ChangeMetadata,
    chain: Chain,
    new_version: bytes | None,
    **also: Any,
) -> Block:
    """Return the block as it is stored.

    An owner's edit makes the block trusted again, unless text and label stay the same.
    """
    is_untrusted = block.is_untrusted
    if new_version:
        is_untrusted = not metadata.is_owners_of(chain) and (
            metadata.is_untrusted or block.is_untrusted
        )
    return replace(
        changed,
        version=block.version + 1,
        head=new_version or block.head,
        is_untrusted=is_untrusted,
        updated_by=metadata.author.id,
        updated_at=tx.clock.now(),
        **also,
    )


def log(
    tx: Transaction, block: Block, changed: Mapping[str, Any], metadata: ChangeMetadata
) -> None:
    """Log a change that versions do not contain.

    Args:
        tx: The transaction.
        block: The block before the change.
        changed: The changed settings by name; or `deleted` with all settings of a deleted block.
        metadata: The metadata of the change. The log keeps only its author.
    """
    logged = {"label": block.label, **changed}
    row = {
        "chain_id": block.chain_id,
        "block_id": block.id,
        "created_at": tx.clock.now(),
        "changed": logged,
        "deleted_label": block.label if "deleted" in changed else None,
    }
    tx.run(_INSERT_LOG, row | _LOG.values(metadata))
    grow(tx, block.chain_id, size_of_log(logged))


def attach(
    tx: Transaction, agent_id: str, attached: Sequence[Block], *, is_new: bool = False
) -> None:
    """Attach stored blocks to the agent and to the agents that share its memory.

    Args:
        tx: The transaction.
        agent_id: The agent.
        attached: The blocks; the agent has no others with their labels.
        is_new: The agent has no other blocks, and shares no memory yet.

    Raises:
        TooLong: The agent would have too many blocks, or too much memory.
    """
    if attached:
        require_room_to_attach(tx, None if is_new else agent_id, attached)
    rows = [
        {"agent_id": agent_id, "block_id": block.id, "label": block.label} for block in attached
    ]
    tx.run(_ATTACH, rows)
    if not is_new:
        for block in attached:
            new = {"to_agent": agent_id, "new_block": block.id, "new_label": block.label}
            tx.run(_ATTACH_TO_PAIRED, new)


def detach(tx: Transaction, agent_id: str, block_id: str) -> bool:
    """Detach the block from the agent and from the agents that share its memory.

    Args:
        tx: The transaction.
        agent_id: The agent.
        block_id: The block. It stays, even if no agent has it any more.

    Returns:
        False if the block was attached to none of them.
    """
    return tx.run(_DETACH, {"agent_id": agent_id, "block_id": block_id}) > 0


def pair(tx: Transaction, agent_id: str, other_id: str) -> None:
    """Let two agents share one memory.

    Later attachments and detachments of one of them also happen to the other.

    Args:
        tx: The transaction.
        agent_id: One of the agents.
        other_id: The other agent. Blocks that one of them has already are not attached to the other
            here.
    """
    tx.run(
        _PAIR,
        [
            {"agent_id": agent_id, "other_id": other_id},
            {"agent_id": other_id, "other_id": agent_id},
        ],
    )


def unpair(tx: Transaction, agent_id: str, other_id: str) -> None:
    """Give two agents that shared a memory separate attachments again.

    Both keep the blocks that are attached to them now.

    Args:
        tx: The transaction.
        agent_id: One of the agents.
        other_id: The other agent. Pairs of either with a third agent stay.
    """
    both = [agent_id, other_id]
    tx.run(
        delete(agents_pairs).where(
            agents_pairs.c.agent_id.in_(both), agents_pairs.c.other_id.in_(both)
        )
    )


def agent_ids(tx: Transaction, block_id: str) -> list[str]:
    """Return the ids of the agents to which the block is attached, in order of attachment.

    Args:
        tx: The transaction.
        block_id: The block.
    """
    return [row.agent_id for row in tx.all(_AGENT_IDS, {"block_id": block_id})]


def _find_all(tx: Transaction, scope: Scope, ids: Sequence[str]) -> dict[str, Block]:
    parameters = {"ids": list(ids), "organization_id": scope.organization_id}
    if scope.subject_id is None:
        return _tagged(tx.all(_BY_IDS, parameters))
    return _tagged(tx.all(_BY_IDS_FOR_ONE, parameters | {"subject_id": scope.subject_id}))


def _tagged(rows: Sequence[Row[Any]]) -> dict[str, Block]:
    """Return the blocks by id, from rows with one tag each."""
    tags: dict[str, list[str]] = {}
    for row in rows:
        tags.setdefault(row.id, []).extend([row.tag] if row.tag is not None else [])
    first_rows = {row.id: row for row in reversed(rows)}
    return {
        id: replace(ROWS.of(row[: len(_COLUMNS)]), tags=tuple(tags[id]))
        for id, row in first_rows.items()
    }
