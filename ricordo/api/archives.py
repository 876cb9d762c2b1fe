"""Archives: made, listed, changed, deleted, filled with passages, and shared between agents."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any

from fastapi import Response

from ricordo.agents.deletion import delete_archive
from ricordo.api.archive_bodies import ArchiveBody, ArchiveChange, PassageBatchBody, PassageBody, PassageItem
from ricordo.api.call import Call, Here, Paged, agent_view, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.passages import archive_to_wire, passage_to_wire
from ricordo.api.wire.schemas import AgentShape, ArchiveShape, PassageShape
from ricordo.domain.agent import AgentState
from ricordo.domain.ids import new_id, unique
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.redaction import redact
from ricordo.errors import Unsupported
from ricordo.search import index
from ricordo.search.index import insert_passages
from ricordo.storage import agents, archives
from ricordo.storage.store import Transaction

router = Routes(prefix="/v1", tags=["archives"])
# Rows of one transaction, so that a batch never holds up a turn for long.
_PORTION = 500


@router.post("/archives/", response_model=ArchiveShape)
async def create(here: Here, body: ArchiveBody) -> Response:
    """Make an archive; agents use it once it is attached to them."""
    _require_usable(here, body)
    embedding = await here.runtime.models.embedders.choose(body.embedding_handle)

    def insert(tx: Transaction) -> Archive:
        now = tx.clock.now()
        archive = Archive(
            id=new_id("archive"),
            organization_id=here.scope.organization_id,
            name=body.name,
            description=body.description,
            embedding=embedding,
            vector_db=body.vector_db_provider,
            metadata=body.metadata or {},
            created_by=here.scope.user_id,
            created_at=now,
            updated_at=now,
        )
        return archives.insert_one(tx, archive)

    return answer(_view(here, await here.store.write(insert)))


@router.get("/archives/", response_model=list[ArchiveShape])
async def list_archives(here: Here, paging: Paged, agent_id: str | None = None, name: str | None = None) -> Response:
    """Archives, newest first unless told otherwise; those of an agent, or with this very name."""
    page = paging.page()
    found = await here.store.read(lambda tx: archives.page(tx, here.scope, page, agent_id=agent_id, name=name))
    return answer([_view(here, archive) for archive in found])


@router.get("/archives/{archive_id}", response_model=ArchiveShape)
async def retrieve(here: Here, archive_id: str) -> Response:
    """One archive."""
    return answer(_view(here, await here.store.read(lambda tx: archives.get(tx, here.scope, archive_id))))


@router.patch("/archives/{archive_id}", response_model=ArchiveShape)
async def modify(here: Here, archive_id: str, body: ArchiveChange) -> Response:
    """Change an archive; fields that are left out stay."""

    def change(tx: Transaction) -> Archive:
        archive = archives.get(tx, here.scope, archive_id)
        changed = replace(
            archive,
            name=body.name or archive.name,
            description=body.description if "description" in body.model_fields_set else archive.description,
            metadata=archive.metadata if body.metadata is None else body.metadata,
            updated_at=tx.clock.now(),
        )
        archives.update(tx, changed)
        return changed

    return answer(_view(here, await here.store.write(change)))


@router.delete("/archives/{archive_id}", status_code=204, response_class=Response)
async def delete(here: Here, archive_id: str) -> Response:
    """Delete an archive with its passages; agents that use it lose it at once."""
    await delete_archive(here.runtime, here.scope, archive_id)
    return Response(status_code=204)


@router.get("/archives/{archive_id}/agents", response_model=list[AgentShape])
async def list_agents(here: Here, archive_id: str, paging: Paged) -> Response:
    """The agents that use the archive."""
    page = paging.page()

    def read(tx: Transaction) -> list[AgentState]:
        archives.get(tx, here.scope, archive_id)
        ids = archives.page_of_agents(tx, here.scope, archive_id, page)
        return [agents.load_whole(tx, here.scope, agent_id) for agent_id in ids]

    return answer([agent_view(here, state) for state in await here.store.read(read)])


@router.post("/archives/{archive_id}/passages", response_model=PassageShape)
async def create_passage(here: Here, archive_id: str, body: PassageBody) -> Response:
    """Put a passage into the archive."""
    (made,) = await _file(here, archive_id, [body])
    return answer(passage_to_wire(made))


@router.post("/archives/{archive_id}/passages/batch", response_model=list[PassageShape])
async def create_passages(here: Here, archive_id: str, body: PassageBatchBody) -> Response:
    """Put passages into the archive, in their order. All are checked before the first is stored.

    They are stored in groups of 500, each of them whole or not at all: where the server is stopped in the middle of a longer
    request, whole groups from its beginning are there.
    """
    return answer([passage_to_wire(made) for made in await _file(here, archive_id, body.passages)])


@router.delete("/archives/{archive_id}/passages/{passage_id}", status_code=204, response_class=Response)
async def delete_passage(here: Here, archive_id: str, passage_id: str) -> Response:
    """Delete a passage of the archive."""

    def remove(tx: Transaction) -> None:
        archive = archives.get(tx, here.scope, archive_id)
        index.delete_passage(tx, here.scope, [archive], passage_id)

    await here.store.write(remove)
    return Response(status_code=204)


@router.patch("/agents/{agent_id}/archives/attach/{archive_id}", response_model=AgentShape)
async def attach(here: Here, agent_id: str, archive_id: str) -> Response:
    """Let the agent use an archive; doing it twice is the same as once."""

    def work(tx: Transaction) -> AgentState:
        _require_both(tx, here, agent_id, archive_id)
        archives.attach(tx, agent_id, archive_id)
        return agents.load_whole(tx, here.scope, agent_id)

    return answer(agent_view(here, await here.store.write(work)))


@router.patch("/agents/{agent_id}/archives/detach/{archive_id}", response_model=AgentShape)
async def detach(here: Here, agent_id: str, archive_id: str) -> Response:
    """Take an archive from the agent; it stays, with its passages."""

    def work(tx: Transaction) -> AgentState:
        _require_both(tx, here, agent_id, archive_id)
        archives.detach(tx, agent_id, archive_id)
        return agents.load_whole(tx, here.scope, agent_id)

    return answer(agent_view(here, await here.store.write(work)))


async def _file(here: Call, archive_id: str, items: Sequence[PassageItem]) -> list[Passage]:
    # Read before anything is stored: a date that is none refuses all of them.
    moments = [item.moment(UTC) for item in items]
    made: list[Passage] = []
    for start in range(0, len(items), _PORTION):
        portion = slice(start, start + _PORTION)

        def insert(tx: Transaction, portion: slice = portion) -> list[Passage]:
            archive = archives.get(tx, here.scope, archive_id)
            new = [
                new_passage(tx, here, item, moment, archive_id)
                for item, moment in zip(items[portion], moments[portion], strict=True)
            ]
            insert_passages(tx, archive, new)
            return new

        made += await here.store.write(insert)
    return made


def new_passage(tx: Transaction, here: Call, item: PassageItem, moment: int | None, archive_id: str) -> Passage:
    """A passage as it was sent, not yet stored; made at `moment`, else now."""
    now = tx.clock.now()
    return Passage(
        id=new_id("passage"),
        organization_id=here.scope.organization_id,
        archive_id=archive_id,
        text=redact(item.text).text,
        tags=tuple(unique(item.tags or ())),
        metadata=item.metadata or {},
        user_id=here.scope.subject_id,
        created_by=here.scope.user_id,
        created_at=now if moment is None else moment,
        updated_at=now,
    )


def _view(here: Call, archive: Archive) -> dict[str, Any]:
    embedders = here.runtime.models.embedders
    handle = archive.embedding or embedders.default_handle()
    return archive_to_wire(archive, embedders.info(handle) if handle else None)


def _require_both(tx: Transaction, here: Call, agent_id: str, archive_id: str) -> None:
    agents.require(tx, here.scope, agent_id)
    archives.get(tx, here.scope, archive_id)


def _require_usable(here: Call, body: ArchiveBody) -> None:
    """Raise Unsupported where the vectors could not be kept."""
    usable = ["native", *here.runtime.indexes]
    if body.vector_db_provider not in usable:
        raise Unsupported(
            f'The vector database "{body.vector_db_provider}" is not set up on this server. '
            f"Leave vector_db_provider out, or choose one of: {', '.join(usable)}."
        )
