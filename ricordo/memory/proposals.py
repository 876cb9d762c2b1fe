"""Proposals: changes that a policy does not let an agent make directly.

They wait for the block's owner. An agent is told only about its own waiting proposals.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ricordo.domain.block import Block, Chain
from ricordo.domain.clock import DAY
from ricordo.domain.egress import join
from ricordo.domain.git_objects import blob_id
from ricordo.domain.hidden_text import describe_hidden, has_hidden_text
from ricordo.domain.ids import new_id
from ricordo.domain.redaction import redact_values
from ricordo.domain.scope import Actor
from ricordo.domain.text import normal_json, normal_name
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory.declined import require_not_declined
from ricordo.memory.edits import (
    HIDDEN_REFUSED,
    EditContext,
    MemoryEdit,
    by_block,
)
from ricordo.memory.line_likeness import says_sentence
from ricordo.memory.text import (
    LineChange,
    edit_summary,
    effort,
    line_changes,
    merge_changes,
    overlapping_parts,
    removes_lines,
    same_text,
    touch_same_lines,
)
from ricordo.memory.unwanted import rules_of
from ricordo.settings import Settings
from ricordo.storage import proposals, runs, versions
from ricordo.storage.engine.store import Overtaken, Transaction
from ricordo.storage.history_size import require_history_for_proposal

PROPOSED = (
    'Your change of memory block "{}" was proposed as {}. '
    "It waits for the owner, and the block stays as it is until then. "
    "You are told later if the owner rejects it and says why."
)
ALREADY_WAITING = (
    'This change of memory block "{}" waits for the owner already, as {}: nothing new was proposed.'
)
ALREADY_IN_BLOCK = 'Memory block "{}" says this already, so there is nothing to propose.'
LABEL_TAKEN = 'The label "{}" belongs to another block, which you cannot see. Choose another label.'
OWNER_LIMIT_REACHED = (
    "{} changes of this memory wait for its owner already. "
    "Propose more after the owner has decided some of them."
)
AUTHOR_LIMIT_REACHED = (
    '{} of your changes of memory block "{}" wait for the owner already. '
    "Propose more after the owner has decided some of them."
)
ONLY_TEXT_CHANGES = (
    'Memory block "{}" belongs to an owner who decides about changes, and only the owner can '
    "change its description. "
    "Propose changes of its text instead."
)


_Relation = Literal["independent", "repeated", "superseded"]


class Unchanged(Invalid):
    """The block already has the proposed change."""


# Limits of waiting proposals: those of one author for one block, and those of all authors for one
# owner.
_AUTHOR_LIMIT = 100
_OWNER_LIMIT = 1000
# The limit of compared lines, and of pairs of equal lines, when one new proposal is compared with
# waiting ones. A thousand pairs take two milliseconds.
_COMPARISON_LIMIT = 40_000
# The limit of compared pairs of an added sentence and a line that may contain it. Beyond the limit
# only whole lines are compared.
_SENTENCE_PAIR_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class ProposalDraft:
    """A change to propose, of `block` or of a new block.

    `value` is None if the block is to be deleted. `egress` is the label of a new block.
    """

    chain_id: str
    label: str
    value: str | None
    block: Block | None = None
    new_label: str | None = None
    description: str | None = None
    confidence: float | None = None
    egress: str | None = None


def _for_each_call(group: Sequence[MemoryEdit], sentence: str) -> dict[str, str]:
    return {edit.call_id: sentence for edit in group}


def propose_edits(
    tx: Transaction,
    edits: Sequence[MemoryEdit],
    context: EditContext,
    home_chain: Chain | None = None,
    visible_blocks: Sequence[Block] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Propose the edits.

    Args:
        tx: The transaction.
        edits: The edits that wait for approval. Each block's edits make one proposal.
        context: The author of the edits, and the lifetime of proposals.
        home_chain: The chain for new blocks; None if there are none.
        visible_blocks: The blocks that the agent sees. Their shown labels are used to list the
            waiting changes.

    Returns:
        Results and failures, both as sentences for the agent by call id.
    """
    results: dict[str, str] = {}
    failed: dict[str, str] = {}
    # Lock in the order of chains, as all code does: otherwise two steps could wait for each other.
    for group in sorted(by_block(edits).values(), key=lambda group: group[0].base.chain_id):
        block = group[0].base
        after = group[-1].after
        is_new = group[0].is_new
        if is_new and after is None:
            continue  # created and deleted in one step
        if not is_new and after and after.description != block.description:
            failed |= _for_each_call(group, ONLY_TEXT_CHANGES.format(block.shown_label))
            continue
        summary = edit_summary(None if is_new else block, after)
        metadata = context.metadata((edit.reason for edit in group), summary)
        try:
            proposal = propose(tx, _draft(tx, group, home_chain), metadata, context.expires_after)
            sentence = (ALREADY_WAITING if proposal.is_repeated else PROPOSED).format(
                block.shown_label, proposal.id
            )
        except Unchanged as answer:
            sentence = str(answer)
        except Overtaken:
            raise  # the store runs the step's transaction again
        except (NotFound, Conflict, Invalid, Forbidden) as error:
            failed |= _for_each_call(group, str(error))
            continue
        for edit in group:
            if edit.call_id in results:
                results[edit.call_id] = f"{results[edit.call_id]} {sentence}"
            else:
                results[edit.call_id] = sentence
    if results:
        home_id = home_chain.id if home_chain else ""
        chain_ids = {edit.base.chain_id or home_id for edit in edits}
        known_blocks = [*visible_blocks, *(edit.base for edit in edits)]
        waiting_text = _waiting_sentence(tx, chain_ids, context.author, known_blocks)
        results = {call_id: f"{text} {waiting_text}".strip() for call_id, text in results.items()}
    return results, failed


