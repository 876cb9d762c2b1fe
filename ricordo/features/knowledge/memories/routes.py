"""The two routes: adding to a user's memory, and searching all that is kept of the user."""

from dataclasses import replace
from itertools import zip_longest

from fastapi import Response

from ricordo.api.answers import answer
from ricordo.api.archives import new_passage
from ricordo.api.call import RequestContext, for_user, scope_of_user
from ricordo.api.errors import model_failure
from ricordo.api.models.archives import PassageItem
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes, needs
from ricordo.api.search import (
    MessageSearchRequest,
    PassageSearchRequest,
    search_messages,
    search_passages,
)
from ricordo.domain.passage import Relevance
from ricordo.domain.scope import IMPERSONATE
from ricordo.errors import Forbidden
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
from ricordo.memory.recall import FoundMessage, FoundPassage
from ricordo.memory.step_commit import file_passages
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/memories", tags=["users' memory"], scope="memory")
# What each kind of result needs of the caller.
_NEEDED = {"fact": "memory:read", "passage": "archives:read", "message": "messages:read"}


@router.post("", response_model=AddResponse)
@needs("messages:write", "memory:write")
async def add(context: RequestContext, user_id: str, body: AddRequest) -> Response:
    """Add messages to a user's memory: an agent files what is worth keeping, and what the user has to approve waits.

    With `infer` false nothing is inferred: each text becomes a passage of the archive, as it is.
    """
    needed = "messages:write" if body.infer else "memory:write"
    if not context.scope.may(needed):
        raise Forbidden(
            f"This key lacks the scope {needed}. Ask an administrator for a key that has it."
        )
    context = await _acting(context, user_id)
    agent_id = await service.memory_agent(context.runtime, context.scope)
    if not body.infer:
        kept = await context.store.write(lambda tx: _keep(tx, context, agent_id, body))
        return answer(
            AddResponse.of(None, results=kept, agent_id=agent_id, conversation_id=None, run_id=None)
        )
    done = await service.add(context.runtime, context.scope, agent_id, body)
    if done is None:
        return answer(
            AddResponse.of(None, results=[], agent_id=agent_id, conversation_id=None, run_id=None)
        )
    if done.failure:
        return model_failure(done.failure.kind, done.failure.message, done.failure.detail)
    changes = await context.store.read(
        lambda tx: service.changes_of(tx, context.scope, done.run.id)
    )
    place = {"conversation_id": done.run.conversation_id, "run_id": done.run.id}
    return answer(
        AddResponse.of(None, results=list(map(_change, changes)), agent_id=agent_id, **place)
    )


@router.post("/search", response_model=MemorySearchResponse)
@needs(*_NEEDED.values())
async def search(context: RequestContext, user_id: str, body: MemorySearchRequest) -> Json:
    """Search a user's memory: the lines of blocks, passages of archives, and what was said, each with where it comes from.

    Kinds of results that the key has no scope for are left out.
    """
    context = await for_user(context, user_id)
    kinds = [kind for kind in body.kinds if context.scope.may(_NEEDED[kind])]
    asked = body.model_dump(include={"query", "limit", "agent_id", "start_date", "end_date"})
    lists: list[list[Json]] = []
    if "fact" in kinds:
        lists.append(await context.store.read(lambda tx: _facts(tx, context, user_id, body)))
    if "passage" in kinds:
        passages = await search_passages(context, PassageSearchRequest(**asked, tags=body.tags))
        lists.append([_passage(one) for one in passages])
    if "message" in kinds:
        filers = service.agent_ids_of(context.scope.organization_id)
        messages = await search_messages(context, MessageSearchRequest(**asked))
        lists.append(
            [
                _message(one)
                for one in messages
                if one.message.agent_id not in filers or not one.message.step_id
            ]
        )
    # Each list is in its own order; they are merged by rank.
    merged = [
        one
        for ranked in zip_longest(*lists)
        for one in ranked
        if one and one["score"] >= body.threshold
    ]
    return {"results": merged[: body.limit]}


async def _acting(context: RequestContext, user: str) -> RequestContext:
    """The call as this user, who is made where new. Raises Forbidden where the caller may not act for the user."""
    if context.scope.subject_id is None and context.scope.may(IMPERSONATE):
        await scope_of_user(context.store, context.scope, user, makes=True)
    return await for_user(context, user, reads=False)


def _keep(tx: Transaction, context: RequestContext, agent_id: str, body: AddRequest) -> list[Json]:
    state = agents.load(tx, context.scope, agent_id)
    items = [
        PassageItem(text=one.text, tags=body.tags, metadata=body.metadata)
        for one in body.messages
        if one.role in ("user", "assistant") and one.text.strip()
    ]
    new = [
        replace(new_passage(tx, context, item, None, ""), user_id=context.scope.subject)
        for item in items
    ]
    if new:
        file_passages(tx, state, new)
    return [ChangeResponse.of(one, event="ADD", status="applied", memory=one.text) for one in new]


def _change(one: service.Filing) -> Json:
    event = "ADD" if not one.removed else "UPDATE" if one.added else "DELETE"
    memory, before = one.added or one.removed, one.removed or None
    return ChangeResponse.of(
        one, event=event, memory=memory, previous_memory=before, block_label=one.label
    )


def _facts(
    tx: Transaction, context: RequestContext, user_id: str, body: MemorySearchRequest
) -> list[Json]:
    blocks = user_memory.listed(tx, user_memory.open_memory(tx, context.scope, user_id))
    seen = [
        block
        for block in blocks
        if body.agent_id is None or block.agent_id in (None, body.agent_id)
    ]
    found = service.facts_in(seen, body.query)[: body.limit]
    sources = service.sources_of(tx, found)
    made = []
    for fact in found:
        version = sources[fact.block.id][fact.number].version
        citation = CitationResponse.of(
            version,
            block_label=fact.block.label,
            version=version.id.hex(),
            author=version.author.shown_name,
            message_ids=service.said_in(tx, version.run_id),
        )
        made.append(
            MemoryResponse.of(
                fact,
                id=f"{fact.block.id}#{fact.number}",
                kind="fact",
                memory=fact.text,
                created_at=version.created_at,
                citation=citation,
            )
        )
    return made


def _passage(found: FoundPassage) -> Json:
    citation = CitationResponse.of(found.passage)
    given = {
        "kind": "passage",
        "memory": found.passage.text,
        "score": _score(found.relevance),
        "citation": citation,
    }
    return MemoryResponse.of(found.passage, **given)


def _message(found: FoundMessage) -> Json:
    citation = CitationResponse.of(found.message, message_ids=[found.message.id])
    given = {
        "kind": "message",
        "memory": found.message.text,
        "score": _score(found.relevance),
        "citation": citation,
    }
    return MemoryResponse.of(found.message, **given)


def _score(why: Relevance) -> float:
    """How well something matches at all, by its words or by its meaning, whichever is more."""
    return max(0.0, min(1.0, max(why.word_match, why.similarity or 0.0)))
