"""Archives and their passages: on their own, shared between agents, and as an agent's archival memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import partial
from typing import Annotated, Literal

from fastapi import Depends, Query, Response

from ricordo.agents.deletion import delete_archive
from ricordo.api.call import (
    Paged,
    RequestContext,
    agent_json,
    embedding_of,
    note,
    whole_agent,
)
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.archives import (
    MOST_SKIPPED,
    ArchiveRequest,
    ArchiveResponse,
    ArchiveUpdate,
    PassageBatchRequest,
    PassageHitResponse,
    PassageItem,
    PassageRequest,
    PassageResponse,
    PassageSearchResponse,
)
from ricordo.api.models.base import Json, NoteResponse, TextPiece
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import parse_date, zone
from ricordo.domain.ids import new_id, unique
from ricordo.domain.passage import Archive, Passage
from ricordo.errors import Unsupported
from ricordo.memory.step_commit import file_passages
from ricordo.search import index
from ricordo.search.index import PassageFilter, insert_passages
from ricordo.search.vector_index import portions
from ricordo.storage import agents, archives
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["archives"], scope="archives")
_memory = Routes(
    prefix="/v1/agents/{agent_id}/archival-memory", tags=["passages"], scope="archives"
)
# Rows of one transaction, so that a batch never holds up a turn for long.
_PORTION = 500


@router.post("/archives/", response_model=ArchiveResponse)
async def create(context: RequestContext, body: ArchiveRequest) -> Json:
    """Make an archive; agents use it once it is attached to them."""
    usable = ["native", *context.runtime.indexes]
    if body.vector_db_provider not in usable:
        raise Unsupported(
            f'The vector database "{body.vector_db_provider}" is not set up on this server. '
            f"Leave vector_db_provider out, or choose one of: {', '.join(usable)}."
        )
    embedding = await context.runtime.models.embedders.choose(body.embedding_handle)

    def insert(tx: Transaction) -> Archive:
        now = tx.clock.now()
        archive = Archive(
            id=new_id("archive"),
            organization_id=context.scope.organization_id,
            name=body.name,
            description=body.description,
            embedding=embedding,
            vector_db=body.vector_db_provider,
            metadata=body.metadata or {},
            created_by=context.scope.user_id,
            created_at=now,
            updated_at=now,
        )
        return archives.insert_one(tx, archive)

    return _json(context, await context.store.write(insert))


@router.get("/archives/", response_model=list[ArchiveResponse])
def list_archives(
    tx: Transaction,
    context: RequestContext,
    paging: Paged,
    agent_id: str | None = None,
    name: str | None = None,
) -> list[Json]:
    """Archives, by default newest first; those of an agent, or with this very name."""
    found = archives.page(tx, context.scope, paging.page(), agent_id=agent_id, name=name)
    return [_json(context, archive) for archive in found]


@router.get("/archives/{archive_id}", response_model=ArchiveResponse)
def retrieve(tx: Transaction, context: RequestContext, archive_id: str) -> Json:
    """One archive."""
    return _json(context, archives.get(tx, context.scope, archive_id))


@router.patch("/archives/{archive_id}", response_model=ArchiveResponse)
def modify(tx: Transaction, context: RequestContext, archive_id: str, body: ArchiveUpdate) -> Json:
    """Change an archive; fields that are left out stay."""
    archive = archives.get(tx, context.scope, archive_id)
    archives.require_changes(context.scope, archive)
    changed = replace(
        archive,
        name=body.name or archive.name,
        description=body.description
        if "description" in body.model_fields_set
        else archive.description,
        metadata=archive.metadata if body.metadata is None else body.metadata,
        updated_at=tx.clock.now(),
    )
    changed = archives.without_secrets(changed)
    archives.update(tx, changed)
    return _json(context, changed)


@router.delete("/archives/{archive_id}", status_code=204, response_class=Response)
async def delete(context: RequestContext, archive_id: str) -> Response:
    """Delete an archive with its passages; agents that use it lose it at once."""
    await delete_archive(context.runtime, context.scope, archive_id)
    return Response(status_code=204)


@router.get("/archives/{archive_id}/agents", response_model=list[AgentResponse])
def list_agents(
    tx: Transaction, context: RequestContext, archive_id: str, paging: Paged
) -> list[Json]:
    """The agents that use the archive."""
    archives.get(tx, context.scope, archive_id)
    found = agents.page(tx, context.scope, paging.page(), agents.uses_archive(archive_id))
    return [agent_json(context, state) for state in context.runtime.complete_all(tx, found)]


@router.post("/archives/{archive_id}/passages", response_model=PassageResponse)
@needs("archives:write", "memory:write")
async def create_passage(context: RequestContext, archive_id: str, body: PassageRequest) -> Json:
    """Put a passage into the archive."""
    return (await _file(context, archive_id, [body]))[0]


@router.post("/archives/{archive_id}/passages/batch", response_model=list[PassageResponse])
@needs("archives:write", "memory:write")
async def create_passages(
    context: RequestContext, archive_id: str, body: PassageBatchRequest
) -> list[Json]:
    """Put passages into the archive, in their order. All are checked before the first is stored.

    They are stored in groups of 500, each of them whole or not at all: where the server is stopped in the middle of a longer
    request, whole groups from its beginning are there.
    """
    return await _file(context, archive_id, body.passages)


@router.delete(
    "/archives/{archive_id}/passages/{passage_id}", status_code=204, response_class=Response
)
@needs("archives:write", "memory:write")
def delete_passage(
    tx: Transaction, context: RequestContext, archive_id: str, passage_id: str
) -> Response:
    """Delete a passage of the archive."""
    index.delete_passage(
        tx, context.scope, [archives.get(tx, context.scope, archive_id)], passage_id
    )
    return Response(status_code=204)


@router.patch("/agents/{agent_id}/archives/attach/{archive_id}", response_model=AgentResponse)
def attach(tx: Transaction, context: RequestContext, agent_id: str, archive_id: str) -> Json:
    """Let the agent use an archive; doing it twice is the same as once."""
    agents.require(tx, context.scope, agent_id)
    archives.get(tx, context.scope, archive_id)
    archives.attach(tx, agent_id, archive_id)
    return whole_agent(tx, context, agent_id)


@router.patch("/agents/{agent_id}/archives/detach/{archive_id}", response_model=AgentResponse)
def detach(tx: Transaction, context: RequestContext, agent_id: str, archive_id: str) -> Json:
    """Take an archive from the agent; it stays, with its passages."""
    agents.require(tx, context.scope, agent_id)
    archives.get(tx, context.scope, archive_id)
    archives.detach(tx, agent_id, archive_id)
    return whole_agent(tx, context, agent_id)


@_memory.post("", response_model=list[PassageResponse])
@needs("archives:write", "memory:write")
def archive_passage(
    tx: Transaction, context: RequestContext, agent_id: str, body: PassageRequest
) -> list[Json]:
    """Archive a passage; the answer is a list of it. A date without a zone is read in the agent's own."""
    state = agents.load(tx, context.scope, agent_id)
    passage = new_passage(tx, context, body, body.timestamp(zone(state.agent.timezone)), "")
    passage = replace(passage, user_id=state.conversation.user_id)
    archive = file_passages(tx, state, [passage])[0]
    return [_passage(context, replace(passage, archive_id=archive.id), [archive])]


