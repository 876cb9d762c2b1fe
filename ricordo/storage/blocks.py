"""Blocks as they are now, and their attachment to agents.

The one way to write core memory: a caller gives the metadata of its change, the block's policy is checked, texts are made
normal, secrets are taken out, and the chain it belongs to gets a version in the same transaction.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    Row,
    String,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
)

from ricordo.domain.block import Block, Chain, OwnerKind, require_no_secret
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
from ricordo.storage.schema.memory_tables import (
    agents_blocks,
    agents_pairs,
    blocks,
    blocks_log,
    blocks_tags,
    chains,
)
from ricordo.storage.versions import Change

_log = logging.getLogger(__name__)
ROWS = Repository(Block, blocks)
_NORMALISED = ChangeMetadata(
    Actor("system", "ricordo", "Ricordo"), "Bring the text into its normal form"
)
# What people and agents write of a block; its label is a path, and cannot be rewritten.
_TEXTS = ("value", "description", "title", "metadata", "tags", "schema_ref", "agent_id", "course")
# Of a change the log has its author alone.
_LOG = Repository(ChangeMetadata, blocks_log)
_COLUMNS = ROWS.columns
# A row for each tag, and one where there is none: few blocks have many, and a second statement costs more.
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
_LOCK = select(blocks.c.id).where(equal(blocks, "id")).with_for_update(key_share=True)
# Whose a block is: 0 no user's, 1 the user's, 2 another user's.
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
            or_(blocks.c.agent_id.is_(None), blocks.c.agent_id == bindparam("memory_id")),
            or_(blocks.c.course.is_(None), blocks.c.course == bindparam("course")),
        )
    )
    .order_by("rank", "place")
)
_ATTACHED = ROWS.select.join(agents_blocks, agents_blocks.c.block_id == blocks.c.id).where(
    equal(agents_blocks, "agent_id")
)
_INSERT_TAG, _INSERT_LOG, _ATTACH = insert(blocks_tags), insert(blocks_log), insert(agents_blocks)
_PAIR = Missing(agents_pairs)
_PAIRED = select(agents_pairs.c.other_id).where(equal(agents_pairs, "agent_id"))
# Whoever has another block with the label keeps that one.
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
_ANOTHERS = 2
# What lies outside the tree, whose changes are logged.
SETTINGS = (
    *("title", "description", "limit", "policy", "schema_ref"),
    *("agent_id", "course", "metadata", "hidden", "read_only", "shared", "seen_as"),
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


def insert_all(
    tx: Transaction,
    new: Sequence[Block],
    chains_of: Sequence[Chain],
    metadata: ChangeMetadata,
    *,
    is_copy: bool = False,
    is_revival: bool = False,
) -> list[Block]:
    """Store new blocks with their first versions and new chains. One that its chain holds already stays as given.

    In a revival they come back with settings that they had. An `is_copy` needs no policy and no room: nothing in it is new.
    Raises Forbidden, Conflict, TooLong.
    """
    begun = {chain.id: chain for chain in chains_of}
    if not is_copy:
        for block in new:
            tx.quotas.require_block(block.label, block.size)
    new, metadata = [as_stored(block) for block in new], metadata_without_secrets(metadata)
    stored: dict[str, Block] = {}
    for chain_id in sorted({block.chain_id for block in new}):
        group = [block for block in new if block.chain_id == chain_id]
        new_chain = begun.pop(chain_id, None)
        chain = new_chain or _locked(tx, chain_id, [block.label for block in group])
        if not is_copy:
            for block in group:
                metadata.require(block.label, block.rule, chain)
            require_room(tx, chain, [(None, block) for block in group], is_revival=is_revival)
        changes = [Change(block.label, block.value, before=None) for block in group]
        if new_chain:
            ids = versions.begin(tx, chain, changes, metadata)
        else:
            _, ids = versions.record(tx, chain, changes, metadata)
        is_untrusted = metadata.is_untrusted and not metadata.is_owners_of(chain)
        for block, id in zip(group, ids, strict=True):
            stored[block.id] = replace(block, head=id, is_untrusted=is_untrusted) if id else block
    for chain in begun.values():
        versions.insert_chain(tx, chain)
    made = [stored[block.id] for block in new]
    ROWS.insert(tx, *made)
    tx.run(
        _INSERT_TAG, [{"block_id": block.id, "tag": tag} for block in made for tag in block.tags]
    )
    return made


def get(tx: Transaction, scope: Scope, id: str) -> Block:
    return by_ids(tx, scope, [id])[0]


def by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[Block]:
    """Return the blocks with these ids, in their order; raises NotFound for the first that is missing."""
    found = _found(tx, scope, ids)
    for id in ids:
        if id not in found:
            raise NotFound(f"Block with id '{id}' not found")  # these words are a wire fact
    return [found[id] for id in ids]


def labelled(tx: Transaction, chain_id: str, label: str) -> Block | None:
    found = _tagged(tx.all(_LABELLED, {"chain_id": chain_id, "label": label}))
    return next(iter(found.values()), None)


def copy_in(tx: Transaction, chain_id: str, agent_id: str, shown_label: str) -> Block | None:
    """Return the block of a user's chain that this agent alone sees, and knows by this label."""
    return ROWS.first(
        tx, _COPY, {"chain_id": chain_id, "agent_id": agent_id, "shown_label": shown_label}
    )


