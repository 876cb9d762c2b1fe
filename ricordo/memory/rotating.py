"""Rotation: a block that is nearly full keeps what matters most, and what leaves it goes to the archive.

It is switched on for a block by its metadata, `{"rotation": {"strategy": "adaptive", "threshold": 0.8, "keeps": 0.5}}`: above the
threshold, a share of the block's limit, it is cut down to the share `keeps`. That is a version of its own, whose reason names the
passage with what left, so nothing is lost and everybody sees what went where.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Passage
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Invalid
from ricordo.memory.edit_context import EditContext
from ricordo.memory.typed.archival import ARCHIVED, passage
from ricordo.memory.typed.rotation import (
    AdaptiveRotation,
    AggressiveRotation,
    PreservativeRotation,
    RotationStrategy,
)
from ricordo.storage import blocks
from ricordo.storage.store import Transaction

log = logging.getLogger(__name__)
KEY = "rotation"
TAG = "rotated"
_STRATEGIES: Mapping[str, tuple[type[RotationStrategy], float]] = {
    "aggressive": (AggressiveRotation, 0.7),
    "preservative": (PreservativeRotation, 0.9),
    "adaptive": (AdaptiveRotation, 0.8),
}
_KEPT = 0.5


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a block is rotated: by which strategy, above which share of its limit, and down to which (0 to 1)."""

    strategy: str
    threshold: float
    keeps: float


def may_rotate(block: Block) -> bool:
    """Whether a write of the block may make a passage of its text."""
    return bool(block.metadata.get(KEY))


def rotation_of(block: Block) -> Rotation | None:
    """How the block is rotated, if at all. Settings are refused where they are made; a step is not lost to spoiled ones."""
    try:
        return read_rotation(block.metadata)
    except Invalid as error:
        log.warning("a block is not rotated", extra={"block": block.id, "reason": str(error)})
        return None


def read_rotation(metadata: Mapping[str, Any]) -> Rotation | None:
    """The settings in a block's metadata. Raises Invalid with what may stand there."""
    given = metadata.get(KEY)
    if not given:
        return None
    if not isinstance(given, Mapping) or given.keys() - {"strategy", "threshold", "keeps"}:
        raise Invalid('"rotation" takes strategy, threshold and keeps, as {"strategy": "adaptive", "threshold": 0.8}.')
    name = given.get("strategy", "adaptive")
    if name not in _STRATEGIES:
        raise Invalid(f'There is no rotation "{name}". Use: {", ".join(_STRATEGIES)}.')
    threshold, keeps = given.get("threshold", _STRATEGIES[name][1]), given.get("keeps", _KEPT)
    shares = [share for share in (threshold, keeps) if isinstance(share, int | float) and 0 < share <= 1]
    if len(shares) != 2 or keeps > threshold:
        raise Invalid(
            "The threshold of a rotation and what it keeps are shares from 0 to 1, and it keeps the smaller one."
        )
    return Rotation(name, threshold, keeps)


def rotate(tx: Transaction, state: AgentState, block: Block, context: EditContext) -> tuple[Block, Passage] | None:
    """Rotate a block that was written a moment ago, where it is full; returns it and the passage that its text is to become.

    The block's chain is held by the write before it, so nobody comes between.
    """
    rotation = rotation_of(block)
    if rotation is None or len(block.value) <= rotation.threshold * block.limit:
        return None
    strategy = _STRATEGIES[rotation.strategy][0]()
    kept = strategy.compress(block.value, int(rotation.keeps * block.limit))
    try:
        context.require_follows(block, kept)
    except Invalid as error:
        log.warning("a block is not rotated", extra={"block": block.id, "reason": str(error).partition("\n")[0]})
        return None
    now = tx.clock.now()
    text = passage(ARCHIVED, _leaving(block.value, kept), datetime.fromtimestamp(now / SECOND, UTC))
    filed = Passage(
        id=new_id("passage"),
        organization_id=block.organization_id,
        archive_id="",
        text=text,
        tags=(TAG, block.label),
        user_id=state.conversation.user_id,
        created_by=state.agent.id,
        step_id=context.step_id,
        is_untrusted=block.is_untrusted,
        created_at=now,
        updated_at=now,
    )
    share = round(100 * len(block.value) / block.limit)
    metadata = ChangeMetadata(
        # In the agent's name, whose policy allowed the write that filled the block.
        context.author,
        f"Rotate {block.label}, {share} percent full: what left is in {filed.id}",
        context.run_id,
        context.step_id,
        is_untrusted=context.is_untrusted,
        is_quoted=True,
    )
    rotated = blocks.write(tx, block, kept, metadata)
    return None if rotated is None else (rotated, filed)


def _leaving(text: str, kept: str) -> str:
    """The lines that are not kept; all of the text where a line was cut."""
    left = Counter(kept.split("\n"))
    gone = []
    for line in text.split("\n"):
        if left[line]:
            left[line] -= 1
        else:
            gone.append(line)
    return "\n".join(gone) if not left.total() else text
