"""Routes of proposals for a user's memory.

Agents and programs propose changes. The owner decides on them one by one or on many at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.errors import text_conflict
from ricordo.api.models.base import TextConflict
from ricordo.api.models.memory import (
    ApproveRequest,
    BulkDecisionRequest,
    DecidedResponse,
    OutcomeResponse,
    ProposalRequest,
    ProposalResponse,
    RejectRequest,
    UndoneResponse,
)
from ricordo.api.routing import Routes, needs
from ricordo.api.users import waiting_for
from ricordo.domain.block import Block
from ricordo.domain.ids import is_id, unique
from ricordo.domain.redaction import redact
from ricordo.domain.scope import IMPERSONATE, Actor, Scope
from ricordo.domain.text import Json
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.errors import Forbidden, NotFound, RicordoError
from ricordo.memory import approval, user_memory
from ricordo.memory.approval import Conflicted, Undone
from ricordo.memory.proposals import expiry_of
from ricordo.memory.schemas import require_follows, schemas_in
from ricordo.memory.user_memory import ProposalOptions, UserMemory
from ricordo.offload import few_at_once
from ricordo.storage import agents, history, proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter

router = Routes(prefix="/users/{user_id}", tags=["users' memory"], scope="memory")
_BLOCK = "/blocks/{label:path}"
# The most waiting proposals that one request decides if it names none.
DECIDED_AT_ONCE = 100
_HOW = (
    "Read base, ours (the current text) and theirs (the proposed text). Then approve again with "
    'the merged text as "body".'
)
Status = Annotated[
    ProposalStatus | Literal["waiting", "all"],
    Query(
        description="`waiting`: proposals that can still be decided, which are open or in conflict."
    ),
]
# A page has few proposals, since each one has two texts and their difference.
Limit = Annotated[int, Query(ge=1, le=100, description="The most proposals to return.")]
# A decided proposal, its block after that, and the number of proposals still waiting for this
# block.
Decided = tuple[Proposal, Block | None, int]
After = Annotated[str | None, Query(description="Only proposals after the one with this id.")]


@router.get("/diffs", response_model=list[ProposalResponse])
async def list_all(
    context: RequestContext,
    user_id: str,
    status: Status = "waiting",
    limit: Limit = 50,
    after: After = None,
) -> list[Json]:
    """List proposals for all blocks of the user, newest first; by default the waiting ones.

    Long texts may reduce the page to fewer than `limit` proposals. For the next page, pass the last
    proposal's id as `after`. Stop when a page is empty.
    """
    return await _list(
        context, user_id, None, status, Page(limit=limit, after=after, is_bounded=True)
    )


@router.post("/diffs/approve", response_model=list[OutcomeResponse])
@needs("memory:approve", "memory:override")
async def approve_many(
    context: RequestContext, user_id: str, body: BulkDecisionRequest
) -> Response:
    """Approve the named or the first hundred waiting proposals, and return the result of each.

    Each decision is separate. The header `x-waiting` has the number of proposals that still wait.
    Repeat the request while more proposals wait than had conflicts or failed.
    """
    return await _decide_many(context, user_id, body, "approve")


@router.post("/diffs/reject", response_model=list[OutcomeResponse])
@needs("memory:approve", "memory:override")
async def reject_many(context: RequestContext, user_id: str, body: BulkDecisionRequest) -> Response:
    """Reject the named or the first hundred waiting proposals, and return the result of each.

    Each decision is separate. The header `x-waiting` has the number of proposals that still wait.
    Repeat the request until it is 0.
    """
    return await _decide_many(context, user_id, body, "reject")


@router.post("/runs/{run_id}/undo", response_model=UndoneResponse)
@needs("memory:approve", "memory:override")
def undo(tx: Transaction, context: RequestContext, user_id: str, run_id: str) -> Undone:
    """Undo a run's changes of the user's memory by new versions.

    Later changes stay, and the run's waiting proposals are rejected.
    """
    memory = user_memory.open_memory(tx, context.scope, user_id)
    touched = any(
        version.chain_id == memory.chain.id for version in history.of_run(tx, context.scope, run_id)
    )
    filter_ = ProposalFilter(chain_id=memory.chain.id, run_id=run_id)
    if not touched and not proposals.page(tx, context.scope, Page(limit=1), filter_):
        raise NotFound(f"Run with ID {run_id} not found")
    return approval.undo_run(tx, _scope_of(context, memory), run_id, context.actor_for(memory.user))


@router.get(_BLOCK + "/diffs", response_model=list[ProposalResponse])
async def list_of_block(
    context: RequestContext,
    user_id: str,
    label: str,
    status: Status = "waiting",
    limit: Limit = 50,
    after: After = None,
) -> list[Json]:
    """List proposals for one block of the user, newest first; by default the waiting ones.

    Pages end as in the list for all blocks.
    """
    return await _list(
        context, user_id, label, status, Page(limit=limit, after=after, is_bounded=True)
    )


@router.post(_BLOCK + "/propose", response_model=ProposalResponse)
async def propose(context: RequestContext, user_id: str, label: str, body: ProposalRequest) -> Json:
    """Propose to the user to replace a part of a block.

    Nothing changes until the user approves it.
    """

    def work(tx: Transaction) -> Proposal:
        # An empty old_string proposes a new block, which may be the user's first.
        memory = user_memory.open_memory(tx, context.scope, user_id, makes=not body.old_string)
        options = ProposalOptions(
            body.reasoning, body.confidence, body.replace_all, expiry_of(context.runtime.settings)
        )
        author = _proposer(tx, context, memory, body.agent_id)
        proposal = user_memory.propose_edit(
            tx,
            memory,
            label,
            old_string=body.old_string,
            new_string=body.new_string,
            by=author,
            options=options,
        )
        block = user_memory.find(tx, memory, label)
        if block and block.schema_ref:
            schema = schemas_in(context.runtime.settings.data_dir)(block.schema_ref)
            require_follows(label, block.value, proposal.value or "", schema)
        return proposal

    return await asyncio.to_thread(ProposalResponse.of, await context.store.write(work))


@router.post(_BLOCK + "/diffs/{diff_id}/approve", response_model=DecidedResponse)
@needs("memory:approve", "memory:override")
async def approve(
    context: RequestContext,
    user_id: str,
    label: str,
    diff_id: str,
    body: ApproveRequest | None = None,
) -> Response | Json:
    """Make the proposed text the block's next version, merged by lines with later changes.

    `body` is text of the owner that replaces the proposed text. Hidden characters are removed,
    except with `keeps_hidden_text`. If lines conflict, nothing is written, and 409 returns the
    three texts.
    """
    request = body or ApproveRequest()

    def work(tx: Transaction) -> Decided | Conflicted:
        memory = _require(tx, context, user_id, label, diff_id)
        outcome = approval.approve(
            tx,
            _scope_of(context, memory),
            diff_id,
            context.actor_for(memory.user),
            body=request.body,
            keeps_hidden_text=request.keeps_hidden_text,
        )
        if isinstance(outcome, Conflicted):
            return outcome
        return outcome.proposal, outcome.block, waiting_for(tx, outcome.block)

    return await decided(await context.store.write(work))


@router.post(_BLOCK + "/diffs/{diff_id}/reject", response_model=DecidedResponse)
@needs("memory:approve", "memory:override")
async def reject(
    context: RequestContext,
    user_id: str,
    label: str,
    diff_id: str,
    body: RejectRequest | None = None,
) -> Response | Json:
    """Leave the block as it is, and store the reason with the proposal."""

    def work(tx: Transaction) -> Decided:
        memory = _require(tx, context, user_id, label, diff_id)
        reason = body.reason if body else None
        rejected = approval.reject(
            tx, _scope_of(context, memory), diff_id, context.actor_for(memory.user), reason=reason
        )
        block = user_memory.find(tx, memory, rejected.label)
        return rejected, block, waiting_for(tx, block)

    return await decided(await context.store.write(work))


async def decided(outcome: Decided | Conflicted) -> Response | Json:
    """Return the answer to a decision, or 409 with the conflicting texts."""
    if isinstance(outcome, Conflicted):
        return text_conflict(
            outcome.proposal.note,
            TextConflict.of(outcome, proposal_id=outcome.proposal.id, how=_HOW),
        )
    # Compute the diff here: for long texts it is slow, and must not block a transaction or the
    # event loop.
    return await asyncio.to_thread(DecidedResponse.from_proposal, *outcome)


async def _list(
    context: RequestContext, user_id: str, label: str | None, status: str, page: Page
) -> list[Json]:
    def of_label(tx: Transaction) -> ProposalFilter:
        memory = user_memory.open_memory(tx, context.scope, user_id)
        filter_ = ProposalFilter(chain_id=memory.chain.id, label=label)
        # The block may not exist yet, since a proposal can create it.
        exists = label is None or user_memory.find(tx, memory, label)
        if not exists and not proposals.page(tx, context.scope, Page(limit=1), filter_):
            raise NotFound(f'There is no memory block "{label}". Read the list of blocks.')
        return filter_

    return await listed(context, of_label, status, page)


async def listed(
    context: RequestContext,
    filter_of: Callable[[Transaction], ProposalFilter],
    status: str,
    page: Page,
) -> list[Json]:
    """Return a page of the selected proposals with this status.

    Args:
        context: The caller's context.
        filter_of: Returns the filter in the reading transaction, where it may check the caller's
            rights.
        status: A proposal's status, "waiting" (open or in conflict) or "all".
        page: The page. Long texts may reduce it to fewer proposals than its limit.
    """
    if status in ("all", "waiting"):
        stored_status: Any = None
    else:
        stored_status = status

    def read(tx: Transaction) -> list[Proposal]:
        of_status = replace(filter_of(tx), status=stored_status, waits=status == "waiting")
        return proposals.page(tx, context.scope, page, of_status)

    def compare(rows: list[Proposal]) -> list[Json]:
        return [ProposalResponse.of(proposal) for proposal in rows]

    async with few_at_once("proposals"):
        return await asyncio.to_thread(compare, await context.store.read(read))


async def _decide_many(
    context: RequestContext,
    user_id: str,
    body: BulkDecisionRequest,
    decision: Literal["approve", "reject"],
) -> Response:
    def read(tx: Transaction) -> tuple[UserMemory, list[str]]:
        memory = user_memory.open_memory(tx, context.scope, user_id)
        return memory, body.ids or proposals.waiting_ids(tx, memory.chain.id, DECIDED_AT_ONCE)

    memory, ids = await context.store.read(read)
    scope = _scope_of(context, memory)
    actor = context.actor_for(memory.user)

    def decide(tx: Transaction, id: str) -> Proposal:
        if decision == "reject":
            return approval.reject(tx, scope, id, actor, reason=body.reason)
        return approval.approve(tx, scope, id, actor).proposal

    outcomes: list[Json] = []
    for id in unique(ids):
        try:
            proposal = await context.store.write(partial(decide, id=id))
        except RicordoError as error:
            outcomes.append(
                OutcomeResponse.of(None, id=id, status="failed", detail=str(error), version=None)
            )
        else:
            if proposal.status == "conflicted":
                note = proposal.note
            else:
                note = None
            outcomes.append(OutcomeResponse.of(proposal, detail=note))
    response = answer(outcomes)
    waiting = await context.store.read(
        lambda tx: sum(proposals.waiting_counts(tx, memory.chain.id).values())
    )
    response.headers["x-waiting"] = str(waiting)
    return response


def _scope_of(context: RequestContext, memory: UserMemory) -> Scope:
    return replace(context.scope, subject_id=memory.user.id)


def _require(
    tx: Transaction, context: RequestContext, user_id: str, label: str, diff_id: str
) -> UserMemory:
    """Return the user's memory.

    The block may have been renamed since the caller read its label. Raises NotFound if the proposal
    is not for this block of this user.
    """
    memory = user_memory.open_memory(tx, context.scope, user_id)
    proposal = proposals.get(tx, context.scope, diff_id)
    is_of_block = proposal.chain_id == memory.chain.id and (
        proposal.label == label or proposal.label == history.last_label(tx, memory.chain.id, label)
    )
    if not is_of_block:
        raise NotFound(f"Proposal with ID {diff_id} not found")
    return memory


def _proposer(
    tx: Transaction, context: RequestContext, memory: UserMemory, agent_id: str | None
) -> Actor:
    """Return the author to show to the user: the named agent, or else the caller.

    The local administrator who names no agent proposes as an agent named "agent". An agent of this
    server has its stored name; any other agent has the name that was sent. Raises Forbidden if the
    request names an agent, and the caller may neither act for users nor change agents. Raises
    NotFound for the id of an agent that the caller does not have, except for the local
    administrator.
    """
    scope = context.scope
    is_local = scope.role == "admin" and scope.may(IMPERSONATE)
    if agent_id is None and not is_local:
        return context.actor_for(memory.user)
    if not scope.may(IMPERSONATE, "agents:write"):
        raise Forbidden("This key may not make a proposal for an agent. Leave agent_id out.")
    name = redact(agent_id or "agent").text
    if is_id(name, "agent"):
        try:
            return Actor("agent", name, agents.load(tx, scope, name).agent.name)
        except NotFound:
            if not is_local:
                raise
    return Actor("agent", name, name)