def with_schema(tx: Transaction) -> list[Block]:
    """Return the blocks of all organizations that name a schema, without their tags."""
    return ROWS.all(tx, _WITH_SCHEMA)


def owners(tx: Transaction, scope: Scope) -> dict[str, tuple[OwnerKind, str]]:
    statement = select(chains.c.id, chains.c.owner_kind, chains.c.owner_id)
    rows = tx.all(statement.where(chains.c.organization_id == scope.organization_id))
    return {row.id: (row.owner_kind, row.owner_id) for row in rows}


def lock(tx: Transaction, id: str) -> None:
    tx.lock(_LOCK, {"id": id})


def is_there(tx: Transaction, id: str) -> bool:
    return tx.first(_LOCK, {"id": id}) is not None


def of_user(tx: Transaction, scope: Scope, user_id: str) -> tuple[Block, ...]:
    """Return the user's own blocks by their labels, without their tags."""
    values = {"user_id": user_id, "organization_id": scope.organization_id}
    return tuple(ROWS.all(tx, _OF_USER, values))


def of_agent(
    tx: Transaction,
    agent_id: str,
    user_id: str | None = None,
    course: str | None = None,
    *,
    memory_id: str | None = None,
) -> tuple[Block, ...]:
    """Return the agent's blocks in the order of attachment, and those of the user it talks with; without their tags.

    `memory_id` is the agent whose copies the user has, where it is another (see `Agent.memory_id`).

    The user's own replaces one of the agent's with the same label that is not shared. A user's block that is attached to the
    agent is seen where it talks with that user alone: anybody may read its conversations without a user.
    """
    found: dict[str, Block] = {}
    values = {
        "agent_id": agent_id,
        "user_id": user_id or "",
        "course": course,
        "memory_id": memory_id or agent_id,
    }
    for row in tx.all(_OF_AGENT, values):
        block = ROWS.of(row[: len(_COLUMNS)])
        if row.whose != _ANOTHERS:
            add_seen(found, replace(block, is_users=True) if row.whose else block)
    return tuple(found.values())


def attached(tx: Transaction, agent_id: str) -> list[Block]:
    """Return all blocks that are attached to the agent, also those of users: no two of them may have one label."""
    return ROWS.all(tx, _ATTACHED, {"agent_id": agent_id})


def add_seen(found: dict[str, Block], block: Block) -> None:
    """Add a block to those that an agent sees, by their labels; it replaces one with the same label, unless that is shared."""
    if block.shown_label not in found or not found[block.shown_label].shared:
        found[block.shown_label] = block


def page(tx: Transaction, scope: Scope, wanted: Page, which: BlockFilter) -> list[Block]:
    listed = ROWS.page(
        tx, scope, wanted, *which.conditions(scope), label=which.label, chain_id=which.chain_id
    )
    found = _found(tx, scope, [block.id for block in listed]) if listed else {}
    return [found[block.id] for block in listed]