def _draft(tx: Transaction, group: Sequence[MemoryEdit], home_chain: Chain | None) -> ProposalDraft:
    """Return the proposal draft of one block's edits.

    Raises Conflict if a new block's label is taken in the chain `home_chain`.
    """
    block = group[0].base
    after = group[-1].after
    confidence = min(
        (sure for edit in group if (sure := edit.reason.confidence) is not None), default=None
    )
    value = after.value if after else None
    if not group[0].is_new or home_chain is None or after is None:
        if after and after.label != block.label:
            new_label = after.label
        else:
            new_label = None
        return ProposalDraft(
            block.chain_id, block.label, value, block, new_label, confidence=confidence
        )
    chain = versions.lock(tx, home_chain.id)
    if chain and after.label in chain.files:
        raise Conflict(LABEL_TAKEN.format(after.label))
    if chain:
        chain.require_distinct_label(after.label)
    return ProposalDraft(
        home_chain.id,
        after.label,
        value,
        description=after.description,
        confidence=confidence,
        egress=after.egress,
    )


def _waiting_sentence(
    tx: Transaction,
    chain_ids: Iterable[str],
    author: Actor,
    known_blocks: Iterable[Block],
) -> str:
    """Return the author's number of waiting changes in these chains, by block.

    Proposals of other authors are not reported to an agent.
    """
    shown_labels = {(block.chain_id, block.label): block.shown_label for block in known_blocks}
    counts: Counter[str] = Counter()
    for chain_id in sorted(chain_ids):
        for label, count in proposals.waiting_counts(tx, chain_id, author).items():
            counts[shown_labels.get((chain_id, label), label)] += count
    total = counts.total()
    labels = ", ".join(f"{label} ({count})" for label, count in sorted(counts.items()))
    if total:
        return (
            f"{total} {'change waits' if total == 1 else 'changes wait'} for the owner: {labels}."
        )
    return ""


