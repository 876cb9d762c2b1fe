"""Decide on proposals, from any page that shows them.

The page of a conflict shows both texts, and a third text resolves it.
"""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.queries import WaitingProposal
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, done, form_of, is_part, local_path, render
from ricordo.pages.titles import title_of
from ricordo.storage import blocks

router = Pages("/ui/proposals", scope="memory")
_CONFLICT = 409


@router.get("/{proposal_id}")
async def show_proposal(request: Request, proposal_id: str) -> Response:
    """Show one proposal with an editor, or the three texts of a conflict."""
    waiting = await _find(request, proposal_id)
    variables: dict[str, Any] = {"next": request.query_params.get("next", "")}
    if waiting.proposal.status == "conflicted" and waiting.block_id:
        scope = request.scope[REQUEST_SCOPE]
        id = waiting.block_id
        proposal = waiting.proposal
        block = await request.app.state.runtime.store.read(lambda tx: blocks.get(tx, scope, id))
        texts = {"base": proposal.base_value, "ours": block.value, "theirs": proposal.value}
        variables |= {"conflict": texts, "words": proposal.note or ""}
    return await _page(request, waiting, **variables)


@router.post("/{proposal_id}/approve")
@needs("memory:approve", "memory:override")
async def approve(request: Request, proposal_id: str) -> Response:
    """Make the proposal the block's next version, with the text of `body`, if sent."""
    waiting = await _find(request, proposal_id)
    form = await form_of(request)
    body = {"body": form["body"]} if "body" in form else None
    scope = request.scope[REQUEST_SCOPE]
    undo = await request.app.state.runtime.store.read(
        lambda tx: queries.undo_of_approval(tx, scope, [proposal_id])
    )
    try:
        decided = await Api(request).ask("POST", waiting.path("approve"), body)
    except RefusedByApi as error:
        conflict = None
        if error.status == _CONFLICT and isinstance(error.content, dict):
            conflict = error.content.get("conflict")
        if conflict is None:
            raise
        return await _page(
            request,
            waiting,
            conflict=conflict,
            words=str(error),
            body=form.get("body"),
            next=form.get("next", ""),
        )
    return await _decided(request, waiting, form, "applied", decided, undo=undo)


@router.post("/{proposal_id}/reject")
@needs("memory:approve", "memory:override")
async def reject(request: Request, proposal_id: str) -> Response:
    """Reject the proposal; the block stays."""
    waiting = await _find(request, proposal_id)
    form = await form_of(request)
    decided = await Api(request).ask(
        "POST", waiting.path("reject"), {"reason": form.get("reason") or None}
    )
    return await _decided(request, waiting, form, "rejected", decided)


async def _find(request: Request, proposal_id: str) -> WaitingProposal:
    scope = request.scope[REQUEST_SCOPE]
    proposal: WaitingProposal = await request.app.state.runtime.store.read(
        lambda tx: queries.proposal(tx, scope, proposal_id)
    )
    return proposal


async def _page(request: Request, waiting: WaitingProposal, **changes: Any) -> Response:
    variables = {"conflict": None, "words": "", "body": None, "next": ""} | changes
    variables["next"] = local_path(variables["next"]) or waiting.owner.path
    status = _CONFLICT if variables["conflict"] and request.method == "POST" else 200
    template = "decision_part.html" if is_part(request) else "decision.html"
    title = title_of(
        waiting.proposal.label,
        None,
        waiting.owner.name,
        is_self=waiting.owner.id == request.scope[REQUEST_SCOPE].user_id,
    )
    return await render(request, template, status=status, waiting=waiting, title=title, **variables)


async def _decided(
    request: Request,
    waiting: WaitingProposal,
    form: dict[str, str],
    decision: str,
    decided: dict[str, Any],
    *,
    undo: str = "",
) -> Response:
    if is_part(request):
        return await render(
            request, "decided.html", waiting=waiting, what=decision, decided=decided, undo=undo
        )
    label = waiting.proposal.label
    notice = f"{label}: rejected, nothing changed."
    if decision == "applied":
        notice = f"{label}: applied."
    path = local_path(form.get("next", "")) or waiting.owner.path
    return done(request, path, notice, undo=undo)
