"""One search over messages, archives, memory blocks and facts that the caller may see."""

import asyncio
import base64
from collections.abc import Sequence
from datetime import UTC
from functools import partial
from typing import Any

from fastapi import Request, Response

from ricordo.api.call import HttpCall, for_user
from ricordo.api.search import FoundMessageResponse, MessageSearchRequest
from ricordo.domain.known_facts import FactQuery, KnownFact
from ricordo.domain.message import Message
from ricordo.domain.passage import GOOD_SIMILARITY
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import Forbidden, NotFound
from ricordo.features.web.pages import queries
from ricordo.llm.pictures import readable_picture
from ricordo.memory import user_memory
from ricordo.offload import offload
from ricordo.pages import filters
from ricordo.pages.inside import Api
from ricordo.pages.shell import HEADERS, Pages, address_of, render
from ricordo.search.index import MessageFilter
from ricordo.storage import agents, conversation_overviews, messages
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/search", scope="messages")
KINDS = ("messages", "archive", "memory")
FACTS = "facts"
_MOST = 20
# If no agent is named, at most this many agents' messages are searched. Each takes a fifth of a
# millisecond.
_MOST_AGENTS = 100


@router.get("")
async def search(request: Request) -> Response:
    """Show the results for the words in `q`: messages, passages, blocks and facts.

    `kind`, `agent`, `user` and the dates `from` and `to` narrow the search.
    """
    api = Api(request)
    names = ("q", "kind", "agent", "user", "from", "to")
    query = {name: request.query_params.get(name) or None for name in names}
    hits: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    if query["q"]:
        kinds = [kind for kind in KINDS if query["kind"] in (None, kind)]
        answers = await asyncio.gather(*(_find(request, api, kind, query) for kind in kinds))
        hits |= dict(zip(kinds, answers, strict=True))
    facts: Sequence[KnownFact] = ()
    if query["q"] and query["kind"] in (None, FACTS):
        facts = await _facts(request, query, hits["messages"])
    scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    agent_ids = {message["agent_id"] for message in hits["messages"]}
    is_narrowed = False
    if query["agent"]:
        agent_ids.add(query["agent"])
    else:
        is_narrowed = await store.read(lambda tx: agents.count(tx, scope)) > _MOST_AGENTS
    block_ids = [block["id"] for block in hits["memory"]]
    conversation_ids = {message["conversation_id"] for message in hits["messages"]}
    return await render(
        request,
        "search.html",
        given=query,
        found=hits,
        facts=facts,
        kinds=(*KINDS, FACTS),
        most_agents=_MOST_AGENTS,
        is_narrowed=is_narrowed,
        names=await store.read(
            lambda tx: conversation_overviews.names_of_agents(tx, scope, agent_ids)
        ),
        talks=await store.read(
            lambda tx: conversation_overviews.users_of_conversations(tx, scope, conversation_ids)
        ),
        owners=await store.read(lambda tx: queries.owners_of_blocks(tx, scope, block_ids)),
        without=lambda name: address_of("/ui/search", **{**query, name: None}),
        with_kind=lambda kind: address_of("/ui/search", **{**query, "kind": kind}),
    )


@router.get("/pictures/{picture_message_id}")
async def picture(request: Request, picture_message_id: str, number: int = 0) -> Response:
    """Show one stored picture of a message that the caller may read; `number` counts from 0."""
    scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    message: Message = await store.read(lambda tx: messages.get(tx, scope, picture_message_id))
    stored = readable_picture(message.pictures[number]) if number in _range_of(message) else None
    if stored is None or stored.data is None:
        raise NotFound("This message has no such stored picture.")
    content = await offload(partial(base64.b64decode, stored.data), len(stored.data))
    return Response(content, media_type=stored.media_type, headers=HEADERS)


def _range_of(message: Message) -> range:
    return range(len(message.pictures))


async def _find(request: Request, api: Api, kind: str, query: dict[str, str | None]) -> list[Any]:
    """Return the results of one kind, in the API's order.

    The list of blocks is empty if the caller may not search them, and if the search is narrowed to
    an agent or to dates.
    """
    body = {
        "query": query["q"],
        "limit": _MOST,
        "agent_id": query["agent"],
        "user_id": query["user"],
        "start_date": query["from"],
        "end_date": query["to"],
    }
    body = {name: field for name, field in body.items() if field is not None}
    if kind == "memory":
        if query["agent"] or query["from"] or query["to"]:
            return []
        blocks = await api.find(
            "/v1/blocks/", value_search=query["q"], limit=_MOST, user_id=query["user"]
        )
        return blocks or []
    if kind == "archive":
        hits = await api.ask("POST", "/v1/passages/search", body)
    elif query["agent"]:
        hits = await api.ask("POST", "/v1/messages/search", body)
    else:
        hits = await _messages_of_all(request, MessageSearchRequest.model_validate(body))
    beginnings = filters.stems(query["q"] or "")
    return [hit for hit in hits if _is_near(hit, beginnings)]


async def _facts(
    request: Request, query: dict[str, str | None], hits: Sequence[dict[str, Any]]
) -> list[KnownFact]:
    """Return facts about the person that the search names, or about the caller.

    The list is empty if the caller may not read that person's memory.
    """
    scope = request.scope[REQUEST_SCOPE]
    plugins = request.app.state.runtime.plugins
    name = query["user"] or scope.user_id
    if not name or not scope.may("memory:read"):
        return []
    dates = MessageSearchRequest(start_date=query["from"], end_date=query["to"])
    start, end = dates.span(UTC)
    ids = tuple(hit["message_id"] for hit in hits)

    def find(tx: Transaction) -> list[KnownFact]:
        user = user_memory.open_memory(tx, scope, name).user
        fact_query = FactQuery(user.id, query["q"] or "", ids, query["agent"], start, end)
        found: list[KnownFact] = plugins.known_facts(tx, fact_query)
        return found

    try:
        facts: list[KnownFact] = await request.app.state.runtime.store.read(find)
    except (NotFound, Forbidden):
        return []
    return facts


async def _messages_of_all(request: Request, body: MessageSearchRequest) -> list[Any]:
    """Return found messages of all agents, in the form of the API.

    If there are more than 100 agents, only those that were used last are searched.
    """
    runtime = request.app.state.runtime
    context = await for_user(HttpCall(runtime, request.scope[REQUEST_SCOPE], request), body.user_id)
    start, end = body.span(UTC)

    def message_filter(tx: Transaction) -> MessageFilter:
        ids = conversation_overviews.agents_used_last(tx, context.scope, _MOST_AGENTS)
        return MessageFilter(
            tuple(ids),
            roles=("user", "assistant"),
            subject_id=context.scope.subject_id,
            start=start,
            end=end,
            own_first=True,
        )

    hits = await runtime.recall_for(context.scope).messages(
        body.query or "", message_filter, body.limit
    )
    return [FoundMessageResponse.of(hit) for hit in hits]


def _is_near(hit: dict[str, Any], beginnings: list[str]) -> bool:
    """Return True if the text itself matches, by a word or by its meaning.

    Other results match only by the turns around them.
    """
    relevance = hit.get("relevance") or hit["metadata"]
    text = (hit["content"] if "content" in hit else hit["passage"]["text"]).casefold()
    return (relevance["similarity"] or 0) >= GOOD_SIMILARITY or any(
        stem in text for stem in beginnings
    )
