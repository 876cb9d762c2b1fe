"""Proposals: what a policy does not let an agent do at once waits for the block's owner, and only the owner sees it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ricordo.domain.block import Block, Chain
from ricordo.domain.clock import DAY
from ricordo.domain.git_objects import blob_id
from ricordo.domain.ids import new_id
from ricordo.domain.redaction import redact_values
from ricordo.domain.scope import Actor
from ricordo.domain.text import normal_json, normal_name
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Conflict, Invalid, NotFound, TooLong
from ricordo.memory.line_changes import (
    LineChange,
    edit_summary,
    effort,
    line_changes,
    merge_changes,
    removes_lines,
    same_text,
    touch_same_lines,
    where_they_meet,
)
from ricordo.memory.working_memory import EditContext, MemoryEdit, by_block
from ricordo.settings import Settings
from ricordo.storage import proposals, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import require_history_for_proposal

WAITS = (
    'Your change of memory block "{}" was proposed as {}. It waits for the owner, and the block stays as it is until then. '
    "You are told later if the owner rejects it and says why."
)
REPEATED = (
    'This change of memory block "{}" waits for the owner already, as {}: nothing new was proposed.'
)
STANDS = 'Memory block "{}" says this already, so there is nothing to propose.'
TAKEN = 'The label "{}" belongs to another block, which you cannot see. Choose another label.'
FULL_IN_ALL = "{} changes of this memory wait for its owner already. Propose more when some of them are decided."
FULL = '{} of your changes of memory block "{}" wait for the owner already. Propose more when some of them are decided.'
NOT_A_TEXT = (
    'Memory block "{}" belongs to an owner who decides about changes, and only the owner can change its description. '
    "Propose changes of its text instead."
)


_Relation = Literal["beside", "repeated", "superseded"]


class Unchanged(Invalid):
    """What is proposed stands in the block already."""


# Of one author for one block, and of all authors for one owner.
_MOST_WAITING = 100
_MOST_IN_ALL = 1000
# Lines, and pairs of equal lines, that are compared with what waits when one proposal is made: a thousand take two milliseconds.
_MOST_COMPARED = 40_000
# Pairs of an added line and one that may have it within; where there are more, the line itself counts alone.
_MOST_SENTENCES = 10_000


@dataclass(frozen=True, slots=True)
class ProposalDraft:
    """A change to be proposed: of `block`, or a new one where that is None; `value` is None for one that shall go."""

    chain_id: str
    label: str
    value: str | None
    block: Block | None = None
    new_label: str | None = None
    description: str | None = None
    confidence: float | None = None


def propose_edits(
    tx: Transaction,
    edits: Sequence[MemoryEdit],
    context: EditContext,
    home: Chain | None = None,
    seen: Sequence[Block] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Propose each block's edits of one step, new blocks in `home`; returns results and failures by call id."""
    results: dict[str, str] = {}
    failed: dict[str, str] = {}
    # In the order of their chains, as everyone locks them, so that no two wait for each other.
    for group in sorted(by_block(edits).values(), key=lambda group: group[0].base.chain_id):
        block, after = group[0].base, group[-1].after
        if group[0].is_new and after is None:
            continue  # made and deleted in one step
        if not group[0].is_new and after and after.description != block.description:
            failed |= {edit.call_id: NOT_A_TEXT.format(block.shown_label) for edit in group}
            continue
        summary = edit_summary(None if group[0].is_new else block, after)
        metadata = context.metadata((edit.reason for edit in group), summary)
        try:
            proposal = propose(tx, _draft(tx, group, home), metadata, context.expires_after)
            sentence = (REPEATED if proposal.is_repeated else WAITS).format(
                block.shown_label, proposal.id
            )
        except Unchanged as answer:
            sentence = str(answer)
        except (NotFound, Conflict, TooLong) as error:
            failed |= {edit.call_id: str(error) for edit in group}
            continue
        for edit in group:
            results[edit.call_id] = (
                f"{results[edit.call_id]} {sentence}" if edit.call_id in results else sentence
            )
    if results:
        known = [*seen, *(edit.base for edit in edits)]
        shown = {(block.chain_id, block.label): block.shown_label for block in known}
        chain_ids = {edit.base.chain_id or (home.id if home else "") for edit in edits}
        told = _waiting_told(tx, chain_ids, context.author, shown)
        results = {call_id: f"{text} {told}".strip() for call_id, text in results.items()}
    return results, failed


