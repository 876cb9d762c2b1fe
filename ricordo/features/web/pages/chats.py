"""The entry to the chats: the conversation that was used last, or a choice of agents."""

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.pages.inside import Api
from ricordo.pages.navigation import own_memory
from ricordo.pages.shell import Pages, address_of, done, render
from ricordo.storage import conversation_versions

router = Pages("/ui/chat", scope="messages")
_MOST_AGENTS = 100


@router.get("")
async def open_chats(request: Request) -> Response:
    """Open the caller's last conversation; without one, or with `new`, show the agents.

    Without one, the chat of an only agent is opened at once.
    """
    scope: Scope = request.scope[REQUEST_SCOPE]
    user_id = scope.subject or (scope.user_id if own_memory(scope) else "")
    own_conversations = await request.app.state.runtime.store.read(
        lambda tx: conversation_versions.own_conversations(tx, scope, user_id) if user_id else []
    )
    is_new = "new" in request.query_params
    if own_conversations and not is_new:
        last = own_conversations[0]
        return done(request, address_of(f"/ui/agents/{last.agent_id}/chat", conversation=last.id))
    agents = await Api(request).find("/v1/agents/", limit=_MOST_AGENTS) or []
    if len(agents) == 1 and not is_new:
        return done(request, f"/ui/agents/{agents[0]['id']}/chat")
    return await render(
        request,
        "chats.html",
        agents=agents,
        lists={"own": own_conversations, "shared": [], "others": [], "here": ""},
    )
