"""The context window of an agent: what is in it by tokens, what was taken out of it and when, and the prompt of a step."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.domain.message import Message
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import NotFound
from ricordo.features.web.pages import queries
from ricordo.llm.adaptation import learned_of
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, render

router = Pages("/ui/agents/{agent_id}/context", scope="agents")
# The parts of a window in their order, as the API counts them, with the name that people read.
SECTIONS = (
    ("num_tokens_system", "Instructions", "system_prompt"),
    ("num_tokens_core_memory", "Memory blocks", "core_memory"),
    ("num_tokens_external_memory_summary", "What lies outside", "external_memory_summary"),
    ("num_tokens_tool_usage_rules", "Rules of tools", "tool_usage_rules"),
    ("num_tokens_directories", "Open files", "directories"),
    ("num_tokens_functions_definitions", "Tools", "functions_definitions"),
    ("num_tokens_summary_memory", "Summary", "summary_memory"),
    ("num_tokens_messages", "Messages", "messages"),
)
_WIDTH, _MOST_SUMMARIES = 1000, 20


@router.get("")
async def show_context(request: Request, agent_id: str) -> Response:
    """The window of one conversation, by default the agent's own; with `step` the prompt that was sent in that step."""
    api, asked = Api(request), request.query_params
    agent = await api.get(f"/v1/agents/{agent_id}")
    conversation, step = asked.get("conversation") or None, asked.get("step") or None
    found = await api.get(f"/v1/agents/{agent_id}/context", conversation_id=conversation)
    runtime, scope = request.app.state.runtime, request.scope[REQUEST_SCOPE]
    summaries: Sequence[Message] = ()
    if scope.may("messages:read"):
        opened = await open_conversation(runtime, scope, conversation or DEFAULT, agent_id)
        summaries = await runtime.store.read(
            lambda tx: queries.summaries(tx, scope, opened.id, _MOST_SUMMARIES)
        )
    return await render(
        request,
        "context.html",
        agent=agent,
        conversation=conversation,
        window=found,
        sections=_sections(found),
        summaries=summaries,
        trace=await api.find(f"/v1/steps/{step}/trace") if step else None,
        step=step,
        lessons=_lessons(request, agent["model"] or ""),
        is_large=True,
    )


def _lessons(request: Request, handle: str) -> list[str]:
    """What the agent's model was learned to need, in words."""
    models = request.app.state.runtime.organization_providers.known(
        request.scope[REQUEST_SCOPE].organization_id
    )
    try:
        learned = learned_of(models.get(handle))
    except NotFound:
        return []
    return learned.lines() if learned else []


def _sections(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The sections with their texts, and where each lies in a bar of a thousand units for the whole window."""
    whole, at = max(found["context_window_size_max"], found["context_window_size_current"], 1), 0.0
    sections = []
    for number, (count, name, text) in enumerate(SECTIONS):
        tokens = found.get(count) or 0
        width = tokens * _WIDTH / whole
        if tokens:
            given = {
                "name": name,
                "tokens": tokens,
                "at": round(at, 1),
                "width": round(max(width, 1), 1),
            }
            sections.append({**given, "number": number, "text": found.get(text)})
        at += width
    return sections
