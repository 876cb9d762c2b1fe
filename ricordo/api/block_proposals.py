"""Proposals for a block that is named by its id.

They include proposals for an agent's blocks, which the agent's operators decide on.
"""

from fastapi import Response

from ricordo.api.call import RequestContext
from ricordo.api.models.memory import (
    ApproveRequest,
    DecidedResponse,
    ProposalResponse,
    RejectRequest,
)
from ricordo.api.proposals import After, Decided, Limit, Status, decided, listed
from ricordo.api.routing import Routes, needs
from ricordo.api.users import waiting_for
from ricordo.domain.block import Block
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.memory import approval
from ricordo.memory.approval import Conflicted
from ricordo.storage import blocks, proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter

router = Routes(prefix="/v1/blocks/{block_id}/diffs", tags=["blocks"], scope="agents")


@router.get("", response_model=list[ProposalResponse])
async def list_of_block(
    context: RequestContext,
    block_id: str,
    status: Status = "waiting",
    limit: Limit = 50,
    after: After = None,
) -> list[Json]:
    """List proposals for the block, newest first; by default the waiting ones.

    Long texts may reduce the page to fewer than `limit` proposals. For the next page, pass the last
    proposal's id as `after`. Stop when a page is empty.
    """

    def of_block(tx: Transaction) -> ProposalFilter:
        block = blocks.get(tx, context.scope, block_id)
        return ProposalFilter(chain_id=block.chain_id, label=block.label)

    return await listed(context, of_block, status, Page(limit=limit, after=after, is_bounded=True))


@router.post("/{proposal_id}/approve", response_model=DecidedResponse)
@needs("memory:approve", "memory:override")
async def approve(
    context: RequestContext, block_id: str, proposal_id: str, body: ApproveRequest | None = None
) -> Response | Json:
    """Make the proposed text the block's next version, merged by lines with later changes.

    On a user's block decides its owner, or a caller who may decide for everybody.
    """
    request = body or ApproveRequest()

    def work(tx: Transaction) -> Decided | Conflicted:
        _require(tx, context, block_id, proposal_id)
        outcome = approval.approve(
            tx,
            context.scope,
            proposal_id,
            context.scope.actor,
            body=request.body,
            keeps_hidden_text=request.keeps_hidden_text,
        )
        if isinstance(outcome, Conflicted):
            return outcome
        return outcome.proposal, outcome.block, waiting_for(tx, outcome.block)

    return await decided(await context.store.write(work))


@router.post("/{proposal_id}/reject", response_model=DecidedResponse)
@needs("memory:approve", "memory:override")
async def reject(
    context: RequestContext, block_id: str, proposal_id: str, body: RejectRequest | None = None
) -> Response | Json:
    """Leave the block as it is, and store the reason with the proposal."""

    def work(tx: Transaction) -> Decided:
        block = _require(tx, context, block_id, proposal_id)
        rejected = approval.reject(
            tx,
            context.scope,
            proposal_id,
            context.scope.actor,
            reason=body.reason if body else None,
        )
        return rejected, block, waiting_for(tx, block)

    return await decided(await context.store.write(work))


def _require(tx: Transaction, context: RequestContext, block_id: str, proposal_id: str) -> Block:
    """Return the block of this proposal. Raises NotFound if the proposal is for another block."""
    block = blocks.get(tx, context.scope, block_id)
    proposal = proposals.get(tx, context.scope, proposal_id)
    if (proposal.chain_id, proposal.label) != (block.chain_id, block.label):
        raise NotFound(f"Proposal with ID {proposal_id} not found")
    return block
