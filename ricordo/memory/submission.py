"""Edits of blocks by anybody: applied where the author owns the block or its policy allows it, else proposed to the owner."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ricordo.domain.block import Block, Chain, require_label
from ricordo.domain.scope import Actor
from ricordo.domain.text import normal_text
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Forbidden, NotFound
from ricordo.memory import user_memory
from ricordo.memory.line_changes import change_summary
from ricordo.memory.proposals import ProposalDraft, Unchanged, propose
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.memory.working_memory import require_storable
from ricordo.storage import blocks, versions
from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class Submission:
    """An edit, its author and its reason; a proposal that it becomes waits so long (microseconds; None: for ever)."""

    author: Actor
    reason: str | None = None
    expires_after: int | None = None

    def metadata(self, otherwise: str) -> ChangeMetadata:
        return ChangeMetadata(self.author, self.reason or otherwise)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of an edit: the block as it is then, None where there is none, and the proposal that waits, if any."""

    block: Block | None
    proposal: Proposal | None = None


def put(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    text: str,
    options: PutOptions,
    edit: Submission,
) -> Submitted:
    """Make the text the block's next version, or propose it, also a new block. Raises as `user_memory.put`, and Forbidden."""
    label = require_label(label)
    chain = _locked(tx, memory.chain.id)
    block = blocks.labelled(tx, chain.id, label)
    tx.quotas.require_text(label, text, block.value if block else "")
    text = normal_text(text)
    metadata = edit.metadata(f"{'Edit' if block else 'Make'} {label}")
    if metadata.is_owners_of(chain):
        return Submitted(user_memory.put(tx, memory, label, text, edit.author, options))
    if block:
        block.require_fits(text)
        text = user_memory.merged(tx, block, text, options.expected)
        return change(tx, block, replace(block, value=text, **options.settings()), edit)
    settings = options.settings()
    description = settings.pop("description", None)
    _require_none(label, settings)
    require_storable(text, options.message, description)
    new = Block("", chain.organization_id, chain.id, label, "")
    new.require_fits(text)
    chain.require_told_apart(label)
    draft = ProposalDraft(chain.id, label, text, description=description)
    return Submitted(None, propose(tx, draft, metadata, edit.expires_after))


def restore(
    tx: Transaction, memory: UserMemory, label: str, version_id: str, edit: Submission
) -> Submitted:
    """Make the text that the block had at a version its next one, or propose that. Raises as `user_memory.restore` does."""
    chain = _locked(tx, memory.chain.id)
    if edit.metadata("").is_owners_of(chain):
        return Submitted(
            user_memory.restore(tx, memory, label, version_id, edit.author, message=edit.reason)
        )
    _, text = user_memory.text_at(tx, chain.id, label, version_id)
    return put(tx, memory, label, text, PutOptions(), edit)


def rename(
    tx: Transaction, memory: UserMemory, label: str, new_label: str, edit: Submission
) -> Submitted:
    """Give the block another label, or propose that. Raises as `user_memory.rename` does."""
    if edit.metadata("").is_owners_of(_locked(tx, memory.chain.id)):
        return Submitted(
            user_memory.rename(tx, memory, label, new_label, edit.author, message=edit.reason)
        )
    block = user_memory.require(tx, memory, label)
    new_label = require_label(new_label)
    user_memory.require_free(tx, block, new_label)
    return change(tx, block, replace(block, label=new_label), edit)


def change(tx: Transaction, block: Block, changed: Block, edit: Submission) -> Submitted:
    """Store the changed block, or propose text and label by its policy. Raises Forbidden, TooLong, Overtaken."""
    chain = _locked(tx, block.chain_id)
    changed = replace(changed, value=normal_text(changed.value))
    if changed.value != block.value:
        changed.require_fits(changed.value)
    metadata = edit.metadata(
        change_summary(changed.label, block.value, changed.value, f"Change {changed.label}")
    )
    if not metadata.is_owners_of(chain):
        kept = {name: getattr(changed, name) for name in (*blocks.SETTINGS, "tags")}
        _require_none(
            block.label,
            {name: value for name, value in kept.items() if value != getattr(block, name)},
        )
    match metadata.policy_decision(block.rule, chain):
        case "apply":
            return Submitted(blocks.update(tx, block, changed, metadata))
        case "refuse":
            raise Forbidden(f'Block "{block.label}" is read-only: only its owner may change it.')
        case "propose":
            new_label = changed.label if changed.label != block.label else None
            if changed.value == block.value and new_label is None:
                return Submitted(block)
            draft = ProposalDraft(chain.id, block.label, changed.value, block, new_label)
            return _proposed(tx, block, draft, metadata, edit)


def remove(tx: Transaction, block: Block, edit: Submission) -> Submitted:
    """Delete the block, or propose that where its policy wants it. Raises Forbidden, Overtaken."""
    chain = _locked(tx, block.chain_id)
    metadata = edit.metadata(f"Delete {block.label}")
    if metadata.policy_decision(block.rule, chain) == "propose":
        return _proposed(
            tx, block, ProposalDraft(chain.id, block.label, None, block), metadata, edit
        )
    blocks.remove(tx, block, metadata)
    return Submitted(None)


def _proposed(
    tx: Transaction, block: Block, draft: ProposalDraft, metadata: ChangeMetadata, edit: Submission
) -> Submitted:
    try:
        return Submitted(block, propose(tx, draft, metadata, edit.expires_after))
    except Unchanged:
        return Submitted(block)


def _locked(tx: Transaction, chain_id: str) -> Chain:
    chain = versions.lock(tx, chain_id)
    if chain is None:
        raise NotFound("There is nothing in this memory. Write a block first.")
    return chain


def _require_none(label: str, settings: Mapping[str, Any]) -> None:
    if settings:
        raise Forbidden(
            f'Only the owner of block "{label}" may set its {", ".join(sorted(settings))}. Send the text alone, and it is proposed.'
        )
