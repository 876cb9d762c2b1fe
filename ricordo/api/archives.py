"""Routes of archives and their passages: separate, shared, or as an agent's archival memory."""

from collections.abc import Mapping, Sequence
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
from ricordo.api.models.base import NoteResponse, TextPiece
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import parse_date, zone
from ricordo.domain.egress import permits
from ricordo.domain.ids import new_id, unique
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.text import Json
from ricordo.errors import Unsupported
from ricordo.llm.egress import embed
from ricordo.memory.commit import file_passages
from ricordo.search import index
from ricordo.search.index import PassageFilter, insert_passages
from ricordo.search.vector_index import portions
from ricordo.storage import agents, archives
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["archives"], scope="archives")
_memory = Routes(
    prefix="/v1/agents/{agent_id}/archival-memory", tags=["passages"], scope="archives"
)
# Rows of one transaction, so that a batch does not block turns for long.
_PORTION = 500


@router.post("/archives/", response_model=ArchiveResponse)
async def create(context: RequestContext, body: ArchiveRequest) -> Json:
    """Create an archive; agents use it after it is attached to them."""
    usable = ["native", *context.runtime.indexes]
    if body.vector_db_provider not in usable:
        raise Unsupported(
            f'The vector database "{body.vector_db_provider}" is not set up on this server. Leave '
            f"vector_db_provider out, or use one of: {', '.join(usable)}."
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
    """List archives, by default newest first. Filters are the agent and the exact name."""
    rows = archives.page(tx, context.scope, paging.page(), agent_id=agent_id, name=name)
    return [_json(context, archive) for archive in rows]


@router.get("/archives/{archive_id}", response_model=ArchiveResponse)
def retrieve(tx: Transaction, context: RequestContext, archive_id: str) -> Json:
    """Return one archive."""
    return _json(context, archives.get(tx, context.scope, archive_id))


@router.patch("/archives/{archive_id}", response_model=ArchiveResponse)
def modify(tx: Transaction, context: RequestContext, archive_id: str, body: ArchiveUpdate) -> Json:
    """Change an archive; omitted fields keep their values."""
    archive = archives.get_for_change(tx, context.scope, archive_id)
    archives.require_changes(context.scope, archive)
    description = archive.description
    if "description" in body.model_fields_set:
        description = body.description
    changed = replace(
        archive,
        name=body.name or archive.name,
        description=description,
        metadata=archive.metadata if body.metadata is None else body.metadata,
        updated_at=tx.clock.now(),
    )
    changed = archives.without_secrets(changed)
    archives.update(tx, changed)
    return _json(context, changed)


@router.delete("/archives/{archive_id}", status_code=204, response_class=Response)
async def delete(context: RequestContext, archive_id: str) -> Response:
    """Delete an archive with its passages; its agents lose it at once."""
    await delete_archive(context.runtime, context.scope, archive_id)
    return Response(status_code=204)


@router.get("/archives/{archive_id}/agents", response_model=list[AgentResponse])
def list_agents(
    tx: Transaction, context: RequestContext, archive_id: str, paging: Paged
) -> list[Json]:
    """List the agents that use the archive."""
    archives.get(tx, context.scope, archive_id)
    states = agents.page(tx, context.scope, paging.page(), agents.uses_archive(archive_id))
    return [agent_json(context, state) for state in context.runtime.complete(tx, states)]


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

    They are stored in groups of 500; each group is stored completely or not at all. If the server
    stops during a longer request, the first groups are stored and the others are not.
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
    """Let the agent use an archive. Attaching it again changes nothing."""
    agents.require(tx, context.scope, agent_id)
    archives.get(tx, context.scope, archive_id)
    archives.attach(tx, agent_id, archive_id)
    return whole_agent(tx, context, agent_id)


@router.patch("/agents/{agent_id}/archives/detach/{archive_id}", response_model=AgentResponse)
def detach(tx: Transaction, context: RequestContext, agent_id: str, archive_id: str) -> Json:
    """Detach an archive from the agent, without deleting the archive or its passages."""
    agents.require(tx, context.scope, agent_id)
    archives.get(tx, context.scope, archive_id)
    archives.detach(tx, agent_id, archive_id)
    return whole_agent(tx, context, agent_id)


@_memory.post("", response_model=list[PassageResponse])
@needs("archives:write", "memory:write")
def archive_passage(
    tx: Transaction, context: RequestContext, agent_id: str, body: PassageRequest
) -> list[Json]:
    """Archive a passage, and return it as a list.

    A date without a zone is read in the agent's zone.
    """
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
        bool, Query(description="Include the passages' vectors. They are computed again.")
    ] = False,
) -> list[Json]:
    """List the passages of the agent's archives, by default oldest first.

    `search` is a piece of the text.
    """

    def read(tx: Transaction) -> tuple[Sequence[Archive], Sequence[Passage]]:
        attached = agents.load(tx, context.scope, agent_id).archives
        page = paging.page(default=100, order="asc")
        ids = [archive.id for archive in attached]
        return attached, archives.page_of_passages(
            tx, ids, page, search_text=search, scope=context.scope
        )

    attached, rows = await context.store.read(read)
    passages = [_passage(context, row, attached) for row in rows]
    if include_embeddings:
        await _add_vectors(context, agent_id, passages, {row.id: row.egress for row in rows})
    return passages


