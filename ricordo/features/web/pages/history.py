"""The history of a block: its versions, one of them, two compared, who wrote which line, and the way back to an older text."""

from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import NotFound
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.block_address import find_block, open_block, read_versions
from ricordo.features.web.pages.memory import outcome_of
from ricordo.memory.blame import Place, blame_beside
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, form_of, render
from ricordo.storage import history, versions
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/people/{user_id}/blocks/{label:path}", scope="memory")
_by_id = Pages("/ui/blocks/{block_id}", scope="agents")
_PAGE = 50
# Lines with their authors on one page.
_LINES = 300


@_by_id.get("/history")
@router.get("/history")
async def list_versions(request: Request) -> Response:
    """The block's versions, newest first, of which two can be compared."""
    scope, given, before = (
        request.scope[REQUEST_SCOPE],
        request.path_params,
        request.query_params.get("before"),
    )

    def read(tx: Transaction) -> dict[str, Any]:
        address = find_block(tx, scope, given)
        end = history.get(tx, address.chain.id, before).number if before else None
        entries, has_older = read_versions(tx, address, _PAGE, end)
        older = (
            address_of(f"{address.page}/history", before=entries[-1].version.id.hex())
            if has_older
            else ""
        )
        sources = queries.messages_of_runs(tx, scope, [entry.version.run_id for entry in entries])
        return {"address": address, "entries": entries, "older": older, "sources": sources}

    return await render(request, "history.html", **await request.app.state.runtime.store.read(read))


@_by_id.get("/versions/{sha}")
@router.get("/versions/{sha}")
async def show_version(request: Request) -> Response:
    """The text as it was at a version, and what that version changed."""
    scope, given = request.scope[REQUEST_SCOPE], request.path_params

    def read(tx: Transaction) -> dict[str, Any]:
        address = find_block(tx, scope, given)
        named = history.get(tx, address.chain.id, given["sha"])
        version = history.block_at(tx, address.chain.id, address.label, named)
        if version is None:
            raise NotFound(
                f'There was no memory block "{address.label}" at this version. Choose another version.'
            )
        earlier = history.before(tx, version)
        blobs = [one.blob for one in (version, earlier) if one and one.blob]
        texts = versions.read_texts(tx, address.chain.id, blobs)
        return {
            "address": address,
            "version": version,
            "earlier": earlier,
            "text": texts[version.blob] if version.blob else None,
            "text_before": texts[earlier.blob] if earlier and earlier.blob else "",
            "sources": queries.messages_of_runs(tx, scope, [version.run_id]),
        }

    found = await request.app.state.runtime.store.read(read)
    found["is_current"] = bool(
        found["address"].block and found["address"].block.value == found["text"]
    )
    return await render(request, "version.html", **found, is_large=True)


@_by_id.get("/compare")
@router.get("/compare")
async def compare(request: Request) -> Response:
    """Two versions, word by word; by default the newest with the one before it."""
    address, api = await open_block(request), Api(request)
    asked = {name: request.query_params.get(name) or None for name in ("from", "to")}
    found = await api.get(f"{address.api}/compare", **asked)
    both = [
        await api.get(f"{address.api}/versions/{sha}")
        if (sha := found[f"{side}_version"])
        else None
        for side in asked
    ]
    if both[0] and both[1] and both[0]["number"] > both[1]["number"]:
        both.reverse()  # the older one is on the left, in whichever order they were chosen
    return await render(
        request, "compare.html", address=address, older=both[0], newer=both[1], is_large=True
    )


@_by_id.get("/blame")
@router.get("/blame")
async def show_blame(request: Request) -> Response:
    """Each line with who wrote it, when, why, and in answer to which message."""
    scope, given = request.scope[REQUEST_SCOPE], request.path_params
    number = request.query_params.get("line", "1")
    start = (
        max(1, int(number)) if number.isascii() and number.isdecimal() and len(number) < 9 else 1
    )

    store = request.app.state.runtime.store

    def place(tx: Transaction) -> Place:
        address = find_block(tx, scope, given)
        return address.chain.id, address.label

    blame = await blame_beside(store, place)
    shown = blame.lines(start - 1, min(blame.count, start - 1 + _LINES))

    def read(tx: Transaction) -> dict[str, Any]:
        sources = queries.messages_of_runs(tx, scope, {line.version.run_id for line in shown})
        return {
            "address": find_block(tx, scope, given),
            "lines": shown,
            "count": blame.count,
            "sources": sources,
        }

    found = await store.read(read)
    page = f"{found['address'].page}/blame"
    newer = address_of(page, line=max(1, start - _LINES)) if start > 1 else ""
    older = address_of(page, line=start + _LINES) if start + _LINES <= found["count"] else ""
    return await render(request, "blame.html", **found, before=newer, after=older, start=start)


@_by_id.post("/restore")
@router.post("/restore")
async def restore(request: Request) -> Response:
    """Make the text of a version the block's next one; a person's block that was deleted comes back."""
    address, form = await open_block(request), await form_of(request)
    sha = form.get("sha") or request.query_params.get("sha", "")
    before = address.block and address.block.head
    restored = await Api(request).ask("POST", f"{address.api}/restore", {"sha": sha})
    undo = (
        f"{address.page}/restore?sha={before.hex()}"
        if before and restored.get("version") != before.hex()
        else ""
    )
    return done(request, address.page, outcome_of(address, restored, "restored"), undo=undo)


router.routes += _by_id.routes
