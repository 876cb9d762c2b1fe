"""A user's memory: read, write, delete, restore, rename and propose blocks.

Every change locks the chain first, so memory does not change between reading and writing. A read
takes no lock.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from ricordo.domain.block import Block, Chain, Policy, is_skill, new_in, require_label
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.text import normal_text
from ricordo.domain.version import BlockVersion, ChangeMetadata, Proposal
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound, Stale
from ricordo.memory.course_blocks import begin_as_course
from ricordo.memory.edits import replaced_piece, require_storable
from ricordo.memory.proposals import ProposalDraft, propose, require_shown
from ricordo.memory.rotation import read_rotation
from ricordo.memory.text import change_summary, merge_lines
from ricordo.storage import agents, blocks, history, proposals, users, versions
from ricordo.storage.engine.store import Transaction

_LIMIT_BOUND = 2_000_000_000
# The settings of a deleted block that a list of past blocks shows.
_KEPT_SETTINGS = ("title", "policy", "limit", "read_only", "schema_ref", "agent_id", "course")


@dataclass(frozen=True, slots=True)
class UserMemory:
    """A user and the user's chain.

    The chain may not be stored yet (see `open_memory`). Then the memory has no blocks.
    """

    user: User
    chain: Chain

    @property
    def owner(self) -> Actor:
        return Actor("user", self.user.id, self.user.name)

    @property
    def scope(self) -> Scope:
        return Scope(self.chain.organization_id)


@dataclass(frozen=True, slots=True)
class PutOptions:
    """Options of a write.

    Attributes:
        message: The reason of the change; None: a summary of the changed lines.
        expected: The version from which the text was edited, as a hex id or its first digits (at
            least 7). None overwrites whatever the block has now.
        title: This and the fields below are settings of the block. None leaves a setting as it is.
    """

    message: str | None = None
    expected: str | None = None
    title: str | None = None
    description: str | None = None
    limit: int | None = None
    policy: Policy | None = None
    schema_ref: str | None = None
    agent_id: str | None = None
    course: str | None = None

    def settings(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in asdict(self).items()
            if name in blocks.SETTINGS and value is not None
        }


@dataclass(frozen=True, slots=True)
class ProposalOptions:
    """Options of a proposed edit.

    Attributes:
        reasoning: The reason that the owner sees; "": a summary of the changed lines.
        confidence: Between 0 and 1; None if unknown.
        replace_all: Replace every occurrence. Otherwise the text must occur exactly once.
        expires_after: The lifetime of the proposal in microseconds; None: it never expires.
    """

    reasoning: str = ""
    confidence: float | None = None
    replace_all: bool = False
    expires_after: int | None = None


_PUT = PutOptions()
_PROPOSAL = ProposalOptions()


def open_memory(
    tx: Transaction, scope: Scope, user_name: str, *, makes: bool = False
) -> UserMemory:
    """Return the memory of the user with this id or identifier.

    Args:
        tx: The transaction.
        scope: The caller, who must be allowed to know of the user.
        user_name: A user's id or identifier.
        makes: Create a missing user and a missing chain. Otherwise the returned chain may not be
            stored yet, and every write to it raises NotFound.

    Raises:
        NotFound: There is no such user, or the caller may not create it.
        Invalid: No user can have this name.
        Collision: The new name looks like that of another user.
    """
    if makes:
        user = users.find_or_make(tx, scope, user_name)
    else:
        user = users.require(tx, scope, user_name)
    if chain := versions.of_owner(tx, scope, "user", user.id):
        return UserMemory(user, chain)
    new_chain = Chain(new_id("chain"), user.organization_id, "user", user.id)
    if makes:
        # Two concurrent first writes would create two chains, so the second one waits for this
        # lock.
        users.lock(tx, user.id)
        if chain := versions.of_owner(tx, scope, "user", user.id):
            return UserMemory(user, chain)
        versions.insert_chain(tx, new_chain)
    return UserMemory(user, new_chain)


def listed(tx: Transaction, memory: UserMemory) -> tuple[Block, ...]:
    """Return the blocks in the order of their labels, without their tags.

    Args:
        tx: The transaction.
        memory: The memory of one user.
    """
    return blocks.of_user(tx, memory.scope, memory.user.id)


def listed_without_skills(tx: Transaction, memory: UserMemory) -> tuple[Block, ...]:
    """Return the user's blocks as `listed` does, but without skills.

    A skill is about a kind of task and says nothing about the user.

    Args:
        tx: The transaction.
        memory: The memory of one user.
    """
    return tuple(block for block in listed(tx, memory) if not is_skill(block.label))


def listed_at(tx: Transaction, memory: UserMemory, time: int) -> tuple[Block, ...]:
    """Return the blocks as they were at a time, by the labels that they had then.

    Settings are the current ones; a block deleted since then has its last settings.

    Args:
        tx: The transaction.
        memory: The memory to read.
        time: A time in microseconds UTC.
    """
    now = {block.label: block for block in listed(tx, memory)}
    past = history.all_at(tx, memory.chain.id, time)
    texts = versions.read_texts(
        tx, memory.chain.id, [version.blob for version in past if version.blob]
    )
    return tuple(
        replace(
            _settings_of(tx, memory, now, version),
            label=version.label,
            value=texts[version.blob or b""],
            head=version.id,
            is_untrusted=version.is_untrusted,
            updated_at=version.created_at,
        )
        for version in past
    )


def _settings_of(
    tx: Transaction, memory: UserMemory, now: Mapping[str, Block], version: BlockVersion
) -> Block:
    """Return the block at a past version, with its current or last settings."""
    label = history.label_now(tx, version)
    if block := now.get(label):
        return block
    bare = Block("", memory.chain.organization_id, memory.chain.id, label, "")
    deleted = history.last_deleted(tx, memory.chain.id, label)
    if deleted is None:
        return bare
    known = {name: value for name, value in deleted.settings.items() if name in _KEPT_SETTINGS}
    return replace(bare, id=deleted.block_id, **known)


def find(tx: Transaction, memory: UserMemory, label: str) -> Block | None:
    """Return the user's block with this label; None if there is none.

    Args:
        tx: The transaction.
        memory: The memory to read.
        label: The current label in its normal form.
    """
    return blocks.labelled(tx, memory.chain.id, label)


def require(tx: Transaction, memory: UserMemory, label: str) -> Block:
    """Return the user's block with this label.

    Args:
        tx: The transaction.
        memory: The memory to read.
        label: The current label in its normal form.

    Raises:
        NotFound: There is no such block.
    """
    block = find(tx, memory, label)
    if block is None:
        raise NotFound(f'There is no memory block "{label}". Read the list of blocks.')
    return block


def put(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    text: str,
    by: Actor | ChangeMetadata,
    options: PutOptions = _PUT,
) -> Block:
    """Write the block, merged with changes since `options.expected`.

    A missing block is created. A text that changes nothing makes no version.

    Args:
        tx: The transaction.
        memory: The user's memory, opened with `makes` if it may be new.
        label: The block's label; it is brought into its normal form.
        text: The whole new text.
        by: The author of the change, or metadata that also names the run and the step. An empty
            reason in the metadata is replaced by `options.message` or by a summary.
        options: The reason, the version that was edited, and settings to change.

    Returns:
        The block with the stored text, from which secrets are removed.

    Raises:
        Stale: The block was deleted since the expected version, or the changes cannot be merged.
        Invalid: The label, a text or a setting cannot be stored.
        TooLong: The text exceeds the block's limit, or the memory its quotas.
        Forbidden: The block's policy does not let this author write it.
        Conflict: Another label differs only in case, or several versions begin with the expected
            digits.
        NotFound: The memory is not stored, or was erased.
    """
    label = require_label(label)
    memory = _lock_memory(tx, memory)
    block = find(tx, memory, label)
    tx.quotas.require_text(label, text, block.value if block else "")
    text = normal_text(text)
    require_storable(text, options.message, options.title, options.description)
    settings = _checked_settings(options.settings())
    if block:
        replace(block, limit=settings.get("limit", block.limit)).require_fits(text)
    if block:
        summary = change_summary(label, block.value, text, f"Edit {label}")
    else:
        summary = f"Make {label}"
    metadata = _metadata(by, options.message or summary)
    if block is None:
        require_no_version("block", label, options.expected)
        return make(tx, memory.chain, label, text=text, metadata=metadata, settings=settings)
    merged_text = merged(tx, block, text, options.expected)
    return _update(tx, memory.chain, block, {**settings, "value": merged_text}, metadata)


def make(
    tx: Transaction,
    chain: Chain,
    label: str,
    text: str,
    metadata: ChangeMetadata,
    settings: Mapping[str, Any],
    *,
    is_revival: bool = False,
) -> Block:
    """Store a new block in a locked chain; a revival creates a deleted block again.

    Args:
        tx: The transaction, which holds the lock of the chain.
        chain: The owner's chain as it was read under the lock.
        label: A free label; it is brought into its normal form.
        text: The first text; "" makes an empty block.
        metadata: The author, who becomes the block's creator, and the reason of the first version.
        settings: Fields of `Block` by name. A block of a student is completed from the course's
            block with the same label, except for a revival.
        is_revival: The text and the settings are those of the deleted block, so even a full history
            accepts them.

    Raises:
        Conflict: The label is taken, or another label differs only in case.
        Invalid: The label cannot name a block.
        TooLong: The text exceeds the limit, or the memory its quotas.
        Forbidden: The policy of the new block does not let this author create it.
    """
    label = require_label(label)
    text = normal_text(text)
    if not is_revival:
        settings = begin_as_course(tx, chain, label, settings)
    block = new_in(chain, label, metadata.author.id, tx.clock.now(), value=text, **settings)
    block.require_fits(text)
    if label in chain.files:
        raise Conflict(f'A memory block "{label}" already exists. Choose another label.')
    return blocks.insert_all(tx, [block], [], metadata, is_revival=is_revival)[0]


def delete(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    by: Actor | ChangeMetadata,
    *,
    message: str | None = None,
    expected: str | None = None,
) -> None:
    """Delete the block; its history stays, and it can be restored.

    Args:
        tx: The transaction.
        memory: The user's memory.
        label: The current label.
        by: The author, or metadata whose empty reason `message` replaces.
        message: The reason; None: "Delete" and the label.
        expected: The version that the caller has seen, as a hex id or its first digits (at least
            7). None deletes any version.

    Raises:
        NotFound: There is no such block, or the memory is empty.
        Stale: The block has another version than the expected one.
        Forbidden: The block's policy does not let this author write it.
        Invalid: The database cannot store the message.
    """
    require_storable(message)
    memory = _lock_memory(tx, memory)
    block = require(tx, memory, label)
    if expected is not None and not is_current(block, expected):
        raise _stale(block, expected)
    blocks.remove(tx, block, _metadata(by, message or f"Delete {label}"))


def restore(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    version_id: str,
    by: Actor | ChangeMetadata,
    *,
    message: str | None = None,
) -> Block:
    """Restore the text of a version as the next version; a deleted block is created again.

    Args:
        tx: The transaction.
        memory: The user's memory.
        label: The current label, or the last label of a deleted block.
        version_id: The hex id of the version, or its first digits (at least 7).
        by: The author, or metadata whose empty reason `message` replaces.
        message: The reason; None: a sentence with the label and the version.

    Raises:
        NotFound: There is no such version, or the block did not exist at it.
        Conflict: Several versions begin with these digits, or the label of a deleted block now
            differs only in case from another one.
        TooLong: The text exceeds the block's limit, or the memory its quotas.
        Forbidden: The block's policy does not let this author write it.
        Invalid: The database cannot store the message.
    """
    require_storable(message)
    memory = _lock_memory(tx, memory)
    version, text = text_at(tx, memory.chain.id, label, version_id)
    metadata = _metadata(by, message or f"Restore {label} as of {version.id.hex()[:12]}")
    block = find(tx, memory, label)
    if block is None:
        return revive(tx, memory.chain, label, text, metadata)
    return _update(tx, memory.chain, block, {"value": text}, metadata)


def text_at(
    tx: Transaction, chain_id: str, label: str, version_id: str
) -> tuple[BlockVersion, str]:
    """Return the version, and the block's text at it.

    Args:
        tx: The transaction.
        chain_id: The chain of the block.
        label: The current label, or the last label of a deleted block. At the version, the block
            may have had another one.
        version_id: The hex id of the version, or its first digits (at least 7).

    Raises:
        NotFound: There is no such version, or the block did not exist at it.
        Conflict: Several versions begin with these digits, or the stored text is damaged.
    """
    version = history.get(tx, chain_id, version_id)
    text = history.text_at(tx, chain_id, label, version)
    if text is None:
        raise NotFound(
            f'There was no memory block "{label}" at version {version.id.hex()[:12]}. '
            "Choose another version."
        )
    return version, text


def revive(tx: Transaction, chain: Chain, label: str, text: str, metadata: ChangeMetadata) -> Block:
    """Create a deleted block again, with its id, settings and agent.

    If the history does not know the deleted block, it gets default settings. If another block has
    the id now, it gets a new id.

    Args:
        tx: The transaction, which holds the lock of the chain.
        chain: The chain as it was read under the lock. If an agent owns it, the block is attached
            to this agent again, unless it is a skill.
        label: The label that the block had when it was deleted.
        text: The text of the new version.
        metadata: The author and the reason of the new version.

    Raises:
        Conflict: The label is taken in the chain, or by another block of the agent.
        Invalid: The label cannot name a block.
        TooLong: The text exceeds the limit, or the memory its quotas.
        Forbidden: The block's policy does not let this author write it.
    """
    last_deleted = history.take_deleted(tx, chain, label)
    is_attachable = chain.owner_kind == "agent" and not is_skill(label)
    belongs_to_agent = is_attachable and _agent_exists(tx, chain)
    if belongs_to_agent and any(
        other.label == label for other in blocks.attached(tx, chain.owner_id)
    ):
        raise Conflict(
            f'Agent {chain.owner_id} now has another block labelled "{label}". Detach that one '
            "first."
        )
    if last_deleted:
        settings = dict(last_deleted.settings)
    else:
        settings = {}
    # A deleted block that was restored under another label already has the old id.
    if last_deleted and not blocks.lock_if_exists(tx, last_deleted.block_id):
        settings["id"] = last_deleted.block_id
    block = make(tx, chain, label, text=text, metadata=metadata, settings=settings, is_revival=True)
    proposals.reopen(tx, chain.id, label)
    if belongs_to_agent:
        blocks.attach(tx, chain.owner_id, [block])
    return block


def _agent_exists(tx: Transaction, chain: Chain) -> bool:
    try:
        agents.require(tx, Scope(chain.organization_id), chain.owner_id)
    except NotFound:
        return False
    return True


def rename(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    new_label: str,
    by: Actor | ChangeMetadata,
    *,
    message: str | None = None,
) -> Block:
    """Give the block another label; its history and its proposals follow.

    Args:
        tx: The transaction.
        memory: The user's memory.
        label: The current label.
        new_label: The new label; it is brought into its normal form. If it is the current
            one, nothing changes.
        by: The author, or metadata whose empty reason `message` replaces.
        message: The reason; None: a sentence with both labels.

    Raises:
        NotFound: There is no such block, or the memory is empty.
        Conflict: Another block here, or another block of an agent that has this one, has the new
            label. Labels that differ only in case collide too.
        Invalid: The label cannot name a block, or the database cannot store the message.
        Forbidden: The block's policy does not let this author write it.
    """
    new_label = require_label(new_label)
    require_storable(message)
    memory = _lock_memory(tx, memory)
    block = require(tx, memory, label)
    if new_label == label:
        return block
    require_free(tx, block, new_label)
    return blocks.update(
        tx,
        block,
        replace(block, label=new_label),
        _metadata(by, message or f"Rename {label} to {new_label}"),
    )


def require_free(tx: Transaction, block: Block, new_label: str) -> None:
    """Raise Conflict if the block cannot have this label.

    It must be free in the chain and in each agent that has the block.

    Args:
        tx: The transaction, which holds the lock of the chain.
        block: The block to rename.
        new_label: Another label than the block's, in its normal form.
    """
    if blocks.labelled(tx, block.chain_id, new_label):
        raise Conflict(f'A memory block "{new_label}" already exists. Choose another label.')
    for agent_id in blocks.agent_ids(tx, block.id):
        if any(other.label == new_label for other in blocks.attached(tx, agent_id)):
            raise Conflict(
                f'Agent {agent_id} has another block labelled "{new_label}". Choose another label.'
            )


def change_settings(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    changed: Mapping[str, Any],
    by: Actor | ChangeMetadata,
    *,
    message: str | None = None,
) -> Block:
    """Change a block's settings, which makes no version.

    Args:
        tx: The transaction.
        memory: The user's memory.
        label: The current label.
        changed: New settings by their names in `blocks.SETTINGS`; other settings stay. None removes
            a setting of `blocks.OPTIONAL_SETTINGS`.
        by: The author, or metadata whose empty reason `message` replaces. Only an owner of the
            block may change settings.
        message: The reason for the log; None: "Change" and the label.

    Raises:
        NotFound: There is no such block, or the memory is empty.
        Invalid: A name is no setting, or a setting has a wrong value.
        Forbidden: The author is not an owner of the block.
        TooLong: The text exceeds the new limit, or the settings exceed a quota.
    """
    if unknown := sorted(changed.keys() - set(blocks.SETTINGS)):
        raise Invalid(
            f'"{unknown[0]}" is not a setting of a memory block. Use: {", ".join(blocks.SETTINGS)}.'
        )
    settings = _checked_settings(changed)
    memory = _lock_memory(tx, memory)
    metadata = _metadata(by, message or f"Change {label}")
    return _update(tx, memory.chain, require(tx, memory, label), settings, metadata)


def propose_edit(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    old_string: str,
    new_string: str,
    by: Actor,
    options: ProposalOptions = _PROPOSAL,
) -> Proposal:
    """Propose to replace one piece; an empty `old_string` is for a new or an empty block.

    Args:
        tx: The transaction.
        memory: The memory of the owner, who decides about the proposal.
        label: The block's label.
        old_string: The text to replace, copied from the block. It must occur once, unless
            `options.replace_all` is set. It must be empty for a missing or empty block.
        new_string: The replacement; "" removes the piece.
        by: The author of the proposal.
        options: The reason, confidence and lifetime of the proposal.

    Returns:
        The new proposal, or an older one with `is_repeated` that already has this change.

    Raises:
        NotFound: The block is missing and `old_string` is not empty, or the memory is not stored.
        Invalid: The edit cannot be applied, or changes nothing; or the label, a text or the
            confidence is wrong.
        TooLong: The new text exceeds the block's limit or a quota.
        Forbidden: The block is read-only for this author.
        Conflict: Too many proposals wait, the owner recently rejected this change, or a rule of the
            owner forbids it.
    """
    label = require_label(label)
    old_string = normal_text(old_string)
    new_string = normal_text(new_string)
    require_storable(new_string, options.reasoning)
    if options.confidence is not None and not 0 <= options.confidence <= 1:
        raise Invalid("The confidence must lie between 0 and 1.")
    memory = _lock_memory(tx, memory)
    block = find(tx, memory, label)
    metadata = ChangeMetadata(by, options.reasoning)
    if block is None and old_string:
        raise NotFound(
            f'There is no memory block "{label}". Read the list of blocks, or propose it with an '
            "empty old_string."
        )
    _require_proposable(memory, block, label, new_string, metadata)
    base = block or Block("", memory.chain.organization_id, memory.chain.id, label, "")
    new_text = replaced_piece(base, old_string, new_string, everywhere=options.replace_all)
    summary = change_summary(label, block.value if block else "", new_text, f"Edit {label}")
    draft = ProposalDraft(memory.chain.id, label, new_text, block, confidence=options.confidence)
    return propose(
        tx, draft, replace(metadata, reason=options.reasoning or summary), options.expires_after
    )


def propose_line(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    line: str,
    metadata: ChangeMetadata,
    expires_after: int | None = None,
) -> Proposal:
    """Propose to append a line to a block. If the block is missing, the approval creates it.

    Args:
        tx: The transaction.
        memory: The memory of the owner, who decides about the proposal.
        label: The block's label.
        line: The text to append; after other text it begins a new line.
        metadata: The author of the proposal, and its reason.
        expires_after: The lifetime of the proposal in microseconds; None: it never expires.

    Returns:
        The new proposal, or an older one with `is_repeated` that already has this change.

    Raises:
        Unchanged: The block has the line already.
        Invalid: The database cannot store the line, or it has characters that readers cannot see.
        TooLong: The new text exceeds a quota.
        Forbidden: The block is read-only for this author.
        Conflict: Too many proposals wait, the owner recently rejected this change, or a rule of the
            owner forbids it.
        NotFound: The memory is not stored, or was erased.
    """
    line = normal_text(line)
    require_storable(line, metadata.reason)
    memory = _lock_memory(tx, memory)
    block = find(tx, memory, label)
    _require_proposable(memory, block, label, line, metadata)
    before = block.value if block else ""
    text = f"{before.rstrip()}\n{line}" if before.strip() else line
    draft = ProposalDraft(memory.chain.id, label, text, block)
    return propose(tx, draft, metadata, expires_after)


def _require_proposable(
    memory: UserMemory, block: Block | None, label: str, new_text: str, metadata: ChangeMetadata
) -> None:
    """Raise Forbidden for a read-only block, and Invalid for text that its readers cannot see."""
    if block and metadata.policy_decision(block.rule, memory.chain) == "refuse":
        raise Forbidden(f'Block "{label}" is read-only: only its owner may change it.')
    require_shown(metadata, new_text, before=block.value if block else "")


def _metadata(by: Actor | ChangeMetadata, message: str) -> ChangeMetadata:
    """Return the metadata of a change by this author.

    `message` becomes the reason if the metadata has none.
    """
    if isinstance(by, ChangeMetadata):
        return replace(by, reason=by.reason or message)
    return ChangeMetadata(by, message)


def merged(tx: Transaction, block: Block, text: str, expected: str | None) -> str:
    """Return the text merged with changes since the expected version.

    Args:
        tx: The transaction.
        block: The block as it is now.
        text: The new text, edited from the expected version.
        expected: The hex id of that version, or its first digits (at least 7). None returns `text`
            as it is.

    Raises:
        Stale: The version is unknown, the block did not exist at it, or both changed the same
            lines.
        Conflict: Several versions begin with these digits.
    """
    if expected is None or is_current(block, expected):
        return text
    try:
        version = history.get(tx, block.chain_id, expected)
    except NotFound:
        raise _stale(block, expected) from None
    base = history.text_at(tx, block.chain_id, block.label, version)
    if base is None:
        merged_text = None
    else:
        merged_text = merge_lines(base, text, block.value)
    if merged_text is None:
        raise _stale(block, expected)
    return merged_text


def require_no_version(noun: str, name: str, expected: str | None) -> None:
    """Raise Stale if a text was edited from a version of something that does not exist now.

    Args:
        noun: The noun for it, such as "block".
        name: Its name.
        expected: The version from which the text was edited; None for a new text.
    """
    if expected is not None:
        raise Stale(
            f'{noun.capitalize()} "{name}" was deleted. Read the list of {noun}s, or send it '
            "without a version."
        )


def is_current(block: Block, expected: str) -> bool:
    """Return whether this is the block's current version.

    Args:
        block: The block as it is now.
        expected: The hex id of a version in upper or lower case, or its first digits. Fewer than 7
            never match.
    """
    return (
        block.head is not None
        and len(expected) >= history.SHORTEST_ID
        and block.head.hex().startswith(expected.lower())
    )


def _stale(block: Block, expected: str) -> Stale:
    return Stale(
        f'Block "{block.label}" changed since you read it as version {expected[:12]}: '
        f"it is {(block.head or b'').hex()[:12]} now. Read it again and retry."
    )


def _update(
    tx: Transaction,
    chain: Chain,
    block: Block,
    changes: Mapping[str, Any],
    metadata: ChangeMetadata,
) -> Block:
    changed = replace(block, **changes)
    if changed == block:
        return block
    changed.require_fits(changed.value)
    if changed != replace(block, value=changed.value) and not metadata.is_owners_of(chain):
        raise Forbidden(f'Only the owner of block "{block.label}" may change its settings.')
    return blocks.update(tx, block, changed, metadata)


def _lock_memory(tx: Transaction, memory: UserMemory) -> UserMemory:
    chain = versions.lock(tx, memory.chain.id)
    if chain is None:
        raise NotFound("This memory is empty. Write a block first.")
    return UserMemory(memory.user, chain)


def _checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    for name, setting in settings.items():
        if setting is None and name not in blocks.OPTIONAL_SETTINGS:
            raise Invalid(f'The setting "{name}" of a memory block needs a value.')
    if settings.get("policy") not in (None, *get_args(Policy)):
        raise Invalid(
            f'There is no policy "{settings["policy"]}". Use: {", ".join(get_args(Policy))}.'
        )
    if not 1 <= settings.get("limit", 1) <= _LIMIT_BOUND:
        raise Invalid(f"The limit must lie between 1 and {_LIMIT_BOUND} characters.")
    require_storable(*(value for value in settings.values() if isinstance(value, str)))
    read_rotation(settings.get("metadata") or {})
    return dict(settings)
