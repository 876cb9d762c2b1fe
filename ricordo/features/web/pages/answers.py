"""The sources of an answer, and its changes of memory.

Sources are versions of blocks, passages and messages.
"""

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
# Number of messages shown before an answer.
_MESSAGES = 20


@router.get("/{message_id}")
async def show_answer(request: Request, message_id: str) -> Response:
    """Show one answer with all its sources, each with a link."""
    scope = request.scope[REQUEST_SCOPE]

    def read(tx: Transaction) -> dict[str, Any]:
        message = messages.get(tx, scope, message_id)
        try:
            step = runs.get_step(tx, scope, message.step_id or "")
        except NotFound:  # a user's message, or a step that is not saved yet
            step = None
        memory: dict[str, Any] = step.memory if step else {}
        block_versions = history.of_blocks(tx, scope, memory.get("blocks", {}))
        passage_ids = memory.get("passages", [])
        passages = archives.visible_passages(tx, scope, passage_ids)
        changed = []
        proposed = []
        if message.step_id:
            changed = history.of_step(tx, scope, message.run_id or "", message.step_id)
            proposed = proposals.of_step(tx, scope, message.step_id)
        earlier = Page(limit=_MESSAGES, after=message.id)
        questions = queries.messages_of_runs(tx, scope, [message.run_id])
        return {
            "message": message,
            "step": step,
            "held": block_versions,
            "blocks_in_view": memory.get("blocks", {}),
            "passages": passages,
            "forgotten": len(passage_ids) - len(passages),
            "changed": changed,
            "proposed": proposed,
            "pages": queries.pages_of_blocks(tx, [*block_versions.values(), *changed]),
            "before": messages.page(tx, scope, earlier, conversation_id=message.conversation_id),
            "question": questions.get(message.run_id or "", ""),
        }

    variables = await request.app.state.runtime.store.read(read)
    agent = await Api(request).find(f"/v1/agents/{variables['message'].agent_id}")
    path = f"/v1/steps/{variables['message'].step_id}/trace"
    has_trace = variables["step"] is not None and await Api(request).find(path) is not None
    return await render(
        request, "answer.html", **variables, agent=agent, has_trace=has_trace, is_large=True
    )
