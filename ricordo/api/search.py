"""Searches of messages and passages across agents and archives, and the import of past messages for them."""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from fastapi import Response

from ricordo.agents.history import PastMessage, import_messages
from ricordo.api.call import Here, RequestContext, answer
from ricordo.api.models.archives import FoundPassageResponse
from ricordo.api.models.search import (
    FoundMessageResponse,
    ImportRequest,
    ImportResponse,
    MessageSearchRequest,
    PassageSearchRequest,
    StoredMessageHitResponse,
    StoredMessageSearchRequest,
)
from ricordo.api.routing import Routes
from ricordo.domain.clock import zone
from ricordo.errors import Unsupported
from ricordo.memory.recall import FoundMessage
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.storage import agents, archives, conversations
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1")
_SPOKEN: tuple[str, ...] = ("user", "assistant")


@router.post("/messages/search", response_model=list[FoundMessageResponse], tags=["search"])
async def search_messages(here: Here, body: MessageSearchRequest) -> Response:
    """The best matching of what users and agents said, with one agent or with all, best first.

    Dates without a zone are read in the agent's own, or in UTC where no agent is named. Without a query: the newest.
    """
    return answer([FoundMessageResponse.from_hit(hit.message, hit.relevance) for hit in await _messages(here, body)])


@router.post("/agents/messages/search", response_model=list[StoredMessageHitResponse], tags=["search"])
async def search_stored_messages(here: Here, body: StoredMessageSearchRequest) -> Response:
    """The same search; messages come whole, with their ranks, and results of tools are among them where `roles` names "tool"."""
    return answer(
        [StoredMessageHitResponse.from_hit(hit.message, hit.relevance) for hit in await _messages(here, body)]
    )


@router.post("/passages/search", response_model=list[FoundPassageResponse], tags=["search"])
async def search_passages(here: Here, body: PassageSearchRequest) -> Response:
    """The best matching passages of an archive, of an agent's archives, or of all, best first. Without a query: the newest."""
    body.refuse_unsupported()

    def wanted(tx: Transaction) -> PassageFilter:
        where: tzinfo = UTC
        if body.agent_id:
            where = zone(agents.timezone(tx, here.scope, body.agent_id))
        if body.archive_id:
            archives.get(tx, here.scope, body.archive_id)
        if body.agent_id:
            ids = [archive.id for archive in archives.of_agent(tx, body.agent_id)]
            ids = [id for id in ids if body.archive_id in (None, id)]
        else:
            ids = [body.archive_id] if body.archive_id else archives.ids(tx, here.scope)
        start, end = body.span(where)
        tags, is_all = tuple(body.tags or ()), body.tag_match_mode == "all"
        return PassageFilter(tuple(ids), tags, is_all, here.scope.subject_id, start, end)

    found = await here.runtime.recall.passages(body.query or "", wanted, body.limit, body.search_mode)
    return answer([FoundPassageResponse.from_hit(hit.passage, hit.relevance) for hit in found])


@router.post("/agents/{agent_id}/messages/import", response_model=ImportResponse, tags=["messages"])
async def import_past(here: Here, agent_id: str, body: ImportRequest) -> Response:
    """Store past messages of the user and the agent, oldest first: search finds them, the window stays as it is.

    Send an `otid` with each message, and the request can be repeated: what is stored already is not stored again.
    """
    past = [PastMessage(item.role, tuple(item.texts), item.name, item.created_at, item.otid) for item in body.messages]
    conversation_id = None if body.conversation_id == "default" else body.conversation_id
    return answer({"message_ids": await import_messages(here.store, here.scope, agent_id, past, conversation_id)})


async def _messages(here: RequestContext, body: MessageSearchRequest) -> Sequence[FoundMessage]:
    body.refuse_unsupported()
    conversation_id = body.conversation_id
    if conversation_id == "default":
        if not body.agent_id:
            raise Unsupported('Each agent has a conversation "default" of its own. Name the agent with agent_id.')
        conversation_id = conversations.default_id(body.agent_id)

    def wanted(tx: Transaction) -> MessageFilter:
        where: tzinfo = zone(agents.timezone(tx, here.scope, body.agent_id)) if body.agent_id else UTC
        ids = [body.agent_id] if body.agent_id else agents.ids(tx, here.scope)
        named = conversations.get(tx, conversation_id) if conversation_id else None
        if conversation_id and named is None:
            ids = []  # it was deleted, though forks of it may still share what was said there
        shared = conversations.shared_by(tx, named) if named else ()
        start, end = body.span(where)
        roles = tuple(body.roles or _SPOKEN)
        return MessageFilter(tuple(ids), conversation_id, roles, here.scope.subject_id, start, end, shared)

    return await here.runtime.recall.messages(body.query or "", wanted, body.limit, body.search_mode)