@_memory.get("", response_model=list[PassageResponse])
async def list_passages(
    context: RequestContext,
    agent_id: str,
    paging: Paged,
    search: TextPiece = None,
    include_embeddings: Annotated[
        bool, Query(description="With the passages' vectors, which are computed anew.")
    ] = False,
) -> list[Json]:
    """The passages of the agent's archives, by default oldest first; `search` is a piece of the text."""

    def read(tx: Transaction) -> tuple[Sequence[Archive], Sequence[Passage]]:
        known, page = (
            agents.load(tx, context.scope, agent_id).archives,
            paging.page(default=100, order="asc"),
        )
        ids = [archive.id for archive in known]
        return known, archives.page_of_passages(
            tx, ids, page, search_text=search, scope=context.scope
        )

    known, found = await context.store.read(read)
    shown = [_passage(context, one, known) for one in found]
    by_model: dict[str, list[Json]] = {}
    for one in shown if include_embeddings else ():
        if config := one["embedding_config"]:
            by_model.setdefault(config["handle"], []).append(one)
    for handle, same in by_model.items():
        vectors = await context.runtime.models.embedders.get(handle).embed(
            [one["text"] for one in same]
        )
        for one, vector in zip(same, vectors, strict=True):
            one["embedding"] = vector
    return shown


