"""Apply or propose edits of blocks by any caller.

An edit is applied if the author owns the block or the policy allows it; otherwise it is proposed to
the owner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ricordo.domain.block import Block, Chain, require_label
from ricordo.domain.scope import Actor
from ricordo.domain.text import normal_text
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Forbidden, NotFound
from ricordo.memory import user_memory
from ricordo.memory.edits import require_storable
from ricordo.memory.proposals import ProposalDraft, Unchanged, propose, require_shown
from ricordo.memory.text import change_summary
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import blocks, versions
from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class Submission:
    """An edit's author and reason, and the lifetime of its proposal.

    `expires_after` is in microseconds; with None, a proposal never expires.
    """

    author: Actor
    reason: str | None = None
    expires_after: int | None = None

    def metadata(self, otherwise: str) -> ChangeMetadata:
        return ChangeMetadata(self.author, self.reason or otherwise)


@dataclass(frozen=True, slots=True)
class SubmissionOutcome:
    """The outcome of an edit: the block now, and the waiting proposal.

    Each is None if it does not exist.
    """

    block: Block | None
    proposal: Proposal | None = None


def put(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    text: str,
    options: PutOptions,
    edit: Submission,
) -> SubmissionOutcome:
    """Write the text as the block's next version, or propose it.

    A missing block is created, or its creation proposed.

    Args:
        tx: The transaction.
        memory: The user's memory, whose chain is stored.
        label: The block's label.
        text: The whole new text.
        options: Options of the write. Only the owner may give settings, except the description of a
            new block.
        edit: The author, the reason, and the lifetime of a proposal.

    Raises:
        Stale: if the block was deleted since `options.expected`, or the text cannot be merged with
            changes since.
        Forbidden: if the policy or the settings do not let the author do this.
        Invalid: if label, text or settings are not allowed.
        TooLong: if the text is longer than the block's limit.
        Conflict: if the label is taken, or too many proposals wait.
        NotFound: if the chain is not stored.
    """
    label = require_label(label)
    chain = _lock_chain(tx, memory.chain.id)
    block = blocks.labelled(tx, chain.id, label)
    tx.quotas.require_text(label, text, block.value if block else "")
    text = normal_text(text)
    metadata = edit.metadata(f"{'Edit' if block else 'Make'} {label}")
    if metadata.is_owners_of(chain):
        return SubmissionOutcome(
            user_memory.put(tx, memory, label, text=text, by=edit.author, options=options)
        )
    if block:
        block.require_fits(text)
        text = user_memory.merged(tx, block, text, options.expected)
        return change(tx, block, replace(block, value=text, **options.settings()), edit)
    user_memory.require_no_version("block", label, options.expected)
    settings = options.settings()
    description = settings.pop("description", None)
    _require_no_settings(label, settings)
    require_storable(text, options.message, description)
    require_shown(metadata, text, description)
    new_block = Block("", chain.organization_id, chain.id, label, "")
    new_block.require_fits(text)
    chain.require_distinct_label(label)
    draft = ProposalDraft(chain.id, label, text, description=description)
    return SubmissionOutcome(None, propose(tx, draft, metadata, edit.expires_after))


def restore(
    tx: Transaction, memory: UserMemory, label: str, version_id: str, edit: Submission
) -> SubmissionOutcome:
    """Restore the block's text at a version, or propose to do so.

    Args:
        tx: The transaction.
        memory: The user's memory.
        label: The block's label.
        version_id: The version's id in hex digits (at least 7).
        edit: The author, the reason, and the lifetime of a proposal.

    Raises:
        NotFound: if there is no such version, or the block did not exist at it.
        Conflict: if the id is not unique, a label is taken, or too many proposals wait.
        TooLong: if the text is longer than the block's limit.
        Forbidden: if the block is read-only for the author.
        Invalid: if the reason cannot be stored, or an author other than a person adds hidden text.
    """
    chain = _lock_chain(tx, memory.chain.id)
    if edit.metadata("").is_owners_of(chain):
        return SubmissionOutcome(
            user_memory.restore(tx, memory, label, version_id, edit.author, message=edit.reason)
        )
    _, text = user_memory.text_at(tx, chain.id, label, version_id)
    return put(tx, memory, label, text=text, options=PutOptions(), edit=edit)


def rename(
    tx: Transaction, memory: UserMemory, label: str, new_label: str, edit: Submission
) -> SubmissionOutcome:
    """Give the block another label, or propose to do so.

    Args:
        tx: The transaction.
        memory: The user's memory.
        label: The block's label.
        new_label: The new label.
        edit: The author, the reason, and the lifetime of a proposal.

    Raises:
        NotFound: if there is no such block.
        Conflict: if the new label is taken, or too many proposals wait.
        Invalid: if the new label is not allowed.
        Forbidden: if the block is read-only for the author.
    """
    if edit.metadata("").is_owners_of(_lock_chain(tx, memory.chain.id)):
        return SubmissionOutcome(
            user_memory.rename(tx, memory, label, new_label, edit.author, message=edit.reason)
        )
    block = user_memory.require(tx, memory, label)
    new_label = require_label(new_label)
    user_memory.require_free(tx, block, new_label)
    return change(tx, block, replace(block, label=new_label), edit)


def change(tx: Transaction, block: Block, changed: Block, edit: Submission) -> SubmissionOutcome:
    """Store the changed block, or propose it if the policy says so.

    Args:
        tx: The transaction.
        block: The block as it was read in this transaction.
        changed: The block as it shall be. Only changes of text and label can be proposed.
        edit: The author, the reason, and the lifetime of a proposal.

    Raises:
        Forbidden: if the block is read-only for the author, or a setting is changed without the
            owner's rights.
        TooLong: if the text is longer than the block's limit.
        Invalid: if an author other than a person adds hidden text.
        Conflict: if too many proposals wait.
        Overtaken: if another transaction changed the block.
        NotFound: if the block's whole memory was deleted meanwhile.
    """
    chain = _lock_chain(tx, block.chain_id)
    changed = replace(changed, value=normal_text(changed.value))
    if changed.value != block.value:
        changed.require_fits(changed.value)
    metadata = edit.metadata(
        change_summary(changed.label, block.value, changed.value, f"Change {changed.label}")
    )
    if not metadata.is_owners_of(chain):
        settings = {name: getattr(changed, name) for name in (*blocks.SETTINGS, "tags")}
        _require_no_settings(
            block.label,
            {name: value for name, value in settings.items() if value != getattr(block, name)},
        )
    match metadata.policy_decision(block.rule, chain):
        case "apply":
            if block.rule != "direct":
                require_shown(metadata, changed.value, before=block.value)
            return SubmissionOutcome(blocks.update(tx, block, changed, metadata))
        case "refuse":
            raise Forbidden(f'Block "{block.label}" is read-only: only its owner may change it.')
        case "propose":
            require_shown(metadata, changed.value, before=block.value)
            if changed.label != block.label:
                new_label = changed.label
            else:
                new_label = None
            if changed.value == block.value and new_label is None:
                return SubmissionOutcome(block)
            draft = ProposalDraft(chain.id, block.label, changed.value, block, new_label)
            return _propose_change(tx, block, draft, metadata, edit)


def remove(tx: Transaction, block: Block, edit: Submission) -> SubmissionOutcome:
    """Delete the block, or propose to do so if the policy requires it.

    Args:
        tx: The transaction.
        block: The block as it was read in this transaction.
        edit: The author, the reason, and the lifetime of a proposal.

    Raises:
        Forbidden: if the block is read-only for the author.
        Conflict: if too many proposals wait.
        Overtaken: if another transaction changed the block.
        NotFound: if the block's whole memory was deleted meanwhile.
    """
    chain = _lock_chain(tx, block.chain_id)
    metadata = edit.metadata(f"Delete {block.label}")
    if metadata.policy_decision(block.rule, chain) == "propose":
        return _propose_change(
            tx, block, ProposalDraft(chain.id, block.label, None, block), metadata, edit
        )
    blocks.remove(tx, block, metadata)
    return SubmissionOutcome(None)


def _propose_change(
    tx: Transaction, block: Block, draft: ProposalDraft, metadata: ChangeMetadata, edit: Submission
) -> SubmissionOutcome:
    try:
        return SubmissionOutcome(block, propose(tx, draft, metadata, edit.expires_after))
    except Unchanged:
        return SubmissionOutcome(block)


def _lock_chain(tx: Transaction, chain_id: str) -> Chain:
    chain = versions.lock(tx, chain_id)
    if chain is None:
        raise NotFound("This memory is empty. Write a block first.")
    return chain


def _require_no_settings(label: str, settings: Mapping[str, Any]) -> None:
    if settings:
        raise Forbidden(
            f'Only the owner of block "{label}" may set its {", ".join(sorted(settings))}. '
            "Send the text alone, or ask the owner."
        )