def _draft(tx: Transaction, group: Sequence[MemoryEdit], home: Chain | None) -> ProposalDraft:
    """What these edits of one block propose. Raises Conflict where a new block's label is taken in the chain `home`."""
    block, after = group[0].base, group[-1].after
    confidence = min(
        (sure for edit in group if (sure := edit.reason.confidence) is not None), default=None
    )
    value = after.value if after else None
    if not group[0].is_new or home is None or after is None:
        new_label = after.label if after and after.label != block.label else None
        return ProposalDraft(
            block.chain_id, block.label, value, block, new_label, confidence=confidence
        )
    chain = versions.lock(tx, home.id)
    if chain and after.label in chain.files:
        raise Conflict(TAKEN.format(after.label))
    if chain:
        chain.require_told_apart(after.label)
    return ProposalDraft(
        home.id, after.label, value, description=after.description, confidence=confidence
    )


def _waiting_told(
    tx: Transaction, chain_ids: Iterable[str], author: Actor, shown: Mapping[tuple[str, str], str]
) -> str:
    """What of this author waits in these chains: how many, and for which blocks. What others proposed is no agent's business."""
    counts: Counter[str] = Counter()
    for chain_id in sorted(chain_ids):
        for label, count in proposals.waiting_counts(tx, chain_id, author).items():
            counts[shown.get((chain_id, label), label)] += count
    total = counts.total()
    labels = ", ".join(f"{label} ({count})" for label, count in sorted(counts.items()))
    return (
        f"{total} {'change waits' if total == 1 else 'changes wait'} for the owner: {labels}."
        if total
        else ""
    )


def propose(
    tx: Transaction,
    draft: ProposalDraft,
    metadata: ChangeMetadata,
    expires_after: int | None = None,
) -> Proposal:
    """Store a proposal, which waits beside others; an older one of the same author that touches the same lines is superseded.

    A change that waits already, or is part of one, makes no new proposal: that one is returned, with `is_repeated`. Raises
    Unchanged where the block says it already, Conflict where too much of the author waits, NotFound where all is erased, TooLong.
    """
    before = draft.block.value if draft.block else ""
    tx.quotas.require_text(draft.label, f"{draft.value or ''}{draft.description or ''}", before)
    # As it would be stored, so that it is compared with what is.
    draft = replace(
        draft,
        label=normal_name(draft.label),
        new_label=draft.new_label and normal_name(draft.new_label),
        value=redact_values(normal_json(draft.value)),
        description=redact_values(normal_json(draft.description)),
    )
    chain = versions.lock(tx, draft.chain_id)
    if chain is None:
        raise NotFound(f'Memory block "{draft.label}" was erased in the meantime.')
    require_history_for_proposal(tx, chain)
    _require_change(tx, chain, draft)
    of_author = proposals.waiting_by(tx, chain.id, draft.label, metadata.author)
    comparison = _DraftComparison(draft)
    # The newest first, as far as the room goes.
    older = [(one, comparison.relation(one)) for one in reversed(of_author)][::-1]
    if waiting := next((one for one, relation in older if relation == "repeated"), None):
        return replace(waiting, is_repeated=True)
    superseded = [one for one, relation in older if relation == "superseded"]
    if not superseded and not metadata.is_owners_of(chain):
        _require_room(tx, chain, draft.label, len(older))
    now = tx.clock.now()
    block = draft.block
    proposal = Proposal(
        id=new_id("proposal"),
        organization_id=chain.organization_id,
        chain_id=chain.id,
        label=draft.label,
        base=block.head if block else None,
        base_value=block.value if block else None,
        value=draft.value,
        author=metadata.author,
        reasoning=metadata.reason,
        created_at=now if metadata.made_at is None else metadata.made_at,
        confidence=draft.confidence,
        new_label=draft.new_label,
        description=draft.description,
        run_id=metadata.run_id,
        step_id=metadata.step_id,
        is_untrusted=metadata.is_untrusted,
        expires_at=None if expires_after is None else now + expires_after,
    )
    file = chain.files.get(draft.label)
    # Only a text that the chain holds can be what the new one is a difference from, and the block may have moved on.
    is_current = file is not None and block is not None and blob_id(block.value) == file[0]
    proposal = proposals.insert_one(
        tx, proposal, (*file, block.value) if file and block and is_current else None
    )
    for one in superseded:
        proposals.settle(
            tx, replace(one, status="superseded", resolved_at=now, superseded_by=proposal.id)
        )
    return proposal


def _require_room(tx: Transaction, chain: Chain, label: str, of_author: int) -> None:
    """Raise Conflict where too much waits already, of this author for the block or of anybody for its owner."""
    if of_author >= _MOST_WAITING:
        raise Conflict(FULL.format(of_author, label))
    if (in_all := sum(proposals.waiting_counts(tx, chain.id).values())) >= _MOST_IN_ALL:
        raise Conflict(FULL_IN_ALL.format(in_all))


