"""The history of a block: versions, comparison, blame, and restore."""

from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import NotFound
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.block_address import (
    find_block,
    open_block,
    read_blame,
    read_versions,
)
from ricordo.features.web.pages.memory import outcome_of
from ricordo.features.web.pages.memory_sections import rights_at
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, form_of, render
from ricordo.storage import history, versions
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/people/{user_id}/blocks/{label:path}", scope="memory")
_by_id = Pages("/ui/blocks/{block_id}", scope="agents")
_PAGE = 50
# The most lines on a page of blame.
_LINES = 300


@_by_id.get("/history")
@router.get("/history")
async def list_versions(request: Request) -> Response:
    """List the block's versions, newest first, with a form to compare two."""
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params
    before = request.query_params.get("before")

    def read(tx: Transaction) -> dict[str, Any]:
        address = find_block(tx, scope, path_params)
        end = history.get(tx, address.chain.id, before).number if before else None
        entries, has_older = read_versions(tx, address, _PAGE, end)
        older = ""
        if has_older:
            older = address_of(f"{address.page}/history", before=entries[-1].version.id.hex())
        sources = queries.messages_of_runs(tx, scope, [entry.version.run_id for entry in entries])
        return {"address": address, "entries": entries, "older": older, "sources": sources}

    return await render(request, "history.html", **await request.app.state.runtime.store.read(read))


@_by_id.get("/versions/{sha}")
@router.get("/versions/{sha}")
async def show_version(request: Request) -> Response:
    """Show the text of a version, and its changes."""
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params

    def read(tx: Transaction) -> dict[str, Any]:
        address = find_block(tx, scope, path_params)
        chain_version = history.get(tx, address.chain.id, path_params["sha"])
        version = history.known_block_at(tx, address.chain.id, address.label, chain_version)
        if version is None:
            raise NotFound(
                f'There was no memory block "{address.label}" at this version. Choose another '
                "version."
            )
        earlier = history.before(tx, version)
        blobs = [side.blob for side in (version, earlier) if side and side.blob]
        texts = versions.read_texts(tx, address.chain.id, blobs)
        return {
            "address": address,
            "version": version,
            "earlier": earlier,
            "text": texts[version.blob] if version.blob else None,
            "text_before": texts[earlier.blob] if earlier and earlier.blob else "",
            "sources": queries.messages_of_runs(tx, scope, [version.run_id]),
            "may_restore": rights_at(scope, address).may_write,
        }

    variables = await request.app.state.runtime.store.read(read)
    block = variables["address"].block
    variables["is_current"] = bool(block and block.value == variables["text"])
    return await render(request, "version.html", **variables, is_large=True)


@_by_id.get("/compare")
@router.get("/compare")
async def compare(request: Request) -> Response:
    """Show two versions, word by word; by default the newest and the version before it."""
    address = await open_block(request)
    api = Api(request)
    query = {name: request.query_params.get(name) or None for name in ("from", "to")}
    comparison = await api.get(f"{address.api}/compare", **query)
    sides = []
    for name in query:
        sha = comparison[f"{name}_version"]
        sides.append(await api.get(f"{address.api}/versions/{sha}") if sha else None)
    if sides[0] and sides[1] and sides[0]["number"] > sides[1]["number"]:
        sides.reverse()  # the older version is always on the left
    return await render(
        request,
        "compare.html",
        address=address,
        older=sides[0],
        newer=sides[1],
        may_restore=rights_at(request.scope[REQUEST_SCOPE], address).may_write,
        is_large=True,
    )


@_by_id.get("/blame")
@router.get("/blame")
async def show_blame(request: Request) -> Response:
    """Show each line with its author, time, reason and message."""
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params
    number = request.query_params.get("line", "1")
    start = 1
    if number.isascii() and number.isdecimal() and len(number) < 9:
        start = max(1, int(number))
    store = request.app.state.runtime.store
    blame = await read_blame(request)
    lines = blame.lines(start - 1, min(blame.count, start - 1 + _LINES))

    def read(tx: Transaction) -> dict[str, Any]:
        sources = queries.messages_of_runs(tx, scope, {line.version.run_id for line in lines})
        return {
            "address": find_block(tx, scope, path_params),
            "lines": lines,
            "count": blame.count,
            "sources": sources,
        }

    variables = await store.read(read)
    page = f"{variables['address'].page}/blame"
    newer = older = ""
    if start > 1:
        newer = address_of(page, line=max(1, start - _LINES))
    if start + _LINES <= variables["count"]:
        older = address_of(page, line=start + _LINES)
    return await render(request, "blame.html", **variables, before=newer, after=older, start=start)


@_by_id.post("/restore")
@router.post("/restore")
async def restore(request: Request) -> Response:
    """Make the text of an older version the block's next version.

    A person's deleted block is created again.
    """
    address = await open_block(request)
    form = await form_of(request)
    sha = form.get("sha") or request.query_params.get("sha", "")
    before = address.block and address.block.head
    restored = await Api(request).ask("POST", f"{address.api}/restore", {"sha": sha})
    undo = ""
    if before and restored.get("version") != before.hex():
        undo = f"{address.page}/restore?sha={before.hex()}"
    return done(request, address.page, outcome_of(address, restored, "restored"), undo=undo)


router.routes += _by_id.routes
