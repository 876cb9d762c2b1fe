"""An agent's archival memory: passages put in, listed, searched, deleted."""

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Query, Response

from ricordo.api.archive_bodies import PassageBody
from ricordo.api.archives import new_passage
from ricordo.api.call import Here, Paged, Piece, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.passages import hit_to_wire, passage_to_wire
from ricordo.api.wire.schemas import Note, PassageSearchShape, PassageShape
from ricordo.domain.clock import parse_date, zone
from ricordo.domain.passage import Passage
from ricordo.memory.step_commit import file_passages
from ricordo.search.index import PassageFilter, delete_passage
from ricordo.storage import agents, archives
from ricordo.storage.store import Transaction

router = Routes(prefix="/v1/agents/{agent_id}/archival-memory", tags=["passages"])


@router.post("", response_model=list[PassageShape])
async def create(here: Here, agent_id: str, body: PassageBody) -> Response:
    """Archive a passage; the answer is a list of it. A date without a zone is read in the agent's own."""

    def insert(tx: Transaction) -> Passage:
        state = agents.load(tx, here.scope, agent_id)
        passage = new_passage(tx, here, body, body.moment(zone(state.agent.timezone)), "")
        return replace(passage, archive_id=file_passages(tx, state, [passage])[0].id)

    return answer([passage_to_wire(await here.store.write(insert))])


@router.get("", response_model=list[PassageShape])
async def list_passages(here: Here, agent_id: str, paging: Paged, search: Piece = None) -> Response:
    """The passages of the agent's archives, oldest first unless told otherwise; `search` is a piece of the text."""
    page = paging.page(default=100, order="asc")

    def read(tx: Transaction) -> list[Passage]:
        ids = [archive.id for archive in agents.load(tx, here.scope, agent_id).archives]
        return archives.page_of_passages(tx, ids, page, search_text=search)

    return answer([passage_to_wire(passage) for passage in await here.store.read(read)])


@router.get("/search", response_model=PassageSearchShape)
async def search(
    here: Here,
    agent_id: str,
    query: str,
    tags: Annotated[list[str] | None, Query()] = None,
    tag_match_mode: Literal["any", "all"] = "any",
    top_k: Annotated[int | None, Query(ge=1, le=100)] = None,
    start_datetime: str | None = None,
    end_datetime: str | None = None,
) -> Response:
    """The best matching passages of the agent's archives, best first; dates without a zone are read in the agent's own."""

    def wanted(tx: Transaction) -> PassageFilter:
        where = zone(agents.timezone(tx, here.scope, agent_id))
        return PassageFilter(
            archive_ids=tuple(archive.id for archive in archives.of_agent(tx, agent_id)),
            tags=tuple(tags or ()),
            all_tags=tag_match_mode == "all",
            user_id=here.scope.subject_id,
            start=parse_date(start_datetime, where, name="start_datetime") if start_datetime else None,
            end=parse_date(end_datetime, where, name="end_datetime", end=True) if end_datetime else None,
        )

    found = await here.runtime.recall.passages(query, wanted, top_k or 10)
    results = [hit_to_wire(hit.passage, hit.relevance) for hit in found]
    return answer({"results": results, "count": len(results)})


@router.delete("/{memory_id}", response_model=Note)
async def delete(here: Here, agent_id: str, memory_id: str) -> Response:
    """Delete a passage."""

    def remove(tx: Transaction) -> None:
        state = agents.load(tx, here.scope, agent_id)
        delete_passage(tx, here.scope, state.archives, memory_id)

    await here.store.write(remove)
    return answer({"message": f"Memory id={memory_id} successfully deleted"})