@dataclass(frozen=True, slots=True)
class ArchivalQuery:
    """Which passages of an agent are looked for."""

    tags: Annotated[list[str] | None, Query()] = None
    tag_match_mode: Literal["any", "all"] = "any"
    top_k: Annotated[int | None, Query(ge=1, le=100)] = None
    offset: Annotated[
        int, Query(ge=0, le=MOST_SKIPPED, description="How many of the best results to pass over.")
    ] = 0
    start_datetime: str | None = None
    end_datetime: str | None = None

    def filter(
        self, archive_ids: tuple[str, ...], where: tzinfo, subject_id: str | None
    ) -> PassageFilter:
        start = (
            parse_date(self.start_datetime, where, name="start_datetime")
            if self.start_datetime
            else None
        )
        end = (
            parse_date(self.end_datetime, where, name="end_datetime", end=True)
            if self.end_datetime
            else None
        )
        return PassageFilter(
            archive_ids,
            tuple(self.tags or ()),
            self.tag_match_mode == "all",
            subject_id,
            start,
            end,
        )


@_memory.get("/search", response_model=PassageSearchResponse)
async def search_passages(
    context: RequestContext, agent_id: str, query: str, wanted: Annotated[ArchivalQuery, Depends()]
) -> Json:
    """The best matching passages of the agent's archives, best first; dates without a zone are read in the agent's own."""

    def filter_of(tx: Transaction) -> PassageFilter:
        ids = tuple(archive.id for archive in archives.of_agent(tx, agent_id))
        return wanted.filter(
            ids, zone(agents.timezone(tx, context.scope, agent_id)), context.scope.subject_id
        )

    found = await context.runtime.recall.passages(
        query, filter_of, wanted.top_k or 10, offset=wanted.offset
    )
    return {"results": [PassageHitResponse.of(hit) for hit in found], "count": len(found)}


@_memory.delete("/{memory_id}", response_model=NoteResponse)
@needs("archives:write", "memory:write")
def delete_archived(
    tx: Transaction, context: RequestContext, agent_id: str, memory_id: str
) -> Json:
    """Delete a passage."""
    index.delete_passage(
        tx, context.scope, agents.load(tx, context.scope, agent_id).archives, memory_id
    )
    return note(f"Memory id={memory_id} successfully deleted")


router.routes += _memory.routes


async def _file(
    context: RequestContext, archive_id: str, items: Sequence[PassageItem]
) -> list[Json]:
    # Read before anything is stored: a date that is none refuses all of them.
    dated = [(item, item.timestamp(UTC)) for item in items]
    made: list[Json] = []

    def insert(tx: Transaction, some: Sequence[tuple[PassageItem, int | None]]) -> list[Json]:
        archive = archives.get(tx, context.scope, archive_id)
        new = [new_passage(tx, context, item, timestamp, archive_id) for item, timestamp in some]
        insert_passages(tx, archive, new)
        return [_passage(context, one, [archive]) for one in new]

    for some in portions(dated, _PORTION):
        made += await context.store.write(partial(insert, some=some))
    return made


def new_passage(
    tx: Transaction,
    context: RequestContext,
    item: PassageItem,
    timestamp: int | None,
    archive_id: str,
) -> Passage:
    """A passage as it was sent, not yet stored; made at `timestamp`, else now."""
    now = tx.clock.now()
    passage = Passage(
        id=new_id("passage"),
        organization_id=context.scope.organization_id,
        archive_id=archive_id,
        text=item.text,
        tags=tuple(unique(item.tags or ())),
        metadata=item.metadata or {},
        user_id=context.scope.subject,
        created_by=context.scope.user_id,
        created_at=now if timestamp is None else timestamp,
        updated_at=now,
    )
    # Here too, so that the answer shows what is stored.
    return archives.redacted([passage])[0]


def _passage(context: RequestContext, passage: Passage, known: Sequence[Archive]) -> Json:
    named = next((archive.embedding for archive in known if archive.id == passage.archive_id), None)
    return PassageResponse.of(passage, embedding_config=embedding_of(context, named))


def _json(context: RequestContext, archive: Archive) -> Json:
    embedding = embedding_of(context, archive.embedding)
    return ArchiveResponse.of(
        archive, embedding=embedding and embedding.handle, embedding_config=embedding
    )
