"""Rotation: a block that is nearly full keeps its most important text.

The other lines move to the archive. A block's metadata switches it on: `{"rotation": {"strategy":
"adaptive", "threshold": 0.8, "keeps": 0.5}}`. Both numbers are shares of the block's limit: a block
above `threshold` is cut down to `keeps`. The cut is a separate version. Its reason names the
passage with the removed text.
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
from ricordo.domain.egress import join
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Passage
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Forbidden, Invalid
from ricordo.memory.edits import EditContext
from ricordo.memory.sections import labelled_spans
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
KEY = "rotation"
TAG = "rotated"
ARCHIVED = "ARCHIVED"
_DOTS = "..."
_WORTH_CUTTING = 20  # characters; with less room, a cut line is not worth keeping
_SCORES = {"[TASK]": 100, "[USER]": 90, "[CONTEXT]": 80}
_DEFAULT_SHARE = 0.5


def archived_text(kind: str, body: str, now: datetime) -> str:
    """Return a passage's text: its kind and UTC time, then the body.

    The first line reads `[ARCHIVED 2025-12-31T10:00:00]`.

    Args:
        kind: The kind of the passage, such as "ARCHIVED".
        body: The removed text.
        now: The time, with any time zone.
    """
    return (
        f"[{kind} {now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}]\n{body}"
    )


def _keep_end(text: str, room: int) -> str:
    end = text[len(text) - room :]
    if room <= len(_DOTS):
        return end
    return _DOTS + end[len(_DOTS) :]


def _keep_tagged(text: str, room: int) -> str:
    """Keep lines with a tag first, then other lines."""
    return "\n".join(
        line for _, line in _fill(text, lambda line, _: not line.startswith("["), room)
    )


def _keep_important(text: str, room: int) -> str:
    """Keep the most important lines, in their order.

    The order is task, user, context, other tags, no tag. Among lines with equal tags the later line
    comes first.
    """
    return "\n".join(
        line for _, line in sorted(_fill(text, lambda line, number: (-_score(line), -number), room))
    )


# Each strategy's function, and the default share of the limit at which it starts to rotate.
STRATEGIES: Mapping[str, tuple[Callable[[str, int], str], float]] = {
    "aggressive": (_keep_end, 0.7),
    "preservative": (_keep_tagged, 0.9),
    "adaptive": (_keep_important, 0.8),
}


def compress(strategy: str, text: str, target_chars: int) -> str:
    """Shorten a text to a number of characters by a strategy.

    Args:
        strategy: A key of `STRATEGIES`.
        text: The text.
        target_chars: The most characters of the shortened text.

    Raises:
        Invalid: for a negative number.
    """
    if target_chars < 0:
        raise Invalid(f"A text cannot be shortened to {target_chars} characters. Use 0 or more.")
    if len(text) <= target_chars:
        return text
    return STRATEGIES[strategy][0](text, target_chars)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The settings of a block's rotation; shares are from 0 to 1."""

    strategy: str
    threshold: float
    keeps: float


def read_rotation(metadata: Mapping[str, Any]) -> Rotation | None:
    """Read the settings in a block's metadata.

    Args:
        metadata: The block's metadata.

    Returns:
        The settings; None if the block does not rotate.

    Raises:
        Invalid: if the settings are faulty.
    """
    settings = metadata.get(KEY)
    if not settings:
        return None
    if not isinstance(settings, Mapping) or settings.keys() - {"strategy", "threshold", "keeps"}:
        raise Invalid(
            '"rotation" takes strategy, threshold and keeps, such as {"strategy": "adaptive", '
            '"threshold": 0.8}.'
        )
    name = settings.get("strategy", "adaptive")
    if name not in STRATEGIES:
        raise Invalid(f'There is no rotation "{name}". Use: {", ".join(STRATEGIES)}.')
    threshold = settings.get("threshold", STRATEGIES[name][1])
    keeps = settings.get("keeps", _DEFAULT_SHARE)
    shares = [
        share for share in (threshold, keeps) if isinstance(share, int | float) and 0 < share <= 1
    ]
    if len(shares) != 2 or keeps > threshold:
        raise Invalid(
            "The threshold and keeps of a rotation must be numbers above 0 and at most 1, and "
            "keeps must not be larger than the threshold."
        )
    return Rotation(name, threshold, keeps)


