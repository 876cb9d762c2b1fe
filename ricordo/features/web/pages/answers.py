"""Why an answer is as it is: the versions of blocks, the passages and the messages it was made from, and what it led to."""

from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import NotFound
from ricordo.features.web.pages import queries
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, render
from ricordo.storage import archives, history, messages, proposals, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/answers", scope="messages")
# Messages before an answer that are shown.
_MESSAGES = 20


@router.get("/{message_id}")
async def show_answer(request: Request, message_id: str) -> Response:
    """One answer with all that it was made from, each with a link."""
    scope = request.scope[REQUEST_SCOPE]

    def read(tx: Transaction) -> dict[str, Any]:
        message = messages.get(tx, scope, message_id)
        try:
            step = runs.get_step(tx, scope, message.step_id or "")
        except NotFound:  # what a user said, or a step that is saved with its end
            step = None
        memory: dict[str, Any] = step.memory if step else {}
        held = history.of_blocks(tx, scope, memory.get("blocks", {}))
        named = memory.get("passages", [])
        changed = (
            history.of_step(tx, scope, message.run_id or "", message.step_id)
            if message.step_id
            else []
        )
        wanted = Page(limit=_MESSAGES, after=message.id)
        passages = [
            one
            for one in archives.passages_by_ids(tx, named)
            if one.organization_id == scope.organization_id and scope.sees(one.user_id)
        ]
        return {
            "message": message,
            "step": step,
            "held": held,
            "blocks_in_view": memory.get("blocks", {}),
            "passages": passages,
            "forgotten": len(named) - len(passages),
            "changed": changed,
            "proposed": proposals.of_step(tx, scope, message.step_id) if message.step_id else [],
            "pages": queries.pages_of_blocks(tx, [*held.values(), *changed]),
            "before": messages.page(tx, scope, wanted, conversation_id=message.conversation_id),
            "question": queries.messages_of_runs(tx, scope, [message.run_id]).get(
                message.run_id or "", ""
            ),
        }

    found = await request.app.state.runtime.store.read(read)
    agent = await Api(request).find(f"/v1/agents/{found['message'].agent_id}")
    path = f"/v1/steps/{found['message'].step_id}/trace"
    has_trace = found["step"] is not None and await Api(request).find(path) is not None
    return await render(
        request, "answer.html", **found, agent=agent, has_trace=has_trace, is_large=True
    )
