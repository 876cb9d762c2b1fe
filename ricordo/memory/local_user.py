"""Facts about the local user of a server that needs no keys.

An agent that was created without a user edits its blocks directly, as clients of the retired server
expect. On a server without keys, the local user talks with this agent. So new lines about the
person are also proposed for the local user's memory (decision 0065).
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.scope import Actor, Scope
from ricordo.errors import RicordoError
from ricordo.memory.edits import EditContext, MemoryEdit, added_lines, by_block
from ricordo.memory.fact_lines import is_about_person
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.memory.text import carry_over, edit_summary, merge_changes
from ricordo.memory.user_copies import copy_of, needs_copy, users_chain
from ricordo.storage import blocks, proposals, versions
from ricordo.storage.engine.store import Overtaken, Transaction

log = logging.getLogger(__name__)

# The note on a withdrawn proposal.
LINES_REMOVED = "The agent removed one of the proposed lines from its memory."


def share_facts(
    tx: Transaction,
    state: AgentState,
    edits: Sequence[MemoryEdit],
    scope: Scope,
    context: EditContext,
) -> None:
    """Propose a step's changes of blocks about the person to the local user.

    In a conversation with a user nothing is proposed, since the edits themselves change that user's
    memory. Texts by others, or from search results, are not proposed either.

    Args:
        tx: The transaction that saves the step.
        state: The agent.
        edits: The step's edits that were stored.
        scope: The scope of the local user.
        context: The author of the edits, and the rules that apply to them.
    """
    if state.conversation.user_id or context.is_untrusted:
        return
    for group in by_block(edits).values():
        base, after = group[0].base, group[-1].after
        is_fact = after is not None and is_about_person(base) and after.value != base.value
        if after is None or not is_fact or (base.chain_id and not needs_copy(base, scope.user_id)):
            continue
        try:
            _propose(tx, state, group, after.value, scope, context)
        except Overtaken:
            raise  # the store runs the step's transaction again
        except RicordoError as error:
            # If the user's memory is full or refuses the line, the agent's edit still succeeds.
            log.info("a fact was not proposed", extra={"reason": type(error).__name__})


def _propose(
    tx: Transaction,
    state: AgentState,
    group: Sequence[MemoryEdit],
    text: str,
    scope: Scope,
    context: EditContext,
) -> None:
    base = group[0].base
    chain = users_chain(tx, state.agent, scope.user_id)
    copy = blocks.copy_in(tx, chain.id, state.agent.memory_id, base.shown_label)
    if copy is None:
        # The user need not decide about the text with which the agent was created, but about any
        # other text.
        first_text = base.value if base.version == 1 and not group[0].is_new else ""
        template = replace(base, value=first_text, policy=state.agent.user_block_policy)
        copy = copy_of(tx, state.agent, template, chain.id, context.author)
        before = first_text
    else:
        before = base.value
    removed_lines = added_lines(text, before)
    if removed_lines:
        # The agent's copy lacks the lines that wait as proposals, and may have its lines in another
        # order.
        value = carry_over(before, text, copy.value)
    else:
        value = merge_changes(before, copy.value, text)
    if value is None:
        value = text  # too large to be compared
    else:
        value = _withdraw_outdated(tx, chain.id, copy, context.author, removed_lines, value)
    metadata = context.metadata(
        (edit.reason for edit in group), edit_summary(base, group[-1].after)
    )
    draft = ProposalDraft(chain.id, copy.label, value, copy)
    propose(tx, draft, metadata, context.expires_after)


def _withdraw_outdated(
    tx: Transaction,
    chain_id: str,
    copy: Block,
    author: Actor,
    removed_lines: Collection[str],
    value: str,
) -> str:
    """Withdraw the agent's waiting proposals that add a line, if the agent now removes that line.

    Returns `value` with the other changes of these proposals, so that they still wait for a
    decision.
    """
    if not removed_lines:
        return value
    versions.lock(tx, chain_id)
    for older in proposals.waiting_by(tx, chain_id, copy.label, author):
        if older.value is None:
            continue
        older_before = older.base_value or ""
        outdated_lines = {*added_lines(older_before, older.value)}.intersection(removed_lines)
        if not outdated_lines:
            continue
        withdrawn = replace(older, status="expired", note=LINES_REMOVED, resolved_at=tx.clock.now())
        proposals.settle(tx, withdrawn)
        rest = [line for line in older.value.split("\n") if line not in outdated_lines]
        merged = carry_over(older_before, "\n".join(rest), value)
        if merged is not None:
            value = merged
    return value
