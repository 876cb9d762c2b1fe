"""One search over what was said, the archives and the memory blocks, of all that the caller may see."""

import asyncio
from datetime import UTC
from typing import Any

from fastapi import Request, Response

from ricordo.api.call import CallContext, for_user
from ricordo.api.search import FoundMessageResponse, MessageSearchRequest
from ricordo.domain.passage import GOOD_SIMILARITY
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.features.web.pages import queries
from ricordo.pages import filters
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, render
from ricordo.search.index import MessageFilter
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/search", scope="messages")
KINDS = ("messages", "archive", "memory")
_MOST, _LEAST = 20, 3
# Agents whose messages are searched at once where none is named: each costs a fifth of a millisecond.
_MOST_AGENTS = 100


@router.get("")
async def search(request: Request) -> Response:
    """What the words in `q` find: messages, passages and blocks, or one kind of them, of one agent or user."""
    asked, api = request.query_params, Api(request)
    given = {name: asked.get(name) or None for name in ("q", "kind", "agent", "user", "from", "to")}
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    if given["q"]:
        wanted = [kind for kind in KINDS if given["kind"] in (None, kind)]
        answers = await asyncio.gather(*(_find(request, api, kind, given) for kind in wanted))
        found |= dict(zip(wanted, answers, strict=True))
    scope, store = request.scope[REQUEST_SCOPE], request.app.state.runtime.store
    ids = {one["agent_id"] for one in found["messages"]} | (
        {given["agent"]} if given["agent"] else set()
    )
    return await render(
        request,
        "search.html",
        given=given,
        found=found,
        kinds=KINDS,
        most_agents=_MOST_AGENTS,
        is_narrowed=not given["agent"]
        and await store.read(lambda tx: agents.count(tx, scope)) > _MOST_AGENTS,
        names=await store.read(lambda tx: queries.names_of_agents(tx, scope, ids)),
        owners=await store.read(
            lambda tx: queries.owners_of_blocks(tx, scope, [one["id"] for one in found["memory"]])
        ),
        without=lambda name: address_of("/ui/search", **{**given, name: None}),
        with_kind=lambda kind: address_of("/ui/search", **{**given, "kind": kind}),
    )


async def _find(request: Request, api: Api, kind: str, given: dict[str, str | None]) -> list[Any]:
    """The results of one kind, in the order of the API's; none where the caller may not ask for them."""
    body = {
        "query": given["q"],
        "limit": _MOST,
        "agent_id": given["agent"],
        "user_id": given["user"],
        "start_date": given["from"],
        "end_date": given["to"],
    }
    sent = {name: value for name, value in body.items() if value is not None}
    if kind == "memory":
        if given["agent"] or given["from"] or given["to"]:
            return []
        return (
            await api.find(
                "/v1/blocks/", value_search=given["q"], limit=_MOST, user_id=given["user"]
            )
            or []
        )
    if kind == "archive":
        found = await api.ask("POST", "/v1/passages/search", sent)
    elif given["agent"]:
        found = await api.ask("POST", "/v1/messages/search", sent)
    else:
        found = await _messages_of_all(request, MessageSearchRequest.model_validate(sent))
    beginnings = filters.stems(given["q"] or "")
    return [one for one in found if _is_near(one, beginnings)] or found[:_LEAST]


async def _messages_of_all(request: Request, body: MessageSearchRequest) -> list[Any]:
    """The results of the API's search, with the agents that were used last where there are very many."""
    runtime = request.app.state.runtime
    context = await for_user(
        CallContext(request, runtime, request.scope[REQUEST_SCOPE]), body.user_id
    )
    start, end = body.span(UTC)

    def wanted(tx: Transaction) -> MessageFilter:
        ids = queries.agents_used_last(tx, context.scope, _MOST_AGENTS)
        return MessageFilter(
            tuple(ids),
            None,
            ("user", "assistant"),
            context.scope.subject_id,
            start,
            end,
            own_first=True,
        )

    found = await runtime.recall.messages(body.query or "", wanted, body.limit)
    return [FoundMessageResponse.of(one) for one in found]


def _is_near(one: dict[str, Any], beginnings: list[str]) -> bool:
    """Whether the text itself answers, by a word or by its meaning; others are found for the turns around them."""
    relevance = one.get("relevance") or one["metadata"]
    text = (one["content"] if "content" in one else one["passage"]["text"]).casefold()
    return (relevance["similarity"] or 0) >= GOOD_SIMILARITY or any(
        stem in text for stem in beginnings
    )
