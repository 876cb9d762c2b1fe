"""The archive of an agent: search, add, correct and delete passages."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import Invalid
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, address_of, done, form_of, render
from ricordo.storage import agents, archives
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/agents/{agent_id}/archive", scope="archives")
_PAGE = 30


@router.get("")
@needs("agents:read")
async def show_archive(request: Request, agent_id: str) -> Response:
    """Show the newest passages, or search results with their relevance."""
    api = Api(request)
    agent = await api.get(f"/v1/agents/{agent_id}")
    query = request.query_params
    search_text = query.get("q") or None
    tag = query.get("tag") or None
    home = f"/v1/agents/{agent_id}/archival-memory"
    older = ""
    if search_text or tag:
        body: dict[str, object] = {"agent_id": agent_id, "limit": _PAGE}
        if search_text:
            body["query"] = search_text
        if tag:
            body["tags"] = [tag]
        hits = await api.ask("POST", "/v1/passages/search", body)
        passages = [
            {**hit["passage"], "relevance": hit["metadata"] if search_text else None}
            for hit in hits
        ]
    else:
        after = query.get("after") or None
        rows = await api.get(home, after=after, limit=_PAGE + 1, ascending="false")
        passages = [{**row, "relevance": None} for row in rows[:_PAGE]]
        if rows[_PAGE:]:
            older = address_of(f"/ui/agents/{agent_id}/archive", after=passages[-1]["id"])
    return await render(
        request,
        "archive.html",
        agent=agent,
        passages=passages,
        words=search_text,
        tag=tag,
        older=older,
        page=_PAGE,
    )


@router.post("")
@needs("archives:write", "memory:write")
async def add_passage(request: Request, agent_id: str) -> Response:
    form = await form_of(request)
    await Api(request).ask("POST", f"/v1/agents/{agent_id}/archival-memory", _passage(form))
    return done(request, f"/ui/agents/{agent_id}/archive", "Added to the archive.")


@router.post("/{passage_id}")
@needs("archives:write", "memory:write")
async def change_passage(request: Request, agent_id: str, passage_id: str) -> Response:
    """Replace a passage: the new passage is stored before the old passage is deleted."""
    api = Api(request)
    form = await form_of(request)
    scope = request.scope[REQUEST_SCOPE]

    def require(tx: Transaction) -> None:
        archives.lock_passage(tx, scope, agents.load(tx, scope, agent_id).archives, passage_id)

    await request.app.state.runtime.store.write(require)
    home = f"/v1/agents/{agent_id}/archival-memory"
    added = await api.ask("POST", home, _passage(form))
    try:
        await api.ask("DELETE", f"{home}/{passage_id}")
    except RefusedByApi:  # another request has already replaced it
        for passage in added:
            await api.ask("DELETE", f"{home}/{passage['id']}")
        raise
    return done(request, f"/ui/agents/{agent_id}/archive", "Changed.")


@router.post("/{passage_id}/delete")
@needs("archives:write", "memory:write")
async def delete_passage(request: Request, agent_id: str, passage_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/agents/{agent_id}/archival-memory/{passage_id}")
    return done(request, f"/ui/agents/{agent_id}/archive", "Deleted from the archive.")


def _passage(form: dict[str, str]) -> dict[str, object]:
    text = form.get("text", "").strip()
    if not text:
        raise Invalid("The text is empty. Write a text for the archive.")
    tags = [tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()]
    return {"text": text, "tags": tags}