def listed(tx: Transaction, scope: Scope, wanted: Page, which: BlockFilter) -> list[Block]:
    """Return what `page` does for a list that is shown: long texts are cut."""
    ids = ROWS.page_of_ids(
        tx, scope, wanted, *which.conditions(scope), label=which.label, chain_id=which.chain_id
    )
    rows = tx.all(_LISTED, {"ids": ids, "organization_id": scope.organization_id}) if ids else []
    found = _tagged(rows)
    lengths = {row.id: row.length for row in rows}
    shown = listed_texts(tx, found.values(), lengths)
    return [shown[id] for id in ids if id in shown]


count = ROWS.count


def write(tx: Transaction, block: Block, value: str, metadata: ChangeMetadata) -> Block | None:
    """Make `value` the block's text; None where it was written since it was read: it is locked then. Raises Forbidden, TooLong."""
    tx.quotas.require_text(block.label, value, block.value)
    require_whole(block, value)
    value, metadata = redact(normal_text(value)).text, metadata_without_secrets(metadata)
    chain = versions.lock(tx, block.chain_id)
    if chain is None:
        return None
    metadata.require(block.label, block.rule, chain)
    require_room(tx, chain, [(block, replace(block, value=value))])
    changes = [Change(block.label, value, before=block.value)]
    planned = versions.plan(chain, changes, metadata, tx.clock.now())
    written = _written(tx, block, block, metadata, chain, planned.ids[0], value=value)
    if not _write(tx, written, expected=block.version):
        return None
    versions.store(tx, chain, changes, metadata, planned)
    return written


def update(tx: Transaction, block: Block, changed: Block, metadata: ChangeMetadata) -> Block:
    """Store changes of a block read in this transaction, with tags and attachments. Raises Forbidden, Overtaken, TooLong."""
    tx.quotas.require_block(changed.label, changed.size, block.size)
    require_whole(block, changed.value)
    changed, metadata = as_stored(changed, block), metadata_without_secrets(metadata)
    old_label = block.label if changed.label != block.label else None
    chain = _locked(tx, block.chain_id, [changed.label] if old_label else [], old_label)
    metadata.require(block.label, block.rule, chain)
    require_room(tx, chain, [(block, changed)])
    new_version = None
    if old_label or changed.value != block.value:
        change = Change(changed.label, changed.value, before=block.value, old_label=old_label)
        _, (new_version,) = versions.record(tx, chain, [change], metadata)
    changed = _written(tx, changed, block, metadata, chain, new_version)
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
    """Return the ids of blocks not in the normal form in the portion behind this number, and its last one; None at the end."""
    rows = tx.all(_PORTION, {"after": after})
    odd = [
        row.id
        for row in rows
        if normal_name(row.label) != row.label or normal_text(row.value) != row.value
    ]
    return odd, rows[-1].seq if rows else None


def normalise(tx: Transaction, block: Block) -> Block:
    """Store label and text in normal form where they are not: as a version by the system, whatever the policy; returns it so.

    For what came with the ids of its versions, or was stored before there was a normal form. A label that is taken gets a number.
    Raises Conflict, Overtaken.
    """
    chain = _locked(tx, block.chain_id)
    # The row may have the label in its normal form already.
    known = (each for each in chain.files if normal_name(each) == normal_name(block.label))
    in_chain = block.label if block.label in chain.files else next(known, block.label)
    label, value = _free_label(tx, chain, block, in_chain), normal_text(block.value)
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
    """The label in normal form, with a number where another block of the chain, or of an agent that sees it, has it."""
    label = plain = normal_name(block.label)
    if label == in_chain:
        return label
    taken = {each for each in chain.files if each != in_chain}
    for agent_id in agent_ids(tx, block.id):
        taken |= {other.label for other in attached(tx, agent_id) if other.id != block.id}
    number = 1
    while label in taken:
        number += 1
        label = f"{plain}_{number}"
    if number > 1:
        _log.warning("a block got another label", extra={"block": block.id, "number": number})
    return label