def propose(
    tx: Transaction,
    draft: ProposalDraft,
    metadata: ChangeMetadata,
    expires_after: int | None = None,
) -> Proposal:
    """Store a proposal; an older proposal that touches the same lines is superseded.

    Only older proposals of the same author are superseded. For a block that several users share,
    they must also come from conversations with the same user. If a change already waits, or is part
    of a waiting change, no proposal is made. The older one is returned with `is_repeated`.

    Args:
        tx: The transaction.
        draft: The change. Secrets are removed from its texts.
        metadata: The author and the reason, with the run and step.
        expires_after: The lifetime of the proposal in microseconds; None if it never expires.

    Raises:
        Unchanged: if the block has the change already.
        Conflict: at a limit of waiting proposals.
        Declined: if the owner recently rejected the same change.
        Unwanted: if the user's rules forbid to remember this.
        NotFound: if the chain is erased, or the block was deleted meanwhile.
        TooLong: if a text or the history is too large.
    """
    before = draft.block.value if draft.block else ""
    tx.quotas.require_text(draft.label, f"{draft.value or ''}{draft.description or ''}", before)
    # Normalize and redact before the comparison with stored texts.
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
    if not metadata.is_owners_of(chain) and draft.value is not None:
        rules_of(tx, chain).require_wanted(before, draft.value)
    _require_change(tx, chain, draft)
    require_not_declined(tx, chain.id, draft.label, (before, draft.value), metadata)
    of_author = proposals.waiting_by(tx, chain.id, draft.label, metadata.author)
    comparison = _DraftComparison(draft)
    # The newest proposals are compared first, as far as the limit allows.
    by_relation: dict[_Relation, list[Proposal]] = {}
    for older_proposal in reversed(of_author):
        by_relation.setdefault(comparison.relation(older_proposal), []).append(older_proposal)
    if repeated := by_relation.get("repeated"):
        waiting = repeated[-1]
        label = join(waiting.egress, draft.egress)
        if label != waiting.egress:
            waiting = replace(waiting, egress=label)
            proposals.set_egress(tx, waiting)
        return replace(waiting, is_repeated=True)
    superseded = _of_same_user(tx, chain, metadata, by_relation.get("superseded", [])[::-1])
    if not superseded and not metadata.is_owners_of(chain):
        _require_below_limits(tx, chain, draft.label, len(of_author))
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
        # The new text may contain the text of a proposal that it replaces.
        egress=join(draft.egress, *(older_proposal.egress for older_proposal in superseded)),
    )
    proposal = proposals.insert_one(tx, proposal, _text_base(chain, draft))
    for older_proposal in superseded:
        proposals.settle(
            tx,
            replace(
                older_proposal, status="superseded", resolved_at=now, superseded_by=proposal.id
            ),
        )
    return proposal


def _of_same_user(
    tx: Transaction, chain: Chain, metadata: ChangeMetadata, older: Sequence[Proposal]
) -> Sequence[Proposal]:
    """Return the older proposals, without those from conversations with other users."""
    if chain.owner_kind == "user" or not older:
        return older
    run_ids = {metadata.run_id, *(proposal.run_id for proposal in older)} - {None}
    users = {run.id: run.user_id for run in runs.by_ids(tx, sorted(map(str, run_ids)))}
    user_id = users.get(metadata.run_id or "")
    return [proposal for proposal in older if users.get(proposal.run_id or "") == user_id]


def _text_base(chain: Chain, draft: ProposalDraft) -> versions.TextBase | None:
    """Return the text from which the new text is stored as a difference.

    The chain contains that text; the block may have changed since.
    """
    file = chain.files.get(draft.label)
    block = draft.block
    if file and block and blob_id(block.value) == file[0]:
        return (*file, block.value)
    return None


def require_shown(metadata: ChangeMetadata, *texts: str | None, before: str = "") -> None:
    """Raise Invalid for new hidden text, unless a person wrote it.

    Agents, services and untrusted sources may not add hidden text. In a turn the user may have
    written it; `WorkingMemory` checks that.

    Args:
        metadata: The author of the change.
        *texts: The texts after the change; None is skipped.
        before: The text before the change, whose hidden text may stay.
    """
    if metadata.author.kind not in ("agent", "service") and not metadata.is_untrusted:
        return
    for text in texts:
        if has_hidden_text(text, [before]):
            raise Invalid(HIDDEN_REFUSED.format(describe_hidden(text or "", [before])))


def _require_below_limits(tx: Transaction, chain: Chain, label: str, author_count: int) -> None:
    """Raise Conflict if too many proposals by this author or for this owner are waiting."""
    if author_count >= _AUTHOR_LIMIT:
        raise Conflict(AUTHOR_LIMIT_REACHED.format(author_count, label))
    if (owner_count := sum(proposals.waiting_counts(tx, chain.id).values())) >= _OWNER_LIMIT:
        raise Conflict(OWNER_LIMIT_REACHED.format(owner_count))


