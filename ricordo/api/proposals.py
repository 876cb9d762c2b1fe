"""Proposals of changes to a user's memory: made by agents and programs, decided on by the owner, one by one or many at once."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.errors import text_conflict
from ricordo.api.models.base import Json, TextConflict
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
# Of all that wait, so many are decided on by one request.
DECIDED_AT_ONCE = 100
_HOW = 'Read base, ours (the current text) and theirs (what was proposed), and approve again with a "body" of your own.'
Status = Annotated[
    ProposalStatus | Literal["waiting", "all"],
    Query(description="`waiting`: those that can still be decided on, open or in conflict."),
]
# Each carries two texts and what differs between them.
Limit = Annotated[int, Query(ge=1, le=100, description="How many proposals at most.")]
# A proposal that was decided on, its block as it is then, and how many more wait for that.
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
    """Proposals for all blocks of the user, newest first; by default those that wait.

    There are fewer than `limit` where their texts are long. Ask for those `after` the last one, until there are none.
    """
    return await _list(
        context, user_id, None, status, Page(limit=limit, after=after, is_bounded=True)
    )


@router.post("/diffs/approve", response_model=list[OutcomeResponse])
@needs("memory:approve", "memory:override")
async def approve_many(
    context: RequestContext, user_id: str, body: BulkDecisionRequest
) -> Response:
    """Approve the named proposals, or the first hundred of all that wait, each by itself, and return what became of each.

    The header `x-waiting` says how many wait afterwards: repeat the request while there are more than collided.
    """
    return await _decide_many(context, user_id, body, "approve")


@router.post("/diffs/reject", response_model=list[OutcomeResponse])
@needs("memory:approve", "memory:override")
async def reject_many(context: RequestContext, user_id: str, body: BulkDecisionRequest) -> Response:
    """Reject the named proposals, or the first hundred of all that wait, each by itself, and return what became of each.

    The header `x-waiting` says how many wait afterwards: repeat the request until there are none.
    """
    return await _decide_many(context, user_id, body, "reject")


@router.post("/runs/{run_id}/undo", response_model=UndoneResponse)
@needs("memory:approve", "memory:override")
def undo(tx: Transaction, context: RequestContext, user_id: str, run_id: str) -> Undone:
    """Take back what a run changed in the user's memory, as new versions; what was written since stays, and its proposals go."""
    memory = user_memory.open_memory(tx, context.scope, user_id)
    touched = any(
        version.chain_id == memory.chain.id for version in history.of_run(tx, context.scope, run_id)
    )
    which = ProposalFilter(chain_id=memory.chain.id, run_id=run_id)
    if not touched and not proposals.page(tx, context.scope, Page(limit=1), which):
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
    """Proposals for one block of the user, newest first; by default those that wait. Pages end as those of all do."""
    return await _list(
        context, user_id, label, status, Page(limit=limit, after=after, is_bounded=True)
    )


@router.post(_BLOCK + "/propose", response_model=ProposalResponse)
async def propose(context: RequestContext, user_id: str, label: str, body: ProposalRequest) -> Json:
    """Propose to the user that a piece of a block be replaced. It changes nothing until the user approves it."""

    def work(tx: Transaction) -> Proposal:
        # With an empty old_string a new block is proposed, also the first of a person.
        memory = user_memory.open_memory(tx, context.scope, user_id, makes=not body.old_string)
        options = ProposalOptions(
            body.reasoning, body.confidence, body.replace_all, expiry_of(context.runtime.settings)
        )
        by = _proposer(tx, context, memory, body.agent_id)
        made = user_memory.propose_edit(
            tx, memory, label, body.old_string, body.new_string, by, options
        )
        block = user_memory.find(tx, memory, label)
        if block and block.schema_ref:
            schema = schemas_in(context.runtime.settings.data_dir)(block.schema_ref)
            require_follows(label, block.value, made.value or "", schema)
        return made

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
    """Make what is proposed the block's next version, merged by lines with what was written since.

    With `body`, the owner's own text takes its place. Where lines collide nothing is written: 409 returns the three texts.
    """
    text = body.body if body else None

    def work(tx: Transaction) -> Decided | Conflicted:
        memory = _require(tx, context, user_id, label, diff_id)
        done = approval.approve(
            tx, _scope_of(context, memory), diff_id, context.actor_for(memory.user), body=text
        )
        if isinstance(done, Conflicted):
            return done
        return done.proposal, done.block, waiting_for(tx, done.block)

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
    """Leave the block as it is; the proposal is kept with the reason."""

    def work(tx: Transaction) -> Decided:
        memory = _require(tx, context, user_id, label, diff_id)
        reason = body.reason if body else None
        rejected = approval.reject(
            tx, _scope_of(context, memory), diff_id, context.actor_for(memory.user), reason=reason
        )
        block = user_memory.find(tx, memory, label)
        return rejected, block, waiting_for(tx, block)

    return await decided(await context.store.write(work))