async def _add_vectors(
    context: RequestContext,
    agent_id: str,
    passages: Sequence[Json],
    labels: Mapping[str, str | None],
) -> None:
    """Add the vectors of passages that their embedding model may see.

    Tokens of a provider's model count toward the budgets and are in the ledger.
    """
    account = context.runtime.embedding_account(context.scope, agent_id)
    by_model: dict[str, list[Json]] = {}
    for passage in passages:
        if config := passage["embedding_config"]:
            by_model.setdefault(config["handle"], []).append(passage)
    for handle, group in by_model.items():
        embedder = context.runtime.models.embedders.get(handle)
        destination = context.runtime.networks.of_model(embedder.info)
        group = [passage for passage in group if permits(labels[passage["id"]], destination)]  # noqa: PLW2901
        vectors = await embed(
            embedder,
            [passage["text"] for passage in group],
            context.runtime.new_clearance(),
            account,
        )
        for passage, vector in zip(group, vectors, strict=True):
            passage["embedding"] = vector


@dataclass(frozen=True, slots=True)
class ArchivalQuery:
    """The query parameters of a search in an agent's archives."""

    tags: Annotated[list[str] | None, Query()] = None
    tag_match_mode: Literal["any", "all"] = "any"
    top_k: Annotated[int | None, Query(ge=1, le=100)] = None
    offset: Annotated[
        int, Query(ge=0, le=MOST_SKIPPED, description="The number of best results to skip.")
    ] = 0
    start_datetime: str | None = None
    end_datetime: str | None = None

    def filter(
        self, archive_ids: tuple[str, ...], zone: tzinfo, subject_id: str | None
    ) -> PassageFilter:
        """Return the filter that these query parameters select.

        Args:
            archive_ids: The archives to search; () finds nothing.
            zone: The time zone of dates that name none.
            subject_id: The user whose passages are found besides shared ones; NOBODY for shared
                ones only, None for all.

        Raises:
            Invalid: A date is malformed.
        """
        start = end = None
        if self.start_datetime:
            start = parse_date(self.start_datetime, zone, name="start_datetime")
        if self.end_datetime:
            end = parse_date(self.end_datetime, zone, name="end_datetime", end=True)
        return PassageFilter(
            archive_ids=archive_ids,
            tags=tuple(self.tags or ()),
            all_tags=self.tag_match_mode == "all",
            subject_id=subject_id,
            start=start,
            end=end,
        )


@_memory.get("/search", response_model=PassageSearchResponse)
async def search_passages(
    context: RequestContext, agent_id: str, query: str, options: Annotated[ArchivalQuery, Depends()]
) -> Json:
    """Search the agent's archives, best results first.

    Dates without a zone are read in the agent's zone.
    """

    def filter_of(tx: Transaction) -> PassageFilter:
        ids = tuple(archive.id for archive in archives.of_agent(tx, agent_id))
        return options.filter(
            ids, zone(agents.timezone(tx, context.scope, agent_id)), context.scope.subject_id
        )

    hits = await context.runtime.recall_for(context.scope, agent_id).passages(
        query, filter_of, options.top_k or 10, offset=options.offset
    )
    return {"results": [PassageHitResponse.of(hit) for hit in hits], "count": len(hits)}


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
    # Read all dates before storing anything, since one malformed date refuses the whole request.
    dated = [(item, item.timestamp(UTC)) for item in items]
    responses: list[Json] = []

    def insert(tx: Transaction, group: Sequence[tuple[PassageItem, int | None]]) -> list[Json]:
        archive = archives.get(tx, context.scope, archive_id)
        new = [new_passage(tx, context, item, timestamp, archive_id) for item, timestamp in group]
        insert_passages(tx, archive, new)
        return [_passage(context, passage, [archive]) for passage in new]

    for group in portions(dated, _PORTION):
        responses += await context.store.write(partial(insert, group=group))
    return responses


def new_passage(
    tx: Transaction,
    context: RequestContext,
    item: PassageItem,
    timestamp: int | None,
    archive_id: str,
) -> Passage:
    """Return a passage of the request, without its secrets. It is not stored yet.

    Args:
        tx: The transaction, for its time.
        context: The caller's context. The passage belongs to the caller's user, if there is one.
        item: The passage in the request.
        timestamp: The time of its creation in microseconds; None for now.
        archive_id: The archive, or "" if it is chosen later.
    """
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
    # Remove secrets here too, so that the answer shows the text as it will be stored.
    return archives.redacted([passage])[0]


def _passage(context: RequestContext, passage: Passage, attached: Sequence[Archive]) -> Json:
    handles = (archive.embedding for archive in attached if archive.id == passage.archive_id)
    embedding = embedding_of(context, next(handles, None))
    return PassageResponse.of(passage, embedding_config=embedding)


def _json(context: RequestContext, archive: Archive) -> Json:
    embedding = embedding_of(context, archive.embedding)
    return ArchiveResponse.of(
        archive, embedding=embedding and embedding.handle, embedding_config=embedding
    )