def _require_change(tx: Transaction, chain: Chain, draft: ProposalDraft) -> None:
    """Raise Unchanged where the block says it already, also since the draft was made, NotFound where it was deleted since."""
    if draft.block and draft.label not in chain.files:
        raise NotFound(
            f'Memory block "{draft.block.shown_label}" was deleted or renamed in the meantime.'
        )
    file, before = chain.files.get(draft.label), draft.block.value if draft.block else ""
    if draft.value is None or draft.new_label or file is None:
        return
    text = (
        before
        if draft.block and blob_id(before) == file[0]
        else versions.read_text(tx, chain.id, file[0])
    )
    after = merge_changes(before, text, draft.value)
    if after is not None and same_text(text, after):
        raise Unchanged(STANDS.format(draft.label))


class _DraftComparison:
    """A draft compared with the author's older proposals for the block while there is room; the rest waits beside it."""

    def __init__(self, draft: ProposalDraft) -> None:
        self._draft = draft
        self._before = draft.block.value if draft.block else ""
        self.room = _MOST_COMPARED

    def relation(self, older: Proposal) -> _Relation:
        """What the older proposal becomes."""
        draft, before, older_before = self._draft, self._before, older.base_value or ""
        if draft.value is None or older.value is None:
            is_same = draft.value is older.value and same_text(before, older_before)
            return "repeated" if is_same else "superseded"
        is_same = same_text(draft.value, older.value) and same_text(before, older_before)
        if (
            is_same
            and (draft.block is None) == (older.base is None)
            and draft.new_label in {None, older.new_label}
        ):
            return "repeated"  # also of a block that is to be made empty
        is_text, is_older_text = (
            not same_text(before, draft.value),
            not same_text(older_before, older.value),
        )
        if is_text and is_older_text:
            return self._of_texts(
                older, where_they_meet(older_before, older.value, before, draft.value)
            )
        # A new label touches no line.
        if draft.new_label and draft.new_label == older.new_label and not is_text:
            return "repeated"
        return "superseded" if draft.new_label and not is_older_text else "beside"

    def _of_texts(self, older: Proposal, texts: tuple[str, str, str, str] | None) -> _Relation:
        if texts is None or not self._has_room(texts):
            return "beside"
        older_before, older_text, before, text = texts
        # One that was to make the block, which is there by now, has a base for none of its lines.
        is_overtaken = older.base is None and self._draft.block and removes_lines(before, text)
        if is_overtaken or touch_same_lines(older_before, older_text, before, text):
            return "superseded"
        # Compared on the text that the older was made from; what the block says since is in neither.
        after = merge_changes(before, older_before, text)
        both = None if after is None else merge_changes(older_before, older_text, after)
        if after is None or both is None:
            return "beside"
        new_label = self._draft.new_label
        is_in_older = same_text(both, older_text) or _tells_all(older_before, older_text, after)
        if is_in_older and new_label in {None, older.new_label}:
            return "repeated"
        is_in_newer = same_text(both, after) or _tells_all(older_before, after, older_text)
        return "superseded" if is_in_newer and older.new_label in {None, new_label} else "beside"

    def _has_room(self, texts: Sequence[str]) -> bool:
        """Whether there is room for a comparison of these; takes it."""
        lines = sum(text.count("\n") for text in texts)
        if lines > self.room:
            return False
        older_before, older_text, before, text = texts
        self.room -= (
            lines
            + effort(older_before, older_text)
            + effort(older_before, before)
            + effort(before, text)
        )
        return self.room >= 0


def _tells_all(base: str, fuller: str, text: str) -> bool:
    """Whether the fuller text adds at the same places, if within longer lines, what the other adds without taking anything away."""
    changes, fuller_changes = line_changes(base, text) or [], line_changes(base, fuller) or []

    def is_told(change: LineChange) -> bool:
        lines = [
            line
            for one in fuller_changes
            if one.start <= change.start <= one.end
            for line in one.lines
        ]
        sentences = [sentence for line in change.lines if (sentence := line.strip())]
        is_small = len(lines) * len(sentences) <= _MOST_SENTENCES
        return is_small and all(
            any(_tells(line.strip(), sentence) for line in lines) for sentence in sentences
        )

    return bool(changes) and all(one.start == one.end and is_told(one) for one in changes)


def _tells(line: str, sentence: str) -> bool:
    """Whether the line begins with the sentence or has it behind another one: "Has a cat" is not in "Has a cat allergy"."""
    begins = r"(?:^|[.!?;]\s+)"
    ends = r"(?=\s|$)" if sentence[-1] in ".!?" else r"(?=[.,;!?]|$)"
    return re.search(begins + re.escape(sentence) + ends, line) is not None


def expiry_of(settings: Settings) -> int | None:
    """How long proposals wait, in microseconds; None: for ever."""
    return int(settings.proposal_expiry * DAY) or None