async def decided(done: Decided | Conflicted) -> Response | Json:
    """Answer with what was decided, or with 409 and the texts that collide."""
    if isinstance(done, Conflicted):
        return text_conflict(
            done.proposal.note, TextConflict.of(done, proposal_id=done.proposal.id, how=_HOW)
        )
    # A diff of long texts takes its time, so neither a transaction nor the event loop waits for it.
    return await asyncio.to_thread(DecidedResponse.from_proposal, *done)


async def _list(
    context: RequestContext, user_id: str, label: str | None, status: str, wanted: Page
) -> list[Json]:
    def of_label(tx: Transaction) -> ProposalFilter:
        memory = user_memory.open_memory(tx, context.scope, user_id)
        which = ProposalFilter(chain_id=memory.chain.id, label=label)
        # There may be no block yet: a proposal can be to make it.
        is_known = label is None or user_memory.find(tx, memory, label)
        if not is_known and not proposals.page(tx, context.scope, Page(limit=1), which):
            raise NotFound(f'There is no memory block "{label}". Read the list of blocks.')
        return which

    return await listed(context, of_label, status, wanted)


async def listed(
    context: RequestContext,
    which: Callable[[Transaction], ProposalFilter],
    status: str,
    wanted: Page,
) -> list[Json]:
    """Return a page of those of these proposals that have this status."""
    named: Any = None if status in ("all", "waiting") else status

    def read(tx: Transaction) -> list[Proposal]:
        of_status = replace(which(tx), status=named, waits=status == "waiting")
        return proposals.page(tx, context.scope, wanted, of_status)

    def compare(page: list[Proposal]) -> list[Json]:
        return [ProposalResponse.of(one) for one in page]

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
    scope, by = _scope_of(context, memory), context.actor_for(memory.user)

    def decide(tx: Transaction, id: str) -> Proposal:
        if decision == "reject":
            return approval.reject(tx, scope, id, by, reason=body.reason)
        return approval.approve(tx, scope, id, by).proposal

    outcomes: list[Json] = []
    for id in unique(ids):
        try:
            proposal = await context.store.write(partial(decide, id=id))
        except RicordoError as error:
            outcomes.append(
                OutcomeResponse.of(None, id=id, status="failed", detail=str(error), version=None)
            )
        else:
            why = proposal.note if proposal.status == "conflicted" else None
            outcomes.append(OutcomeResponse.of(proposal, detail=why))
    response = answer(outcomes)
    left = await context.store.read(
        lambda tx: sum(proposals.waiting_counts(tx, memory.chain.id).values())
    )
    response.headers["x-waiting"] = str(left)
    return response


def _scope_of(context: RequestContext, memory: UserMemory) -> Scope:
    return replace(context.scope, subject_id=memory.user.id)


def _require(
    tx: Transaction, context: RequestContext, user_id: str, label: str, diff_id: str
) -> UserMemory:
    """The memory of the user. Raises NotFound unless the proposal is one for this block of the user."""
    memory = user_memory.open_memory(tx, context.scope, user_id)
    proposal = proposals.get(tx, context.scope, diff_id)
    if (proposal.chain_id, proposal.label) != (memory.chain.id, label):
        raise NotFound(f"Proposal with ID {diff_id} not found")
    return memory


def _proposer(
    tx: Transaction, context: RequestContext, memory: UserMemory, agent_id: str | None
) -> Actor:
    """The author as the user reads it: an agent of this server by its name, any other as it calls itself; else the caller.

    Raises Forbidden where the caller runs no agents, so that nobody speaks in the name of another.
    """
    scope = context.scope
    is_local = scope.role == "admin" and scope.may(IMPERSONATE)
    if agent_id is None and not is_local:
        return context.actor_for(memory.user)
    if not scope.may(IMPERSONATE, "agents:write"):
        raise Forbidden("This key may not propose in the name of an agent. Leave out agent_id.")
    name = redact(agent_id or "agent").text
    if is_id(name, "agent"):
        try:
            return Actor("agent", name, agents.load(tx, scope, name).agent.name)
        except NotFound:
            if not is_local:
                raise
    return Actor("agent", name, name)
