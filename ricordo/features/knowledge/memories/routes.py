"""Routes to add to a user's memory, and to search it."""

from dataclasses import replace
from itertools import zip_longest
from operator import itemgetter

from fastapi import Response

from ricordo.api.answers import answer
from ricordo.api.archives import new_passage
from ricordo.api.call import RequestContext, for_user, scope_of_user
from ricordo.api.errors import model_failure
from ricordo.api.models.archives import PassageItem
from ricordo.api.routing import Routes, needs
from ricordo.api.search import (
    MessageSearchRequest,
    PassageSearchRequest,
    search_messages,
    search_passages,
)
from ricordo.domain.passage import Relevance
from ricordo.domain.scope import IMPERSONATE
from ricordo.domain.text import Json
from ricordo.errors import Forbidden
from ricordo.features.knowledge.facts.search import matching_facts
from ricordo.features.knowledge.facts.wording import text_of
from ricordo.features.knowledge.memories import service
from ricordo.features.knowledge.memories.models import (
    AddRequest,
    AddResponse,
    ChangeResponse,
    CitationResponse,
    MemoryResponse,
    MemorySearchRequest,
    MemorySearchResponse,
)
from ricordo.memory import user_memory
from ricordo.memory.commit import file_passages
from ricordo.memory.recall import FoundMessage, FoundPassage
from ricordo.storage import agents, users
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/memories", tags=["users' memory"], scope="memory")
# The scope that a caller needs for each kind of result.
_SCOPES = {"fact": "memory:read", "passage": "archives:read", "message": "messages:read"}


@router.post("", response_model=AddResponse)
@needs("messages:write", "memory:write")
async def add(context: RequestContext, user_id: str, body: AddRequest) -> Response:
    """Add messages to a user's memory.

    An agent files the facts that matter. A change that needs the user's approval waits for it. With
    `infer` false, each text becomes a passage of the archive. Secrets in it are removed.
    """
    if body.infer:
        scope = "messages:write"
    else:
        scope = "memory:write"
    if not context.scope.may(scope):
        raise Forbidden(
            f"This key lacks the scope {scope}. Ask an administrator for a key that has it."
        )
    context = await _acting(context, user_id)
    agent_id = await service.memory_agent(context.runtime, context.scope)
    if not body.infer:
        passages = await context.store.write(lambda tx: _keep(tx, context, agent_id, body))
        return _added(passages, agent_id)
    reading = await service.add(context.runtime, context.scope, agent_id, body)
    if reading is None:
        return _added([], agent_id)
    if reading.failure:
        return model_failure(reading.failure.kind, reading.failure.message, reading.failure.detail)
    changes = await context.store.read(
        lambda tx: service.changes_of(tx, context.scope, reading.run.id)
    )
    return _added(
        [_change(filing) for filing in changes],
        agent_id,
        conversation_id=reading.run.conversation_id,
        run_id=reading.run.id,
    )


def _added(
    results: list[Json],
    agent_id: str,
    *,
    conversation_id: str | None = None,
    run_id: str | None = None,
) -> Response:
    return answer(
        AddResponse.of(
            None,
            results=results,
            agent_id=agent_id,
            conversation_id=conversation_id,
            run_id=run_id,
        )
    )


@router.post("/search", response_model=MemorySearchResponse)
@needs(*_SCOPES.values())
async def search(context: RequestContext, user_id: str, body: MemorySearchRequest) -> Json:
    """Search a user's memory, and return each result with its origin.

    Results are lines of blocks, facts, passages of archives, and messages. The user's results come
    before shared ones. Kinds of results for which the key has no scope are left out.
    """
    context = await for_user(context, user_id)
    kinds = [kind for kind in body.kinds if context.scope.may(_SCOPES[kind])]
    query = body.model_dump(include={"query", "limit", "agent_id", "start_date", "end_date"})
    lists: list[list[Json]] = []
    if "fact" in kinds:
        lists.append(await context.store.read(lambda tx: _facts(tx, context, user_id, body)))
    if "passage" in kinds:
        passages = await search_passages(context, PassageSearchRequest(**query, tags=body.tags))
        lists.append([_passage(passage) for passage in passages])
    if "message" in kinds:
        filers = service.agent_ids_of(context.scope.organization_id)
        messages = await search_messages(context, MessageSearchRequest(**query))
        lists.append(
            [
                _message(hit)
                for hit in messages
                if hit.message.agent_id not in filers or not hit.message.step_id
            ]
        )
    # Each list has a separate order, so they are merged by rank.
    merged = [
        result
        for ranked in zip_longest(*lists)
        for result in ranked
        if result and result["score"] >= body.threshold
    ]
    merged.sort(key=itemgetter("shared"))
    return {"results": merged[: body.limit]}