def rotate(
    tx: Transaction, state: AgentState, block: Block, context: EditContext
) -> tuple[Block, Passage] | None:
    """Rotate a block that was just written if it is too full.

    Args:
        tx: The transaction, in which the caller has locked the block's chain.
        state: The agent that wrote the block.
        block: The block after the write.
        context: The author of the step's edits.

    Returns:
        The block and the passage with the removed text, which is not stored yet; None if nothing
        was removed.
    """
    try:
        rotation = read_rotation(block.metadata)
        if rotation is None or len(block.value) <= rotation.threshold * block.limit:
            return None
        kept_text = compress(rotation.strategy, block.value, int(rotation.keeps * block.limit))
        context.require_follows(block, kept_text)
    except Invalid as error:
        # Wrong settings or a changed schema must not let the step fail.
        log.warning("a block is not rotated", extra={"block": block.id, "reason": error})
        return None
    removed_text = _removed_text(block.value, kept_text)
    text = archived_text(ARCHIVED, removed_text, to_datetime(tx.clock.now()))
    passage = new_passage(tx, state, context, text, (TAG, block.shown_label))
    passage = replace(
        passage,
        is_untrusted=block.is_untrusted,
        egress=join(passage.egress, *_labels_of(block, context)),
    )
    share = round(100 * len(block.value) / block.limit)
    metadata = ChangeMetadata(
        # The agent is the author: its policy allowed the write that filled the block.
        context.author,
        f"Rotate {block.label}, {share} percent full: the removed text is in {passage.id}",
        context.run_id,
        context.step_id,
        is_untrusted=context.is_untrusted,
        is_quoted=True,
    )
    try:
        rotated = blocks.write(tx, block, kept_text, metadata)
    except (Forbidden, Invalid) as error:
        # The step's write fits as it is, so the step must not fail.
        log.warning("a block is not rotated", extra={"block": block.id, "reason": error})
        return None
    if rotated is None:
        return None
    return (rotated, passage)


def _labels_of(block: Block, context: EditContext) -> list[str | None]:
    """Return the egress labels of a block and of the lines that its schema labels."""
    if not block.schema_ref or (schema := context.schemas(block.schema_ref)) is None:
        return [block.egress]
    return [block.egress, *(span.label for span in labelled_spans(block.value, schema))]


def new_passage(
    tx: Transaction,
    state: AgentState,
    context: EditContext,
    text: str,
    tags: tuple[str, ...],
    id: str | None = None,
) -> Passage:
    """Return a passage of this step. It is not stored yet and in no archive.

    Args:
        tx: The transaction, whose clock gives the time.
        state: The agent, and the user about whom the passage is.
        context: The step, and the egress label of its sources.
        text: The passage's text.
        tags: The passage's tags.
        id: The passage's id; None makes one.
    """
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
        egress=context.egress,
        created_at=now,
        updated_at=now,
    )


def _removed_text(text: str, kept_text: str) -> str:
    """Return the lines that were removed; all lines if one was cut."""
    unmatched = Counter(kept_text.split("\n"))
    removed_lines = []
    for line in text.split("\n"):
        if unmatched[line]:
            unmatched[line] -= 1
        else:
            removed_lines.append(line)
    if not unmatched.total():
        return "\n".join(removed_lines)
    return text


def _score(line: str) -> int:
    tag = line[: line.find("]") + 1]
    return _SCORES.get(tag, 50 if line.startswith("[") else 10)


def _fill(text: str, rank: Callable[[str, int], Any], room: int) -> list[tuple[int, str]]:
    """Take lines by rank while there is room; cut the last line."""
    kept_lines: list[tuple[int, str]] = []
    lines = text.split("\n")
    for number in sorted(range(len(lines)), key=lambda number: rank(lines[number], number)):
        if len(lines[number]) > room:
            if room >= _WORTH_CUTTING or (not kept_lines and room > len(_DOTS)):
                kept_lines.append((number, lines[number][: room - len(_DOTS)] + _DOTS))
            break
        kept_lines.append((number, lines[number]))
        room -= len(lines[number]) + 1
        if room < 0:
            break
    return kept_lines
