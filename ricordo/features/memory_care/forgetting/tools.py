"""The tool `forget`, with which an agent asks for its user's decision."""

from ricordo.errors import Invalid
from ricordo.features.memory_care.forgetting import service
from ricordo.features.memory_care.forgetting.queries import LONGEST_REASON, ForgetRequest
from ricordo.tools.toolbox import ServerTool, ToolContext


async def forget(context: ToolContext, text: str, reason: str = "") -> str:
    """Ask that something about the person you talk with be forgotten, everywhere it is stored.

    Use it when they ask you to forget something. You cannot remove it yourself: they see a list of all
    places that say it, and decide. Do not repeat the thing in your answer.

    Args:
        text: What shall be forgotten, in the words in which it was said, as one short sentence.
        reason: Why, in few words that do not say it again.
    """
    user_id = context.scope.subject or context.state.conversation.user_id
    if user_id is None:
        raise Invalid("This conversation is about no user, so there is nothing to forget.")
    agent = context.state.agent
    request = ForgetRequest(
        "",
        agent.organization_id,
        user_id,
        text.strip(),
        reason=reason.strip()[:LONGEST_REASON] or None,
        agent_id=agent.id,
        conversation_id=context.state.conversation.id,
    )
    service.require_needle(request.text)
    await context.store.write(lambda tx: service.store_request(tx, request))
    return (
        "Asked. Nothing is forgotten yet: tell the person that the list waits on their memory page, "
        "where they choose what is removed."
    )


TOOLS = (ServerTool(forget, "letta_builtin"),)
