"""The tool `forget`: an agent asks for its user's decision, or removes at once."""

import asyncio
import time

from ricordo.features.memory_care.forgetting import service
from ricordo.features.memory_care.forgetting.options import ForgetSettings
from ricordo.features.memory_care.forgetting.queries import LONGEST_REASON, ForgetRequest
from ricordo.tools.toolbox import ServerTool, ToolContext

_LONGEST_WAIT = 10.0  # seconds
_PAUSE = 0.02  # seconds


async def forget(context: ToolContext, text: str, reason: str = "") -> str:
    """Ask that something the person told you be forgotten, wherever it is stored: blocks, messages, archive.

    Use it when they ask you to forget something, and file nothing about it. Do not repeat the thing in your answer.

    Args:
        text: What shall be forgotten, in the words in which it was said: one sentence a line.
        reason: Why, in few words that do not say it again.
    """
    service.require_needle(text)
    scope = context.scope
    conversation = context.state.conversation
    user_id = scope.subject or conversation.user_id or ""
    request = ForgetRequest(
        "",
        context.state.agent.organization_id,
        user_id,
        text.strip(),
        reason=reason.strip()[:LONGEST_REASON] or None,
        agent_id=context.state.agent.id,
        conversation_id=conversation.id,
    )
    is_direct = ForgetSettings.current().forget_policy == "direct"
    # A page, a file or another agent may say "forget everything". If the step read such content,
    # the owner decides.
    is_asked_by_person = not (context.step.is_untrusted() or context.step.callers)
    if is_direct and is_asked_by_person:
        return await _forget_at_once(context, request)
    return await _ask(context, request)


async def _ask(context: ToolContext, request: ForgetRequest) -> str:
    """Store the request for its owner: the user, else the agent's creator or the local user."""
    maker = context.state.agent.created_by
    await context.store.write(lambda tx: service.store_request(tx, request, maker))
    if request.user_id:
        return (
            "Asked. Nothing is forgotten yet. Tell the person to open their memory page and "
            "choose what to remove."
        )
    return (
        "Asked. Nothing is forgotten yet. The person who runs this agent decides, on the page "
        "Memory."
    )


async def _forget_at_once(context: ToolContext, request: ForgetRequest) -> str:
    """Begin to remove every text with these words, and wait up to ten seconds for a first pass.

    Texts of the turn itself are removed after it.
    """
    receipt_id = await service.forget_at_once(
        context.runtime, request, is_local_user=context.scope.is_local_user
    )
    until = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < until:
        if await service.has_passed_once(context.runtime, request, receipt_id):
            return "Forgotten: every text with these words was removed or replaced by a mark."
        await asyncio.sleep(_PAUSE)
    return "It is being forgotten: texts with these words are removed in a moment."


TOOLS = (ServerTool(forget, "letta_builtin", acts_outside=True, is_base=True, stays_here=True),)