def _require_change(tx: Transaction, chain: Chain, draft: ProposalDraft) -> None:
    """Raise Unchanged if the block has the change already.

    Raises NotFound if it was deleted since the draft was made.
    """
    if draft.block and draft.label not in chain.files:
        raise NotFound(
            f'Memory block "{draft.block.shown_label}" was deleted or renamed in the meantime.'
        )
    file = chain.files.get(draft.label)
    before = draft.block.value if draft.block else ""
    if draft.value is None or draft.new_label or file is None:
        return
    if draft.block and blob_id(before) == file[0]:
        text = before
    else:
        text = versions.read_text(tx, chain.id, file[0])
    after = merge_changes(before, text, draft.value)
    if after is not None and same_text(text, after):
        raise Unchanged(ALREADY_IN_BLOCK.format(draft.label))


class _DraftComparison:
    """A draft compared with the author's older proposals for the block.

    Once the work limit is reached, changes of text are no longer compared line by line. Proposals
    that are not equal to the draft keep waiting then.
    """

    def __init__(self, draft: ProposalDraft) -> None:
        self._draft = draft
        self._before = draft.block.value if draft.block else ""
        self.room = _COMPARISON_LIMIT

    def _repeats(self, older: Proposal) -> bool:
        draft = self._draft
        is_same = same_text(draft.value or "", older.value or "")
        return (
            is_same
            and same_text(self._before, older.base_value or "")
            and (draft.block is None) == (older.base is None)
            and draft.new_label in {None, older.new_label}
        )

    def relation(self, older: Proposal) -> _Relation:
        """Return the older proposal's relation to the draft."""
        draft = self._draft
        before = self._before
        older_before = older.base_value or ""
        if draft.value is None or older.value is None:
            is_same = draft.value is older.value and same_text(before, older_before)
            if is_same:
                return "repeated"
            return "superseded"
        if self._repeats(older):
            return "repeated"  # also if both make the block empty
        is_text = not same_text(before, draft.value)
        is_older_text = not same_text(older_before, older.value)
        if is_text and is_older_text:
            return self._of_texts(
                older, overlapping_parts(older_before, older.value, before, draft.value)
            )
        # A change of the label alone touches no line.
        if draft.new_label and draft.new_label == older.new_label and not is_text:
            return "repeated"
        if draft.new_label and not is_older_text:
            return "superseded"
        return "independent"

    def _of_texts(self, older: Proposal, texts: tuple[str, str, str, str] | None) -> _Relation:
        if texts is None or not self._has_room(texts):
            return "independent"
        older_before, older_text, before, text = texts
        # A proposal for a new block has no base text, but the block exists now.
        is_overtaken = older.base is None and self._draft.block and removes_lines(before, text)
        if is_overtaken or touch_same_lines(older_before, older_text, before, text):
            return "superseded"
        # Apply both changes to the older proposal's base text, which lacks later text of the block,
        # and compare.
        after = merge_changes(before, older_before, text)
        if after is None:
            return "independent"
        both = merge_changes(older_before, older_text, after)
        if both is None:
            return "independent"
        new_label = self._draft.new_label
        is_in_older = same_text(both, older_text) or _says_everything_of(
            older_before, older_text, after
        )
        if is_in_older and new_label in {None, older.new_label}:
            return "repeated"
        is_in_newer = same_text(both, after) or _says_everything_of(older_before, after, older_text)
        if is_in_newer and older.new_label in {None, new_label}:
            return "superseded"
        return "independent"

    def _has_room(self, texts: Sequence[str]) -> bool:
        """Return True if the work limit allows a comparison of these texts, and count it."""
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


def _says_everything_of(base: str, fuller: str, text: str) -> bool:
    """Return whether `fuller` adds all that `text` adds, perhaps inside longer lines.

    `text` must replace or remove no line. Both must add at the same positions.
    """
    changes = line_changes(base, text) or []
    fuller_changes = line_changes(base, fuller) or []

    def is_contained(change: LineChange) -> bool:
        lines = [
            line
            for other in fuller_changes
            if other.start <= change.start <= other.end
            for line in other.lines
        ]
        sentences = [sentence for line in change.lines if (sentence := line.strip())]
        is_small = len(lines) * len(sentences) <= _SENTENCE_PAIR_LIMIT
        return is_small and all(
            any(says_sentence(line.strip(), sentence) for line in lines) for sentence in sentences
        )

    return bool(changes) and all(
        other.start == other.end and is_contained(other) for other in changes
    )


def expiry_of(settings: Settings) -> int | None:
    """Return the lifetime of proposals in microseconds; None: for ever."""
    return int(settings.proposal_expiry * DAY) or None