async def _acting(context: RequestContext, user: str) -> RequestContext:
    """Return the call on behalf of this user; a new user is created.

    Raises Forbidden if the caller may not act for the user.
    """
    if context.scope.subject_id is None and context.scope.may(IMPERSONATE):
        await scope_of_user(context.store, context.scope, user, makes=True)
    return await for_user(context, user, reads=False)


def _keep(tx: Transaction, context: RequestContext, agent_id: str, body: AddRequest) -> list[Json]:
    state = agents.load(tx, context.scope, agent_id)
    items = [
        PassageItem(text=message.text, tags=body.tags, metadata=body.metadata)
        for message in body.messages
        if message.role in ("user", "assistant") and message.text.strip()
    ]
    new = [
        replace(new_passage(tx, context, item, None, ""), user_id=context.scope.subject)
        for item in items
    ]
    if new:
        file_passages(tx, state, new)
    return [
        ChangeResponse.of(passage, event="ADD", status="applied", memory=passage.text)
        for passage in new
    ]


def _change(filing: service.Filing) -> Json:
    event = "UPDATE"
    if not filing.removed:
        event = "ADD"
    elif not filing.added:
        event = "DELETE"
    return ChangeResponse.of(
        filing,
        event=event,
        memory=filing.added or filing.removed,
        previous_memory=filing.removed or None,
        block_label=filing.label,
    )


def _facts(
    tx: Transaction, context: RequestContext, user_id: str, body: MemorySearchRequest
) -> list[Json]:
    blocks = user_memory.listed_without_skills(
        tx, user_memory.open_memory(tx, context.scope, user_id)
    )
    visible = [
        block
        for block in blocks
        if body.agent_id is None or block.agent_id in (None, body.agent_id)
    ]
    facts = service.facts_in(visible, body.query)[: body.limit]
    sources = service.sources_of(tx, facts)
    responses = []
    for fact in facts:
        version = sources[fact.block.id][fact.number].version
        citation = CitationResponse.of(
            version,
            block_label=fact.block.label,
            version=version.id.hex(),
            author=version.author.shown_name,
            message_ids=service.said_in(tx, version.run_id),
        )
        responses.append(
            MemoryResponse.of(
                fact,
                id=f"{fact.block.id}#{fact.number}",
                kind="fact",
                memory=fact.text,
                score=Relevance(0.0, word_match=fact.score).match,
                created_at=version.created_at,
                citation=citation,
            )
        )
    responses += _read_facts(tx, context, user_id, body)
    return sorted(responses, key=lambda response: -response["score"])[: body.limit]


def _read_facts(
    tx: Transaction, context: RequestContext, user_id: str, body: MemorySearchRequest
) -> list[Json]:
    """Return the matching facts that were read from conversations, with their messages."""
    user = users.require(tx, context.scope, user_id)
    return [
        MemoryResponse.of(
            fact,
            kind="fact",
            memory=text_of(fact),
            score=score,
            created_at=fact.said_at,
            citation=CitationResponse.of(
                fact, message_ids=list(dict.fromkeys(piece.message_id for piece in fact.evidence))
            ),
        )
        for fact, score in matching_facts(tx, user.id, body.query, body.limit)
        if body.agent_id in (None, fact.agent_id)
    ]


def _passage(hit: FoundPassage) -> Json:
    return MemoryResponse.of(
        hit.passage,
        kind="passage",
        memory=hit.passage.text,
        excerpt=hit.excerpt,
        score=hit.relevance.match,
        shared=hit.passage.user_id is None,
        citation=CitationResponse.of(hit.passage),
    )


def _message(hit: FoundMessage) -> Json:
    return MemoryResponse.of(
        hit.message,
        kind="message",
        memory=hit.message.text,
        excerpt=hit.excerpt,
        score=hit.relevance.match,
        shared=hit.message.user_id is None,
        citation=CitationResponse.of(hit.message, message_ids=[hit.message.id]),
    )
