"""Rotation: a block that is nearly full keeps the most important text, and the rest moves to the archive.

A block's metadata switches it on: `{"rotation": {"strategy": "adaptive", "threshold": 0.8, "keeps": 0.5}}`. Above the threshold, a
share of the block's limit, the block is cut down to the share `keeps`. That is a version of its own, whose reason names the passage
with the removed text.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.clock import to_datetime
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Passage
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Invalid
from ricordo.memory.working_memory import EditContext
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
KEY = "rotation"
TAG = "rotated"
ARCHIVED = "ARCHIVED"
_DOTS = "..."
_WORTH_CUTTING = 20  # characters of room; the start of a line in fewer says nothing
_SCORES = {"[TASK]": 100, "[USER]": 90, "[CONTEXT]": 80}
_KEPT = 0.5


def archived_text(kind: str, body: str, now: datetime) -> str:
    """Return the text of a passage: a line with its kind and time (UTC), as `[ARCHIVED 2025-12-31T10:00:00]`, then the body."""
    return (
        f"[{kind} {now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}]\n{body}"
    )


def _keep_end(text: str, room: int) -> str:
    end = text[len(text) - room :]
    return end if room <= len(_DOTS) else _DOTS + end[len(_DOTS) :]


def _keep_tagged(text: str, room: int) -> str:
    """Keep lines with a tag, then others."""
    return "\n".join(
        line for _, line in _fill(text, lambda line, _: not line.startswith("["), room)
    )


def _keep_important(text: str, room: int) -> str:
    """Keep the most important lines in their order: task, user, context, other tags, then others; of equal ones the later."""
    return "\n".join(
        line for _, line in sorted(_fill(text, lambda line, at: (-_score(line), -at), room))
    )


# By its name, what a strategy keeps, and the share of the limit above which it rotates.
STRATEGIES: Mapping[str, tuple[Callable[[str, int], str], float]] = {
    "aggressive": (_keep_end, 0.7),
    "preservative": (_keep_tagged, 0.9),
    "adaptive": (_keep_important, 0.8),
}


def compress(strategy: str, text: str, target_chars: int) -> str:
    """Return what the strategy keeps of a text in so many characters. Raises Invalid for fewer than none."""
    if target_chars < 0:
        raise Invalid(
            f"A text cannot be shortened to {target_chars} characters. Give a number of characters from 0."
        )
    return text if len(text) <= target_chars else STRATEGIES[strategy][0](text, target_chars)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The settings of a block's rotation: the strategy, and the shares of the limit (0 to 1)."""

    strategy: str
    threshold: float
    keeps: float


def may_rotate(block: Block) -> bool:
    return bool(block.metadata.get(KEY))


def read_rotation(metadata: Mapping[str, Any]) -> Rotation | None:
    """Read the settings in a block's metadata. Raises Invalid."""
    given = metadata.get(KEY)
    if not given:
        return None
    if not isinstance(given, Mapping) or given.keys() - {"strategy", "threshold", "keeps"}:
        raise Invalid(
            '"rotation" takes strategy, threshold and keeps, as {"strategy": "adaptive", "threshold": 0.8}.'
        )
    name = given.get("strategy", "adaptive")
    if name not in STRATEGIES:
        raise Invalid(f'There is no rotation "{name}". Use: {", ".join(STRATEGIES)}.')
    threshold, keeps = given.get("threshold", STRATEGIES[name][1]), given.get("keeps", _KEPT)
    shares = [
        share for share in (threshold, keeps) if isinstance(share, int | float) and 0 < share <= 1
    ]
    if len(shares) != 2 or keeps > threshold:
        raise Invalid(
            "The threshold of a rotation and what it keeps are shares from 0 to 1, and it keeps the smaller one."
        )
    return Rotation(name, threshold, keeps)


def rotate(
    tx: Transaction, state: AgentState, block: Block, context: EditContext
) -> tuple[Block, Passage] | None:
    """Rotate a block just written (its chain is locked) if it is too full; returns it and the passage removed."""
    try:
        rotation = read_rotation(block.metadata)
        if rotation is None or len(block.value) <= rotation.threshold * block.limit:
            return None
        kept = compress(rotation.strategy, block.value, int(rotation.keeps * block.limit))
        context.require_follows(block, kept)
    except Invalid as error:  # settings that somebody spoiled, or a schema that was changed, must not fail a step
        log.warning("a block is not rotated", extra={"block": block.id, "reason": error})
        return None
    text = archived_text(ARCHIVED, _leaving(block.value, kept), to_datetime(tx.clock.now()))
    filed = new_passage(tx, state, context, text, (TAG, block.shown_label))
    filed = replace(filed, is_untrusted=block.is_untrusted)
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


def new_passage(
    tx: Transaction,
    state: AgentState,
    context: EditContext,
    text: str,
    tags: tuple[str, ...],
    id: str | None = None,
) -> Passage:
    """A passage that the step files, not yet stored and in no archive yet."""
    now = tx.clock.now()
    return Passage(
        id=id or new_id("passage"),
        organization_id=state.agent.organization_id,
        archive_id="",
        text=text,
        tags=tags,
        user_id=state.conversation.user_id,
        created_by=state.agent.id,
        step_id=context.step_id,
        is_untrusted=context.is_untrusted,
        created_at=now,
        updated_at=now,
    )


def _leaving(text: str, kept: str) -> str:
    """Return the lines that are not kept; the whole text if a line was cut."""
    left = Counter(kept.split("\n"))
    gone = []
    for line in text.split("\n"):
        if left[line]:
            left[line] -= 1
        else:
            gone.append(line)
    return "\n".join(gone) if not left.total() else text


def _score(line: str) -> int:
    tag = line[: line.find("]") + 1]
    return _SCORES.get(tag, 50 if line.startswith("[") else 10)


def _fill(text: str, rank: Callable[[str, int], Any], room: int) -> list[tuple[int, str]]:
    """Take lines by their rank until the room is used up; the first that does not fit is cut."""
    kept: list[tuple[int, str]] = []
    lines = text.split("\n")
    for at in sorted(range(len(lines)), key=lambda at: rank(lines[at], at)):
        if len(lines[at]) > room:
            if room >= _WORTH_CUTTING or (not kept and room > len(_DOTS)):
                kept.append((at, lines[at][: room - len(_DOTS)] + _DOTS))
            break
        kept.append((at, lines[at]))
        room -= len(lines[at]) + 1
        if room < 0:
            break
    return kept
