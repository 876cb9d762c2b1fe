"""UserMemory memory on the wire: a user's block, versions, proposals, who wrote which line, and what an answer knew."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from ricordo.api.wire.schemas import Json, Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.block import Block, Policy
from ricordo.domain.version import BlockVersion, Proposal, ProposalStatus
from ricordo.memory.approval import Decision, Undone
from ricordo.memory.history import BlamedLine
from ricordo.memory.lineage import Lineage
from ricordo.memory.word_diff import Piece, PieceKind, by_words, unified


class UserBlockShape(Shape):
    """A block of a user's memory. `version` is the id of the version that gave it its text; `pending` counts what waits."""

    id: str
    label: str
    title: str | None
    body: str
    schema_ref: str | None
    version: str | None
    updated_at: datetime
    pending: int
    description: str | None
    limit: int
    policy: Policy
    agent_id: str | None
    course: str | None
    metadata: Json
    is_tainted: bool
    updated_by: str | None
    created_at: datetime


class VersionShape(Shape):
    """One version of one block; `sha` is the id of a git commit. `is_deleted` where the block went with it."""

    sha: str
    message: str
    author: str
    author_id: str
    author_kind: Literal["user", "agent", "system"]
    timestamp: datetime
    label: str
    old_label: str | None
    number: int
    parents: list[str]
    is_deleted: bool
    is_tainted: bool
    approved_by: str | None
    proposal_id: str | None
    run_id: str | None
    step_id: str | None


class VersionTextShape(VersionShape):
    """A version with the text it gave the block; null where it deleted the block."""

    body: str | None


class ProposalShape(Shape):
    """A change that waits for the owner, or what became of it. `diff` is unified, from the text it was made from."""

    id: str
    label: str
    new_label: str | None
    status: ProposalStatus
    agent_id: str
    author: str
    author_kind: Literal["user", "agent", "system"]
    reasoning: str
    confidence: float | None
    description: str | None
    base: str | None
    base_body: str | None
    body: str | None
    diff: str
    is_tainted: bool
    run_id: str | None
    step_id: str | None
    created_at: datetime
    expires_at: datetime | None
    resolved_at: datetime | None
    resolved_by: str | None
    note: str | None
    version: str | None
    superseded_by: str | None


class DecidedShape(Shape):
    """What became of a proposal; `version` and `block` are null where nothing was written or the block is gone."""

    id: str
    status: ProposalStatus
    version: str | None
    proposal: ProposalShape
    block: UserBlockShape | None


class OutcomeShape(Shape):
    """What became of one of many proposals; with the status `failed`, or `conflicted`, the detail says why and what to do."""

    id: str
    status: ProposalStatus | Literal["failed"]
    detail: str | None
    version: str | None


class UndoneBlockShape(Shape):
    """What became of one block that a run had changed."""

    label: str
    status: Literal["undone", "unchanged", "conflicted"]
    detail: str | None
    version: str | None


class UndoneShape(Shape):
    """What undoing a run came to: block by block, and the ids of its proposals that waited and are rejected now."""

    run_id: str
    blocks: list[UndoneBlockShape]
    withdrawn: list[str]


class HeldBlockShape(Shape):
    """A block that a step had before it: at which version, and under which label; the rest is null where it was erased."""

    block_id: str
    sha: str
    label: str | None
    version: VersionShape | None


class HeldPassageShape(Shape):
    """A passage that a step had before it."""

    id: str
    archive_id: str
    text: str
    tags: list[str]
    created_at: datetime


class LineageShape(Shape):
    """What of memory was in the context of an answer, what its step changed, and what it proposed.

    `forgotten_passage_ids` were there too and were deleted since.
    """

    message_id: str
    run_id: str | None
    step_id: str | None
    is_tainted: bool
    blocks: list[HeldBlockShape]
    passages: list[HeldPassageShape]
    forgotten_passage_ids: list[str]
    changed: list[VersionShape]
    proposed: list[ProposalShape]


class BlamedLineShape(Shape):
    """One line of a block, with the version that wrote it."""

    number: int
    text: str
    version: VersionShape


class PieceShape(Shape):
    """A stretch of text that both versions have, or only the newer, or only the older."""

    kind: PieceKind
    text: str


class ComparisonShape(Shape):
    """Two versions beside each other, line by line and word by word; a side is null where the block was not there."""

    from_version: str | None
    to_version: str | None
    unified: str
    words: list[PieceShape]


def user_block_to_wire(block: Block, pending: int) -> dict[str, Any]:
    """A block of a user's memory; `pending` counts the proposals that wait for her."""
    return {
        "id": block.id,
        "label": block.label,
        "title": block.title,
        "body": block.value,
        "schema_ref": block.schema_ref,
        "version": hex_of(block.head),
        "updated_at": stamp(block.updated_at),
        "pending": pending,
        "description": block.description,
        "limit": block.limit,
        "policy": block.rule,
        "agent_id": block.agent_id,
        "course": block.course,
        "metadata": block.metadata,
        "is_tainted": block.is_untrusted,
        "updated_by": block.updated_by,
        "created_at": stamp(block.created_at),
    }


