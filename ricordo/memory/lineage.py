"""Lineage of an answer: the memory that its step had in the prompt, and what the step changed."""

from dataclasses import dataclass

from ricordo.domain.passage import Passage
from ricordo.domain.scope import Scope
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import NotFound
from ricordo.storage import archives, history, messages, proposals, runs
from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block as a step's prompt held it: its id, the id of the version, and the version itself unless it was erased."""

    block_id: str
    version_id: str
    version: BlockVersion | None


@dataclass(frozen=True, slots=True)
class Lineage:
    """What of memory the step that wrote a message had in its prompt, what it changed, and what it proposed.

    `gone` are ids of passages that were deleted since. A message that no step wrote, as what a user said, had none of it.
    """

    message_id: str
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    blocks: tuple[HeldBlock, ...] = ()
    passages: tuple[Passage, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[BlockVersion, ...] = ()
    proposed: tuple[Proposal, ...] = ()


def of_message(tx: Transaction, scope: Scope, message_id: str) -> Lineage:
    """The lineage of a message. Raises NotFound."""
    message = messages.get(tx, scope, message_id)
    if message.step_id is None:
        return Lineage(message.id, message.run_id)
    changed = tuple(history.of_step(tx, scope, message.run_id or "", message.step_id))
    proposed = tuple(proposals.of_step(tx, scope, message.step_id))
    try:
        step = runs.get_step(tx, scope, message.step_id)
    except NotFound:  # the step is saved with its end, and this message came before its tools
        return Lineage(message.id, message.run_id, message.step_id, changed=changed, proposed=proposed)
    held: dict[str, str] = step.memory.get("blocks", {})
    found = history.of_blocks(tx, scope, held)
    named: list[str] = step.memory.get("passages", [])
    passages = tuple(one for one in archives.passages_by_ids(tx, named) if one.organization_id == scope.organization_id)
    there = {one.id for one in passages}
    return Lineage(
        message.id,
        message.run_id,
        message.step_id,
        step.is_untrusted,
        tuple(HeldBlock(block_id, version, found.get(block_id)) for block_id, version in held.items()),
        passages,
        tuple(id for id in named if id not in there),
        changed,
        proposed,
    )