def remove(tx: Transaction, block: Block, metadata: ChangeMetadata) -> None:
    """Delete the block as it was read in this transaction, its attachments and tags, and a chain that was its own.

    What waits for it expires. The chain of a user or an agent keeps its history and what it takes to restore it. Raises
    Forbidden, Overtaken.
    """
    metadata = metadata_without_secrets(metadata)
    chain = _locked(tx, block.chain_id)
    metadata.require(block.label, block.rule, chain)
    if not tx.run(_DELETE, {"block_id": block.id, "expected": block.version}):
        if not is_there(tx, block.id):
            return  # another transaction was faster
        # Under another label, or with another text, its last version would be one that never was.
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
    return replace(
        metadata,
        reason=redact(normal_text(metadata.reason)).text,
        author=author_without_secrets(metadata.author),
    )


def author_without_secrets(author: Actor) -> Actor:
    """The author; an agent from elsewhere calls itself what it likes."""
    return replace(author, id=redact(author.id).text, name=redact(author.name).text)


def as_stored(block: Block, before: Block | None = None) -> Block:
    """Return the block with its texts in normal form and without secrets; what is as `before` stays so."""
    if before is None or block.label != before.label:
        block = replace(block, label=normal_name(block.label))
    if before is None or block.label != before.label:
        require_no_secret(block.label)
    given = {name: getattr(block, name) for name in _TEXTS}
    changed = {
        name: value
        for name, value in given.items()
        if before is None or value != getattr(before, name)
    }
    return replace(
        block, **{name: redact_values(normal_json(value, name)) for name, value in changed.items()}
    )


def _locked(
    tx: Transaction, chain_id: str, new: Sequence[str] = (), old_label: str | None = None
) -> Chain:
    """Return the chain, locked; raises Conflict where it was deleted, or where one of the new labels cannot be in it."""
    chain = versions.lock(tx, chain_id)
    if chain is None:
        raise Conflict(
            "The memory that this belongs to was erased a moment ago. Nothing was changed."
        )
    for label in new:
        chain.require_told_apart(label, old_label)
    return chain


def _written(
    tx: Transaction,
    changed: Block,
    block: Block,
    metadata: ChangeMetadata,
    chain: Chain,
    new_version: bytes | None,
    **also: Any,
) -> Block:
    """Return the block as it is stored: an owner's edit makes it trusted again, a version that changes nothing does not."""
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
    """Note a change of what lies outside the tree: settings by name, or `deleted` with all of them."""
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
    """Put stored blocks into the prompt of the agent, which has others unless it `is_new`, and of agents on its memory.

    Raises TooLong.
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
    """Take the block out of the prompts of the agent and of agents on its memory; False where it was in none."""
    return tx.run(_DETACH, {"agent_id": agent_id, "block_id": block_id}) > 0


def pair(tx: Transaction, agent_id: str, other_id: str) -> None:
    """Let two agents work on one memory: what is attached to one of them from now on, or detached, is so to the other."""
    tx.run(
        _PAIR,
        [
            {"agent_id": agent_id, "other_id": other_id},
            {"agent_id": other_id, "other_id": agent_id},
        ],
    )


def unpair(tx: Transaction, agent_id: str, other_id: str) -> None:
    """Let two agents that worked on one memory have each its own attachments."""
    both = [agent_id, other_id]
    tx.run(
        delete(agents_pairs).where(
            agents_pairs.c.agent_id.in_(both), agents_pairs.c.other_id.in_(both)
        )
    )


def agent_ids(tx: Transaction, block_id: str) -> list[str]:
    return [row.agent_id for row in tx.all(_AGENT_IDS, {"block_id": block_id})]


def _found(tx: Transaction, scope: Scope, ids: Sequence[str]) -> dict[str, Block]:
    values = {"ids": list(ids), "organization_id": scope.organization_id}
    if scope.subject_id is None:
        return _tagged(tx.all(_BY_IDS, values))
    return _tagged(tx.all(_BY_IDS_FOR_ONE, values | {"subject_id": scope.subject_id}))


def _tagged(rows: Sequence[Row[Any]]) -> dict[str, Block]:
    """Return the blocks by id, of rows with one tag each."""
    tags: dict[str, list[str]] = {}
    for row in rows:
        tags.setdefault(row.id, []).extend([row.tag] if row.tag is not None else [])
    first = {row.id: row for row in reversed(rows)}
    return {
        id: replace(ROWS.of(row[: len(_COLUMNS)]), tags=tuple(tags[id]))
        for id, row in first.items()
    }