def version_to_wire(version: BlockVersion) -> dict[str, Any]:
    """A version, without its text."""
    return {
        "sha": version.id.hex(),
        "message": version.reason,
        "author": version.author.name or version.author.id,
        "author_id": version.author.id,
        "author_kind": version.author.kind,
        "timestamp": stamp(version.created_at),
        "label": version.label,
        "old_label": version.old_label,
        "number": version.number,
        "parents": [parent.hex() for parent in version.parents],
        "is_deleted": version.blob is None,
        "is_tainted": version.is_untrusted,
        "approved_by": version.approved_by,
        "proposal_id": version.proposal_id,
        "run_id": version.run_id,
        "step_id": version.step_id,
    }


def proposal_to_wire(proposal: Proposal) -> dict[str, Any]:
    """A proposal with the texts it leads from and to."""
    before, after = proposal.base_value or "", proposal.value or ""
    return {
        "id": proposal.id,
        "label": proposal.label,
        "new_label": proposal.new_label,
        "status": proposal.status,
        "agent_id": proposal.author.id,
        "author": proposal.author.name or proposal.author.id,
        "author_kind": proposal.author.kind,
        "reasoning": proposal.reasoning,
        "confidence": proposal.confidence,
        "description": proposal.description,
        "base": hex_of(proposal.base),
        "base_body": proposal.base_value,
        "body": proposal.value,
        "diff": unified(before, after, proposal.label, proposal.new_label or proposal.label),
        "is_tainted": proposal.is_untrusted,
        "run_id": proposal.run_id,
        "step_id": proposal.step_id,
        "created_at": stamp(proposal.created_at),
        "expires_at": stamp(proposal.expires_at),
        "resolved_at": stamp(proposal.resolved_at),
        "resolved_by": proposal.resolved_by,
        "note": proposal.note,
        "version": hex_of(proposal.result),
        "superseded_by": proposal.superseded_by,
    }


def decided_to_wire(proposal: Proposal, block: Block | None, pending: int) -> dict[str, Any]:
    """A proposal that was decided on, with its block as it is then."""
    return {
        "id": proposal.id,
        "status": proposal.status,
        "version": hex_of(proposal.result),
        "proposal": proposal_to_wire(proposal),
        "block": block and user_block_to_wire(block, pending),
    }


def decision_to_wire(decision: Decision) -> dict[str, Any]:
    """What became of one of several proposals."""
    settled = (
        decision.decided if isinstance(decision.decided, Proposal) else getattr(decision.decided, "proposal", None)
    )
    version = hex_of(settled.result) if settled else None
    return {"id": decision.id, "status": decision.outcome, "detail": decision.error, "version": version}


def undone_to_wire(undone: Undone) -> dict[str, Any]:
    """What undoing a run came to."""
    return {
        "run_id": undone.run_id,
        "blocks": [
            {
                "label": one.block.label if one.block else one.label,
                "status": one.outcome,
                "detail": one.note,
                "version": hex_of(one.block.head) if one.block else None,
            }
            for one in undone.blocks
        ],
        "withdrawn": [proposal.id for proposal in undone.withdrawn],
    }


def lineage_to_wire(lineage: Lineage) -> dict[str, Any]:
    """What an answer knew."""
    return {
        "message_id": lineage.message_id,
        "run_id": lineage.run_id,
        "step_id": lineage.step_id,
        "is_tainted": lineage.is_untrusted,
        "blocks": [
            {
                "block_id": held.block_id,
                "sha": held.version_id,
                "label": held.version and held.version.label,
                "version": held.version and version_to_wire(held.version),
            }
            for held in lineage.blocks
        ],
        "passages": [
            {
                "id": passage.id,
                "archive_id": passage.archive_id,
                "text": passage.text,
                "tags": list(passage.tags),
                "created_at": stamp(passage.created_at),
            }
            for passage in lineage.passages
        ],
        "forgotten_passage_ids": list(lineage.gone),
        "changed": [version_to_wire(version) for version in lineage.changed],
        "proposed": [proposal_to_wire(proposal) for proposal in lineage.proposed],
    }


def blame_to_wire(lines: Sequence[BlamedLine]) -> list[dict[str, Any]]:
    """The lines of a block, each with the version that wrote it."""
    return [{"number": line.number, "text": line.text, "version": version_to_wire(line.version)} for line in lines]


def comparison_to_wire(older: tuple[str | None, str], newer: tuple[str | None, str], label: str) -> dict[str, Any]:
    """Two versions, each as its hex id (None where the block was not there) and its text."""
    names = [f"{label} {id[:7] if id else '(nothing)'}" for id, _ in (older, newer)]
    return {
        "from_version": older[0],
        "to_version": newer[0],
        "unified": unified(older[1], newer[1], *names),
        "words": [_piece(piece) for piece in by_words(older[1], newer[1])],
    }


def _piece(piece: Piece) -> dict[str, Any]:
    return {"kind": piece.kind, "text": piece.text}


def hex_of(id: bytes | None) -> str | None:
    """A version's id as it is written outside."""
    return id.hex() if id else None
