"""The context window of an agent: its tokens, its summaries, and the prompt of a step."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.domain.message import Message
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import NotFound
from ricordo.llm.adaptation import learned_of
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, render, require_id
from ricordo.storage import conversation_overviews

router = Pages("/ui/agents/{agent_id}/context", scope="agents")
# The parts of a window in order, with the names that the API and people use.
SECTIONS = (
    ("num_tokens_system", "Instructions", "system_prompt"),
    ("num_tokens_core_memory", "Memory blocks", "core_memory"),
    ("num_tokens_external_memory_summary", "Outside the window", "external_memory_summary"),
    ("num_tokens_tool_usage_rules", "Rules of tools", "tool_usage_rules"),
    ("num_tokens_directories", "Open files", "directories"),
    ("num_tokens_functions_definitions", "Tools", "functions_definitions"),
    ("num_tokens_summary_memory", "Summary", "summary_memory"),
    ("num_tokens_messages", "Messages", "messages"),
)
_WIDTH = 1000  # units of the bar
_MOST_SUMMARIES = 20


@router.get("")
async def show_context(request: Request, agent_id: str) -> Response:
    """Show the window of a conversation, by default the agent's default one.

    With `step` the page shows the prompt of that step.
    """
    api = Api(request)
    agent = await api.get(f"/v1/agents/{agent_id}")
    conversation = request.query_params.get("conversation") or None
    step = request.query_params.get("step") or None
    window = await api.get(f"/v1/agents/{agent_id}/context", conversation_id=conversation)
    runtime = request.app.state.runtime
    scope = request.scope[REQUEST_SCOPE]
    trace = None
    if step:
        trace = await api.find(f"/v1/steps/{require_id(step, 'step')}/trace")
    summaries: Sequence[Message] = ()
    if scope.may("messages:read"):
        opened = await open_conversation(runtime, scope, conversation or DEFAULT, agent_id)
        summaries = await runtime.store.read(
            lambda tx: conversation_overviews.summaries(tx, scope, opened.id, _MOST_SUMMARIES)
        )
    return await render(
        request,
        "context.html",
        agent=agent,
        conversation=conversation,
        window=window,
        sections=_sections(window),
        summaries=summaries,
        trace=trace,
        step=step,
        lessons=_lessons(request, agent["model"] or ""),
        is_large=True,
    )


def _lessons(request: Request, handle: str) -> list[str]:
    """Return the lessons about the agent's model as sentences."""
    models = request.app.state.runtime.organization_providers.known(
        request.scope[REQUEST_SCOPE].organization_id
    )
    try:
        learned = learned_of(models.get(handle))
    except NotFound:
        return []
    return learned.lines() if learned else []


def _sections(window: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sections with their texts and their positions in a bar."""
    # The bar shows only the used part, since that part would be too thin in a large window.
    size = max(sum(window.get(count) or 0 for count, _, _ in SECTIONS), 1)
    start = 0.0
    sections = []
    for number, (count, name, text) in enumerate(SECTIONS):
        tokens = window.get(count) or 0
        width = tokens * _WIDTH / size
        if tokens:
            sections.append(
                {
                    "name": name,
                    "tokens": tokens,
                    "at": round(start, 1),
                    "width": round(max(width, 1), 1),
                    "number": number,
                    "text": window.get(text),
                }
            )
        start += width
    return sections
